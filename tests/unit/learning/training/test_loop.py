"""The training loop and the fit of value models: exact accumulation, schedules, determinism."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor, nn

from pipeline.config.schema import Schedule
from pipeline.errors import JobError, JobStopped, OutOfMemory
from pipeline.learning.choices import GRPOLoss, HeadType, ScaleRewards
from pipeline.learning.datasets.shipped import Addition, AdditionConfig
from pipeline.learning.models.classifier import as_classifier, pad_apart
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.training import grpo, loop, scoring, value
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.sequences import Batch, Sequences, batch_of, prompt_folds
from pipeline.outputs import check, formats
from tests.doubles.models import PLAINLY, fitting, of_grpo, tiny_policy
from tests.unit.learning.training.test_grpo import samples


def value_model(head: HeadType = HeadType.v) -> ValueModel:
    return value_model_from(tiny_policy(), head).eval()


def sequences(count: int = 24) -> Sequences:
    """Sequences of different lengths, labelled by whether their last token is even."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 10, count)
    ids = [generator.integers(0, 10, length).tolist() for length in lengths]
    return Sequences.of(ids, [len(row) - 2 for row in ids], [float(row[-1] % 2 == 0) for row in ids])


def test_schedules() -> None:
    ours = Schedule.cosine_from_start
    settings = fitting(learning_rate=2.0, warmup_steps=10, schedule=ours)
    rates = [loop.rate_at(step, settings, math.inf) for step in (0, 4, 9, 50, 99)]
    assert rates == pytest.approx([0.2, 1, 2, 2, 2])
    cosine = fitting(learning_rate=2.0, schedule=ours)
    assert [loop.rate_at(step, cosine, 100) for step in (0, 50)] == pytest.approx([2, 1])
    assert loop.rate_at(99, cosine, 100) == pytest.approx(1 + math.cos(math.pi * 0.99))


@pytest.mark.parametrize("warmup_steps", [0, 3, 7, 9])
@pytest.mark.parametrize("schedule", [each for each in Schedule if each is not Schedule.cosine_from_start])
def test_a_schedule_of_transformers_name_is_theirs(schedule: Schedule, warmup_steps: int) -> None:
    """To the bit, and the same where a later training goes on; the last steps come after a horizon."""
    from transformers import get_scheduler  # slow to import

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    theirs = get_scheduler(schedule.value, optimizer, num_warmup_steps=warmup_steps, num_training_steps=7)
    rates = theirs.get_last_lr()
    for _ in range(6):
        optimizer.step()
        theirs.step()
        rates += theirs.get_last_lr()
    how = fitting(learning_rate=3e-4, warmup_steps=warmup_steps, schedule=schedule)
    assert [loop.rate_at(step, how, 7) for step in range(7)] == rates
    after = [loop.rate_at(step, how, 7) for step in range(10, 34)]
    assert len(set(after)) == 1
    assert after[0] <= rates[-1] or warmup_steps >= 7


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_micro_batches_add_up_to_the_batch(micro_batch_size: int) -> None:
    """Sequences have different lengths, so a mean of means would be wrong."""
    whole, losses = fitted(8)
    parts, same_losses = fitted(micro_batch_size)
    assert same_losses == pytest.approx(losses, abs=1e-5)
    assert all(torch.allclose(weight, parts[name], atol=2e-3) for name, weight in whole.items())


@pytest.mark.parametrize("atoms", [1, 3])
def test_values_of_taken_tokens_need_no_others(atoms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: a product for each token that was taken, with the same gradients."""
    backbone = value_model(HeadType.q).backbone
    model = value_model_from(backbone, HeadType.q, atoms=atoms).eval()
    model.head.weight.data = torch.randn(model.head.weight.shape, generator=torch.Generator().manual_seed(1))
    model.head.bias.data = torch.randn(model.head.bias.shape, generator=torch.Generator().manual_seed(2))
    ids, found = torch.tensor([[1, 5, 7, 5], [2, 2, 0, 0]]), []
    for by_row in (False, True):
        monkeypatch.setattr(value, "is_by_row", lambda _, by_row=by_row: by_row)
        model.zero_grad()
        values = value.token_values(model, ids)
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
    assert value.token_bce(values, mask, torch.tensor([1.0, 0.25])).item() == pytest.approx(expected, abs=1e-5)


def test_a_head_may_learn_faster_than_its_backbone() -> None:
    def moved(head_learning_rate: float | None) -> dict[str, float]:
        model, before = value_model(), dict(value_model().named_parameters())
        rates = {"learning_rate": 1e-4, "head_learning_rate": head_learning_rate}
        value.fit_value(model, sequences(), fitting(**rates, weight_decay=0.0))
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
        return loop.all_at_once(weights)

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
    losses = value.fit_value(model, sequences(), how)
    return dict(model.state_dict()), losses


def assert_equal(found: Fitted, expected: Fitted) -> None:
    assert found[1] == expected[1]
    assert found[0].keys() == expected[0].keys()
    assert all(torch.equal(found[0][name], expected[0][name]) for name in expected[0])


@pytest.mark.parametrize(("rows", "fits"), [(5, 4), (1, 1)])
def test_the_result_is_that_of_the_size_that_fits(rows: int, fits: int) -> None:
    model = value_model()
    limit = Limited(model, rows)
    found = fitted(8, model=model)
    assert_equal(found, fitted(fits))
    # The first step finds out, and no later one tries again.
    assert [count for count in limit.seen if count > rows] == [size for size in (8, 4, 2) if size > rows]


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
        return value.token_values(model, batch.ids).sum(1)

    whole = scoring.score_sequences(data, score, micro_batch_size=8, device="cpu")
    limit = Limited(model, rows=3)
    parts = scoring.score_sequences(data, score, micro_batch_size=8, device="cpu")
    assert parts == pytest.approx(whole, abs=1e-5)
    assert limit.seen[:3] == [8, 4, 2]
    assert max(limit.seen[2:]) == 2


# -- test curve --------------------------------------------------------------------------------------------------
# The curve of a training: what its steps tell, the same bytes whatever interrupts it.


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


# -- test value --------------------------------------------------------------------------------------------------
# Held-out calibration of value models: its figures are the textbook's, and its prompts are never trained on.


DRAWS = np.random.default_rng(0)


@pytest.mark.parametrize("levels", [3, 1000], ids=["many ties", "few ties"])
def test_the_area_is_that_of_mann_and_whitney(levels: int) -> None:
    predicted = DRAWS.integers(0, levels, 300) / levels
    positive = DRAWS.random(300) < 0.3 + 0.4 * predicted
    area, _ = value.area_under_curve(predicted, positive, np.arange(300))
    statistic = mannwhitneyu(predicted[positive], predicted[~positive]).statistic
    assert area == pytest.approx(statistic / (positive.sum() * (~positive).sum()))


@pytest.mark.parametrize("tokens", [1, 6], ids=["a token a prompt", "tokens that go together"])
def test_the_error_of_the_area_is_what_drawing_prompts_anew_gives(tokens: int) -> None:
    """Tokens of a prompt share label and prediction here, so six of them tell no more than one."""
    areas, errors = [], []
    for _ in range(400):
        drawn = DRAWS.random(80)
        positive = DRAWS.random(80) < drawn
        area, error = value.area_under_curve(
            np.repeat(drawn, tokens), np.repeat(positive, tokens), np.repeat(np.arange(80), tokens)
        )
        areas.append(area)
        errors.append(error)
    assert np.mean(errors) == pytest.approx(np.std(areas), rel=0.1)


def test_a_model_that_exaggerates_ranks_well_and_is_not_calibrated() -> None:
    labels = (DRAWS.random(4000) < np.repeat([0.4, 0.6], 2000)).astype(float)
    found = value.calibration_of(np.repeat([0.05, 0.95], 2000), labels, np.arange(4000))
    assert found is not None
    assert found.auc == pytest.approx(0.6, abs=0.03)
    assert found.ece == pytest.approx(0.35, abs=0.03)
    assert found.brier_skill is not None
    assert found.brier_skill < 0


def test_prompts_are_held_out_whole_and_in_every_round_alike() -> None:
    rows = DRAWS.integers(0, 10**6, 2000)
    apart = value.held_out(np.repeat(rows, 3), seed=1, share=0.1).reshape(-1, 3)
    assert (apart.all(1) == apart.any(1)).all()
    assert apart[:, 0].mean() == pytest.approx(0.1, abs=0.03)
    assert (value.held_out(rows[::-1], seed=1, share=0.1) == apart[::-1, 0]).all()
    assert (value.held_out(rows, seed=2, share=0.1) != apart[:, 0]).any()


def test_a_value_model_is_held_against_every_supervised_token() -> None:
    data = replace(sequences(), prompts=np.arange(24) // 2)
    found = value.calibrate(value_model(), data, fitting(5))
    assert found is not None
    assert (found.prompts, found.tokens) == (12, int((data.lengths - data.starts).sum()))
    assert found.auc == 0.5  # its head is zero
    assert found.brier == pytest.approx(0.25)
    assert value.calibrate(value_model(), data.some(np.zeros(24, bool)), fitting(5)) is None


def test_a_token_that_a_value_model_cannot_read_is_told() -> None:
    """A reference may have more outputs than there are tokens, and draw one of them."""
    model, data = value_model(), Sequences.of([[1, 2, 13]] * 2, [2] * 2, [1.0, 0.0])
    for use in (
        lambda: value.fit_value(model, data, fitting()),
        lambda: value.fit_reward_model(model, data, fitting()),
        lambda: value.calibrate(model, data, fitting()),
        lambda: value.reward_scores(model, data, micro_batch_size=8, device="cpu"),
    ):
        with pytest.raises(JobError, match=r"token 13 was drawn, .* below 13"):
            use()


@pytest.mark.parametrize(("atoms", "rate"), [(2, 10.0), (11, 50.0), (11, 20.0), (3, 0.0)])
def test_a_model_that_has_fitted_split_labels_without_fault_is_well_calibrated(atoms: int, rate: float) -> None:
    """Its mean lies off the labels where a tilt has split these, so it is held against what it was fitted to."""
    labels = np.array([0.25, 0.5, 0.75, 0.53], np.float32)
    logits = value.atom_weights(torch.from_numpy(labels), atoms, rate).clamp(min=1e-30).log()[None]
    predicted = value.expected_labels(logits, atoms)[0].double().numpy()
    assert predicted == pytest.approx(value.fitted_labels(labels, atoms, rate), abs=1e-6)


# -- test reward model -------------------------------------------------------------------------------------------
# Reward models: fitted to preferences, standardised, read at the last token.


def pairs(count: int = 40) -> Sequences:
    """What is preferred ends with an even token; completions have several lengths."""
    generator = np.random.default_rng(0)
    ids = []
    for _ in range(count):
        for side in (0, 1):
            middle = generator.integers(0, 10, generator.integers(1, 4)).tolist()
            ids.append([1, 2, *middle, int(generator.integers(0, 5)) * 2 + side])
    return Sequences.of(ids, [2] * len(ids), [1.0, 0.0] * count)


def test_the_score_is_the_value_at_the_last_token() -> None:
    model, data = value_model_from(tiny_policy(), HeadType.v), pairs(3)
    value.fit_reward_model(model, pairs(), fitting(16, batch_size=16))
    batch = batch_of(data, np.arange(6), "cpu")
    with torch.no_grad():
        found = value.sequence_scores(model, batch)
        for row in range(6):
            ids = torch.from_numpy(data.ids[row, : data.lengths[row]].astype(np.int64))[None]
            assert float(found[row]) == pytest.approx(float(model(ids)[0, -1]), abs=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_the_losses_of_a_fit_are_those_of_trls_trainer(tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    class Told(RewardTrainer):
        def compute_loss(self, *given: Any, **named: Any) -> Any:
            found = super().compute_loss(*given, **named)
            losses.append(found.item())
            return found

    losses: list[float] = []
    model, data = value_model_from(tiny_policy(), HeadType.v), pairs(12)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    tokens = make_tokenizer(Addition(AdditionConfig(kind="addition")))
    pad_apart(tokens, ())
    sides = [row[:length].tolist() for row, length in zip(data.ids, data.lengths, strict=True)]
    rows = [{"chosen_ids": one, "rejected_ids": other} for one, other in zip(sides[::2], sides[1::2], strict=True)]
    steps = {"per_device_train_batch_size": 12, "num_train_epochs": 5}
    Told(
        as_classifier(deepcopy(model), tokens),
        args=RewardConfig(str(tmp_path), **PLAINLY, **steps),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokens,
    ).train()
    steady = fitting(batch_size=24, epochs=5, schedule=Schedule.constant, weight_decay=0.0)
    ours = value.fit_reward_model(model, data, steady)
    assert losses[-1] < losses[0] / 2
    assert ours == pytest.approx(losses, rel=1e-3)


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_prompts_are_dealt_whole_and_evenly(count: int) -> None:
    rows = [7, 3, 3, 90, 11, 11, 4, 7]
    completions = [*rows, 5, 5, 8]
    of_pairs, of_completions = prompt_folds(np.array(rows), np.array(completions), count)
    folds: dict[int, set[int]] = {}
    for row, fold in [*zip(rows, of_pairs, strict=True), *zip(completions, of_completions, strict=True)]:
        folds.setdefault(int(row), set()).add(int(fold))
    assert all(len(found) == 1 for found in folds.values())
    sizes = [sum(found == {fold} for row, found in folds.items() if row in rows) for fold in range(count)]
    assert max(sizes) - min(sizes) <= 1, "of what is fitted to"
