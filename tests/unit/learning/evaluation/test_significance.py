"""Corrections for many tests, the exact test of right and wrong answers, and what can be found at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from pipeline.learning.evaluation.paired import holm, mcnemar, smallest_detectable
from pipeline.learning.evaluation.statistics import Spread


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.999))
@pytest.mark.properties
def test_holm_rejects_what_stepping_down_rejects(p_values: list[float], level: float) -> None:
    rejected = 0
    for passed, p in enumerate(sorted(p_values)):
        if (len(p_values) - passed) * p > level:
            break
        rejected += 1
    assert sum(p <= level for p in holm(p_values)) == rejected
    assert all(one >= other for one, other in zip(holm(p_values), p_values, strict=True))


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (6, 1), (5, 5), (40, 20)])
def test_mcnemar_is_the_sign_test_of_prompts_that_differ(wins: int, losses: int) -> None:
    differences = np.array([1.0] * wins + [-1.0] * losses + [0.0, 0.0])
    expected = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert mcnemar(differences) == pytest.approx(expected)


def test_the_smallest_difference_is_found_with_its_power() -> None:
    spread = Spread(np.zeros(1), np.zeros(1), np.ones(1), np.full(1, 0.02**2), 499)
    found = smallest_detectable(spread, 1, 0.95)[0]
    assert found == pytest.approx(2.8 * 0.02, rel=0.01)
    drawn = found + 0.02 * np.random.default_rng(0).standard_normal(20_000)
    assert (np.abs(drawn) > spread.half_width(0.95)).mean() == pytest.approx(0.8, abs=0.01)
    assert smallest_detectable(spread, 9, 0.95)[0] > found
