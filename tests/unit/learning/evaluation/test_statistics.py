"""Intervals and tests of one policy, of pairs and of crossed means, against known laws."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binomtest, norm

from pipeline.learning.evaluation import statistics


def test_the_p_value_is_that_of_all_swaps() -> None:
    """Few prompts: all 2^6 swaps can be enumerated."""
    gaps = np.array([0.5, 0.25, 0.25, 0.0, -0.25, 0.75])
    exact = np.mean([abs(np.dot(signs, gaps)) >= abs(gaps.sum()) for signs in product((-1, 1), repeat=6)])
    assert statistics.swap_tests(gaps[:, None], samples=20_000)[0] == pytest.approx(exact, abs=0.01)


def drawn(
    shape: tuple[int, int, int, int], seed: int = 0, *, r: float = 0, s: float = 0, p: float = 0, rs: float = 0
) -> statistics.Floats:
    """Cells with effects of these standard deviations, shape [N, R, S, P]; each cell has noise of 1 besides."""
    n, references, seeds, prompts = shape
    normal = np.random.default_rng(seed).standard_normal
    effects = r * normal((n, references, 1, 1)) + s * normal((n, 1, seeds, 1)) + p * normal((n, 1, 1, prompts))
    return np.asarray(effects + rs * normal((n, references, seeds, 1)) + normal(shape))


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((4000, 1, 3, 10), {"s": 0.5, "p": 1.5}),
        ((4000, 1, 8, 10), {"s": 0.2, "p": 0.5}),
        ((4000, 3, 4, 8), {"r": 0.4, "s": 0.4, "p": 1.0, "rs": 0.2}),
        ((4000, 5, 3, 6), {"r": 0.5, "s": 0.5, "p": 1.5, "rs": 0.3}),
    ],
    ids=["three seeds", "eight seeds", "three references", "five references"],
)
def test_the_variance_is_that_of_the_mean(shape: tuple[int, int, int, int], sizes: dict[str, float]) -> None:
    spread = statistics.crossed_spread(drawn(shape, **sizes))
    assert spread.variance.mean() == pytest.approx(spread.value.var(), rel=0.08)


def test_with_references_it_is_the_sum_over_references_and_seeds_without_what_both_have() -> None:
    values = drawn((1, 4, 5, 30), 3, r=1.0, s=1.0, p=1.0)
    cells = values[0].mean(2)
    references, seeds = cells.mean(1), cells.mean(0)
    interaction = cells - references[:, None] - seeds + cells.mean()
    expected = references.var(ddof=1) / 4 + seeds.var(ddof=1) / 5 - (interaction**2).sum() / (3 * 4) / (4 * 5)
    assert statistics.crossed_spread(values).policies[0] == pytest.approx(expected)
    apart = [
        np.cov(values[0, r, s], values[0, q, t])[0, 1]
        for r in range(4)
        for q in range(4)
        for s in range(5)
        for t in range(5)
        if r != q and s != t
    ]
    assert statistics.crossed_spread(values).prompts[0] == pytest.approx(np.mean(apart) / 30)


def test_the_critical_value_is_students_where_one_part_is_all() -> None:
    one, none = np.ones(1), np.zeros(1)
    seeds_alone = statistics.Spread(none, one, 2 * one, none, 499)
    prompts_alone = statistics.Spread(none, none, 2 * one, one, 499)
    assert seeds_alone.half_width(0.95)[0] == pytest.approx(4.302653, abs=1e-6)
    assert prompts_alone.half_width(0.95)[0] == pytest.approx(1.964729, abs=1e-6)
    both = statistics.Spread(none, one, 2 * one, 3 * one, 499)
    assert both.critical(0.05)[0] == pytest.approx(0.25 * 4.302653 + 0.75 * 1.964729, abs=1e-6)


@given(st.floats(0.001, 1), st.floats(0, 1), st.integers(1, 20), st.floats(1e-12, 0.999))
@pytest.mark.properties
def test_an_interval_at_the_level_of_the_p_value_ends_at_0(
    error: float, share: float, freedom: int, level: float
) -> None:
    parts = np.array([share]) * error**2, np.array([1 - share]) * error**2
    empty = statistics.Spread(np.zeros(1), parts[0], np.array([float(freedom)]), parts[1], 200)
    found = statistics.Spread(empty.half_width(1 - level), parts[0], empty.policies_df, parts[1], 200)
    if level > 1e-4:  # 1 - level is inexact for small ones
        assert found.p_value()[0] == pytest.approx(level, rel=1e-6)


@pytest.mark.parametrize("sizes", [{"p": 1.0}, {"s": 0.3, "p": 1.0}, {"s": 1.0}], ids=["prompts", "both", "seeds"])
def test_intervals_cover_the_truth_about_as_often_as_they_say(sizes: dict[str, float]) -> None:
    spread = statistics.crossed_spread(drawn((2000, 1, 4, 40), 5, **sizes))
    assert 0.925 <= (np.abs(spread.value) <= spread.half_width(0.95)).mean() <= 0.98


@pytest.mark.parametrize(("right", "size"), [(0, 10), (10, 10), (3, 10), (499, 500)])
def test_the_exact_interval_is_that_of_the_binomial_test(right: int, size: int) -> None:
    low, high = statistics.exact_interval(np.array([right / size]), np.array([float(size)]), 0.9)
    expected = binomtest(right, size).proportion_ci(0.9, "exact")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_where_every_prompt_is_right_so_many_answers_as_prompts_are_taken_for_granted() -> None:
    low, high = statistics.share_interval(statistics.crossed_spread(np.ones((3, 5, 500))), 0.95)
    assert low == pytest.approx(0.025 ** (1 / 500))
    assert high == 1
    low, high = statistics.share_interval(statistics.crossed_spread(np.zeros((1, 1, 20))), 0.95)
    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / 20))


def differing(wins: int, losses: int, prompts: int) -> statistics.Floats:
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
    (found,) = statistics.score_intervals([differing(wins, losses, prompts)], [1.0], confidence)
    assert found == pytest.approx(tango(wins, losses, prompts, confidence), abs=1e-9)


def test_only_prompts_of_which_both_have_something_to_say_are_compared() -> None:
    first = statistics.Ratios(np.array([[1.0, 1.0, 9.0]]), np.ones((1, 3)))
    second = statistics.Ratios(np.array([[0.0, 1.0, 0.0]]), np.array([[1.0, 1.0, 0.0]]))
    found = statistics.paired_by_prompt(first, second)
    assert (found.differences.tolist(), found.reach) == ([[1.0, 0.0]], 1.0)
    nothing = statistics.paired_by_prompt(first, statistics.Ratios(second.numerators, np.zeros((1, 3))))
    assert (nothing.differences.shape, nothing.reach) == ((1, 0), 0.0)


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.999))
@pytest.mark.properties
def test_holm_rejects_what_stepping_down_rejects(p_values: list[float], level: float) -> None:
    rejected = 0
    for passed, p in enumerate(sorted(p_values)):
        if (len(p_values) - passed) * p > level:
            break
        rejected += 1
    assert sum(p <= level for p in statistics.holm(p_values)) == rejected
    assert all(one >= other for one, other in zip(statistics.holm(p_values), p_values, strict=True))


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (6, 1), (5, 5), (40, 20)])
def test_mcnemar_is_the_sign_test_of_prompts_that_differ(wins: int, losses: int) -> None:
    differences = np.array([1.0] * wins + [-1.0] * losses + [0.0, 0.0])
    expected = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert statistics.mcnemar(differences) == pytest.approx(expected)


def test_the_smallest_difference_is_found_with_its_power() -> None:
    spread = statistics.Spread(np.zeros(1), np.zeros(1), np.ones(1), np.full(1, 0.02**2), 499)
    found = statistics.smallest_detectable(spread, 1, 0.95)[0]
    assert found == pytest.approx(2.8 * 0.02, rel=0.01)
    drawn = found + 0.02 * np.random.default_rng(0).standard_normal(20_000)
    assert (np.abs(drawn) > spread.half_width(0.95)).mean() == pytest.approx(0.8, abs=0.01)
    assert statistics.smallest_detectable(spread, 9, 0.95)[0] > found


def test_an_unseen_prompt_may_differ_where_all_that_were_seen_agree() -> None:
    """As rewards of 0 and 1 do: of few prompts, those seen do not rule out others."""
    ones = np.ones((1, 6))
    found = statistics.paired_by_prompt(statistics.Ratios(ones, ones), statistics.Ratios(0 * ones, ones))
    ((low, high),) = statistics.paired_intervals([found.differences[0]], [found.reach], 0.95)
    assert low < 0.6 < high == 1
