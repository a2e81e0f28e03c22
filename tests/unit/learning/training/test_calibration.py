"""Held-out calibration of value models: its figures are the textbook's, and its prompts are never trained on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.stats import mannwhitneyu

from pipeline.learning.training.sequences import FILE, Sequences
from pipeline.learning.training.value import (
    area_under_curve,
    atom_weights,
    calibrate,
    calibration_of,
    expected_labels,
    fitted_labels,
    held_out,
)
from pipeline.outputs.formats import Calibration
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


def test_the_error_goes_by_the_prompts_that_have_the_seldom_label() -> None:
    """Of 60 prompts five have a label 1: what they say is known from five, however many the others are."""
    draw, seldom = np.random.default_rng(5), 5
    areas, variances = [], []
    positive = np.repeat(np.arange(60) < seldom, 3)
    for _ in range(1500):
        predicted = (draw.standard_normal((60, 1)) + 0.5 * draw.standard_normal((60, 3))).ravel()
        area, error = area_under_curve(predicted, positive, np.repeat(np.arange(60), 3))
        assert error is not None
        areas.append(area)
        variances.append(error**2)
    assert np.mean(variances) == pytest.approx(np.var(areas), rel=0.1)


@pytest.mark.parametrize("seldom", [1, 4])
def test_of_fewer_than_five_prompts_of_a_label_no_error_is_told(seldom: int) -> None:
    positive = np.arange(40) < seldom
    for which in (positive, ~positive):
        area, error = area_under_curve(np.arange(40.0), which, np.arange(40))
        assert area == float(which[-1])
        assert error is None
    assert area_under_curve(np.array([0.2, 0.8]), np.array([False, True]), np.zeros(2, np.int64)) == (1.0, None)


def test_a_model_that_says_the_base_rate_has_no_skill() -> None:
    labels = np.array([1.0, 0.0, 0.0, 0.0])
    found = calibration_of(np.full(4, 0.25), labels, np.arange(4))
    assert found is not None
    assert (found.base_rate, found.auc, found.brier_skill, found.ece) == (0.25, 0.5, 0.0, 0.0)
    assert found.brier == pytest.approx(0.1875)


def test_predictions_that_are_no_numbers_have_no_figures() -> None:
    found = calibration_of(np.array([0.5, np.nan]), np.array([1.0, 0.0]), np.arange(2))
    assert found == Calibration(prompts=2, tokens=2, base_rate=0.5)


def test_a_model_that_exaggerates_ranks_well_and_is_not_calibrated() -> None:
    labels = (DRAWS.random(4000) < np.repeat([0.4, 0.6], 2000)).astype(float)
    found = calibration_of(np.repeat([0.05, 0.95], 2000), labels, np.arange(4000))
    assert found is not None
    assert found.auc == pytest.approx(0.6, abs=0.03)
    assert found.ece == pytest.approx(0.35, abs=0.03)
    assert found.brier_skill is not None
    assert found.brier_skill < 0


def test_graded_labels_have_no_curve_and_equal_ones_no_skill() -> None:
    graded = calibration_of(np.array([0.2, 0.6]), np.array([0.0, 0.5]), np.arange(2))
    assert graded is not None
    assert graded.auc is None
    assert graded.brier_skill == pytest.approx(1 - 0.025 / 0.0625)
    equal = calibration_of(np.array([0.2, 0.6]), np.ones(2), np.arange(2))
    assert equal is not None
    assert equal.auc is equal.brier_skill is None
    assert calibration_of(np.zeros(0), np.zeros(0), np.zeros(0, np.int64)) is None


def test_a_head_with_atoms_predicts_their_mean() -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0], [-50.0, 0.0, 0.0]]])
    assert expected_labels(logits, 3).tolist() == [[pytest.approx(0.5), pytest.approx(0.75)]]
    assert expected_labels(torch.tensor([[0.0]]), 1).item() == 0.5


def test_prompts_are_held_out_whole_and_in_every_round_alike() -> None:
    rows = DRAWS.integers(0, 10**6, 2000)
    apart = held_out(np.repeat(rows, 3), seed=1, share=0.1).reshape(-1, 3)
    assert (apart.all(1) == apart.any(1)).all()
    assert apart[:, 0].mean() == pytest.approx(0.1, abs=0.03)
    assert (held_out(rows[::-1], seed=1, share=0.1) == apart[::-1, 0]).all()
    assert (held_out(rows, seed=2, share=0.1) != apart[:, 0]).any()


def test_nothing_is_held_out_where_prompts_are_unknown_or_nothing_would_be_left() -> None:
    assert not held_out(np.full(50, -1), seed=0, share=0.5).any()
    assert not held_out(np.arange(3), seed=0, share=0.999999).any()
    assert not held_out(np.arange(50), seed=0, share=0.0).any()


def test_a_value_model_is_held_against_every_supervised_token() -> None:
    data = replace(sequences(), prompts=np.arange(24) // 2)
    found = calibrate(value_model(), data, micro_batch_size=5, device="cpu")
    assert found is not None
    assert (found.prompts, found.tokens) == (12, int((data.lengths - data.starts).sum()))
    assert found.auc == 0.5  # its head is zero
    assert found.brier == pytest.approx(0.25)
    assert calibrate(value_model(), data.some(np.zeros(24, bool)), micro_batch_size=5, device="cpu") is None


@pytest.mark.parametrize("prompts", [None, [7, 9]], ids=["not told", "told"])
def test_prompts_are_kept_where_they_are_told(prompts: list[int] | None, tmp_path: Path) -> None:
    """A file without them is as it was before there were any, and as a method of the user's own may write it."""
    Sequences.of([[1], [2]], [0, 0], [1.0, 0.0], prompts).save(tmp_path)
    assert ("prompts" in load_file(tmp_path / FILE)) == (prompts is not None)
    assert Sequences.load([tmp_path]).prompts.tolist() == (prompts or [-1, -1])


@pytest.mark.parametrize(("atoms", "rate"), [(2, 10.0), (11, 50.0), (11, 20.0), (3, 0.0)])
def test_a_model_that_has_fitted_split_labels_without_fault_is_well_calibrated(atoms: int, rate: float) -> None:
    """Its mean lies off the labels where a tilt has split these, so it is held against what it was fitted to."""
    labels = np.array([0.25, 0.5, 0.75, 0.53], np.float32)
    logits = atom_weights(torch.from_numpy(labels), atoms, rate).clamp(min=1e-30).log()[None]
    predicted = expected_labels(logits, atoms)[0].double().numpy()
    assert predicted == pytest.approx(fitted_labels(labels, atoms, rate), abs=1e-6)
