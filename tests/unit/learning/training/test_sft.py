"""Supervised fine-tuning learns what TRL's trainer learns: the same tokens of rows, and the same losses."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.config.schema import Schedule
from pipeline.errors import DataError
from pipeline.learning.algos.sft import SFTConfig, demonstrations
from pipeline.learning.datasets import base, from_files
from pipeline.learning.training.loop import Fitting, fit_sft
from tests.doubles.models import PLAINLY
from tests.doubles.models import fitting as small_fitting
from tests.doubles.tokenizers import CHATML, tokenizer

ASKED = [{"role": "user", "content": "What is 3 + 4?"}]
TOLD = [{"role": "assistant", "content": "The answer is 7."}]
MORE = [*TOLD, {"role": "user", "content": "think"}, {"role": "assistant", "content": "user 8"}]
TEXT = [{"prompt": f"What is {n} + 4? The ans", "completion": f"wer is {n + 4}." * (n + 1)} for n in range(4)]
TURNS = [{"prompt": ASKED, "completion": TOLD}, {"prompt": [*ASKED, *TOLD, *ASKED], "completion": MORE}]
MESSAGES = [{"messages": [*ASKED, *TOLD]}, {"messages": [*ASKED, *MORE]}]
MARKED = CHATML.replace(
    "{{ m['content'] }}<|im_end|>\n",
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m['content'] }}<|im_end|>{{ '\n' }}{% endif %}",
)
STEPS = 3
LONGEST = 40
"""Tokens, fewer than the longest rows have."""


def small(size: int) -> LlamaForCausalLM:
    """Of a family of which transformers divides losses by the tokens that are predicted; by one more for GPT-2."""
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def rows_of(found: list[dict[str, Any]]) -> list[base.Row]:
    return [from_files.make_row(at, row, "", from_files.FilesConfig(kind="jsonl")) for at, row in enumerate(found)]


def fitting(count: int = len(TEXT), **training: Any) -> Fitting:
    plain = {"weight_decay": 0.0, "schedule": Schedule.constant, "learning_rate": 1e-3}
    return small_fitting(3, batch_size=count, epochs=STEPS, **plain, **training)


def by_trl(
    rows: list[dict[str, Any]], kind: str, folder: Path, **settings: Any
) -> tuple[list[list[int]], list[list[int]], list[float]]:
    """Ids, labels and the losses of the first steps of TRL's trainer."""
    from datasets import Dataset  # slow to import, as what follows
    from transformers import PrinterCallback, ProgressCallback
    from trl.trainer.sft_config import SFTConfig as TrlConfig
    from trl.trainer.sft_trainer import SFTTrainer

    theirs = copy.deepcopy(tokenizer(kind))
    if settings.get("assistant_only_loss"):
        assert theirs.chat_template == CHATML
        theirs.chat_template = MARKED
    how = TrlConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=len(rows),
        **{**PLAINLY, "learning_rate": 1e-3, **settings},
    )
    trainer = SFTTrainer(
        small(len(theirs)), args=how, train_dataset=Dataset.from_list(rows), processing_class=theirs
    )
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    data = trainer.train_dataset
    found = list(data["input_ids"]), list(data["labels"])
    losses: list[float] = []
    step = trainer.training_step
    # Logs are rounded.
    trainer.training_step = lambda *given: (losses.append(float(loss := step(*given))), loss)[1]
    trainer.train()
    return *found, losses


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("rows", "kind", "settings"),
    [
        pytest.param(TEXT, "plain", {}, id="text"),
        pytest.param(TEXT, "plain", {"completion_only_loss": False}, id="text, prompts too"),
        pytest.param(TURNS, "Qwen3", {}, id="conversations"),
        pytest.param(TURNS, "pads with its end", {"assistant_only_loss": True}, id="answers of the assistant"),
        pytest.param(MESSAGES, "Llama 3", {}, id="messages"),
        pytest.param(MESSAGES, "pads with its end", {"assistant_only_loss": True}, id="messages, assistant"),
        pytest.param(TEXT, "plain", {"max_length": LONGEST}, id="cut"),
    ],
)
def test_tokens_masks_and_first_losses_are_those_of_trls_trainer(
    rows: list[dict[str, Any]], kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = tokenizer(kind)
    data, _ = demonstrations(rows_of(rows), model, SFTConfig(**settings), settings.get("max_length"))
    ids, labels, losses = by_trl(rows, kind, tmp_path, **settings)
    lengths = data.lengths.tolist()
    assert [row[:end] for row, end in zip(data.ids.tolist(), lengths, strict=True)] == ids
    # The first token has a label there, and is predicted by none.
    marks = [row[1:end] for row, end in zip(data.mask().tolist(), lengths, strict=True)]
    assert marks == [[label != -100 for label in row[1:]] for row in labels]
    assert fit_sft(small(len(model)), data, fitting(len(rows))) == pytest.approx(losses, abs=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_losses_of_packed_rows_are_those_of_the_same_sequences_without_padding(tmp_path: Path) -> None:
    longest = 128
    ids, _, losses = by_trl(TEXT, "plain", tmp_path, packing=True, max_length=longest)
    model = tokenizer("plain")
    data, _ = demonstrations(rows_of(TEXT), model, SFTConfig(max_length=longest), longest)
    assert len(ids) < len(data)
    assert sum(map(len, ids)) == data.lengths.sum()
    assert fit_sft(small(len(model)), data, fitting(padding_free=True)) == pytest.approx(losses, abs=1e-6)


def test_rows_that_are_too_long_are_cut_and_counted() -> None:
    rows, model = rows_of(TEXT), tokenizer("plain")
    whole, said = demonstrations(rows, model, SFTConfig())
    assert "cut" not in said
    longest = int(whole.lengths.max()) - 1
    cut, said = demonstrations(rows, model, SFTConfig(), longest)
    assert (len(cut), cut.lengths.max()) == (4, longest)
    assert said.startswith(f"1 of 4 rows are cut after {longest} tokens")
    with pytest.raises(
        DataError, match="none of 4 rows can be learnt: nothing of them is to be learnt within 2 tok"
    ):
        demonstrations(rows, model, SFTConfig(), 2)
    unlike = {**TEXT[3], "label": False}
    liked, said = demonstrations(rows_of([*TEXT[:3], unlike]), model, SFTConfig())
    assert (len(liked), said.startswith("1 of 4 rows are left out: their `label`")) == (3, True)
    pairs = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no"} for row in TEXT]
    assert demonstrations(rows_of(pairs), model, SFTConfig())[0].ids.tolist() == whole.ids.tolist()
    bare = from_files.make_row(4, {"prompt": "a"}, "", from_files.FilesConfig(kind="jsonl"))
    with pytest.raises(DataError, match=r"1 of 5 rows have no completion to imitate \(first row 4\)"):
        demonstrations([*rows, bare], model, SFTConfig())
