"""Differences of two policies as they are: intervals that hold, and that do not contradict the test."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import multinomial, norm

from pipeline.learning.evaluation.paired import (
    paired_by_prompt,
    paired_intervals,
    paired_tests,
    score_intervals,
    score_limits,
)
from pipeline.learning.evaluation.statistics import Floats, Ratios


def differing(wins: int, losses: int, prompts: int) -> Floats:
    """Differences of two policies that are right or wrong."""
    return np.array([1.0] * wins + [-1.0] * losses + [0.0] * (prompts - wins - losses))


def tango(wins: int, losses: int, prompts: int, confidence: float) -> tuple[float, float]:
    """The interval as Tango (1998) writes it."""
    certain = norm.isf((1 - confidence) / 2)

    def score(gap: float) -> float:
        half = -wins - losses + (2 * prompts - wins + losses) * gap
        rest = (math.sqrt(half**2 + 8 * prompts * losses * gap * (1 - gap)) - half) / (4 * prompts)
        return (wins - losses - prompts * gap) / math.sqrt(prompts * (2 * rest + gap * (1 - gap)))

    seen, edge = (wins - losses) / prompts, 1 - 1e-12
    low = brentq(lambda gap: score(gap) - certain, -edge, seen, xtol=1e-13)
    high = brentq(lambda gap: score(gap) + certain, seen, edge, xtol=1e-13)
    return low, high


@pytest.mark.parametrize(("wins", "losses", "prompts"), [(5, 0, 500), (0, 3, 200), (8, 2, 200), (40, 20, 500)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_of_right_and_wrong_answers_it_is_the_score_interval_of_tango(
    wins: int, losses: int, prompts: int, confidence: float
) -> None:
    (found,) = score_intervals([differing(wins, losses, prompts)], [1.0], confidence)
    assert found == pytest.approx(tango(wins, losses, prompts, confidence), abs=1e-9)


@pytest.mark.parametrize("favouring", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("expected", [3, 5, 10, 50])
def test_intervals_hold_where_few_prompts_differ(expected: int, favouring: float) -> None:
    """All outcomes of 200 prompts with their chances. Student's interval covers 0.85 to 0.93 of these."""
    prompts, chances = 200, np.array([favouring, 1 - favouring]) * expected / 200
    most = int(expected + 8 * expected**0.5)
    wins, losses = (side.ravel() for side in np.meshgrid(np.arange(most), np.arange(most)))
    weights = multinomial.pmf(
        np.stack([wins, losses, prompts - wins - losses], 1), prompts, [*chances, 1 - chances.sum()]
    )
    wins, losses, weights = (each[weights > 1e-9] for each in (wins, losses, weights))
    times = np.stack([losses, prompts - wins - losses, wins], 1).astype(float)
    values = np.broadcast_to(np.array([-1.0, 0, 1]), times.shape)
    low, high = score_limits(values, times, np.ones(len(times)), 0.95)
    truth = chances[0] - chances[1]
    assert 0.925 <= weights[(low <= truth) & (truth <= high)].sum() <= 0.985


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_it_leaves_0_out_where_the_exact_test_rejects_and_nowhere_else(confidence: float) -> None:
    outcomes = [differing(wins, losses, 100) for wins in range(16) for losses in range(16)]
    ends = paired_intervals(outcomes, [1.0] * len(outcomes), confidence)
    for (low, high), (p, test) in zip(ends, paired_tests(outcomes, [1.0] * len(outcomes)), strict=True):
        assert test == "mcnemar"
        assert (low > 0 or high < 0) == (p < 1 - confidence)


@pytest.mark.properties
@given(st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=40))
def test_interval_and_test_never_contradict_each_other(values: list[float]) -> None:
    one = np.array(values)
    ((low, high),), ((p, _),) = paired_intervals([one], [1.0], 0.95), paired_tests([one], [1.0])
    assert -1 <= low <= one.mean() <= high <= 1
    assert (low > 0 or high < 0) == (p < 0.05)


def test_what_swaps_alone_would_reject_is_not_rejected_where_the_interval_has_0_in_it() -> None:
    """Two seeds: ten of 500 prompts are better by half, and none is worse."""
    one = np.array([0.5] * 10 + [0.0] * 490)
    ((low, _),), ((p, test),) = paired_intervals([one], [1.0], 0.99), paired_tests([one], [1.0])
    assert test == "swaps"
    assert low < 0
    assert 0.01 < p < 0.05


def test_0_stays_where_swaps_are_too_few_to_reject_it() -> None:
    """No p-value of 10,000 swaps is below one in 10,001, however clear the difference."""
    clear = np.full(60, 0.5)
    assert paired_intervals([clear], [1.0], 0.99)[0][0] > 0.3
    assert paired_intervals([clear], [1.0], 0.99999)[0][0] == 0


def test_prompts_that_differ_a_little_do_not_rule_out_others_that_differ_wholly() -> None:
    """One prompt of 500 that differs by a quarter says next to nothing of those that were not drawn."""
    none, one = score_intervals([np.zeros(500), np.array([0.25] + [0.0] * 499)], [1.0, 1.0], 0.95)
    assert none == pytest.approx((-0.00762, 0.00762), abs=1e-5)
    assert one == pytest.approx(none, abs=6e-4)


def test_with_many_prompts_that_differ_it_is_that_of_the_normal_law() -> None:
    values = np.random.default_rng(0).choice([-0.5, -0.25, 0, 0.25, 0.5], 2000, p=[0.1, 0.2, 0.3, 0.2, 0.2])
    ((low, high),) = score_intervals([values], [1.0], 0.95)
    half = 1.96 * values.std() / 2000**0.5
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01 * half)


def test_intervals_of_graded_rewards_hold_about_as_often_as_they_say() -> None:
    """Clustered data: prompts differ in difficulty, and the second policy is better by 0.1 on each."""
    draw = np.random.default_rng(5)
    easy = draw.uniform(0.1, 0.8, (2000, 80))
    differences = (draw.binomial(4, easy + 0.1) - draw.binomial(4, easy)) / 4
    ends = np.array(score_intervals(list(differences), [0.0] * 2000, 0.9))
    assert ((ends[:, 0] <= 0.1) & (ends[:, 1] >= 0.1)).mean() == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("unit", [1e-150, 1.0, 1e80])
def test_the_unit_of_a_reward_does_not_matter(unit: float) -> None:
    values = np.random.default_rng(1).choice([-0.5, 0, 0, 0.25, 1.0], 60)
    (expected,), ((p, _),) = score_intervals([values], [0.0], 0.95), paired_tests([values * 3], [0.0])
    (found,), ((same, _),) = (
        score_intervals([values * unit], [0.0], 0.95),
        paired_tests([values * unit * 3], [0.0]),
    )
    assert found == pytest.approx((expected[0] * unit, expected[1] * unit), rel=1e-9)
    assert same == pytest.approx(p, rel=1e-6)


def test_pairing_is_what_makes_a_small_difference_visible() -> None:
    draw = np.random.default_rng(8)
    easy = draw.random(200)
    first, second = easy + 0.02 + draw.normal(0, 0.05, 200), easy + draw.normal(0, 0.05, 200)
    ((low, high),) = paired_intervals([first - second], [0.0], 0.95)
    assert 0 < low < high < 0.04


def test_only_prompts_of_which_both_have_something_to_say_are_compared() -> None:
    first = Ratios(np.array([[1.0, 1.0, 9.0]]), np.ones((1, 3)))
    second = Ratios(np.array([[0.0, 1.0, 0.0]]), np.array([[1.0, 1.0, 0.0]]))
    found = paired_by_prompt(first, second)
    assert (found.differences.tolist(), found.reach) == ([[1.0, 0.0]], 1.0)
    nothing = paired_by_prompt(first, Ratios(second.numerators, np.zeros((1, 3))))
    assert (nothing.differences.shape, nothing.reach) == ((1, 0), 0.0)


def test_rewards_that_differ_a_little_once_may_differ_by_all_that_is_seen() -> None:
    """Shares are not the only metric of which few prompts tell: one prompt of 500 differs, by a tenth."""
    easy = (np.arange(500) < 400).astype(float)[None]
    ours = easy + 0.1 * (np.arange(500) == 499)
    found = paired_by_prompt(Ratios(ours, np.ones((1, 500))), Ratios(easy, np.ones((1, 500))))
    assert found.reach == 1
    ((low, high),) = paired_intervals(list(found.differences), [found.reach], 0.95)
    assert low < -0.005
    assert high > 0.005


def test_what_differs_by_rounding_alone_does_not_differ() -> None:
    first = Ratios(np.full((1, 9), 0.1 + 0.2), np.ones((1, 9)))
    assert not paired_by_prompt(first, Ratios(np.full((1, 9), 0.3), np.ones((1, 9)))).differences.any()


def test_numbers_of_prompts_may_differ_and_nothing_is_tested_twice() -> None:
    many = [differing(6, 0, 20), np.array([0.5, 0.25, -0.25]), np.array([0.5, 0.5]), np.zeros(4)]
    assert [test for _, test in paired_tests(many, [1.0] * 4)] == ["mcnemar", "swaps", "swaps", "mcnemar"]
    alone = [paired_intervals([one], [1.0], 0.9)[0] for one in many]
    assert paired_intervals(many, [1.0] * 4, 0.9) == alone
    assert paired_intervals([], [], 0.9) == []
