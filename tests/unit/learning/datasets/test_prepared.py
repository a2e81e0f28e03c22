"""Preparing a source once: what is written, what comes back, and that equal sources give equal bytes."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pipeline.errors import DataError
from pipeline.files import write_whole
from pipeline.learning.datasets import rows as look_module
from pipeline.learning.datasets.base import SPLITS, Row, load_dataset
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset
from pipeline.learning.datasets.prepared import (
    FILE,
    PreparedDataset,
    TokenizedPrompts,
    encode_prompts,
    prepare,
    tokenized,
    unknown_pieces,
)
from pipeline.learning.datasets.rows import Look, SplitRows, deal, identity, look_at
from pipeline.learning.datasets.shipped import AdditionConfig
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.outputs.formats import TOKENIZED, read_tokenized

Make = Callable[..., FilesConfig]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write JSON lines and name them in a configuration."""

    def write(*rows: dict[str, Any], name: str = "train.jsonl", **settings: Any) -> FilesConfig:
        path = tmp_path / "source" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        small = {"kind": "jsonl", "path": str(path), "test_size": 3, "validation_size": 2, **settings}
        return FilesConfig(**small)

    return write


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{n} + 1 =", "solution": str(n + 1), "n": n} for n in range(count)]


def prepared(config: FilesConfig, folder: Path) -> PreparedDataset:
    prepare(load_dataset(config), folder)
    return PreparedDataset(folder)


def as_files(config: FilesConfig) -> FilesDataset:
    dataset = load_dataset(config)
    assert isinstance(dataset, FilesDataset)
    return dataset


def test_rows_come_back_as_they_were(make: Make, tmp_path: Path) -> None:
    dataset = prepared(make(*numbered(20)), tmp_path / "out")
    everything = np.concatenate([dataset.ids(split) for split in SPLITS])
    assert sorted(everything.tolist()) == list(range(20))
    for n in everything.tolist():
        assert dataset.row(n) == Row(n, f"{n} + 1 =", {"n": n, "solution": str(n + 1)})
    assert dataset.about["rows"] == {"train": 15, "validation": 2, "test": 3}
    assert dataset.about["columns"] == ["n", "solution"]


def test_conversations_preferences_and_odd_columns_come_back(make: Make, tmp_path: Path) -> None:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"frage {n} \n\u00fc \U0001f600"}],
            "chosen": [{"role": "assistant", "content": "ja"}],
            "rejected": [{"role": "assistant", "content": "nein"}],
            # Types and names that differ from row to row.
            **({"extra": {"deep": [n, None, 1.5]}} if n % 2 else {"extra": "text", "other": True}),
        }
        for n in range(8)
    ]
    dataset = prepared(make(*rows), tmp_path / "out")
    assert dataset.about["conversational"] is True
    assert dataset.about["answers"] == ["chosen", "rejected"]
    for n in range(8):
        expected = {"extra": rows[n]["extra"], "other": rows[n].get("other")}
        assert dataset.row(n) == Row(
            n, rows[n]["prompt"], expected, chosen=rows[n]["chosen"], rejected=rows[n]["rejected"]
        )


def test_equal_sources_give_equal_bytes_wherever_they_are(make: Make, tmp_path: Path) -> None:
    config = make(*numbered(50))
    prepare(load_dataset(config), tmp_path / "one")
    elsewhere = tmp_path / "other place" / "odd name.jsonl"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(Path(str(config.path)).read_bytes())
    config.path = str(elsewhere)
    prepare(load_dataset(config), tmp_path / "two")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [FILE, "test.parquet", "train.parquet", "validation.parquet"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_sources_of_their_own_for_test_and_validation(make: Make, tmp_path: Path) -> None:
    test = make({"prompt": "0 + 1 =", "solution": "1"}, {"prompt": "x"}, name="held.jsonl").path
    dev = make({"prompt": "1  +  1 ="}, {"prompt": "y"}, name="mine.jsonl").path
    dataset = prepared(make(*numbered(10), test_path=test, validation_path=dev), tmp_path / "out")
    assert {dataset.row(i).prompt for i in dataset.ids("test").tolist()} == {"0 + 1 =", "x"}
    assert {dataset.row(i).prompt for i in dataset.ids("validation").tolist()} == {"1  +  1 =", "y"}
    assert {dataset.row(i).prompt for i in dataset.ids("train").tolist()} == {f"{n} + 1 =" for n in range(2, 10)}


def test_splits_by_name_and_limit(make: Make, tmp_path: Path) -> None:
    make(*numbered(9), name="train.jsonl")
    make({"prompt": "dev"}, name="dev.jsonl")
    folder = Path(str(make(*numbered(5), name="extra.jsonl").path)).parent
    config = FilesConfig(kind="jsonl", path=str(folder), test_size=1, validation_size=1, limit=4)
    dataset = prepared(config, tmp_path / "one")
    assert dataset.about["rows"] == {"train": 3, "validation": 1, "test": 1}
    config.train_split, config.limit = "extra", None
    assert prepared(config, tmp_path / "two").about["rows"] == {"train": 4, "validation": 1, "test": 1}
    config.train_split = "exra"
    with pytest.raises(DataError, match=r"unknown split 'exra'. Did you mean 'extra'\? Known: extra, train, val"):
        prepare(load_dataset(config), tmp_path / "three")


def test_a_test_split_alone_is_trained_on_where_that_is_asked_for_alone(make: Make, tmp_path: Path) -> None:
    folder = Path(str(make(*numbered(9), name="test.jsonl").path)).parent
    config = FilesConfig(kind="jsonl", path=str(folder), test_size=1, validation_size=1)
    with pytest.raises(DataError, match=r"its only split is 'test'.*train_split=test"):
        prepare(load_dataset(config), tmp_path / "one")
    config.train_split = "test"
    assert prepared(config, tmp_path / "two").about["rows"] == {"train": 7, "validation": 1, "test": 1}


class TestALookAtTheFirstRows:
    """Of files on this machine, before a run starts."""

    def test_they_are_made_as_preparation_makes_them(self, make: Make) -> None:
        look = look_at(as_files(make({"prompt": "a"}, {"prompt": "b", "n": 1}, {"prompt": "c"})))
        assert (look.first, list(look.columns), look.number, look.is_all) == (Row(0, "a", {}), ["n"], 3, True)
        assert look_at(as_files(make(*numbered(5), {"prompt": ""}, limit=5))).is_all
        with pytest.raises(DataError, match=r"train\.jsonl:2: the prompt is empty"):
            look_at(as_files(make({"prompt": "a"}, {"prompt": ""})))

    @pytest.mark.parametrize(
        ("rows", "settings", "said"),
        [
            ([{"prompt": "a"}, {"prompt": [{"role": "user", "content": "b"}]}], {}, "conversation, but that of"),
            (numbered(5), {"further_columns": ["nosuch"]}, "further_columns: unknown column 'nosuch'"),
            ([{"prompt": "a"}] * 5, {}, "only 1 different prompt: too few to cut"),
        ],
        ids=["two forms", "further columns", "one prompt"],
    )
    def test_what_preparation_would_refuse_is_refused(
        self, make: Make, tmp_path: Path, rows: list[dict[str, Any]], settings: dict[str, Any], said: str
    ) -> None:
        dataset = as_files(make(*rows, **settings))
        for refuse in (look_at, partial(prepare, out=tmp_path / "out")):
            with pytest.raises(DataError, match=said):
                refuse(dataset)

    def test_no_more_are_made_than_take_a_moment(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = as_files(make(*numbered(5)))
        with monkeypatch.context() as patch:
            patch.setattr(look_module, "LOOKED_AT", 3)
            look = look_at(dataset)
        assert (look.number, look.is_all) == (3, False)
        monkeypatch.setattr(look_module, "LOOK_S", -1.0)
        assert look_at(dataset) == Look()

    def test_a_file_that_is_read_whole_for_its_first_row_is_left_to_preparation(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = as_files(make({"question": "a"}, name="train.json"))
        with pytest.raises(DataError, match="no prompt"):
            look_at(dataset)
        monkeypatch.setattr(look_module, "_READ_WHOLE", 5)
        assert look_at(dataset) == Look()


def _turn(content: str, **more: Any) -> list[dict[str, Any]]:
    return [{**more, "content": content, "role": "user"}]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Why?", " Why? \r\n", True),
        ("Caf\u00e9?", "Cafe\u0301?", True),
        (_turn("Why?"), _turn("Why?", name="me", weight=1, other=None), True),
        (_turn("Why?"), [{"role": "system", "content": " "}, *_turn("Why?")], True),
        ("Polish?", "polish?", False),
        (_turn("Why?"), [*_turn("Why?"), {"role": "assistant", "content": ""}], False),
        (_turn("Why?"), [{"role": "system", "content": "Be brief."}, *_turn("Why?")], False),
        (_turn("Why?", tool_calls=[{"name": "a"}]), _turn("Why?", tool_calls=[{"name": "b"}]), False),
    ],
)
def test_prompts_that_are_one_question_and_that_are_two(one: Any, other: Any, same: bool) -> None:
    assert (identity(one) == identity(other)) is same


@pytest.mark.parametrize("form", ["text", "conversation", "pairs"])
def test_a_question_of_the_test_file_is_in_no_other_split(make: Make, tmp_path: Path, form: str) -> None:
    def row(number: int, end: str, answer: str = "") -> dict[str, Any]:
        question = f"What is {number} + 1?{end}"
        if form == "text":
            return {"prompt": question}
        if form == "conversation":
            return {"prompt": _turn(question)}
        start = f"\n\nHuman: {question}\n\nAssistant: It is "
        return {"chosen": f"{start}{answer} {number + 1}", "rejected": f"{start}{answer} unknown"}

    test = make(*(row(number, "\n") for number in range(10)), name="test.jsonl", test_size=10)
    train = [row(number, "", answer) for number in range(30) for answer in ("", "surely")]
    dataset = prepared(make(*train, test_size=10, test_path=test.path), tmp_path / "out")
    found = [{identity(dataset.row(int(at)).prompt) for at in dataset.ids(split)} for split in SPLITS]
    assert [len(each) for each in found] == [18, 2, 10]
    assert len(set.union(*found)) == 30
    assert any("of train left out" in warning for warning in dataset.about["warnings"])
    assert any("begin alike" in warning for warning in dataset.about["warnings"]) == (form == "pairs")


_KIND = {"system": "Be kind."}


@pytest.mark.parametrize(
    ("more", "settings", "told"),
    [
        (_KIND, {}, "`system` of 6 rows (first train.jsonl:1) is shown to no model"),
        (_KIND, {"prompt_template": "{system} {prompt}"}, ""),
        (
            {"chosen": "3? Yes", "rejected": "3? No"},
            {},
            "completions of 1 row (first train.jsonl:4) begin with all",
        ),
        ({"system_prompt": "!"}, {"columns": {"system": "system_prompt"}, "chat": True}, ""),
        ({"turns": [_turn("b")[0] | {"role": "assistant"}]}, {}, "end with a turn of the assistant"),
        ({"split": "test"}, {}, "`split` of 6 rows (first train.jsonl:1) names a split"),
        ({"choices": {"text": ["4", "5"]}}, {}, "`choices` of 6 rows (first train.jsonl:1) is shown to no model"),
        ({"choices": ["?", None]}, {}, ""),
    ],
)
def test_what_a_model_is_not_shown_of_rows_is_told(
    make: Make, tmp_path: Path, more: dict[str, Any], settings: dict[str, Any], told: str
) -> None:
    turns = more.get("turns")
    rows = [{"prompt": f"{n}?" if turns is None else [*_turn(f"{n}?"), *turns], **more} for n in range(6)]
    about = prepared(make(*rows, test_size=1, validation_size=1, **settings), tmp_path / "out").about
    assert [told in each for each in about["warnings"]] == [True] * bool(told)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "train_hard, test_easy, dev_easy"),
        ({"test_split": "test_easy", "validation_split": "dev_easy"}, "train_hard"),
        ({"train_split": "train_hard", "test_path": "train.jsonl"}, "train, dev_easy"),
    ],
)
def test_splits_that_are_not_read_are_told(
    make: Make, tmp_path: Path, settings: dict[str, str], told: str
) -> None:
    names = ("train", "train_hard", "test_easy", "dev_easy", "more")
    parts = ", ".join(f"{{split: {name}, path: {name}.jsonl}}" for name in names)
    folder = tmp_path / "source"
    for number, name in enumerate(names):
        make(*({"prompt": f"{number} {n}?"} for n in range(6)), name=f"{name}.jsonl")
    (folder / "README.md").write_text(f"---\nconfigs: [{{data_files: [{parts}]}}]\n---\n")
    given = {key: str(folder / value) if key == "test_path" else value for key, value in settings.items()}
    look = look_at(as_files(FilesConfig(kind="hf", path=str(folder), test_size=2, validation_size=2, **given)))  # type: ignore[arg-type]
    assert look.warnings[0].startswith(f"not read of the source: {told};")


# -- test dealing ------------------------------------------------------------------------------------------------
# Dealing rows into splits: no prompt in two, official splits kept, the same result every time.


def names(*numbers: int) -> list[bytes]:
    return [str(number).encode() for number in numbers]


def prompts_of(dealt: SplitRows, prompts: dict[str, list[bytes]]) -> dict[str, set[bytes]]:
    return {
        split: {prompts["train" if split in dealt.cut else split][place] for place in places}
        for split, places in dealt.splits.items()
    }


def sizes(test: int, validation: int) -> dict[str, int]:
    return {"test": test, "validation": validation}


def lengths(dealt: SplitRows) -> list[int]:
    return [len(dealt.splits[split]) for split in SPLITS]


def test_what_is_missing_is_cut_from_train() -> None:
    dealt = deal({"train": names(*range(100))}, sizes(10, 5), 0)
    assert lengths(dealt) == [85, 5, 10]
    assert sorted(np.concatenate(list(dealt.splits.values())).tolist()) == list(range(100))
    assert dealt.cut == {"test", "validation"}
    assert dealt.warnings == ()


@pytest.mark.parametrize("seed", range(2))
def test_repeated_prompts_never_cross_splits(seed: int) -> None:
    prompts = {"train": names(*(n // 3 for n in range(90)))}
    dealt = deal(prompts, sizes(6, 4), seed)
    found = prompts_of(dealt, prompts)
    assert lengths(dealt) == [60, 4, 6]
    assert [len(found[split]) for split in SPLITS] == [20, 4, 6]
    assert len(set.union(*found.values())) == 30
    assert dealt.warnings == ("20 rows left out: repeated prompts that were cut from train for evaluation",)


def test_an_official_test_split_is_kept_and_its_prompts_leave_the_others() -> None:
    prompts = {"train": names(*range(50)), "validation": names(3, 60, 61), "test": names(60, 1, 2, 2, 80)}
    dealt = deal(prompts, sizes(5, 3), 0)
    found = prompts_of(dealt, prompts)
    assert dealt.cut == frozenset()
    assert sorted(dealt.splits["test"].tolist()) == [0, 1, 2, 3, 4]
    assert found["validation"] == set(names(3, 61))
    assert found["train"] == set(names(*range(50))) - set(names(1, 2, 3))
    assert dealt.warnings == (
        "1 row of validation left out: prompts that are held out for evaluation",
        "validation has 2 rows, fewer than the 3 asked for: all are used",
        "3 rows of train left out: prompts that are held out for evaluation",
    )


def test_few_rows_share_fairly() -> None:
    dealt = deal({"train": names(*range(20))}, sizes(500, 500), 0)
    assert lengths(dealt) == [10, 5, 5]
    assert dealt.warnings[0] == (
        "test has 5 rows, fewer than the 500 asked for: half of the 20 different prompts stay in train"
    )
    assert lengths(deal({"train": names(1, 2, 3)}, sizes(500, 500), 0)) == [1, 1, 1]


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ({"train": names(1, 1, 2)}, "only 2 different prompts: too few to cut test and validation"),
        ({"train": names(1, 2), "test": names(1, 2), "validation": names(5)}, "no row is left to train on"),
    ],
)
def test_nothing_left_to_train_on(prompts: dict[str, list[bytes]], said: str) -> None:
    with pytest.raises(DataError, match=said):
        deal(prompts, sizes(1, 1), 0)


# -- test tokenized ----------------------------------------------------------------------------------------------
# Prompts as token ids: the same as the policy would make, chat template applied, read back by row.


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
