"""The curve of a training: what its steps tell, the same bytes whatever interrupts it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from pipeline.learning.choices import GRPOLoss, ScaleRewards
from pipeline.learning.training import grpo, loop, scoring, value
from pipeline.learning.training.sequences import batch_of
from pipeline.outputs import check, formats
from tests.doubles.fitting import fitting, of_grpo
from tests.doubles.models import tiny_policy
from tests.unit.learning.training.test_grpo import samples
from tests.unit.learning.training.test_loop import sequences, value_model


def drawn(folder: Path, **given: Any) -> list[float]:
    """The losses of a fit of a value model, whose curve goes to a folder."""
    how = {"epochs": 2, "warmup_steps": 2, "learning_rate": 1e-3, **given}
    return value.fit_value(
        value_model(), sequences(), fitting(**how, curve=loop.Curve(training="value", folder=folder))
    )


def test_every_step_of_a_short_training_is_told(tmp_path: Path) -> None:
    losses = drawn(tmp_path, learning_rate=1e-2)
    rows = formats.read_curve(tmp_path)
    check.check_output(tmp_path)
    assert [(row.training, row.step, row.steps) for row in rows] == [("value", at, 6) for at in range(1, 7)]
    assert [row.loss for row in rows] == pytest.approx(losses, rel=1e-5)
    rates = [loop.rate_at(at, fitting(warmup_steps=2), 6) for at in range(6)]
    assert [row.learning_rate for row in rows] == pytest.approx(rates, rel=1e-5)
    assert rows[-1].tokens == 2 * sequences().lengths.sum()
    assert all(row.grad_norm is not None and row.grad_norm > 0 for row in rows)
    assert rows[0].extra == {"brier": 0.25, "bias": pytest.approx(0.5 - float(np.mean(labels_of(0))), abs=1e-5)}


def labels_of(step: int) -> list[float]:
    """Labels of the supervised tokens of a batch."""
    data = sequences()
    rows = loop.grouped_order(len(data), 1, 2, seed=0)[step * 8 : (step + 1) * 8]
    return [float(data.labels[row]) for row in rows for _ in range(data.lengths[row] - data.starts[row])]


def test_the_norm_is_that_of_the_gradient_before_it_is_clipped(tmp_path: Path) -> None:
    model = value_model()
    model.eval()
    data = sequences(8)
    batch = batch_of(data, np.arange(8), "cpu")
    tokens = int((data.lengths - data.starts).sum())
    (value.token_bce(value.token_values(model, batch.ids), batch.mask, batch.labels) / tokens).backward()
    norm = math.sqrt(sum(float((one.grad**2).sum()) for one in model.parameters() if one.grad is not None))
    for name, clip in (("clipped", norm / 10), ("not clipped", 0.0)):
        (tmp_path / name).mkdir()
        curve = loop.Curve(training="value", folder=tmp_path / name)
        value.fit_value(value_model(), data, fitting(3, grad_clip=clip, curve=curve))
        (row,) = formats.read_curve(tmp_path / name)
        assert row.grad_norm == pytest.approx(norm, rel=1e-4)


# -- numbers of methods ----------------------------------------------------------------------------------------


def test_a_loss_of_a_users_own_adds_its_numbers(tmp_path: Path) -> None:
    model, data, seen = tiny_policy(), sequences(7), []

    def loss_of(batch: Any, part: Any, whole: Any) -> Tensor:
        logprobs = scoring.completion_logprobs(model, batch)
        seen.append(loop.is_drawn())
        loop.add_to_curve(labels=batch.labels, nothing=batch.labels[:0], constant=3)
        return -logprobs.sum() / len(whole)

    how = fitting(3, curve=loop.Curve(training="mine", folder=tmp_path))
    loop.fit(model, loop.TrainingSet(data, loss_of), how)
    (row,) = formats.read_curve(tmp_path)
    assert row.extra == {"labels": pytest.approx(data.labels.mean(), abs=1e-5), "nothing": None, "constant": 3.0}
    assert seen == [True] * 3
    loop.add_to_curve(labels=1.0)  # where nothing is trained it does nothing
    assert not loop.is_drawn()


def test_grpo_tells_divergence_clipping_and_rewards(tmp_path: Path) -> None:
    model = tiny_policy()
    data = samples(model)
    data.sequences.labels[:4] = np.nan  # a group without rewards counts in no mean of rewards
    advantages = grpo.group_advantages(data.rewards, 4, ScaleRewards.group)
    algo = of_grpo(loss_type=GRPOLoss.dapo, beta=0.04, epsilon=1e-3)
    made = grpo.grpo_set(model, data, advantages, data.logprobs, algo, "cpu", longest=9)
    loop.fit(
        model, made, fitting(24, batch_size=24, epochs=4, curve=loop.Curve(training="policy", folder=tmp_path))
    )
    first, *_, last = (row.extra for row in formats.read_curve(tmp_path))
    assert first == {
        "clip_share": 0.0,
        "kl": pytest.approx(0.0, abs=1e-6),
        "reward": pytest.approx(np.nanmean(data.rewards), abs=1e-5),
        "advantage_size": pytest.approx(np.abs(advantages).mean(), abs=1e-5),
        "entropy": pytest.approx(-data.logprobs.sum() / data.sequences.supervised.sum(), abs=1e-4),
    }
    assert 0 < (last["clip_share"] or 0) < 1
    assert (last["kl"] or 0) > 0
