"""A training that runs out of memory: the step is done again in smaller pieces, and nothing else changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.errors import JobStopped, OutOfMemory
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.scoring import score_sequences
from pipeline.learning.training.sequences import Batch
from pipeline.learning.training.value import fit_value, token_values
from tests.doubles.fitting import fitting
from tests.unit.learning.training.test_training import sequences, value_model

Fitted = tuple[dict[str, Tensor], list[float]]
"""Weights, and the loss of every step."""


class Limited:
    """Raises out of memory where a model is given more rows than fit; notes how many it was given."""

    def __init__(self, model: nn.Module, rows: int, first_call: int = 0) -> None:
        self.rows, self.first_call = rows, first_call
        self.seen: list[int] = []
        model.register_forward_pre_hook(self.check, with_kwargs=True)

    def check(self, module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        count = len(args[0] if args else kwargs["input_ids"])
        self.seen.append(count)
        if count > self.rows and len(self.seen) > self.first_call:
            raise torch.OutOfMemoryError(f"no room for {count} rows")


def fit(
    micro_batch_size: int, limit: Limited | None = None, model: ValueModel | None = None, **options: Any
) -> Fitted:
    model = value_model() if model is None else model
    how = fitting(micro_batch_size, head_learning_rate=3e-2, epochs=2, warmup_steps=2, **options)
    losses = fit_value(model, sequences(), how)
    return dict(model.state_dict()), losses


def assert_equal(found: Fitted, expected: Fitted) -> None:
    assert found[1] == expected[1]
    assert found[0].keys() == expected[0].keys()
    assert all(torch.equal(found[0][name], expected[0][name]) for name in expected[0])


@pytest.mark.parametrize(("rows", "fits"), [(5, 4), (3, 2), (1, 1)])
def test_the_result_is_that_of_the_size_that_fits(rows: int, fits: int) -> None:
    model = value_model()
    limit = Limited(model, rows)
    found = fit(8, model=model)
    assert_equal(found, fit(fits))
    # The first step finds out, and no later one tries again.
    assert [count for count in limit.seen if count > rows] == [size for size in (8, 4, 2) if size > rows]


def test_the_next_job_starts_with_what_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = value_model(), value_model()
    Limited(first, rows=3)
    expected = fit(8, model=first, hints=tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "out of memory at micro-batch 8: using 4 with 2x accumulation",
        "out of memory at micro-batch 4: using 2 with 4x accumulation",
    ]
    limit = Limited(second, rows=3)
    assert_equal(fit(8, model=second, hints=tmp_path), expected)
    assert max(limit.seen) == 2
    assert capsys.readouterr().out == ""


def test_what_never_fits_says_what_was_tried() -> None:
    model = value_model()
    Limited(model, rows=0)
    remedy = r"Try training.gradient_checkpointing=true, shorter texts"  # and no adapters, which are for policies
    with pytest.raises(OutOfMemory, match=rf"sizes tried: 8, 4, 2, 1\)\. {remedy}"):
        fit(8, model=model)


def test_a_training_that_goes_on_keeps_the_size_it_had(tmp_path: Path) -> None:
    """Whatever other jobs have learnt since, or forgotten: the rest is what it would have been."""
    expected = fit(4)

    def attempt(stop_after: int, hints: Path) -> Fitted:
        model, steps = value_model(), iter(range(1, 100))
        Limited(model, rows=5)
        checkpoints = Checkpoints(tmp_path / "c", {}, stopping=lambda: next(steps) == stop_after)
        return fit(8, model=model, checkpoint=checkpoints, hints=hints)

    with pytest.raises(JobStopped):
        attempt(2, tmp_path / "hints")
    (hint,) = (tmp_path / "hints/batch_sizes").iterdir()
    hint.write_text(hint.read_text().replace('"size": 4', '"size": 1'))
    with pytest.raises(JobStopped):
        attempt(2, tmp_path / "hints")
    assert_equal(attempt(99, tmp_path / "no hints"), expected)


def test_memory_that_runs_out_in_the_optimizer_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have changed half of the weights: the attempt is over, and says what may help."""
    calls = []

    def fail(*_: object, **__: object) -> None:
        calls.append(1)
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(torch.optim.AdamW, "step", fail)
    with pytest.raises(OutOfMemory, match="gradient_checkpointing"):
        fit(8)
    assert len(calls) == 1


def test_texts_that_do_not_fit_beside_each_other_are_scored_in_turn() -> None:
    model, data = value_model(), sequences()

    def score(batch: Batch) -> Tensor:
        return token_values(model, batch.ids).sum(1)

    whole = score_sequences(data, score, micro_batch_size=8, device="cpu")
    limit = Limited(model, rows=3)
    parts = score_sequences(data, score, micro_batch_size=8, device="cpu")
    assert parts == pytest.approx(whole, abs=1e-5)
    assert limit.seen[:3] == [8, 4, 2]
    assert max(limit.seen[2:]) == 2
