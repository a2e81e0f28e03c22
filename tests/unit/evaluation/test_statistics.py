"""Intervals and tests against known laws."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.evaluation.statistics import (
    Ratios,
    paired_differences,
    ratio_estimate,
    ratio_estimates,
    swap_tests,
)


def means(values: NDArray[np.float64]) -> Ratios:
    """Measures that are plain means over prompts; values of shape [P, M] or [P]."""
    table = values.reshape(len(values), -1)
    return Ratios(table, np.ones_like(table))


def test_many_measures_at_once_are_what_each_is_alone() -> None:
    generator = np.random.default_rng(0)
    above, below = generator.random((40, 5)), generator.integers(1, 9, (40, 5)).astype(float)
    together = ratio_estimates(Ratios(above, below), samples=300, confidence=0.9)
    alone = [ratio_estimate(above[:, m], below[:, m], samples=300, confidence=0.9) for m in range(5)]
    for one, other in zip(together, alone, strict=True):
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), rel=1e-12)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = means(np.random.default_rng(1).random((30, 2)))
    other = means(np.random.default_rng(2).random((30, 2)))
    whole = ratio_estimates(ratios, samples=100, confidence=0.9)
    differences = paired_differences(ratios, other, samples=100, confidence=0.9)
    swaps = swap_tests(ratios.numerators, samples=100)
    monkeypatch.setattr("pipeline.evaluation.statistics._AT_ONCE", 30 * 7)
    assert repr(ratio_estimates(ratios, samples=100, confidence=0.9)) == repr(whole)
    assert repr(paired_differences(ratios, other, samples=100, confidence=0.9)) == repr(differences)
    assert swap_tests(ratios.numerators, samples=100).tolist() == swaps.tolist()


def test_prompts_with_nothing_to_say_do_not_count() -> None:
    above = np.array([1.0, 0.0, 1.0, 0.0, 0.0])
    below = np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    found = ratio_estimate(above, below, samples=500, confidence=0.95)
    assert found.value == pytest.approx(2 / 3)
    assert np.isfinite([found.low, found.high]).all()


def test_intervals_of_differences_cover_the_truth_about_as_often_as_they_say() -> None:
    """Clustered data: prompts differ in difficulty, and the second policy is better by 0.1 on each."""
    generator = np.random.default_rng(5)
    inside = 0
    for seed in range(300):
        easy = generator.uniform(0.1, 0.8, 80)
        first = generator.binomial(4, easy + 0.1) / 4
        second = generator.binomial(4, easy) / 4
        (found,) = paired_differences(means(first), means(second), samples=300, confidence=0.9, seed=seed)
        inside += found.low <= 0.1 <= found.high
    assert 0.85 <= inside / 300 <= 0.95


def test_p_values_are_uniform_where_there_is_no_difference() -> None:
    generator = np.random.default_rng(6)
    easy = generator.random((60, 1))
    first = generator.normal(easy, 0.3, (60, 400))
    second = generator.normal(easy, 0.3, (60, 400))
    p = swap_tests(first - second, samples=400)
    for level in (0.05, 0.2, 0.5):
        assert abs((p <= level).mean() - level) < 3 * np.sqrt(level * (1 - level) / 400)


def test_the_p_value_is_that_of_all_swaps() -> None:
    """Few prompts: all 2^6 swaps can be enumerated."""
    gaps = np.array([0.5, 0.25, 0.25, 0.0, -0.25, 0.75])
    exact = np.mean([abs(np.dot(signs, gaps)) >= abs(gaps.sum()) for signs in product((-1, 1), repeat=6)])
    assert swap_tests(gaps[:, None], samples=20_000)[0] == pytest.approx(exact, abs=0.01)


def test_a_clear_difference_and_none_at_all() -> None:
    values = np.random.default_rng(7).random(50)
    (clear,) = paired_differences(means(values + 1), means(values), samples=999, confidence=0.95)
    assert swap_tests(np.ones((50, 1)), samples=999)[0] == pytest.approx(1 / 1000)
    assert (clear.value, clear.low, clear.high) == pytest.approx((1, 1, 1))
    (none,) = paired_differences(means(values), means(values), samples=999, confidence=0.95)
    assert (none.value, none.low, none.high) == (0, 0, 0)
    assert swap_tests(np.zeros((50, 1)))[0] == 1


def test_only_prompts_of_which_both_have_something_to_say_are_compared() -> None:
    first = Ratios(np.array([[1.0], [1.0], [9.0]]), np.array([[1.0], [1.0], [1.0]]))
    second = Ratios(np.array([[0.0], [1.0], [0.0]]), np.array([[1.0], [1.0], [0.0]]))
    (found,) = paired_differences(first, second, samples=50, confidence=0.9)
    assert found.value == 0.5
    assert found.prompts == 2
    with pytest.raises(ValueError, match="at least one sample"):
        paired_differences(first, Ratios(second.numerators, 0 * second.denominators), samples=5, confidence=0.9)


def test_pairing_is_what_makes_a_small_difference_visible() -> None:
    generator = np.random.default_rng(8)
    easy = generator.random(200)
    first = easy + 0.02 + generator.normal(0, 0.05, 200)
    second = easy + generator.normal(0, 0.05, 200)
    (found,) = paired_differences(means(first), means(second), samples=500, confidence=0.95)
    unpaired = ratio_estimate(first, np.ones(200), samples=500, confidence=0.95)
    assert found.high - found.low < (unpaired.high - unpaired.low) / 2
    assert swap_tests((first - second)[:, None])[0] < 0.01


def test_a_p_value_can_survive_a_correction_for_45_tests() -> None:
    assert 45 * swap_tests(np.ones((20, 1)))[0] < 0.01
