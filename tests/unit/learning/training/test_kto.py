"""KTO: our loop around its loss is what TRL's trainer computes where a batch is one of its micro-batches."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.learning.algos.dpo import KTOConfig
from pipeline.learning.algos.online import DrawnBatch, Timetable, fit_drawn
from pipeline.learning.datasets.shipped import Addition, AdditionConfig
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.training.loop import TrainingSet
from pipeline.learning.training.preferences import kto_set, mismatched
from pipeline.learning.training.scoring import completion_logprobs, score_sequences
from pipeline.learning.training.sequences import Batch, Sequences, batch_of
from tests.doubles.fitting import fitting
from tests.doubles.models import PLAINLY, tiny_policy

OBJECTIVE = KTOConfig(beta=0.7, desirable_weight=1.3, undesirable_weight=0.8)


def completions(count: int) -> Sequences:
    """Of different lengths, two in three desirable, each of a prompt of its own."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 10, generator.integers(2, 6)).tolist() for _ in range(count)]
    ids = [[*prompt, *generator.integers(0, 10, generator.integers(1, 5)).tolist()] for prompt in prompts]
    labels = [float(one % 3 > 0) for one in range(count)]
    return Sequences.of(ids, [len(prompt) for prompt in prompts], labels, list(range(count)))


def scores(model: nn.Module, data: Sequences) -> np.ndarray:
    def summed(batch: Batch) -> torch.Tensor:
        return completion_logprobs(model, batch).double().sum(-1)

    return score_sequences(data, summed, micro_batch_size=5, device="cpu")


def set_of(model: nn.Module, data: Sequences) -> TrainingSet:
    of = {"of_anchor": partial(scores, tiny_policy()), "of_policy": partial(scores, model)}
    return kto_set(model, data, OBJECTIVE, "cpu", **of)


def as_trl_has_them(data: Sequences, size: int) -> list[dict[str, Any]]:
    """Each batch's completions moved on by one, as the trainer's own preparation does."""
    found = []
    for at in range(0, len(data), size):
        places = np.arange(at, min(at + size, len(data)))
        tails = [data.ids[row, data.starts[row] : data.lengths[row]].tolist() for row in places]
        found += [
            {
                "prompt_ids": data.ids[row, : data.starts[row]].tolist(),
                "completion_ids": tail,
                "KL_completion_ids": other,
                "label": bool(data.labels[row]),
            }
            for row, tail, other in zip(places, tails, [*tails[-1:], *tails[:-1]], strict=True)
        ]
    return found


def trainer_of(model: nn.Module, rows: list[dict[str, Any]], folder: Path, **more: Any) -> Any:
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    losses: list[float] = []

    class Pretokenized(KTOTrainer):
        def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
            return dataset

        def compute_loss(self, *given: Any, **named: Any) -> Any:
            loss = super().compute_loss(*given, **named)
            losses.append(float(loss))
            return loss

    arguments = KTOConfig(
        output_dir=str(folder),
        beta=OBJECTIVE.beta,
        desirable_weight=OBJECTIVE.desirable_weight,
        undesirable_weight=OBJECTIVE.undesirable_weight,
        **PLAINLY,
        **more,
    )
    trainer = Pretokenized(
        model,
        tiny_policy(),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer(Addition(AdditionConfig(kind="addition"))),
    )
    trainer.losses = losses
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_loss_and_gradient_are_those_of_trls_trainer(tmp_path: Path) -> None:
    data, ours, theirs = completions(12), tiny_policy(seed=1), tiny_policy(seed=1)
    rows = as_trl_has_them(data, 12)
    trainer = trainer_of(theirs.train(), rows, tmp_path)
    expected = trainer.compute_loss(theirs, trainer.data_collator(rows))
    expected.backward()
    assert trainer._metrics["train"]["kl"][0] > 0
    made, whole = set_of(ours, data), np.arange(12)
    made.prepare([whole])(0)
    total = torch.zeros(())
    for part in (whole[:7], whole[7:]):  # micro-batches, over which TRL's estimate of the divergence would differ
        total = total + made.loss_of(batch_of(data, part, "cpu"), part, whole)
    total.backward()
    assert total.item() == pytest.approx(expected.item(), abs=1e-6)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_weights_after_six_steps_are_those_of_trls_trainer(tmp_path: Path) -> None:
    data, ours, theirs = completions(48), tiny_policy(seed=1), tiny_policy(seed=1)
    start = [weight.detach().clone() for weight in ours.parameters()]
    trainer = trainer_of(theirs, as_trl_has_them(data, 8), tmp_path, per_device_train_batch_size=8, max_steps=6)
    trainer.train()

    def drawn(number: int) -> DrawnBatch:
        return DrawnBatch(set_of(ours, data.some(np.arange(8 * number, 8 * number + 8))))

    losses, _ = fit_drawn(
        ours, Timetable(48, 8, 8), drawn, fitting(3, weight_decay=0.0), longest=12, horizon=math.inf
    )
    assert losses == pytest.approx(trainer.losses, abs=1e-6)
    apart, far = 0.0, 0.0
    for begun, one, other in zip(start, ours.parameters(), theirs.parameters(), strict=True):
        apart += float((one - other).double().square().sum())
        far += float((other - begun).double().square().sum())
    assert (apart / far) ** 0.5 < 1e-3


def test_completions_are_moved_on_until_they_stand_behind_other_prompts() -> None:
    ids = [[prompt, 9, 10 * prompt + number] for prompt in range(3) for number in range(2)]
    data = Sequences.of(ids, [2] * 6, [1.0] * 6, [0, 0, 1, 1, 2, 2])
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
