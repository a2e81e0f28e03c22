"""Means over crossed references, seeds and prompts: their variance, their intervals, their p-values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.learning.evaluation.statistics import Floats, Ratios, Spread, crossed_spread, per_prompt


def drawn(
    shape: tuple[int, int, int, int], seed: int = 0, *, r: float = 0, s: float = 0, p: float = 0, rs: float = 0
) -> Floats:
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
    spread = crossed_spread(drawn(shape, **sizes))
    assert spread.variance.mean() == pytest.approx(spread.value.var(), rel=0.08)


def test_with_references_it_is_the_sum_over_references_and_seeds_without_what_both_have() -> None:
    values = drawn((1, 4, 5, 30), 3, r=1.0, s=1.0, p=1.0)
    cells = values[0].mean(2)
    references, seeds = cells.mean(1), cells.mean(0)
    interaction = cells - references[:, None] - seeds + cells.mean()
    expected = references.var(ddof=1) / 4 + seeds.var(ddof=1) / 5 - (interaction**2).sum() / (3 * 4) / (4 * 5)
    assert crossed_spread(values).policies[0] == pytest.approx(expected)
    apart = [
        np.cov(values[0, r, s], values[0, q, t])[0, 1]
        for r in range(4)
        for q in range(4)
        for s in range(5)
        for t in range(5)
        if r != q and s != t
    ]
    assert crossed_spread(values).prompts[0] == pytest.approx(np.mean(apart) / 30)


def test_the_critical_value_is_students_where_one_part_is_all() -> None:
    one, none = np.ones(1), np.zeros(1)
    seeds_alone = Spread(none, one, 2 * one, none, 499)
    prompts_alone = Spread(none, none, 2 * one, one, 499)
    assert seeds_alone.half_width(0.95)[0] == pytest.approx(4.302653, abs=1e-6)
    assert prompts_alone.half_width(0.95)[0] == pytest.approx(1.964729, abs=1e-6)
    both = Spread(none, one, 2 * one, 3 * one, 499)
    assert both.critical(0.05)[0] == pytest.approx(0.25 * 4.302653 + 0.75 * 1.964729, abs=1e-6)


@given(st.floats(0.001, 1), st.floats(0, 1), st.integers(1, 20), st.floats(1e-12, 0.999))
@pytest.mark.properties
def test_an_interval_at_the_level_of_the_p_value_ends_at_0(
    error: float, share: float, freedom: int, level: float
) -> None:
    parts = np.array([share]) * error**2, np.array([1 - share]) * error**2
    empty = Spread(np.zeros(1), parts[0], np.array([float(freedom)]), parts[1], 200)
    found = Spread(empty.half_width(1 - level), parts[0], empty.policies_df, parts[1], 200)
    if level > 1e-4:  # 1 - level is inexact for small ones
        assert found.p_value()[0] == pytest.approx(level, rel=1e-6)


def test_a_prompt_with_a_larger_denominator_says_more() -> None:
    numerators, denominators = np.array([1.0, 8.0, 3.0]), np.array([2.0, 10.0, 3.0])
    values = per_prompt(Ratios(numerators, denominators))
    assert values.mean() == pytest.approx(12 / 15)
    assert values == pytest.approx(0.8 + (numerators - 0.8 * denominators) / 5)
    assert per_prompt(Ratios(numerators, np.full(3, 4.0))) == pytest.approx(numerators / 4)
    assert np.isnan(per_prompt(Ratios(np.zeros(3), np.zeros(3)))).all()


@pytest.mark.parametrize("sizes", [{"p": 1.0}, {"s": 0.3, "p": 1.0}, {"s": 1.0}], ids=["prompts", "both", "seeds"])
def test_intervals_cover_the_truth_about_as_often_as_they_say(sizes: dict[str, float]) -> None:
    spread = crossed_spread(drawn((2000, 1, 4, 40), 5, **sizes))
    assert 0.925 <= (np.abs(spread.value) <= spread.half_width(0.95)).mean() <= 0.98
