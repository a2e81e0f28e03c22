"""What a run says of its methods: over which chains, with what intervals, and which comparisons are tested."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from pipeline.config.schema import EvaluationConfig
from pipeline.learning.evaluation.metrics import evaluation_rows, measure
from pipeline.learning.evaluation.statistics import holm, mcnemar, paired_tests
from pipeline.outputs.formats import Sample
from pipeline.outputs.prompts import PromptMeasures
from pipeline.runs.pooling import pooled, whole_grid
from pipeline.runs.record import Comparison, Place, PooledRow, ResultRow, place_of

PROMPTS = 60
Chains = dict[Place, PromptMeasures]


def chain(
    algo: str, level: float, *, reference: int | None = None, seed: int = 0, number: int = 2, k: int = 2
) -> Chains:
    """A chain after a round whose policy is right at a level, on prompts 10, 11, ..."""
    draw = np.random.default_rng([abs(hash_of(algo)), seed, reference or 0, number])
    right = (draw.random((PROMPTS, k)) < level).mean(1)
    tokens = draw.integers(2, 9, PROMPTS).astype(float)
    ones = np.ones(PROMPTS)
    sums = {"pass@1": (right, ones), "length": (tokens, ones), "kl_per_token": (tokens / 10, tokens)}
    place = ("d", "m", -1 if reference is None else reference, algo, seed, 0 if algo == "reference" else number)
    return {place: PromptMeasures(np.arange(10, 10 + PROMPTS), sums)}


def hash_of(name: str) -> int:
    return sum(ord(letter) * 31**place for place, letter in enumerate(name))


def rows_of(chains: Chains) -> list[ResultRow]:
    """The rows that the stage of each chain would have written, with an interval of 0 to 1."""
    found = []
    for (dataset, model, reference, algo, seed, number), measures in chains.items():
        for metric, (above, below) in measures.sums.items():
            where = (algo, dataset, model, seed, number, metric)
            value = above.sum() / max(1.0, below.sum())
            named = None if reference < 0 else reference
            found.append(ResultRow(*where, value, 0.0, 1.0, len(above), reference=named))
    return found


def pool(*parts: Chains, rounds: int = 2) -> tuple[dict[tuple[str, int, str], PooledRow], list[Comparison]]:
    chains = {place: measures for part in parts for place, measures in part.items()}
    rows, comparisons = pooled(rows_of(chains), chains.get, rounds, 0.95)
    return {(row.algo, row.round, row.metric): row for row in rows}, comparisons


def method(
    algo: str, level: float, seeds: Iterable[int], references: Iterable[int | None] = (None,), **kw: int
) -> Chains:
    found: Chains = {}
    for seed, reference in product(seeds, references):
        found |= chain(algo, level, seed=seed, reference=reference, **kw)
    return found


def test_a_method_is_the_mean_of_its_chains() -> None:
    chains = method("PITA", 0.6, range(4))
    row = pool(chains)[0]["PITA", 2, "pass@1"]
    means = [measures.sums["pass@1"][0].mean() for measures in chains.values()]
    assert row.value == pytest.approx(np.mean(means))
    assert (row.over, row.references, row.seeds, row.n) == ("seeds", 1, 4, PROMPTS)
    assert row.ci_low is not None
    assert row.ci_high is not None
    assert 0 < row.ci_low < row.value < row.ci_high < 1


@pytest.mark.parametrize(
    ("references", "seeds", "over"),
    [
        ([None], 1, "policies"),
        ([0], 2, "policies"),
        ([0, 1, 2], 2, "policies"),
        ([0], 3, "seeds"),
        ([0, 1], 3, "seeds"),
        ([0, 1, 2], 3, "references"),
    ],
)
def test_what_an_interval_holds_for(references: list[int | None], seeds: int, over: str) -> None:
    row = pool(method("PITA", 0.5, range(seeds), references))[0]["PITA", 2, "pass@1"]
    assert (row.over, row.references, row.seeds) == (over, len(references), seeds)


def test_differences_are_paired_and_those_of_divergence_are_none() -> None:
    ours, theirs = method("PITA", 0.7, range(3)), method("reference", 0.3, range(3))
    found, _ = pool(ours, theirs)
    row = found["PITA", 2, "pass@1"]
    by_seed = [
        own.sums["pass@1"][0] - other.sums["pass@1"][0]
        for own, other in zip(ours.values(), theirs.values(), strict=True)
    ]
    assert row.difference == pytest.approx(np.mean(by_seed))
    assert row.difference_low is not None
    assert row.difference_low > 0
    assert found["PITA", 2, "kl_per_token"].difference is None
    assert found["reference", 0, "pass@1"].difference is None


def test_a_difference_says_which_chains_and_prompts_it_rests_on() -> None:
    """The reference may lack a seed, a reference and prompts that the method has."""
    method_of = method("PITA", 0.6, range(4), [0, 1, 2])
    reference = method("reference", 0.4, range(1, 3), [0, 1, 2])
    fewer = {
        place: PromptMeasures(one.rows[9:], {name: (a[9:], b[9:]) for name, (a, b) in one.sums.items()})
        for place, one in reference.items()
    }
    row = pool(method_of, fewer)[0]["PITA", 2, "pass@1"]
    assert (row.over, row.references, row.seeds, row.n) == ("references", 3, 4, PROMPTS)
    told = (row.difference_over, row.difference_references, row.difference_seeds, row.difference_n)
    assert told == ("policies", 3, 2, PROMPTS - 9)
    gaps = [
        method_of["d", "m", r, "PITA", s, 2].sums["pass@1"][0][9:].mean()
        - fewer["d", "m", r, "reference", s, 0].sums["pass@1"][0].mean()
        for r, s in product(range(3), (1, 2))
    ]
    assert row.difference == pytest.approx(np.mean(gaps))
    alone = pool(method_of)[0]["PITA", 2, "pass@1"]
    assert (alone.difference_over, alone.difference_references, alone.difference_n) == (None, None, None)


def test_one_chain_has_one_interval_of_its_difference() -> None:
    """The row of the policy, the pooled one and the comparison are about the same number."""
    draw = np.random.default_rng(3)

    def policy(level: float) -> list[Sample]:
        right = (draw.random((PROMPTS, 2)) < level).tolist()
        given = {"prompt": "p", "completion": "c", "tokens": 4, "kl": 0.5, "truncated": False}
        return [
            Sample(row=row, sample=k, reward=0.5 * one, correct=one, **given)
            for row, pair in enumerate(right)
            for k, one in enumerate(pair)
        ]

    policies, settings = {"A": policy(0.6), "reference": policy(0.45)}, EvaluationConfig(bootstrap_samples=50)
    rows: list[ResultRow] = []
    chains: Chains = {}
    for algo, number in (("A", 2), ("reference", 0)):
        others = {"reference": policies["reference"]} if algo == "A" else {}
        for one in evaluation_rows(policies[algo], settings, others):
            rows.append(ResultRow(algo, "d", "m", 0, number, **one))
        chains["d", "m", -1, algo, 0, number] = measure(policies[algo])
    found, (comparison,) = pooled(rows, chains.get, 2, settings.confidence)
    for metric in ("pass@1", "reward", "pass@2", "length"):
        (own,) = [row for row in rows if row.metric == f"{metric}/vs_reference"]
        (all_,) = [row for row in found if (row.algo, row.metric) == ("A", metric)]
        assert (all_.difference, all_.difference_low, all_.difference_high, all_.difference_n) == (
            own.value,
            own.ci_low,
            own.ci_high,
            own.n,
        )
        if metric == comparison.metric:
            assert (comparison.difference, comparison.ci_low, comparison.ci_high) == (
                own.value,
                own.ci_low,
                own.ci_high,
            )


def test_a_difference_of_shares_stays_between_minus_1_and_1() -> None:
    parts = [chain("A", level, seed=seed) for seed, level in enumerate((1.0, 0.99, 0.8))]
    found, (comparison,) = pool(*parts, method("reference", 0.0, range(3)))
    assert comparison.test == "crossed"
    row = found["A", 2, "pass@1"]
    assert (row.difference_high, comparison.ci_high) == (1, 1)


def rewarded(chains: Chains, above: float, below: float = 1.0) -> Chains:
    """The same of a reward of that size in place of what is right."""

    def changed(one: PromptMeasures) -> PromptMeasures:
        right, ones = one.sums["pass@1"]
        return replace(one, sums={"reward": (right * above, ones * below)})

    return {place: changed(one) for place, one in chains.items()}


@pytest.mark.parametrize(("above", "below"), [(1e80, 1.0), (1e100, 1e-100), (1e100, 1e-320)])
@pytest.mark.parametrize("references", [1, 3], ids=["one reference", "three references"])
def test_numbers_too_large_to_reckon_with_cost_their_interval_alone(
    above: float, below: float, references: int
) -> None:
    chains = {
        **rewarded(method("A", 0.9, range(3), range(references)), above, below),
        **rewarded(method("reference", 0.2, range(3), range(references)), above, below),
    }
    rows = [replace(row, value=min(row.value or 0, 1e100)) for row in rows_of(chains)]
    found, comparisons = pooled(rows, chains.get, 2, 0.95)
    (row,) = [row for row in found if (row.algo, row.metric) == ("A", "reward")]
    assert row.value is not None
    assert (row.ci_low, row.ci_high, row.difference, row.difference_low, comparisons) == (*[None] * 4, [])


def test_a_seed_that_a_reference_lacks_is_left_out_and_counted() -> None:
    chains = method("PITA", 0.5, range(4), [0, 1, 2])
    del chains["d", "m", 1, "PITA", 3, 2]
    row = pool(chains)[0]["PITA", 2, "pass@1"]
    assert (row.references, row.seeds) == (3, 3)
    assert whole_grid({(0, 1), (1, 2)}).cells == [(0, 1)]


def test_only_prompts_that_all_chains_have_are_pooled() -> None:
    first, other = chain("PITA", 0.5), chain("PITA", 0.5, seed=1)
    (place,) = other
    less = PromptMeasures(
        other[place].rows[5:], {name: (a[5:], b[5:]) for name, (a, b) in other[place].sums.items()}
    )
    assert pool(first, {place: less}, chain("PITA", 0.5, seed=2))[0]["PITA", 2, "pass@1"].n == PROMPTS - 5


def test_chains_that_say_nothing_by_prompt_have_a_mean_alone() -> None:
    rows = rows_of({**method("Mine", 0.5, range(3)), **method("reference", 0.2, range(3))})
    found, comparisons = pooled(rows, lambda _: None, 2, 0.95)
    (row,) = [row for row in found if (row.algo, row.metric) == ("Mine", "pass@1")]
    assert row.value == pytest.approx(np.mean([r.value for r in rows if (r.algo, r.metric) == ("Mine", "pass@1")]))
    assert (row.ci_low, row.ci_high, comparisons) == (None, None, [])
    assert row.difference is None


# -- tests -----------------------------------------------------------------------------------------------------


def test_the_family_is_methods_with_the_reference_then_with_each_other() -> None:
    levels = {"A": 0.9, "B": 0.6, "D": 0.6}
    parts = [method(algo, level, range(4)) for algo, level in levels.items()]
    early = method("A", 0.7, range(4), number=1)
    _, found = pool(*parts, early, method("reference", 0.2, range(4)))
    assert [(one.first, one.second) for one in found] == [
        *((algo, "reference") for algo in "ABD"),
        *(("A", "B"), ("A", "D"), ("B", "D")),
    ]
    assert {(one.round, one.metric, one.test, one.over) for one in found} == {(2, "pass@1", "crossed", "seeds")}
    by_pair = {(one.first, one.second): one for one in found}
    assert by_pair["A", "reference"].p < 0.05 < by_pair["B", "D"].p
    assert by_pair["A", "B"].difference > by_pair["A", "B"].detectable / 2 > 0


def test_tests_use_what_all_methods_have_in_common() -> None:
    _, found = pool(method("A", 0.9, range(5)), method("B", 0.5, range(1, 6)), method("reference", 0.2, range(6)))
    assert {(one.seeds, one.references) for one in found} == {(4, 1)}
    _, apart = pool(method("A", 0.9, [0]), method("B", 0.5, [1]), method("reference", 0.2, [0, 1]))
    assert apart == []


def test_a_method_with_fewer_prompts_takes_none_from_tests_of_others() -> None:
    few = {
        place: PromptMeasures(one.rows[:20], {name: (a[:20], b[:20]) for name, (a, b) in one.sums.items()})
        for place, one in method("C", 0.3, range(4)).items()
    }
    parts = [method(algo, level, range(4)) for algo, level in (("A", 0.9), ("B", 0.5), ("reference", 0.2))]
    _, found = pool(*parts, few)
    whole = len(next(iter(parts[0].values())).rows)
    assert {(one.first, one.second): one.n for one in found} == {
        **{(algo, "reference"): whole for algo in "AB"},
        ("A", "B"): whole,
        **dict.fromkeys([("C", "reference"), ("A", "C"), ("B", "C")], 20),
    }


def test_p_values_are_corrected_within_each_of_the_two_families() -> None:
    levels = {"A": 0.5, "B": 0.42, "C": 0.35}
    chains = {algo: method(algo, level, [0]) for algo, level in levels.items()}
    reference = method("reference", 0.3, [0])
    _, found = pool(*chains.values(), reference)
    values = {
        algo: next(iter(own.values())).sums["pass@1"][0]
        for algo, own in {**chains, "reference": reference}.items()
    }
    differences = [values[one.first] - values[one.second] for one in found]
    raw = [p for p, _ in paired_tests(differences, [1.0] * len(found))]
    assert [one.p for one in found] == pytest.approx([*holm(raw[:3]), *holm(raw[3:])])
    assert {one.test for one in found} == {"swaps"}


def test_one_sample_a_prompt_of_one_seed_is_tested_exactly() -> None:
    ours, theirs = chain("A", 0.6, k=1), chain("reference", 0.4, k=1)
    _, (found,) = pool(ours, theirs)
    (first,), (second,) = ([one.sums["pass@1"][0] for one in part.values()] for part in (ours, theirs))
    assert found.test == "mcnemar"
    assert found.p == pytest.approx(mcnemar(first - second))
    assert found.over == "policies"
    assert {one.test for one in pool(method("A", 0.6, [0, 1], k=1), method("reference", 0.4, [0, 1], k=1))[1]} == {
        "swaps"
    }


def test_a_difference_that_does_not_vary_is_of_these_policies_alone() -> None:
    """Seeds that all say the same leave no variance, so they cannot tell what another one would give."""
    chains = [method(algo, 1.0, range(3)) for algo in ("A", "reference")]
    rows, found = pool(*chains, method("B", 0.5, range(3)))
    told = {(one.first, one.second): (one.test, one.over) for one in found}
    assert told["A", "reference"] == ("mcnemar", "policies")
    assert told["B", "reference"] == ("crossed", "seeds")
    assert {algo: rows[algo, 2, "pass@1"].difference_over for algo in "AB"} == {"A": "policies", "B": "seeds"}


def test_reward_is_tested_where_nothing_is_right_or_wrong() -> None:
    def renamed(chains: Chains) -> Chains:
        return {
            place: replace(measures, sums={"reward": measures.sums["pass@1"], "length": measures.sums["length"]})
            for place, measures in chains.items()
        }

    _, found = pool(renamed(method("A", 0.9, range(3))), renamed(method("reference", 0.2, range(3))))
    assert [one.metric for one in found] == ["reward"]


def test_the_order_of_rows_does_not_matter() -> None:
    chains = {**method("A", 0.9, range(3), [0, 1]), **method("reference", 0.2, range(3), [0, 1])}
    rows = rows_of(chains)
    assert pooled(rows[::-1], chains.get, 2, 0.95) == pooled(rows, chains.get, 2, 0.95)
    assert {place_of(row) for row in rows} == set(chains)


def on_sets(sizes: dict[str, int], *levels: tuple[str, float], seeds: int = 1) -> Chains:
    """Chains of methods on test sets of several sizes, each harder than the one before."""
    found: Chains = {}
    for place, (name, size) in enumerate(sizes.items()):
        draw = np.random.default_rng([place, size])
        for algo, level in levels:
            for seed in range(seeds):
                right = (draw.random(size) < level / (place + 1)).astype(float)
                where = (name, "m", -1, algo, seed, 0 if algo == "reference" else 2)
                found[where] = PromptMeasures(np.arange(size), {"pass@1": (right, np.ones(size))})
    return found


def with_intervals(chains: Chains) -> list[ResultRow]:
    """Return the rows of chains with the intervals that the evaluation gives them."""
    settings, found = EvaluationConfig(bootstrap_samples=200), rows_of(chains)
    ends = [
        next(
            one
            for one in evaluation_rows([], settings, measured=chains[place_of(row)])
            if one["metric"] == row.metric
        )
        for row in found
    ]
    return [
        replace(row, ci_low=one["ci_low"], ci_high=one["ci_high"]) for row, one in zip(found, ends, strict=True)
    ]


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_mean_of_test_sets_is_that_of_a_stratified_sample(seeds: int) -> None:
    chains = on_sets({"d": 400, "d@hard": 50}, ("reference", 0.8), ("A", 0.9), seeds=seeds)
    found, comparisons = pooled(with_intervals(chains), chains.get, 2, 0.95)
    rows = {(row.dataset, row.algo): row for row in found}
    values = {
        name: np.mean(
            [one.sums["pass@1"][0] for place, one in chains.items() if place[0] == name and place[3] == "A"], 0
        )
        for name in ("d", "d@hard")
    }
    mean = rows["d@mean", "A"]
    assert mean.value == pytest.approx(sum(one.mean() for one in values.values()) / 2, abs=1e-8)
    error = np.sqrt(sum(one.var(ddof=1) / len(one) for one in values.values())) / 2
    assert mean.ci_high is not None
    assert mean.ci_low is not None
    half = (mean.ci_high - mean.ci_low) / 2
    assert half == pytest.approx(1.96 * error, rel=0.15) if seeds == 1 else half > 1.96 * error
    assert {one.dataset for one in comparisons} == {"d", "d@hard", "d@mean"}


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_mean_of_test_sets_does_not_trust_a_small_set_without_a_right_answer(seeds: int) -> None:
    """As if the small set were certain to be 0, most such intervals would leave out the truth."""
    chains = {
        (name, "m", -1, "A", seed, 2): PromptMeasures(
            np.arange(size), {"pass@1": ((np.arange(size) < right).astype(float), np.ones(size))}
        )
        for name, size, right in (("d", 500, 10), ("d@hard", 30, 0))
        for seed in range(seeds)
    }
    found, _ = pooled(with_intervals(chains), chains.get, 2, 0.95)
    rows = {row.dataset: row for row in found}
    highs = {name: row.ci_high for name, row in rows.items()}
    assert highs["d@hard"] is not None
    assert highs["d@mean"] is not None
    assert highs["d@mean"] > 0.01 + highs["d@hard"] / 2 > 0.05


def test_a_difference_of_means_allows_for_what_a_small_set_may_hide() -> None:
    chains = {
        (name, "m", -1, algo, 0, place): PromptMeasures(
            np.arange(size), {"pass@1": ((np.arange(size) < right).astype(float), np.ones(size))}
        )
        for name, size, best in (("d", 500, 10), ("d@hard", 30, 0))
        for algo, place, right in (("reference", 0, best // 2), ("A", 2, best))
    }
    found, comparisons = pooled(with_intervals(chains), chains.get, 2, 0.95)
    ends = {row.dataset: row.difference_high for row in found if row.algo == "A"}
    assert ends["d@hard"] is not None
    assert ends["d@mean"] is not None
    assert ends["d@mean"] > 0.9 * ends["d@hard"] / 2 > 0.04
    (mean,) = [one for one in comparisons if one.dataset == "d@mean"]
    assert (mean.ci_low > 0) == (mean.p < 0.05)
    # What such a run can find is more than a difference that its test does not tell from 0.
    assert mean.detectable is not None
    assert mean.detectable > ends["d@mean"] > mean.difference


def sharing(shared: int, *, sizes: tuple[int, int] = (300, 200), level: float = 0.4) -> Chains:
    """Chains of two methods on two test sets with prompts in common, where a hard prompt is hard on both."""
    draw = np.random.default_rng(5)
    hardness = draw.random(sum(sizes))
    places = {"d": np.arange(sizes[0]), "d@again": np.arange(sizes[1]) + sizes[0] - shared}
    return {
        (name, "m", -1, algo, 0, number): PromptMeasures(
            np.arange(len(own)),
            {"pass@1": ((hardness[own] + draw.normal(0, 0.2, len(own)) < right).astype(float), np.ones(len(own)))},
            own + 1000,
        )
        for name, own in places.items()
        for algo, number, right in (("reference", 0, level / 2), ("A", 2, level))
    }


def values_on(chains: Chains, name: str, algo: str) -> np.ndarray[Any, Any]:
    return next(one.sums["pass@1"][0] for place, one in chains.items() if (place[0], place[3]) == (name, algo))


@pytest.mark.parametrize("shared", [0, 100, 200])
def test_prompts_that_sets_share_are_one_unit_of_the_mean(shared: int) -> None:
    chains = sharing(shared)
    (mean,) = [
        row
        for row in pooled(with_intervals(chains), chains.get, 2, 0.95)[0]
        if (row.dataset, row.algo) == ("d@mean", "A")
    ]

    def error(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
        """The variance of a mean of means: those of both, and twice their covariance."""
        ours, theirs = one[len(one) - shared :] - one.mean(), other[:shared] - other.mean()
        both = one.var() / len(one) + other.var() / len(other) + 2 * ours @ theirs / len(one) / len(other)
        return float(np.sqrt(both)) / 2

    level = [values_on(chains, name, "A") for name in ("d", "d@again")]
    apart = [own - values_on(chains, name, "reference") for own, name in zip(level, ("d", "d@again"), strict=True)]
    assert mean.n == mean.difference_n == 500 - shared
    for low, high, values in (
        (mean.ci_low, mean.ci_high, level),
        (mean.difference_low, mean.difference_high, apart),
    ):
        assert low is not None
        assert high is not None
        assert (high - low) / 2 == pytest.approx(1.96 * error(*values), rel=0.05)


def test_the_same_prompts_twice_are_as_one_set_with_the_mean_of_both() -> None:
    chains = sharing(200, sizes=(200, 200))
    averaged = {
        place: replace(
            one,
            sums={"pass@1": ((one.sums["pass@1"][0] + values_on(chains, "d@again", place[3])) / 2, np.ones(200))},
        )
        for place, one in chains.items()
        if place[0] == "d"
    }
    (mean,) = [
        one
        for one in pooled(rows_of(chains), chains.get, 2, 0.95)[0]
        if one.dataset == "d@mean" and one.algo == "A"
    ]
    (one,) = [one for one in pooled(rows_of(averaged), averaged.get, 2, 0.95)[0] if one.algo == "A"]
    for part in ("value", "difference", "difference_low", "difference_high", "difference_n"):
        assert getattr(mean, part) == pytest.approx(getattr(one, part), rel=1e-9)


def test_sets_that_share_prompts_without_a_right_answer_do_not_add_to_what_is_known() -> None:
    chains = {
        (name, "m", -1, "A", 0, 2): PromptMeasures(
            np.arange(30), {"pass@1": (np.zeros(30), np.ones(30))}, np.arange(30)
        )
        for name in ("d", "d@again")
    }
    highs = {row.dataset: row.ci_high for row in pooled(with_intervals(chains), chains.get, 2, 0.95)[0]}
    assert highs["d@mean"] == pytest.approx(highs["d"])


def test_one_family_of_tests_covers_all_test_sets() -> None:
    chains = on_sets({"d": 300, "d@hard": 300}, ("reference", 0.5), ("A", 0.58), ("B", 0.6))
    _, comparisons = pooled(rows_of(chains), chains.get, 2, 0.95)
    alone = []
    for dataset in ("d", "d@hard"):
        own = {place: one for place, one in chains.items() if place[0] == dataset}
        alone += pooled(rows_of(own), own.get, 2, 0.95)[1]
    apart = {(one.dataset, one.first, one.second): one.p for one in alone}
    together = {(one.dataset, one.first, one.second): one.p for one in comparisons}
    assert len([one for one in comparisons if one.second == "reference"]) == 6
    assert all(together[place] >= p for place, p in apart.items())
    assert any(together[place] > p for place, p in apart.items())


def test_one_test_set_has_no_mean() -> None:
    chains = on_sets({"d": 30}, ("reference", 0.5), ("A", 0.6))
    assert {row.dataset for row in pooled(rows_of(chains), chains.get, 2, 0.95)[0]} == {"d"}
