"""Held-out calibration of value models: its figures are the textbook's, and its prompts are never trained on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu

from pipeline.learning.training.value import (
    area_under_curve,
    atom_weights,
    calibrate,
    calibration_of,
    expected_labels,
    fitted_labels,
    held_out,
)
from tests.unit.learning.training.test_training import sequences, value_model

DRAWS = np.random.default_rng(0)


@pytest.mark.parametrize("levels", [3, 1000], ids=["many ties", "few ties"])
def test_the_area_is_that_of_mann_and_whitney(levels: int) -> None:
    predicted = DRAWS.integers(0, levels, 300) / levels
    positive = DRAWS.random(300) < 0.3 + 0.4 * predicted
    area, _ = area_under_curve(predicted, positive, np.arange(300))
    statistic = mannwhitneyu(predicted[positive], predicted[~positive]).statistic
    assert area == pytest.approx(statistic / (positive.sum() * (~positive).sum()))


@pytest.mark.parametrize("tokens", [1, 6], ids=["a token a prompt", "tokens that go together"])
def test_the_error_of_the_area_is_what_drawing_prompts_anew_gives(tokens: int) -> None:
    """Tokens of a prompt share label and prediction here, so six of them tell no more than one."""
    areas, errors = [], []
    for _ in range(400):
        value = DRAWS.random(80)
        positive = DRAWS.random(80) < value
        area, error = area_under_curve(
            np.repeat(value, tokens), np.repeat(positive, tokens), np.repeat(np.arange(80), tokens)
        )
        areas.append(area)
        errors.append(error)
    assert np.mean(errors) == pytest.approx(np.std(areas), rel=0.1)


def test_a_model_that_exaggerates_ranks_well_and_is_not_calibrated() -> None:
    labels = (DRAWS.random(4000) < np.repeat([0.4, 0.6], 2000)).astype(float)
    found = calibration_of(np.repeat([0.05, 0.95], 2000), labels, np.arange(4000))
    assert found is not None
    assert found.auc == pytest.approx(0.6, abs=0.03)
    assert found.ece == pytest.approx(0.35, abs=0.03)
    assert found.brier_skill is not None
    assert found.brier_skill < 0


def test_prompts_are_held_out_whole_and_in_every_round_alike() -> None:
    rows = DRAWS.integers(0, 10**6, 2000)
    apart = held_out(np.repeat(rows, 3), seed=1, share=0.1).reshape(-1, 3)
    assert (apart.all(1) == apart.any(1)).all()
    assert apart[:, 0].mean() == pytest.approx(0.1, abs=0.03)
    assert (held_out(rows[::-1], seed=1, share=0.1) == apart[::-1, 0]).all()
    assert (held_out(rows, seed=2, share=0.1) != apart[:, 0]).any()


def test_a_value_model_is_held_against_every_supervised_token() -> None:
    data = replace(sequences(), prompts=np.arange(24) // 2)
    found = calibrate(value_model(), data, micro_batch_size=5, device="cpu")
    assert found is not None
    assert (found.prompts, found.tokens) == (12, int((data.lengths - data.starts).sum()))
    assert found.auc == 0.5  # its head is zero
    assert found.brier == pytest.approx(0.25)
    assert calibrate(value_model(), data.some(np.zeros(24, bool)), micro_batch_size=5, device="cpu") is None


@pytest.mark.parametrize(("atoms", "rate"), [(2, 10.0), (11, 50.0), (11, 20.0), (3, 0.0)])
def test_a_model_that_has_fitted_split_labels_without_fault_is_well_calibrated(atoms: int, rate: float) -> None:
    """Its mean lies off the labels where a tilt has split these, so it is held against what it was fitted to."""
    labels = np.array([0.25, 0.5, 0.75, 0.53], np.float32)
    logits = atom_weights(torch.from_numpy(labels), atoms, rate).clamp(min=1e-30).log()[None]
    predicted = expected_labels(logits, atoms)[0].double().numpy()
    assert predicted == pytest.approx(fitted_labels(labels, atoms, rate), abs=1e-6)
