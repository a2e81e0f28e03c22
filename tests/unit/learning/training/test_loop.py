"""The training loop and the fit of value models: exact accumulation, schedules, determinism."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, get_scheduler

from pipeline.config.schema import Schedule
from pipeline.errors import JobStopped, OutOfMemory
from pipeline.learning.choices import HeadType
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.training import value as fit_of_values
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.loop import all_at_once, rate_at
from pipeline.learning.training.scoring import score_sequences
from pipeline.learning.training.sequences import Batch, Sequences
from pipeline.learning.training.value import fit_value, token_bce, token_values
from tests.doubles.fitting import fitting


def value_model(head: HeadType = HeadType.v, dropout: float = 0.0) -> ValueModel:
    rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), dropout)
    config = GPT2Config(
        vocab_size=13, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=10, eos_token_id=None, **rates
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return value_model_from(GPT2LMHeadModel(config), head).eval()


def sequences(count: int = 24) -> Sequences:
    """Sequences of different lengths, labelled by whether their last token is even."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 10, count)
    ids = [generator.integers(0, 10, length).tolist() for length in lengths]
    return Sequences.of(ids, [len(row) - 2 for row in ids], [float(row[-1] % 2 == 0) for row in ids])


def fit(
    micro_batch_size: int = 8, epochs: int = 2, seed: int = 0, head: HeadType = HeadType.v, dropout: float = 0.0
) -> tuple[ValueModel, list[float]]:
    model = value_model(head, dropout)
    how = {"head_learning_rate": 3e-2, "epochs": epochs, "warmup_steps": 2, "seed": seed}
    return model, fit_value(model, sequences(), fitting(micro_batch_size, **how))


def test_schedules() -> None:
    ours = Schedule.cosine_from_start
    settings = fitting(learning_rate=2.0, warmup_steps=10, schedule=ours)
    assert [rate_at(step, settings, math.inf) for step in (0, 4, 9, 50, 99)] == pytest.approx([0.2, 1, 2, 2, 2])
    cosine = fitting(learning_rate=2.0, schedule=ours)
    assert [rate_at(step, cosine, 100) for step in (0, 50)] == pytest.approx([2, 1])
    assert rate_at(99, cosine, 100) == pytest.approx(1 + math.cos(math.pi * 0.99))


@pytest.mark.parametrize("warmup_steps", [0, 3, 7, 9])
@pytest.mark.parametrize("schedule", [each for each in Schedule if each is not Schedule.cosine_from_start])
def test_a_schedule_of_transformers_name_is_theirs(schedule: Schedule, warmup_steps: int) -> None:
    """To the bit, and the same where a later training goes on; the last steps come after a horizon."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    theirs = get_scheduler(schedule.value, optimizer, num_warmup_steps=warmup_steps, num_training_steps=7)
    rates = theirs.get_last_lr()
    for _ in range(6):
        optimizer.step()
        theirs.step()
        rates += theirs.get_last_lr()
    how = fitting(learning_rate=3e-4, warmup_steps=warmup_steps, schedule=schedule)
    assert [rate_at(step, how, 7) for step in range(7)] == rates
    after = [rate_at(step, how, 7) for step in range(10, 34)]
    assert len(set(after)) == 1
    assert after[0] <= rates[-1] or warmup_steps >= 7


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_micro_batches_add_up_to_the_batch(micro_batch_size: int) -> None:
    """Sequences have different lengths, so a mean of means would be wrong."""
    whole, losses = fit(micro_batch_size=8)
    parts, same_losses = fit(micro_batch_size=micro_batch_size)
    assert same_losses == pytest.approx(losses, abs=1e-5)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(one, other, atol=2e-3)


@pytest.mark.parametrize("atoms", [1, 3])
def test_values_of_taken_tokens_need_no_others(atoms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: a product for each token that was taken, with the same gradients."""
    backbone = value_model(HeadType.q).backbone
    model = value_model_from(backbone, HeadType.q, atoms=atoms).eval()
    model.head.weight.data = torch.randn(model.head.weight.shape, generator=torch.Generator().manual_seed(1))
    model.head.bias.data = torch.randn(model.head.bias.shape, generator=torch.Generator().manual_seed(2))
    ids, found = torch.tensor([[1, 5, 7, 5], [2, 2, 0, 0]]), []
    for by_row in (False, True):
        monkeypatch.setattr(fit_of_values, "is_by_row", lambda _, by_row=by_row: by_row)
        model.zero_grad()
        values = token_values(model, ids)
        (values**2).sum().backward()
        found.append((values.detach(), [weight.grad for weight in model.parameters()]))
    (theirs, whole), (ours, gradients) = found
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, atol=1e-5)
    for one, other in zip(gradients, whole, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-4)


def test_the_loss_is_the_cross_entropy_of_supervised_tokens() -> None:
    values = torch.tensor([[5.0, 0.3, -2.0], [1.0, 1.0, -9.0]])
    mask = torch.tensor([[False, True, True], [True, False, False]])

    def cross_entropy(z: float, label: float) -> float:
        p = 1 / (1 + math.exp(-z))
        return -(label * math.log(p) + (1 - label) * math.log(1 - p))

    expected = cross_entropy(0.3, 1) + cross_entropy(-2, 1) + cross_entropy(1, 0.25)
    assert token_bce(values, mask, torch.tensor([1.0, 0.25])).item() == pytest.approx(expected, abs=1e-5)


def test_a_head_may_learn_faster_than_its_backbone() -> None:
    def moved(head_learning_rate: float | None) -> dict[str, float]:
        model, before = value_model(), dict(value_model().named_parameters())
        rates = {"learning_rate": 1e-4, "head_learning_rate": head_learning_rate}
        fit_value(model, sequences(), fitting(**rates, weight_decay=0.0))
        # Three steps of AdamW, which moves what has gradients by nearly its rate in each.
        return {
            name: (weight - before[name]).abs().max().item() / 1e-4 for name, weight in model.named_parameters()
        }

    plain, fast = moved(None), moved(1e-2)
    assert max(plain.values()) < 3.5
    assert 100 < fast["head.weight"] < 350
    assert max(size for name, size in fast.items() if not name.startswith("head.")) < 3.5


def test_the_optimizer_of_a_gpu_takes_no_memory_beside_what_it_keeps() -> None:
    def of(*kinds: str, **more: object) -> dict[str, bool]:
        weights: Any = [SimpleNamespace(device=torch.device(kind), **more) for kind in kinds]
        return all_at_once(weights)

    assert of("cuda", "cuda") == of("cpu") == {"fused": True}
    assert of("cuda", full_tensor=None) == {"fused": True}
    assert of("cpu", full_tensor=None) == of("cpu", "cuda") == {"foreach": True}


# -- test out of memory ------------------------------------------------------------------------------------------
# A training that runs out of memory: the step is done again in smaller pieces, and nothing else changes.


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


def fitted(
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
    found = fitted(8, model=model)
    assert_equal(found, fitted(fits))
    # The first step finds out, and no later one tries again.
    assert [count for count in limit.seen if count > rows] == [size for size in (8, 4, 2) if size > rows]


def test_the_next_job_starts_with_what_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = value_model(), value_model()
    Limited(first, rows=3)
    expected = fitted(8, model=first, hints=tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "out of memory at micro-batch 8: using 4 with 2x accumulation",
        "out of memory at micro-batch 4: using 2 with 4x accumulation",
    ]
    limit = Limited(second, rows=3)
    assert_equal(fitted(8, model=second, hints=tmp_path), expected)
    assert max(limit.seen) == 2
    assert capsys.readouterr().out == ""


def test_what_never_fits_says_what_was_tried() -> None:
    model = value_model()
    Limited(model, rows=0)
    remedy = r"Try training.gradient_checkpointing=true, shorter texts"  # and no adapters, which are for policies
    with pytest.raises(OutOfMemory, match=rf"sizes tried: 8, 4, 2, 1\)\. {remedy}"):
        fitted(8, model=model)


def test_a_training_that_goes_on_keeps_the_size_it_had(tmp_path: Path) -> None:
    """Whatever other jobs have learnt since, or forgotten: the rest is what it would have been."""
    expected = fitted(4)

    def attempt(stop_after: int, hints: Path) -> Fitted:
        model, steps = value_model(), iter(range(1, 100))
        Limited(model, rows=5)
        checkpoints = Checkpoints(tmp_path / "c", {}, stopping=lambda: next(steps) == stop_after)
        return fitted(8, model=model, checkpoint=checkpoints, hints=hints)

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
        fitted(8)
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
