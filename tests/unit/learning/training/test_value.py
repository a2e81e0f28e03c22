"""Held-out calibration of value models: its figures are the textbook's, and its prompts are never trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu

from pipeline.learning.choices import HeadType
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.training import value as values
from pipeline.learning.training.sequences import Sequences, batch_of, prompt_folds
from tests.doubles.fitting import fitting
from tests.doubles.models import tiny_policy
from tests.unit.learning.training.test_loop import sequences, value_model

DRAWS = np.random.default_rng(0)


@pytest.mark.parametrize("levels", [3, 1000], ids=["many ties", "few ties"])
def test_the_area_is_that_of_mann_and_whitney(levels: int) -> None:
    predicted = DRAWS.integers(0, levels, 300) / levels
    positive = DRAWS.random(300) < 0.3 + 0.4 * predicted
    area, _ = values.area_under_curve(predicted, positive, np.arange(300))
    statistic = mannwhitneyu(predicted[positive], predicted[~positive]).statistic
    assert area == pytest.approx(statistic / (positive.sum() * (~positive).sum()))


@pytest.mark.parametrize("tokens", [1, 6], ids=["a token a prompt", "tokens that go together"])
def test_the_error_of_the_area_is_what_drawing_prompts_anew_gives(tokens: int) -> None:
    """Tokens of a prompt share label and prediction here, so six of them tell no more than one."""
    areas, errors = [], []
    for _ in range(400):
        value = DRAWS.random(80)
        positive = DRAWS.random(80) < value
        area, error = values.area_under_curve(
            np.repeat(value, tokens), np.repeat(positive, tokens), np.repeat(np.arange(80), tokens)
        )
        areas.append(area)
        errors.append(error)
    assert np.mean(errors) == pytest.approx(np.std(areas), rel=0.1)


def test_a_model_that_exaggerates_ranks_well_and_is_not_calibrated() -> None:
    labels = (DRAWS.random(4000) < np.repeat([0.4, 0.6], 2000)).astype(float)
    found = values.calibration_of(np.repeat([0.05, 0.95], 2000), labels, np.arange(4000))
    assert found is not None
    assert found.auc == pytest.approx(0.6, abs=0.03)
    assert found.ece == pytest.approx(0.35, abs=0.03)
    assert found.brier_skill is not None
    assert found.brier_skill < 0


def test_prompts_are_held_out_whole_and_in_every_round_alike() -> None:
    rows = DRAWS.integers(0, 10**6, 2000)
    apart = values.held_out(np.repeat(rows, 3), seed=1, share=0.1).reshape(-1, 3)
    assert (apart.all(1) == apart.any(1)).all()
    assert apart[:, 0].mean() == pytest.approx(0.1, abs=0.03)
    assert (values.held_out(rows[::-1], seed=1, share=0.1) == apart[::-1, 0]).all()
    assert (values.held_out(rows, seed=2, share=0.1) != apart[:, 0]).any()


def test_a_value_model_is_held_against_every_supervised_token() -> None:
    data = replace(sequences(), prompts=np.arange(24) // 2)
    found = values.calibrate(value_model(), data, fitting(5))
    assert found is not None
    assert (found.prompts, found.tokens) == (12, int((data.lengths - data.starts).sum()))
    assert found.auc == 0.5  # its head is zero
    assert found.brier == pytest.approx(0.25)
    assert values.calibrate(value_model(), data.some(np.zeros(24, bool)), fitting(5)) is None


@pytest.mark.parametrize(("atoms", "rate"), [(2, 10.0), (11, 50.0), (11, 20.0), (3, 0.0)])
def test_a_model_that_has_fitted_split_labels_without_fault_is_well_calibrated(atoms: int, rate: float) -> None:
    """Its mean lies off the labels where a tilt has split these, so it is held against what it was fitted to."""
    labels = np.array([0.25, 0.5, 0.75, 0.53], np.float32)
    logits = values.atom_weights(torch.from_numpy(labels), atoms, rate).clamp(min=1e-30).log()[None]
    predicted = values.expected_labels(logits, atoms)[0].double().numpy()
    assert predicted == pytest.approx(values.fitted_labels(labels, atoms, rate), abs=1e-6)


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


def fitted(micro_batch_size: int = 16, epochs: int = 30) -> tuple[ValueModel, list[float]]:
    model = value_model_from(tiny_policy(), HeadType.v)
    return model, values.fit_reward_model(model, pairs(), fitting(micro_batch_size, batch_size=16, epochs=epochs))


def test_the_score_is_the_value_at_the_last_token() -> None:
    model, _ = fitted(epochs=1)
    data = pairs(3)
    batch = batch_of(data, np.arange(6), "cpu")
    with torch.no_grad():
        found = values.sequence_scores(model, batch)
        for row in range(6):
            ids = torch.from_numpy(data.ids[row, : data.lengths[row]].astype(np.int64))[None]
            assert float(found[row]) == pytest.approx(float(model(ids)[0, -1]), abs=1e-5)


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
