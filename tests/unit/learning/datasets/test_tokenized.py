"""Prompts as token ids: the same as the policy would make, chat template applied, read back by row."""

from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pipeline.files import write_whole
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.datasets.made import AdditionConfig
from pipeline.learning.datasets.prepared import (
    PreparedDataset,
    TokenizedPrompts,
    encode_prompts,
    prepare,
    tokenized,
    unknown_pieces,
)
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.outputs.formats import TOKENIZED, read_tokenized

TEMPLATE = (
    "<s>{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% if not loop.last %}/{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}/[assistant]{% endif %}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, <s> before every text, and a chat template."""
    vocabulary = {"<s>": 0, **{chr(code): code - 31 for code in range(32, 127)}}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", chat_template=TEMPLATE)


def text_of(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return str(tokenizer.decode(ids))


def test_conversations_go_through_the_template_once(tokenizer: PreTrainedTokenizerFast) -> None:
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    begun = {"role": "assistant", "content": "so"}
    encoded = encode_prompts(tokenizer, [[user], [system, user], [user, begun]])
    assert [text_of(tokenizer, ids) for ids in encoded] == [
        "<s>[user]u/[assistant]",
        "<s>[system]s/[user]u/[assistant]",
        "<s>[user]u/[assistant]so",
    ]
    assert [ids.count(0) for ids in encoded] == [1, 1, 1]


@pytest.mark.parametrize("chat", [False, True])
def test_prompts_of_a_prepared_dataset(tmp_path: Path, tokenizer: PreTrainedTokenizerFast, chat: bool) -> None:
    (tmp_path / "a.csv").write_text("prompt\n" + "".join(f"{n:04d}?\n" for n in range(1200)))
    config = FilesConfig(kind="csv", path=str(tmp_path / "a.csv"), chat=chat, test_size=100, validation_size=50)
    prepare(load_dataset(config), tmp_path / "rows")
    dataset = PreparedDataset(tmp_path / "rows")
    about = tokenized(dataset, tokenizer, tmp_path / "tokens")
    prompts = TokenizedPrompts(tmp_path / "tokens")
    around = len("<s>[user]/[assistant]") - 2 if chat else 1
    assert about == {"rows": 1200, "longest": 5 + around, "tokens": 1200 * (5 + around)}
    assert prompts.about == about
    assert len(prompts) == len(set(prompts)) == 1200
    for row_id in (0, 17, 1199):
        assert prompts[row_id] == encode_prompts(tokenizer, [dataset.row(row_id).prompt])[0]
    with pytest.raises(KeyError, match="no prompt of row 1200"):
        prompts[1200]


def test_prompts_of_a_dataset_that_makes_its_rows(tmp_path: Path) -> None:
    config = AdditionConfig(kind="addition", digits=2, test_size=40, validation_size=20)
    dataset = load_dataset(config)
    tokenized(dataset, make_tokenizer(dataset), tmp_path, splits=["test"])
    prompts = TokenizedPrompts(tmp_path)
    assert list(prompts) == dataset.ids("test").tolist()
    first = int(dataset.ids("test")[0])
    tokens = "".join(dataset.vocabulary[token] for token in prompts[first])
    assert tokens == f"<bos>{dataset.row(first).prompt}"


def test_what_the_tokenizer_does_not_know_is_told_and_costs_other_prompts_no_byte(tmp_path: Path) -> None:
    dataset = load_dataset(AdditionConfig(kind="addition", test_size=5, validation_size=5))
    tiny = make_tokenizer(dataset)
    assert unknown_pieces(tiny, encode_prompts(tiny, ["12+3=", "=", ""])) == ""
    assert "note" not in tokenized(dataset, tiny, tmp_path / "known", ("test",))
    note = unknown_pieces(tiny, encode_prompts(tiny, ["What? 1", "2+2="]))
    assert f"reads as {tiny.bos_token}: 6 of their tokens. " in note
    assert note.endswith("Use a model that knows it (models.hf.path), or prompts of + 0 1 2 3 4 5 6 7 8 9 =")
    write_whole(tmp_path / "own.jsonl", '{"prompt": "a"}\n{"prompt": "1"}\n{"prompt": "2"}\n')
    own = load_dataset(FilesConfig(kind="jsonl", path=str(tmp_path / "own.jsonl")))
    prepare(own, tmp_path / "rows")
    told = tokenized(PreparedDataset(tmp_path / "rows"), tiny, tmp_path / "own")["note"]
    assert ": 1 of their tokens. " in told
    assert read_tokenized(tmp_path / "own" / TOKENIZED).note == told


def test_long_prompts_are_encoded_few_at_a_time(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load_dataset(AdditionConfig(kind="addition", digits=1, test_size=40, validation_size=1))
    tokenized(dataset, tokenizer, tmp_path / "whole", splits=["test"])
    asked: list[int] = []
    monkeypatch.setattr(
        "pipeline.learning.datasets.prepared._TOKENIZED_BATCH_SIZE", 30
    )  # characters; a prompt has 4
    monkeypatch.setattr(
        "pipeline.learning.datasets.prepared.encode_prompts",
        lambda given, prompts, _: asked.append(len(prompts)) or encode_prompts(given, prompts),
    )
    tokenized(dataset, tokenizer, tmp_path / "parts", splits=["test"])
    assert asked == [8, 8, 8, 8, 8, 0]
    assert dict(TokenizedPrompts(tmp_path / "parts")) == dict(TokenizedPrompts(tmp_path / "whole"))
