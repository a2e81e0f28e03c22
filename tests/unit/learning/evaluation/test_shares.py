"""Intervals of shares, and how they end where every prompt is right."""

import numpy as np
import pytest
from scipy.stats import binomtest

from pipeline.learning.evaluation.statistics import crossed_spread, exact_interval, share_interval


@pytest.mark.parametrize(("right", "size"), [(0, 10), (10, 10), (3, 10), (499, 500)])
def test_the_exact_interval_is_that_of_the_binomial_test(right: int, size: int) -> None:
    low, high = exact_interval(np.array([right / size]), np.array([float(size)]), 0.9)
    expected = binomtest(right, size).proportion_ci(0.9, "exact")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_where_every_prompt_is_right_so_many_answers_as_prompts_are_taken_for_granted() -> None:
    low, high = share_interval(crossed_spread(np.ones((3, 5, 500))), 0.95)
    assert low == pytest.approx(0.025 ** (1 / 500))
    assert high == 1
    low, high = share_interval(crossed_spread(np.zeros((1, 1, 20))), 0.95)
    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / 20))


def test_intervals_stay_between_0_and_1_and_hold_the_value() -> None:
    values = (np.random.default_rng(0).random((200, 1, 3, 30)) < 0.97).astype(float)
    spread = crossed_spread(values)
    low, high = share_interval(spread, 0.95)
    assert ((low >= 0) & (low <= spread.value) & (spread.value <= high) & (high <= 1)).all()
    assert (low < high).all()
