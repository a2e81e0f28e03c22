"""Pool results over seeds and references: the numbers of methods, and which methods differ.

Rows of chains are about single policies. A method is judged by the mean over its policies, with an interval that
covers other seeds, and other references if there are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, groupby
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import ENOUGH
from pipeline.config.tables import MEAN, evaluated_on, point_of
from pipeline.learning.algos.base import REFERENCE
from pipeline.learning.evaluation import statistics
from pipeline.learning.evaluation.metrics import FrontPoint, is_share, reach_of, reward_kl_front, rounded
from pipeline.outputs.formats import ETA, SWEEP_SPLIT
from pipeline.outputs.prompts import PromptMeasures
from pipeline.runs import record

# -- cells -------------------------------------------------------------------------------------------------------
# Chains of one method together: measures by reference, seed and prompt, for prompts that all of them have.


GridCell = tuple[int, int]
"""Seed of the reference (-1 if the model is not trained from one), and seed of the chain."""


@dataclass(frozen=True)
class Grid:
    """References that all have the same seeds; C cells, ordered by reference and seed."""

    references: tuple[int, ...]
    seeds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.references) * len(self.seeds)

    @property
    def cells(self) -> list[GridCell]:
        """All cells, in the order in which measures are stacked."""
        return [(reference, seed) for reference in self.references for seed in self.seeds]

    @property
    def scope(self) -> record.Scope:
        """Return the widest scope of an interval over these chains."""
        if len(self.seeds) < ENOUGH:
            return "policies"
        return "references" if len(self.references) >= ENOUGH else "seeds"

    def scope_of(self, spread: statistics.Spread) -> record.Scope:
        """Return what the interval of a mean or difference over these chains covers.

        If neither seeds nor prompts vary, nothing can be inferred about others.
        """
        return self.scope if spread.variance > 0 else "policies"

    def shaped(self, values: statistics.Floats) -> statistics.Floats:
        """Reshape values from [C, P] to [R, S, P]."""
        return values.reshape(len(self.references), len(self.seeds), -1)


def whole_grid(cells: Collection[GridCell]) -> Grid:
    """Return the seeds that all references have; if there are none, the reference with most seeds."""
    by_reference = {reference: set(seeds) for reference, seeds in record.grouped(cells).items()}
    common = set.intersection(*by_reference.values()) if by_reference else set()
    if by_reference and not common:
        most = max(sorted(by_reference), key=lambda reference: len(by_reference[reference]))
        by_reference, common = {most: by_reference[most]}, by_reference[most]
    return Grid(tuple(sorted(by_reference)), tuple(sorted(common)))


@dataclass(frozen=True)
class Stack:
    """Measures of the cells of a grid.

    Attributes:
        grid: The cells.
        rows: Ids of the prompts that all cells have, shape [P].
        sums: Metric of all cells -> numerators and denominators, shape [C, P].
    """

    grid: Grid
    rows: NDArray[np.int64]
    sums: Mapping[str, statistics.Ratios]

    def part(self, grid: Grid, rows: NDArray[np.int64]) -> Stack:
        """Return some of the cells and prompts."""
        cells = np.array([self.grid.cells.index(cell) for cell in grid.cells], np.intp)
        chosen = np.ix_(cells, np.searchsorted(self.rows, rows))
        return Stack(grid, rows, {name: _chosen(ratios, chosen) for name, ratios in self.sums.items()})

    def values(self, metric: str) -> statistics.Floats:
        """Return a metric's value of each prompt, shape [R, S, P], without prompts that have none."""
        ratios = self.sums[metric]
        told = (ratios.denominators > 0).any(0)
        return self.grid.shaped(statistics.per_prompt(_chosen(ratios, np.s_[:, told])))


def stack(grid: Grid, measures: Mapping[GridCell, PromptMeasures]) -> Stack:
    """Stack the measures of all cells of a grid."""
    every = [measures[cell] for cell in grid.cells]
    rows = common_rows(one.rows for one in every)
    names = sorted(set.intersection(*(set(one.sums) for one in every)))
    places = [np.searchsorted(one.rows, rows) for one in every]

    def side(name: str, which: int) -> statistics.Floats:
        return np.stack([one.sums[name][which][place] for one, place in zip(every, places, strict=True)])

    return Stack(grid, rows, {name: statistics.Ratios(side(name, 0), side(name, 1)) for name in names})


def common_rows(rows: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the ids common to all, ascending."""
    return reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), rows)


def aligned(stacks: Sequence[Stack]) -> list[Stack]:
    """Restrict stacks to the cells and prompts that all of them have."""
    grid = whole_grid(set.intersection(*(set(one.grid.cells) for one in stacks)))
    rows = common_rows(one.rows for one in stacks)
    return [one.part(grid, rows) for one in stacks]


def _chosen(ratios: statistics.Ratios, at: Any) -> statistics.Ratios:
    return statistics.Ratios(ratios.numerators[at], ratios.denominators[at])


# -- differences -------------------------------------------------------------------------------------------------
# Differences between two methods, or a method and the reference: intervals, tests and detectable differences. From
# three seeds on they cover other seeds, by `crossed`. With fewer, or if nothing varies, they cover these policies
# only, by `paired`.


Test = Literal["crossed", "mcnemar", "swaps"]


@dataclass(frozen=True)
class Difference:
    """Difference of a metric over the chains and prompts that two methods share.

    Attributes:
        grid: The chains.
        metric: Name of the metric.
        values: Differences by chain and prompt, shape [R, S, P].
        reach: Largest possible difference of a prompt.
        spread: Spread of their mean.
    """

    grid: Grid
    metric: str
    values: statistics.Floats
    reach: float
    spread: statistics.Spread

    @property
    def value(self) -> float:
        """First minus second."""
        return float(self.spread.value)

    @property
    def prompts(self) -> int:
        """Number of prompts with a value in both."""
        return int(self.values.shape[-1])

    @property
    def over(self) -> record.Scope:
        """Return the scope of the interval and the test."""
        return self.grid.scope_of(self.spread)

    @property
    def is_paired(self) -> bool:
        """Whether its interval and test are those of the prompts, or the wider of these and of the chains'.

        A small test set may hide what a prompt of it can change, also from several seeds.
        """
        return self.over == "policies" or (is_share(self.metric) and self.reach > 1)

    def by_prompt(self) -> statistics.Floats:
        """Return the mean over chains, shape [P]."""
        return np.asarray(self.values.mean((0, 1)))


def difference_of(first: Stack, second: Stack, metric: str) -> Difference | None:
    """Return the difference over shared chains and prompts; None if there are none."""
    own = statistics.paired_by_prompt(first.sums[metric], second.sums[metric])
    values = first.grid.shaped(own.differences)
    spread, reach = statistics.known_spread(values), reach_of(metric, own)
    sets = np.array([one.denominators.any(0) for one in _parts_of(first, metric)])
    if is_share(metric) and len(sets):  # no prompt of the smallest set may have shown what one can change
        reach = float((_weights_of(sets) @ sets).max())
    return None if spread is None else Difference(first.grid, metric, values, reach, spread)


def intervals(differences: Sequence[Difference], confidence: float) -> list[statistics.Bounds]:
    """Return the interval of each; those of shares stay between -1 and 1."""
    paired = [one for one in differences if one.is_paired]
    own = iter(
        statistics.paired_intervals([one.by_prompt() for one in paired], [one.reach for one in paired], confidence)
    )
    found = []
    for one in differences:
        ends = [next(own)] if one.is_paired else []
        if one.over != "policies":
            half = float(one.spread.half_width(confidence))
            ends.append((one.value - half, one.value + half))
        most = 1.0 if is_share(one.metric) else math.inf
        found.append((max(-most, min(low for low, _ in ends)), min(most, max(high for _, high in ends))))
    return found


def tests(differences: Sequence[Difference]) -> list[tuple[float, Test]]:
    """Return the p-value of each, and the test used."""
    paired = [one for one in differences if one.is_paired]
    own = iter(statistics.paired_tests([one.by_prompt() for one in paired], [one.reach for one in paired]))
    found: list[tuple[float, Test]] = []
    for one in differences:
        prompts: tuple[float, Test] = next(own) if one.is_paired else (0.0, "crossed")
        crossed = max(prompts[0], float(one.spread.p_value()))
        found.append(prompts if one.over == "policies" else (crossed, "crossed"))
    return found


def detectable(one: Difference, comparisons: int, confidence: float) -> float | None:
    """Return roughly the smallest difference that a run of this size detects; see `smallest_detectable`.

    Return None if nothing varies and the test itself does not give it.
    """
    by_spread = float(statistics.smallest_detectable(one.spread, comparisons, confidence))
    if is_share(one.metric) and one.reach > 1:  # a mean of test sets, of which the smallest may hide most
        least = statistics.least_detectable_mean(one.prompts, one.reach, comparisons, confidence)
        return min(1.0, max(by_spread, least))
    if is_share(one.metric) and one.over == "policies":
        return max(by_spread, statistics.least_detectable_share(one.prompts, comparisons, confidence))
    return by_spread if one.spread.variance > 0 else None


# -- groups ------------------------------------------------------------------------------------------------------
# The chains of a method after a round: their rows, and their measures by prompt.


Read = Callable[[record.Place], PromptMeasures | None]


class Group:
    """The chains of a method after a round, on one dataset and model."""

    def __init__(self, rows: Iterable[record.ResultRow], read: Read) -> None:
        """Read the chains' measures by prompt.

        Args:
            rows: Rows of the chains.
            read: Returns the measures of a chain.
        """
        self.rows: dict[GridCell, dict[str, record.ResultRow]] = {}
        for row in rows:
            self.rows.setdefault((record.place_of(row)[2], row.seed), {})[row.metric] = row
        first = next(iter(next(iter(self.rows.values())).values()))
        self.algo = first.algo
        self.place: dict[str, Any] = {"dataset": first.dataset, "model": first.model, "round": first.round}
        self.grid = whole_grid(self.rows)
        measures = {
            cell: read((first.dataset, first.model, cell[0], first.algo, cell[1], first.round))
            for cell in self.grid.cells
        }
        known = {cell: found for cell, found in measures.items() if found is not None}
        self.stack = stack(self.grid, known) if len(known) == len(self.grid) else None


# -- family ------------------------------------------------------------------------------------------------------
# Tests of which methods differ: one family, declared before the run. The primary metric after the last round, each
# method against the reference, then each pair; over the chains that all share, and the prompts of each two.


Pair = tuple[Group, Group]


def compared(places: Sequence[tuple[list[Group], Group]], confidence: float) -> list[record.Comparison]:
    """Test the family: each method against the reference, then each pair; each group corrected separately.

    Args:
        places: For each test set the methods after the last round, and the reference that they start from.
        confidence: Level of intervals, and 1 less that of the two corrections.
    """
    first, second = dict[Pair, Difference](), dict[Pair, Difference]()
    for methods, reference in places:
        groups = [group for group in (*methods, reference) if group.stack is not None]
        metric = record.primary_metric(group.stack.sums for group in groups if group.stack)
        if reference.stack is None or len(groups) < 2 or metric is None:
            continue
        whole = [group.stack for group in groups if group.stack]
        grid = whole_grid(set.intersection(*(set(one.grid.cells) for one in whole)))
        if not len(grid):
            continue
        stacks = {group: one.part(grid, one.rows) for group, one in zip(groups, whole, strict=True)}
        tested = groups[:-1]
        for known, pairs in (
            (first, [(group, reference) for group in tested]),
            (second, list(combinations(tested, 2))),
        ):
            for pair in pairs:
                one, other = aligned([stacks[group] for group in pair])  # which may have different prompts
                if (found := difference_of(one, other, metric)) is not None:
                    known[pair] = found
    return [comparison for known in (first, second) for comparison in _corrected(known, confidence)]


def compared_at_once(pairs: Iterable[Pair], confidence: float) -> dict[Pair, record.Comparison]:
    """Test pairs as one family, each on the chains and prompts that both have; those that cannot be are left out.

    Args:
        pairs: Methods after any rounds, or references.
        confidence: Level of intervals, and 1 less that of the correction.
    """
    known = dict[Pair, Difference]()
    for pair in pairs:
        stacks = [group.stack for group in pair if group.stack is not None]
        metric = record.primary_metric(stack.sums for stack in stacks)
        if len(stacks) == len(pair) and metric is not None:
            one, other = aligned(stacks)
            if len(one.grid) and (found := difference_of(one, other, metric)) is not None:
                known[pair] = found
    return dict(zip(known, _corrected(known, confidence), strict=True))


def _corrected(known: Mapping[Pair, Difference], confidence: float) -> Iterator[record.Comparison]:
    tested, ends = tests(list(known.values())), intervals(list(known.values()), confidence)
    corrected = statistics.holm([p for p, _ in tested])
    for (pair, one), (low, high), p, (_, test) in zip(known.items(), ends, corrected, tested, strict=True):
        least = detectable(one, len(known), confidence)
        numbers = {"difference": one.value, "ci_low": low, "ci_high": high, "p": p}
        told: Fields = {name: _kept(number) for name, number in numbers.items()}
        told |= {
            "metric": one.metric,
            "first": pair[0].algo,
            "second": pair[1].algo,
            "test": test,
            "over": one.over,
        }
        told |= {"references": len(one.grid.references), "seeds": len(one.grid.seeds), "n": one.prompts}
        told["detectable"] = None if least is None else _kept(least)
        yield record.Comparison(**pair[0].place, **told)


def _kept(number: float) -> float:
    found = rounded(number)
    assert found is not None  # no difference can be detected in numbers so large that their variance overflows
    return found


def pooled(
    rows: Iterable[record.ResultRow], read: Read, last_round: int, confidence: float
) -> tuple[list[record.PooledRow], list[record.Comparison]]:
    """Pool the chains of every method, and compare methods after the last round.

    Args:
        rows: Rows of all chains.
        read: Returns the measures by prompt of a chain after a round, or None if unknown; then a number has an
            interval only if there is a single chain, whose own it is.
        last_round: Last round of the run.
        confidence: Level of intervals, and 1 less that of the families of tests.

    Returns:
        A row for every method, round and metric, and the comparisons.
    """
    places: dict[tuple[str, str], dict[tuple[str, int], list[record.ResultRow]]] = {}
    for row in rows:
        places.setdefault((row.dataset, row.model), {}).setdefault((row.algo, row.round), []).append(row)
    found: list[record.PooledRow] = []
    comparisons: list[record.Comparison] = []
    for _, family in groupby(sorted(places), key=lambda place: (point_of(place[0])[0], place[1])):
        own_places = list(family)
        sets: dict[tuple[str, str], _Rounds] = {place: places[place] for place in own_places}
        sets |= _mean_of_sets(sets)
        tested: list[tuple[list[Group], Group]] = []
        for place, chains in sets.items():
            its = _mean_reader(read, own_places) if place not in places else read
            reference = Group(chains[REFERENCE, 0], its) if (REFERENCE, 0) in chains else None
            last: list[Group] = []
            for (algo, number), own in sorted(chains.items()):
                group = Group(own, its)
                own_rows = _rows_of(group, None if algo == REFERENCE else reference, confidence)
                found += own_rows if place in places else [_over_sets(row, found, group.stack) for row in own_rows]
                if algo != REFERENCE and number == last_round:
                    last.append(group)
            if reference is not None:
                tested.append((last, reference))
        comparisons += compared(tested, confidence)
    return sorted(found, key=lambda row: (row.dataset, row.model, row.algo, row.round, row.metric)), comparisons


# -- mean of test sets -------------------------------------------------------------------------------------------
# The mean result of methods over their test sets, each set with the same weight. Sets are strata: they are fixed,
# and the prompts of each are its sample. Prompts of several sets with the same text are one unit of that sample.

_Rounds = Mapping[tuple[str, int], list[record.ResultRow]]
"""Method and round -> rows of its chains."""
_APART_BY = 1 << 40
"""Offset between the ids of prompts of two sets."""
_ALIKE = 1e-12
"""Largest deviation that is attributed to rounding."""
_PART = "{} on set {:04}"
"""Metric and set -> name of the deviations of its prompts from their mean; the denominators of others are 0."""


def _mean_of_sets(sets: Mapping[tuple[str, str], _Rounds]) -> dict[tuple[str, str], _Rounds]:
    """Return the rows of the mean over test sets, for the primary metric; empty for a single set."""
    metric = record.primary_metric({row.metric for own in one.values() for row in own} for one in sets.values())
    if len(sets) < 2 or metric is None:
        return {}
    dataset, model = next(iter(sets))
    place = evaluated_on(point_of(dataset)[0], MEAN)
    found: dict[tuple[str, int], list[record.ResultRow]] = {}
    for method in set.intersection(*(set(one) for one in sets.values())):
        rows = [row for one in sets.values() for row in one[method] if row.metric == metric]
        for own in record.grouped(((record.place_of(row)[2], row.seed), row) for row in rows).values():
            values = [row.value for row in own if row.value is not None]
            if len(values) == len(sets):
                number = sum(row.n for row in own)
                mean = replace(own[0], dataset=place, value=fmean(values), ci_low=None, ci_high=None, n=number)
                found.setdefault(method, []).append(mean)
    return {(place, model): found} if found else {}


def _mean_reader(read: Read, places: Sequence[tuple[str, str]]) -> Read:
    """Return a reader of measures on all test sets, combined so that their mean over prompts is that over sets."""

    def both(place: record.Place) -> PromptMeasures | None:
        every = [read((dataset, *place[1:])) for dataset, _ in places]
        known = [one for one in every if one is not None]
        return _stratified(known) if len(known) == len(every) else None

    return both


def _stratified(sets: Sequence[PromptMeasures]) -> PromptMeasures:
    """Combine the prompts of test sets: the mean of the values is that over sets, with the variance within sets.

    A prompt has the mean over sets plus its deviation from the mean of each set that has it, times a weight. The
    variance of the mean is then that of a stratified sample (Cochran 1977, section 5.3), plus the covariances of
    sets that share prompts.
    """
    names = set.intersection(*(set(one.sums) for one in sets)) & set(record.PRIMARY_METRICS)
    ids = [one.rows + place * _APART_BY for place, one in enumerate(sets)]
    texts = [one.texts if len(one.texts) else own for one, own in zip(sets, ids, strict=True)]
    _, first, unit = np.unique(np.concatenate(texts), return_index=True, return_inverse=True)
    rows, places = np.unique(np.concatenate(ids)[first][unit], return_inverse=True)
    units = np.split(places, np.cumsum([len(one) for one in ids])[:-1])
    sums: dict[str, tuple[statistics.Floats, statistics.Floats]] = {}
    for name in sorted(names):
        told = [one.sums[name][1] > 0 for one in sets]
        if not all(each.any() for each in told):
            continue
        own = [
            statistics.per_prompt(statistics.Ratios(one.sums[name][0][at], one.sums[name][1][at]))
            for one, at in zip(sets, told, strict=True)
        ]
        apart, has = np.zeros((2, len(sets), len(rows)))
        for place, (values, unit, at) in enumerate(zip(own, units, told, strict=True)):
            apart[place, unit[at]], has[place, unit[at]] = values - values.mean(), 1
        mean, known = fmean(values.mean() for values in own), np.asarray(has.any(0), np.float64)
        sums[name] = known * (mean + _weights_of(has) @ apart), known
        sums |= {_PART.format(name, place): (apart[place], has[place]) for place in range(len(sets))}
    return PromptMeasures(rows, sums)


def _parts_of(both: Stack, metric: str) -> list[statistics.Ratios]:
    """Return the deviations on each set of a mean over sets; empty for a single set."""
    return [both.sums[name] for name in sorted(both.sums) if name.startswith(_PART.format(metric, 0)[:-4])]


def _weights_of(has: NDArray[Any]) -> statistics.Floats:
    """Return sqrt(P (P - 1) / (P_k (P_k - 1))) / K for each of K sets of P_k prompts, P in all.

    Args:
        has: Whether a set has a prompt, shape [K, P].
    """
    number, sizes = has.any(0).sum(), has.sum(1)
    return np.asarray(np.sqrt(number * (number - 1) / sizes / np.maximum(sizes - 1, 1)) / len(has))


def _correlations(both: Stack | None, metric: str, sets: int) -> statistics.Floats:
    """Estimate the correlations of the means of sets by the prompts that they share, above the diagonal of [K, K].

    Of sets where all prompts are alike, prompts are taken to vary together.
    """
    parts = [] if both is None else _parts_of(both, metric)
    if not parts:
        return np.zeros((sets, sets))
    apart = np.array([one.numerators.mean(0) for one in parts])
    has = np.array([one.denominators.mean(0) for one in parts])
    apart = np.where(np.abs(apart).max(1, keepdims=True) > _ALIKE, apart, has)
    apart /= np.linalg.norm(apart, axis=1, keepdims=True)
    return np.asarray(np.maximum(np.triu(apart @ apart.T, 1), 0))


def _over_sets(mean: record.PooledRow, found: Iterable[record.PooledRow], both: Stack | None) -> record.PooledRow:
    """Return the mean over test sets with an interval that is no narrower than those of the sets allow.

    A set without a right answer seems not to vary, but its own interval is not empty. The distances to the ends of
    the sets' intervals add up as errors do, which are independent unless sets share prompts (MOVER: Zou and Donner
    2008; with correlations, Zou 2007). Sets share seeds, so with several chains each end is the outer one of this
    interval and of the interval over the chains.

    Args:
        mean: A row of the mean; without an interval for a single chain.
        found: Rows so far, those of the sets among them.
        both: Measures of the mean by prompt, if known.
    """

    def kind(row: record.PooledRow) -> tuple[str, str, str, int, str]:
        return point_of(row.dataset)[0], row.model, row.algo, row.round, row.metric

    own = [row for row in found if kind(row) == kind(mean)]
    known = [
        (row.value - row.ci_low, row.ci_high - row.value)
        for row in own
        if row.value is not None and row.ci_low is not None and row.ci_high is not None
    ]
    if mean.value is None or len(known) < len(own):
        return mean
    sides, alike = np.array(known).T, _correlations(both, mean.metric, len(own))
    below, above = (math.hypot(*side, math.sqrt(2 * side @ alike @ side)) / len(own) for side in sides)
    low, high = mean.value - below, mean.value + above
    if mean.ci_low is not None and mean.ci_high is not None:
        low, high = min(low, mean.ci_low), max(high, mean.ci_high)
    return replace(mean, ci_low=rounded(low), ci_high=rounded(high))


Fields = dict[str, Any]
"""Fields of a row: a number with its interval, what that covers, and the sizes."""


_LEVEL = ("value", "ci_low", "ci_high", "over", "references", "seeds", "n")
_APART = tuple(f"difference{part}" for part in ("", "_low", "_high", "_over", "_references", "_seeds", "_n"))


def _fields(
    names: Sequence[str], numbers: Iterable[float | None], over: record.Scope, grid: Grid, prompts: int
) -> Fields:
    """Return fields by name: number and interval, scope, references, seeds and prompts."""
    found = (*map(rounded, numbers), over, len(grid.references), len(grid.seeds), prompts)
    return dict(zip(names, found, strict=True))


def _rows_of(group: Group, reference: Group | None, confidence: float) -> Iterator[record.PooledRow]:
    metrics = sorted(
        {name for cell in group.grid.cells for name in group.rows[cell] if record.COMPARED not in name}
    )
    apart = _differences(group, reference, metrics, confidence) if reference is not None else {}
    for metric in metrics:
        level, difference = _level(group, metric, confidence), apart.get(metric, dict.fromkeys(_APART))
        yield record.PooledRow(**group.place, algo=group.algo, metric=metric, **level, **difference)


def _level(group: Group, metric: str, confidence: float) -> Fields:
    """Return the mean over all chains: by prompt if these are known for several, else from the chains' rows."""
    grid, number = group.grid, None
    if group.stack is not None and metric in group.stack.sums:
        values = group.stack.values(metric)
        number = values.shape[-1]
        if len(grid) > 1 and (spread := statistics.known_spread(values)) is not None:
            value, half = float(spread.value), float(spread.half_width(confidence))
            low, high = (
                statistics.share_interval(spread, confidence) if is_share(metric) else (value - half, value + half)
            )
            numbers = (value, float(low), float(high))
            return _fields(_LEVEL, numbers, grid.scope_of(spread), grid, number)
    own = [group.rows[cell][metric] for cell in grid.cells if metric in group.rows[cell]]
    known = [row.value for row in own if row.value is not None]
    mean = fmean(known) if known and len(known) == len(grid) else None
    ends = (own[0].ci_low, own[0].ci_high) if len(grid) == 1 else (None, None)
    return _fields(_LEVEL, (mean, *ends), grid.scope, grid, number or min(row.n for row in own))


def _differences(
    group: Group, reference: Group, metrics: Iterable[str], confidence: float
) -> Mapping[str, Fields]:
    """Return differences to the reference over shared chains and prompts, for metrics known by prompt."""
    if group.stack is None or reference.stack is None:
        return {}
    ours, theirs = aligned([group.stack, reference.stack])
    # this is a difference to the reference already
    compared = [name for name in metrics if not name.startswith("kl_")]
    both = [name for name in compared if name in ours.sums and name in theirs.sums] if len(ours.grid) else []
    found = {name: one for name in both if (one := difference_of(ours, theirs, name)) is not None}
    ends = intervals(list(found.values()), confidence)
    return {
        name: _fields(_APART, (one.value, *bounds), one.over, one.grid, one.prompts)
        for (name, one), bounds in zip(found.items(), ends, strict=True)
    }


# -- fronts ------------------------------------------------------------------------------------------------------
# Pareto fronts of methods: the reward of each at its KL divergence, and at divergences that all of them reach. A
# front is one algorithm at several values of its settings (``algos.NAME.front``, all tested), with the reference
# as its point of zero divergence; or one value-guided method at several strengths (``evaluation.etas``, on
# validation).


_PARTS = (0.25, 0.5, 1.0)
"""Fractions of the range of divergence common to all fronts, used by default."""


def fronts(
    pooled: Iterable[record.PooledRow], matched_kl: Sequence[float], split: str
) -> tuple[list[record.FrontRow], list[record.MatchedRow]]:
    """Return the points of all fronts after the last round, and their rewards at matched divergence.

    Args:
        pooled: Numbers of methods.
        matched_kl: Divergences in nats; empty for fractions of the range common to all fronts of a dataset and
            model.
        split: Split on which methods were tested.
    """
    ordered = sorted(pooled, key=lambda row: (row.dataset, row.model))
    points: list[record.FrontRow] = []
    matched: list[record.MatchedRow] = []
    for _, rows in groupby(ordered, key=lambda row: (row.dataset, row.model)):
        found = _points(list(rows), split)
        by_front = {name: list(own) for name, own in groupby(found, key=lambda row: row.front)}
        asked = matched_kl or _common(list(by_front.values()))
        points += found
        matched += [_at(own, kl) for own in by_front.values() for kl in asked]
    return points, matched


def _points(rows: Sequence[record.PooledRow], split: str) -> list[record.FrontRow]:
    """Return the points of all fronts of a dataset and model, by front and divergence."""
    last = max(row.round for row in rows)
    cells: dict[str, dict[str, record.PooledRow]] = {}
    for row in rows:
        if row.value is not None and (row.round == last or row.algo == REFERENCE):
            cells.setdefault(row.algo, {})[row.metric] = row
    primary = record.primary_metric(cells.values())
    found: dict[str, list[record.FrontRow]] = {}
    for algo, cell in cells.items():
        name, point = point_of(algo)
        if point and primary in cell and record.KL in cell:
            found.setdefault(name, []).append(_fronts_row(name, point, split, cell[record.KL], cell[primary]))
        if strengths := list(_strengths(algo, cell)):
            found.setdefault(algo, []).extend(strengths)
    reference = cells.get(REFERENCE, {})
    for name, own in found.items():
        if own[0].split == split and primary in reference and record.KL in reference:
            at_zero = _fronts_row(name, REFERENCE, split, reference[record.KL], reference[primary])
            own.append(at_zero)
    return [row for name in sorted(found) if len(found[name]) > 1 for row in _marked(found[name])]


def _strengths(algo: str, cell: record.ByMetric) -> Iterator[record.FrontRow]:
    labels = [metric.removeprefix(f"{record.KL}/") for metric in cell if metric.startswith(f"{record.KL}/{ETA}")]
    metric = record.primary_metric(
        [[name for name in record.PRIMARY_METRICS if f"{name}/{label}" in cell] for label in labels]
    )
    for label in labels if metric else []:
        yield _fronts_row(algo, label, SWEEP_SPLIT, cell[f"{record.KL}/{label}"], cell[f"{metric}/{label}"])


def _fronts_row(
    front: str, point: str, split: str, kl: record.PooledRow, reward: record.PooledRow
) -> record.FrontRow:
    same = ("dataset", "model", "round", "ci_low", "ci_high", "over", "references", "seeds", "n")
    alike: Fields = {name: getattr(reward, name) for name in same}
    alike |= {"front": front, "point": point, "split": split, "metric": reward.metric.partition("/")[0]}
    alike |= {"kl": kl.value or 0.0, "kl_low": kl.ci_low, "kl_high": kl.ci_high, "value": reward.value or 0.0}
    return record.FrontRow(**alike, is_best=False)


def _marked(rows: list[record.FrontRow]) -> list[record.FrontRow]:
    """Return rows by divergence, with the points of the Pareto front marked."""
    best = {(point.kl, point.reward) for point in reward_kl_front(FrontPoint(row.kl, row.value) for row in rows)}
    marked = [replace(row, is_best=(row.kl, row.value) in best) for row in rows]
    return sorted(marked, key=lambda row: (row.kl, row.point))


def _common(found: list[list[record.FrontRow]]) -> list[float]:
    """Return divergences within the range of all fronts."""
    low = max((own[0].kl for own in found), default=0.0)
    high = min((own[-1].kl for own in found), default=0.0)
    return [float(rounded(low + part * (high - low)) or 0.0) for part in _PARTS] if high > low else []


def _at(rows: Sequence[record.FrontRow], kl: float) -> record.MatchedRow:
    """Return the reward of a front at a divergence, interpolated between the neighbouring Pareto points.

    Beyond the best point it is constant up to the largest measured divergence, and then None. Pareto points are
    selected on the reported prompts, so the value is biased upwards, and more so for fronts with more points: it
    describes these prompts, not what a point would reach on others.

    The ends of the interval are interpolated too. The interval is wide enough if both points have the same error,
    and wider than necessary otherwise; it ignores the error of their divergence.
    """
    best = [row for row in rows if row.is_best]

    def line(name: str) -> float | None:
        known = [value for row in best if (value := getattr(row, name)) is not None]
        within = len(known) == len(best) and rows[0].kl <= kl <= rows[-1].kl
        return rounded(float(np.interp(kl, [row.kl for row in best], known))) if within else None

    same = ("dataset", "model", "front", "split", "metric")
    alike: Fields = {name: getattr(best[0], name) for name in same}
    alike |= {name: line(name) for name in ("value", "ci_low", "ci_high")}
    return record.MatchedRow(**alike, round=max(row.round for row in rows), kl=kl)
