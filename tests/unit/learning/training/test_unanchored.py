"""ORPO and SimPO: our loop around their losses is what TRL's trainers compute."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.learning.algos.online import DrawnBatch, Timetable, fit_drawn
from pipeline.learning.datasets.shipped import Addition, AdditionConfig
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.training.loop import TrainingSet
from pipeline.learning.training.preferences import orpo_set, simpo_set
from pipeline.learning.training.sequences import Sequences, batch_of
from tests.doubles.fitting import fitting
from tests.doubles.models import PLAINLY, tiny_policy
from tests.unit.learning.training.test_dpo import pairs

SetOf = Callable[[nn.Module, Sequences], TrainingSet]
KINDS: dict[str, tuple[SetOf, dict[str, Any]]] = {
    "orpo": (lambda model, data: orpo_set(model, data, 0.3, "cpu"), {"beta": 0.3}),
    "simpo": (
        lambda model, data: simpo_set(model, data, 2.5, 1.4, "cpu"),
        {"beta": 2.5, "simpo_gamma": 1.4, "loss_type": "simpo", "cpo_alpha": 0.0},
    ),
    "cpo-simpo": (
        lambda model, data: simpo_set(model, data, 2.5, 0.5, "cpu", 0.7),
        {"beta": 2.5, "simpo_gamma": 0.5, "loss_type": "simpo", "cpo_alpha": 0.7},
    ),
}


def as_trl_has_them(data: Sequences) -> list[dict[str, Any]]:
    rows = []
    for at in range(0, len(data), 2):
        row: dict[str, Any] = {"prompt": "", "number": at // 2}
        for place, side in ((at, "chosen"), (at + 1, "rejected")):
            ids = data.ids[place, : data.lengths[place]].tolist()
            row |= {
                f"{side}_input_ids": ids,
                f"{side}_attention_mask": [1] * len(ids),
                f"{side}_labels": [-100] * int(data.starts[place]) + ids[data.starts[place] :],
            }
        rows.append(row)
    return rows


def trainer_of(kind: str, model: nn.Module, data: Sequences, folder: Path, **more: Any) -> Any:
    """TRL's trainer on pairs that are token ids already; `recorded` has the pairs and the loss of each batch."""
    from datasets import Dataset
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    recorded: list[tuple[list[int], float]] = []
    base: Any = ORPOTrainer if kind == "orpo" else CPOTrainer

    class Pretokenized(base):
        def tokenize_row(self, feature: Any, model: Any = None) -> Any:
            return feature

        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            loss = super().compute_loss(model, inputs, *rest, **named)
            recorded.append((list(inputs["number"]), float(loss)))
            return loss

    arguments = (ORPOConfig if kind == "orpo" else CPOConfig)(
        output_dir=str(folder),
        **PLAINLY,
        **KINDS[kind][1],
        **more,
    )
    trainer = Pretokenized(
        model,
        args=arguments,
        train_dataset=Dataset.from_list(as_trl_has_them(data)),
        processing_class=make_tokenizer(Addition(AdditionConfig(kind="addition"))),
    )
    trainer.recorded = recorded
    return trainer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_are_those_of_trls_trainer(kind: str, tmp_path: Path) -> None:
    data, ours, theirs = pairs(), tiny_policy(), tiny_policy()
    trainer = trainer_of(kind, theirs.train(), data, tmp_path)
    expected = trainer.compute_loss(theirs, trainer.data_collator(as_trl_has_them(data)))
    expected.backward()
    made, whole = KINDS[kind][0](ours, data), np.arange(len(data))
    total = torch.zeros(())
    for part in (whole[:16], whole[16:]):  # micro-batches of different sizes
        total = total + made.loss_of(batch_of(made.data, part, "cpu"), part, whole)
    total.backward()
    assert total.item() == pytest.approx(expected.item(), abs=1e-6)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["orpo", "simpo"])
def test_weights_after_six_steps_are_those_of_trls_trainer(kind: str, tmp_path: Path) -> None:
    """SimPO's with accumulation; with it TRL has the mean of ORPO's likelihood by micro-batch."""
    data, ours, theirs = pairs(24), tiny_policy(), tiny_policy()
    start = [weight.detach().clone() for weight in ours.parameters()]
    size, parts = (8, 1) if kind == "orpo" else (4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trainer_of(
            kind,
            theirs,
            data,
            tmp_path,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=parts,
            max_steps=6,
        )
        trainer.train()
    batches = [trainer.recorded[at : at + parts] for at in range(0, 6 * parts, parts)]

    def drawn(number: int) -> DrawnBatch:
        places = np.array([place for numbers, _ in batches[number] for place in numbers])
        return DrawnBatch(KINDS[kind][0](ours, data.some((2 * places[:, None] + [0, 1]).reshape(-1))))

    how = fitting(6, batch_size=16, weight_decay=0.0)
    found, _ = fit_drawn(ours, Timetable(6 * 8, 8, 8), drawn, how, longest=12, group=2, horizon=math.inf)
    losses = [sum(loss for _, loss in batch) / parts for batch in batches]
    assert found == pytest.approx(losses, abs=1e-6)
    apart, far = 0.0, 0.0
    for begun, one, other in zip(start, ours.parameters(), theirs.parameters(), strict=True):
        apart += float((one - other).double().square().sum())
        far += float((other - begun).double().square().sum())
    assert (apart / far) ** 0.5 < 1e-3


def test_orpo_takes_a_policy_that_is_sure() -> None:
    """Whose odds have no logarithm in float32."""
    data, model = pairs(2), tiny_policy()
    with torch.no_grad():
        model.transformer.wte.weight.mul_(300)  # which are those of the output too
    made = orpo_set(model, data, 1.0, "cpu")
    loss = made.loss_of(batch_of(made.data, np.arange(4), "cpu"), np.arange(4), np.arange(4))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())
