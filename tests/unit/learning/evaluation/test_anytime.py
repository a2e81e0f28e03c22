"""Races: e-processes by enumeration, closed testing by brute force, and what a decision promises."""

from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import nct, norm, t

from pipeline.learning.evaluation import anytime

TIED = [(1.0, -1.0, 0.5, -0.5, 0.0), (1.0, -0.25, -0.25, -0.25, -0.25), (0.0, 0.0, 0.0, 0.0, 0.0)]


@pytest.mark.parametrize("population", TIED)
def test_of_a_whole_test_set_without_a_difference_no_bet_wins_on_average(population: tuple[float, ...]) -> None:
    """All orders are equally likely, so the expectation after any prompt is known, given all that was seen."""
    orders = np.array(list(permutations(population)))
    better, worse = anytime.e_values(orders, len(population))
    assert better.mean(0) == pytest.approx(np.ones(5))
    assert worse.mean(0) == pytest.approx(np.ones(5))
    for first in set(population):
        own = orders[:, 0] == first
        assert better[own].mean(0) == pytest.approx(np.full(5, better[own][0, 0]))


def test_of_fair_coins_no_bet_wins_on_average() -> None:
    every = np.array(list(product((-1.0, 0.0, 1.0), repeat=5)))
    for values in anytime.e_values(every):
        assert values.mean(0) == pytest.approx(np.ones(5))


def test_a_lower_mean_makes_no_bet_win() -> None:
    orders = np.array(list(permutations((1.0, -1.0, -0.5, 0.25, 0.0))))
    better, worse = anytime.e_values(orders, 5)
    assert (better.mean(0) <= 1).all()
    assert (worse.mean(0) >= 1).all()
    assert np.isinf(worse[:, -1]).all()


def test_capital_is_that_of_the_bets_written_out() -> None:
    differences, size = np.array([0.5, -1.0, 0.25, 1.0, 0.0, 1.0]), 9
    capital, seen = np.ones(len(anytime.BETS)), 0.0
    for place, (one, found) in enumerate(zip(differences, anytime.e_values(differences, size)[0], strict=True)):
        mean = (size * 0 - seen) / (size - place)
        capital *= 1 + anytime.BETS / (1 + mean) * (one - mean)
        seen += one
        assert found == pytest.approx(capital.mean())


def test_what_is_left_cannot_change_is_certain() -> None:
    better, worse = anytime.e_values(np.array([1.0, 1.0, 1.0]), 5)
    assert np.isinf(better).tolist() == [False, False, True]
    assert (worse < 1).all()
    assert np.isfinite(anytime.e_values(np.zeros(5), 5)).all()


def test_intervals_hold_the_mean_at_every_prompt() -> None:
    draw = np.random.default_rng(0)
    values = draw.choice([-1.0, 0.0, 1.0], 60, p=[0.1, 0.6, 0.3])
    orders = np.array([draw.permutation(values) for _ in range(100)])
    for population in (60, None):
        drawn = orders if population else draw.choice(values, orders.shape)
        low, high = anytime.confidence_sequence(drawn, 0.2, population=population, looks=[1, 20, 59, 60])
        assert (low[:, 1:] >= low[:, :-1]).mean() > 0.95
        assert (((low <= values.mean() + 1e-9) & (values.mean() - 1e-9 <= high)).all(1)).mean() > 0.8
        assert (low[:, 0] < -0.7).all()
        if population:
            assert np.allclose(low[:, -1], values.mean())
            assert np.allclose(high[:, -1], values.mean())


def test_a_look_later_changes_no_interval_before() -> None:
    differences = np.random.default_rng(1).choice([-1.0, 0.0, 1.0], 80)
    low, _ = anytime.confidence_sequence(differences, 0.05, looks=[10, 40, 80])
    assert low[1] == anytime.confidence_sequence(differences[:40], 0.05)[0][0]


def test_differences_beyond_their_bounds_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="between -1 and 1"):
        anytime.e_values(np.array([0.0, 1.5]))
    with pytest.raises(ValueError, match="between -1 and 1"):
        anytime.e_values(np.array([0.0, np.nan]))
    with pytest.raises(ValueError, match="3 prompts are more than the 2"):
        anytime.e_values(np.zeros(3), 2)


def closed(evidence: np.ndarray, alpha: float) -> list[int]:
    """Closed testing over all sets that have no rejected hypothesis."""
    number = evidence.shape[1]
    found = [-1] * number
    for row, values in enumerate(evidence):
        left = [place for place in range(number) if found[place] < 0]
        sets = [one for size in range(1, len(left) + 1) for one in combinations(left, size)]
        standing = {place for one in sets if values[list(one)].mean() < 1 / alpha for place in one}
        for place in set(left) - standing:
            found[place] = row
    return found


@pytest.mark.parametrize("seed", range(30))
def test_settled_is_closed_testing_over_all_sets(seed: int) -> None:
    draw = np.random.default_rng(seed)
    evidence = np.exp(draw.normal(0.4, 1.2, (12, 5)).cumsum(0) * draw.choice([1.0, 1.0, -1.0], 5))
    evidence[6:, 0] = np.inf if seed % 5 == 0 else evidence[6:, 0]
    assert anytime.settled(evidence, 0.05).tolist() == closed(evidence, 0.05)


# -- races -------------------------------------------------------------------------------------------------------


def outcomes(prompts: int = 400, seed: int = 0, **levels: float) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: (draw.random(prompts) < level).astype(float) for name, level in levels.items()}


def first(found: dict[str, np.ndarray], prompts: int) -> dict[str, np.ndarray]:
    return {name: values[:prompts] for name, values in found.items()}


def test_claims_stay_and_more_prompts_only_add_to_them() -> None:
    found = outcomes(a=0.9, b=0.5, c=0.5)
    claims: set[tuple[str, str]] = set()
    for prompts in (0, 1, 50, 100, 200, 400):
        judged = anytime.race([first(found, prompts)], bounds=(0, 1), population=None)
        assert judged == anytime.race([first(found, prompts)], bounds=(0, 1), population=None)
        now = {(pair.better, name) for pair in judged.pairs if pair.better for name in (pair.first, pair.second)}
        assert claims <= now
        claims = now
    assert {name: set(by) for name, by in judged.lost.items()} == {"b": {"a"}, "c": {"a"}}
    assert (judged.leaves, judged.is_over) == (("a",), False)


def test_the_best_is_found_when_no_other_is_left() -> None:
    judged = anytime.race([outcomes(a=0.9, b=0.5, c=0.5)], bounds=(0, 1), population=1000, until="best")
    assert (set(judged.leaves), judged.is_over) == ({"b", "c"}, True)
    whole = anytime.race([outcomes(a=0.9, b=0.5, c=0.5)], bounds=(0, 1), population=1000, until="budget")
    assert (whole.leaves, whole.is_over) == ((), False)
    assert anytime.race(
        [outcomes(a=0.9, b=0.5)], bounds=(0, 1), population=1000, until="budget", budget=400
    ).is_over


def test_a_whole_test_set_gives_the_plain_difference() -> None:
    for seed in range(5):
        found = outcomes(30, seed, a=0.5, b=0.5, c=0.9)
        judged = anytime.race([found], bounds=(0, 1), population=30)
        assert judged.is_over
        for pair in judged.pairs:
            plain = found[pair.first].mean() - found[pair.second].mean()
            assert (pair.low, pair.difference, pair.high) == pytest.approx((plain, plain, plain))
            assert pair.better == (None if abs(plain) < 1e-9 else pair.first if plain > 0 else pair.second)


def test_one_that_leaves_stands_still() -> None:
    found = outcomes(a=0.9, b=0.5, c=0.1)
    left = found | {"c": found["c"][:100]}
    judged = anytime.race([left], bounds=(0, 1), population=1000)
    early = anytime.race([first(found, 100)], bounds=(0, 1), population=1000)
    [frozen] = [pair for pair in judged.pairs if (pair.first, pair.second) == ("b", "c")]
    assert frozen in early.pairs
    assert frozen.prompts == 100


def test_other_metrics_scale_to_their_bounds() -> None:
    found = outcomes(a=0.8, b=0.4)
    [pair] = anytime.race([found], bounds=(0, 1), population=None).pairs
    [scaled] = anytime.race(
        [{name: 10 * values - 5 for name, values in found.items()}], bounds=(-5, 5), population=None
    ).pairs
    assert (scaled.low, scaled.high) == pytest.approx((10 * pair.low, 10 * pair.high))
    assert scaled.better == pair.better == "a"


def test_every_round_has_a_family_and_a_chain_that_stopped_is_in_no_claim() -> None:
    found = outcomes(a=0.9, b=0.5, c=0.1)
    second = outcomes(seed=1, a=0.5, b=0.9)
    judged = anytime.race([found, second], bounds=(0, 1), population=1000, num_rounds=3)
    assert judged.stopped == ("c",)
    assert {(pair.round, pair.first, pair.second): pair.better for pair in judged.pairs} == {
        (0, "a", "b"): "a",
        (0, "a", "c"): "a",
        (0, "b", "c"): "b",
        (1, "a", "b"): "b",
    }
    assert judged.lost == {"a": ("b",)}
    alone = anytime.race([found], bounds=(0, 1), population=1000)
    assert all(
        one.low <= other.low and other.high <= one.high
        for one, other in zip(judged.pairs, alone.pairs, strict=False)
    )


@pytest.mark.parametrize("bounds", [None, (0, np.inf), (1, 1), (np.nan, 1)])
def test_a_metric_without_bounds_is_refused(bounds: tuple[float, float] | None) -> None:
    with pytest.raises(ValueError, match="known bounds"):
        anytime.race([outcomes(a=0.5, b=0.5)], bounds=bounds, population=None)


def test_outcomes_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="outcomes of b"):
        anytime.race([{"a": np.zeros(2), "b": np.array([0, np.nan])}], bounds=(0, 1), population=None)
    with pytest.raises(ValueError, match="first round, but not c"):
        anytime.race([outcomes(a=0.5, b=0.5), outcomes(c=0.5)], bounds=(0, 1), population=None)


def test_of_equal_policies_few_races_claim_anything() -> None:
    """At a level of 0.3, so that a family that is too lenient shows."""
    right = np.random.default_rng(5).random((300, 3, 80)) < 0.5
    differences = np.stack([right[:, one] * 1.0 - right[:, two] for one, two in ((0, 1), (0, 2), (1, 2))], 1)
    evidence = np.concatenate(anytime.e_values(differences), 1)
    assert np.mean([(anytime.settled(each.T, 0.3) >= 0).any() for each in evidence]) < 0.3


# -- what it takes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("population", [None, 600])
def test_prompts_needed_is_what_races_take(population: int | None) -> None:
    draw = np.random.default_rng(3)
    whole = np.array([draw.permutation(np.repeat([1.0, -1.0, 0.0], [90, 30, 480])) for _ in range(200)])
    drawn = whole if population else draw.choice(whole[0], (200, 1000))
    taken = (anytime.e_values(drawn, population)[0] >= 2 / 0.05).argmax(1) + 1
    about = anytime.prompts_needed(0.1, 2, 0.05, discordant=0.2, population=population)
    assert about == pytest.approx(taken.mean(), rel=0.2)


def test_a_small_test_set_settles_when_it_is_exhausted() -> None:
    assert anytime.prompts_needed(0.01, 56, 0.05, population=200) > 190
    assert anytime.prompts_needed(1e-6, 2, 0.05) is None


def test_seeds_needed_are_the_least_that_can_say_anything() -> None:
    for pairs in (1, 28):
        normal, bounded = anytime.seeds_needed(0.05, pairs)
        clear = np.tile(1 + 1e-4 * np.arange(normal) % 2, (pairs, 1))
        assert anytime.seed_tests(clear, 0.05).tolist() == [1] * pairs
        with pytest.raises(ValueError, match=f"at least {normal} seeds"):
            anytime.seed_tests(clear[:, 1:], 0.05)
        for number, is_enough in ((bounded, True), (bounded - 1, False)):
            best = anytime.e_values(np.full(number, 0.05))[0][-1]
            assert (best >= 2 * pairs / 0.05) == is_enough


def test_evidence_of_seeds_is_the_mixture_of_noncentral_t() -> None:
    values = np.array([0.3, -0.1, 0.8, 0.4, 0.2])
    found = anytime.seed_evidence(values)
    assert found[0] == 1
    for number in (2, 3, 5):
        own = values[:number]
        seen = np.sqrt(number) * own.mean() / own.std(ddof=1)
        sizes = np.linspace(-10, 10, 4001)
        likely = nct.pdf(seen, number - 1, np.sqrt(number) * sizes) * norm.pdf(sizes, 0, 2)
        mixed = trapezoid(likely, sizes)
        assert found[number - 1] == pytest.approx(mixed / t.pdf(seen, number - 1), rel=1e-4)


def test_seeds_claim_a_direction_that_is_wrong_as_rarely_as_stated() -> None:
    values = np.random.default_rng(4).normal(0, 1, (4000, 12))
    level = 4000 * 0.1  # each is tested at 0.1, as if all were one family
    assert (anytime.seed_tests(values, level) != 0).mean() < 0.1
    shifted = anytime.seed_tests(values + 1.5, level)
    assert (shifted == -1).sum() == 0
    assert (shifted == 1).mean() > 0.8


def test_seeds_that_do_not_vary_say_nothing() -> None:
    for value in (0.0, 0.1):
        assert anytime.seed_tests(np.full((1, 8), value), 0.05).tolist() == [0]
