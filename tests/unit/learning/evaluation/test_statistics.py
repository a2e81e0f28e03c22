"""Intervals and tests against known laws."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.learning.evaluation.statistics import Estimate, Ratios, ratio_estimates, swap_tests


def estimate(above: NDArray[np.float64], below: NDArray[np.float64], **settings: float) -> Estimate:
    """Of one measure."""
    (found,) = ratio_estimates(Ratios(above[:, None], below[:, None]), **settings)  # type: ignore[arg-type]
    return found


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


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    generator = np.random.default_rng(1)
    inside = 0
    for seed in range(400):
        scores = generator.binomial(2, 0.3, 100).astype(float)
        found = estimate(scores, np.full(100, 2.0), samples=200, confidence=0.9, seed=seed)
        inside += found.low <= 0.3 <= found.high
    assert 0.85 <= inside / 400 <= 0.95
