"""DPO, KTO, ORPO and SimPO: our loop around their losses is what TRL's trainers compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2LMHeadModel

from pipeline.errors import JobStopped
from pipeline.learning.algos.dpo import DPOConfig
from pipeline.learning.choices import DPOLoss
from pipeline.learning.datasets.shipped import Addition, AdditionConfig
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.training import loop, scoring, sequences
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.preferences import dpo_set, kto_set, mismatched, orpo_set, simpo_set
from tests.doubles.models import PLAINLY, fitting, tiny_policy
from tests.unit.learning.training.test_loop import Limited


def pairs(count: int = 12) -> sequences.Sequences:
    """Prompts of different lengths; what is chosen begins with an even token."""
    generator = np.random.default_rng(0)
    ids, starts = [], []
    for _ in range(count):
        prompt = generator.integers(0, 10, generator.integers(2, 6)).tolist()
        for side in (0, 1):
            first = int(generator.integers(0, 5)) * 2 + side
            ids.append([*prompt, first, *generator.integers(0, 10, generator.integers(0, 4)).tolist()])
            starts.append(len(prompt))
    return sequences.Sequences.of(ids, starts, [1.0, 0.0] * count)


def completions(count: int = 12) -> sequences.Sequences:
    """Of different lengths, two in three desirable, each of a prompt of its own."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 10, generator.integers(2, 6)).tolist() for _ in range(count)]
    ids = [[*prompt, *generator.integers(0, 10, generator.integers(1, 5)).tolist()] for prompt in prompts]
    labels = [float(one % 3 > 0) for one in range(count)]
    return sequences.Sequences.of(ids, [len(prompt) for prompt in prompts], labels, list(range(count)))


def scores(model: nn.Module, data: sequences.Sequences) -> np.ndarray:
    def summed(batch: sequences.Batch) -> torch.Tensor:
        return scoring.completion_logprobs(model, batch).double().sum(-1)

    return scoring.score_sequences(data, summed, micro_batch_size=5, device="cpu")


def anchored(data: sequences.Sequences) -> np.ndarray:
    return scores(tiny_policy(), data)


def parts_of(data: sequences.Sequences, row: int) -> tuple[list[int], list[int]]:
    ids = data.ids[row, : data.lengths[row]].tolist()
    return ids[: data.starts[row]], ids[data.starts[row] :]


def of_anchored_pairs(data: sequences.Sequences, _: int) -> list[dict[str, Any]]:
    return [
        dict(zip(("prompt_ids", "chosen_ids"), parts_of(data, row), strict=True))
        | {"rejected_ids": parts_of(data, row + 1)[1]}
        for row in range(0, len(data), 2)
    ]


def of_labelled(data: sequences.Sequences, size: int) -> list[dict[str, Any]]:
    """Each batch's completions moved on by one, as the trainer's own preparation does."""
    found = []
    for at in range(0, len(data), size):
        both = [parts_of(data, row) for row in range(at, min(at + size, len(data)))]
        for place, (prompt, tail) in enumerate(both):
            ids = {"prompt_ids": prompt, "completion_ids": tail, "KL_completion_ids": both[place - 1][1]}
            found.append(ids | {"label": bool(data.labels[at + place])})
    return found


def of_pairs(data: sequences.Sequences, _: int) -> list[dict[str, Any]]:
    rows = []
    for at in range(0, len(data), 2):
        row: dict[str, Any] = {"prompt": ""}
        for place, side in ((at, "chosen"), (at + 1, "rejected")):
            prompt, tail = parts_of(data, place)
            row[f"{side}_input_ids"] = [*prompt, *tail]
            row[f"{side}_attention_mask"] = [1] * len(row[f"{side}_input_ids"])
            row[f"{side}_labels"] = [-100] * len(prompt) + tail
        rows.append(row)
    return rows


class Kind(NamedTuple):
    """A method: TRL's trainer and its settings, the rows that it takes, and what is trained on here."""

    trl: str
    settings: dict[str, Any]
    rows: Callable[[sequences.Sequences, int], list[dict[str, Any]]]
    made: Callable[[nn.Module, sequences.Sequences], loop.TrainingSet]

    @property
    def data(self) -> Callable[[int], sequences.Sequences]:
        return completions if self.rows is of_labelled else pairs


def dpo(loss: DPOLoss) -> Kind:
    smoothing = {DPOLoss.exo_pair: 0.01, DPOLoss.robust: 0.1}.get(loss, 0.0)
    objective = DPOConfig(loss_type=loss, beta=0.7, label_smoothing=smoothing)
    settings = {"beta": 0.7, "label_smoothing": smoothing, "loss_type": [loss.value]}
    made = lambda model, data: dpo_set(model, data, anchored(data), objective, "cpu")  # noqa: E731
    return Kind("trl:DPO", settings, of_anchored_pairs, made)


OF_KTO = {"beta": 0.7, "desirable_weight": 1.3, "undesirable_weight": 0.8}


def kto(model: nn.Module, data: sequences.Sequences) -> loop.TrainingSet:
    return kto_set(model, data, 0.7, (1.3, 0.8), "cpu", of_anchor=anchored, of_policy=partial(scores, model))


def simpo(gamma: float, alpha: float) -> Kind:
    settings = {"beta": 2.5, "simpo_gamma": gamma, "loss_type": "simpo", "cpo_alpha": alpha}
    made = lambda model, data: simpo_set(model, data, 2.5, gamma, "cpu", alpha)  # noqa: E731
    return Kind("trl.experimental.cpo:CPO", settings, of_pairs, made)


KINDS = {f"dpo {loss.name}": dpo(loss) for loss in DPOLoss} | {
    "kto": Kind("trl:KTO", OF_KTO, of_labelled, kto),
    "orpo": Kind(
        "trl.experimental.orpo:ORPO",
        {"beta": 0.3},
        of_pairs,
        lambda model, data: orpo_set(model, data, 0.3, "cpu"),
    ),
    "simpo": simpo(1.4, 0.0),
    "cpo-simpo": simpo(0.5, 0.7),
}


def trainer_of(kind: Kind, model: nn.Module, rows: list[dict[str, Any]], folder: Path) -> Any:
    """TRL's trainer on token ids."""
    from datasets import Dataset

    module, _, name = kind.trl.partition(":")
    base: Any = getattr(import_module(module), f"{name}Trainer")

    class Pretokenized(base):
        def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
            return dataset

        def tokenize_row(self, feature: Any, model: Any = None) -> Any:
            return feature

    return Pretokenized(
        model,
        *([] if kind.rows is of_pairs else [tiny_policy()]),
        args=getattr(import_module(module), f"{name}Config")(output_dir=str(folder), **PLAINLY, **kind.settings),
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer(Addition(AdditionConfig(kind="addition"))),
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_loss_and_gradient_are_those_of_trls_trainer(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    data, ours, theirs = kind.data(12), tiny_policy(seed=1), tiny_policy(seed=1)
    rows = kind.rows(data, len(data))
    trainer = trainer_of(kind, theirs.train(), rows, tmp_path)
    expected = trainer.compute_loss(theirs, trainer.data_collator(rows))
    expected.backward()
    made, whole = kind.made(ours, data), np.arange(len(data))
    made.prepare([whole])(0)
    total = torch.zeros(())
    for part in (whole[: len(data) // 3 * 2], whole[len(data) // 3 * 2 :]):  # micro-batches of different sizes
        total = total + made.loss_of(sequences.batch_of(made.data, part, "cpu"), part, whole)
    total.backward()
    assert total.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-4 if "dpo" in name else 1e-6)
    if name == "kto":
        assert trainer._metrics["train"]["kl"][0] > 0


def fit(
    micro_batch_size: int = 8,
    limit: int | None = None,
    checkpoint: Checkpoints | None = None,
    epochs: int = 12,
    **settings: Any,
) -> tuple[GPT2LMHeadModel, list[float], dict[str, list[float]]]:
    model, data = tiny_policy(), pairs()
    held = anchored(data)
    if limit:
        Limited(model, limit, first_call=5)
    made = dpo_set(model, data, held, DPOConfig(**{"beta": 1.0, **settings}), "cpu")
    losses = loop.fit(model, made, fitting(micro_batch_size, checkpoint=checkpoint, epochs=epochs))
    return model, losses, dict(made.told)


@pytest.mark.parametrize("limit", [None, 2], ids=["enough memory", "too little in the third step"])
def test_what_micro_batches_report_is_told_once_whatever_interrupts_them(
    tmp_path: Path, limit: int | None
) -> None:
    calm = fit(4, limit, epochs=4)[1:]
    assert len(calm[1]["margins"]) == (2 * 12 if limit is None else 2 * 2 + 4 * 10)
    calls = iter(range(100))
    stopping = Checkpoints(tmp_path, {}, every_minutes=0, stopping=lambda: next(calls) == 9)
    with pytest.raises(JobStopped):
        fit(4, limit, stopping, epochs=4)
    assert fit(4, limit, Checkpoints(tmp_path, {}, every_minutes=0), epochs=4)[1:] == calm


def test_likelihood_of_the_chosen_can_be_held_up() -> None:
    data = pairs()
    batch = sequences.batch_of(data, np.arange(0, len(data), 2), "cpu")
    models = [fit(sft_weight=weight)[0] for weight in (0.0, 1.0)]
    with torch.no_grad():
        without, held_up = (scoring.completion_logprobs(model, batch).sum() for model in models)
    assert held_up > without


def test_completions_are_moved_on_until_they_stand_behind_other_prompts() -> None:
    ids = [[prompt, 9, 10 * prompt + number] for prompt in range(3) for number in range(2)]
    data = sequences.Sequences.of(ids, [2] * 6, [1.0] * 6, [0, 0, 1, 1, 2, 2])
    mixed = mismatched(data, [np.arange(6), np.array([5]), np.array([0, 2, 4])])
    assert [row[:3] for row in mixed.ids.tolist()] == [
        *([0, 9, 20], [0, 9, 21], [1, 9, 0], [1, 9, 1], [2, 9, 10], [2, 9, 11]),
        [2, 9, 21],
        *([0, 9, 20], [1, 9, 0], [2, 9, 10]),
    ]
    assert mixed.supervised.tolist() == [1] * 10
    cut = mismatched(replace(data, left_out=data.ids == 20), [np.arange(6)], context=2)
    assert (cut.ids.shape, cut.supervised.sum()) == ((6, 2), 0)
    assert mismatched(replace(data, left_out=data.ids == 20), [np.arange(6)]).supervised.tolist() == [0, *[1] * 5]


def test_orpo_takes_a_policy_that_is_sure() -> None:
    """Whose odds have no logarithm in float32."""
    data, model = pairs(2), tiny_policy()
    with torch.no_grad():
        model.transformer.wte.weight.mul_(300)  # which are those of the output too
    made = orpo_set(model, data, 1.0, "cpu")
    loss = made.loss_of(sequences.batch_of(made.data, np.arange(4), "cpu"), np.arange(4), np.arange(4))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())
