"""What a run says of its methods: their numbers over all seeds and references, and which of them differ.

The rows of chains are about single policies. A method is judged by the mean over its policies, with an interval
that holds for other seeds, and for other references where there are enough. Tests are made of the one family that
is declared before the run: what methods are judged by, after the last round; each against the reference, then each
against each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from statistics import fmean
from typing import Literal

import numpy as np

from pipeline.evaluation.cells import Cell, Grid, Stack, aligned, paired_values, stack, whole_grid
from pipeline.evaluation.crossed import LEAST, Floats, Spread, crossed_spread
from pipeline.evaluation.metrics import is_share, rounded
from pipeline.evaluation.shares import exact_difference, has_no_variance, share_interval
from pipeline.evaluation.significance import holm, least_detectable_share, mcnemar, smallest_detectable
from pipeline.evaluation.statistics import swap_tests
from pipeline.results.primary import primary_metric
from pipeline.results.prompts import PromptMeasures
from pipeline.results.record import Comparison, Place, PooledRow, ResultRow, Scope, place_of

REFERENCE = "reference"
_AGAINST = "/vs_"
Read = Callable[[Place], PromptMeasures | None]
Rows = Mapping[Cell, Mapping[str, ResultRow]]
Bounds = tuple[float | None, float | None]


class Group:
    """The chains of a method after a round, on one dataset and model."""

    def __init__(self, rows: Iterable[ResultRow], read: Read) -> None:
        """Read what the chains say prompt by prompt.

        Args:
            rows: Rows of the chains.
            read: Gives the measures of a chain.
        """
        self.rows: dict[Cell, dict[str, ResultRow]] = {}
        for row in rows:
            self.rows.setdefault((place_of(row)[2], row.seed), {})[row.metric] = row
        self.first = next(iter(next(iter(self.rows.values())).values()))
        self.grid = whole_grid(self.rows)
        measures = {cell: read(_place(self.first, cell)) for cell in self.grid.cells}
        known = {cell: found for cell, found in measures.items() if found is not None}
        self.stack = stack(self.grid, known) if len(known) == len(self.grid) else None


def _place(row: ResultRow, cell: Cell) -> Place:
    return row.dataset, row.model, cell[0], row.algo, cell[1], row.round


def pooled(
    rows: Iterable[ResultRow], read: Read, last_round: int, confidence: float
) -> tuple[list[PooledRow], list[Comparison]]:
    """Pool the chains of every method, and compare methods after the last round.

    Args:
        rows: Rows of all chains.
        read: Gives what was measured of a chain after a round prompt by prompt, or None where that is not known; a
            number then has no interval unless there is one chain only, whose own it has.
        last_round: Of the run.
        confidence: Level of intervals, and 1 less that of the families of tests.

    Returns:
        A row for every method, round and metric, and the comparisons.
    """
    places: dict[tuple[str, str], dict[tuple[str, int], list[ResultRow]]] = {}
    for row in rows:
        places.setdefault((row.dataset, row.model), {}).setdefault((row.algo, row.round), []).append(row)
    found: list[PooledRow] = []
    comparisons: list[Comparison] = []
    for chains in places.values():
        reference = Group(chains[REFERENCE, 0], read) if (REFERENCE, 0) in chains else None
        last: list[Group] = []
        for (algo, number), own in sorted(chains.items()):
            group = Group(own, read)
            found += _rows_of(group, None if algo == REFERENCE else reference, confidence)
            if algo != REFERENCE and number == last_round:
                last.append(group)
        if reference is not None:
            comparisons += _family(last, reference, confidence)
    return sorted(found, key=lambda row: (row.dataset, row.model, row.algo, row.round, row.metric)), comparisons


# -- the numbers of a method -----------------------------------------------------------------------------------


def _rows_of(group: Group, reference: Group | None, confidence: float) -> list[PooledRow]:
    pair = _paired(group, reference)
    known = reference.rows if reference is not None else {}
    metrics = {metric for cell in group.grid.cells for metric in group.rows[cell] if _AGAINST not in metric}
    return [_row(group, metric, pair, known, confidence) for metric in sorted(metrics)]


def _paired(group: Group, reference: Group | None) -> tuple[Stack, Stack] | None:
    """A method and the reference where both have the same chains and prompts."""
    if reference is None or group.stack is None or reference.stack is None:
        return None
    ours, theirs = aligned([group.stack, reference.stack])
    return (ours, theirs) if len(ours.grid) and len(ours.rows) > 1 else None


def _row(group: Group, metric: str, pair: tuple[Stack, Stack] | None, known: Rows, confidence: float) -> PooledRow:
    own = [group.rows[cell][metric] for cell in group.grid.cells if metric in group.rows[cell]]
    values = [row.value for row in own if row.value is not None]
    value = fmean(values) if values and len(values) == len(group.grid) else None
    low, high = _interval(group, metric, own, confidence)
    difference, below, above = _difference(group, metric, pair, known, confidence)
    return PooledRow(
        algo=group.first.algo,
        dataset=group.first.dataset,
        model=group.first.model,
        round=group.first.round,
        metric=metric,
        value=rounded(value),
        ci_low=rounded(low),
        ci_high=rounded(high),
        difference=rounded(difference),
        difference_low=rounded(below),
        difference_high=rounded(above),
        over=scope(group.grid),
        references=len(group.grid.references),
        seeds=len(group.grid.seeds),
        n=min(row.n for row in own),
    )


def _interval(group: Group, metric: str, own: list[ResultRow], confidence: float) -> Bounds:
    if len(group.grid) == 1:
        return own[0].ci_low, own[0].ci_high
    if group.stack is None or metric not in group.stack.sums:
        return None, None
    spread = _spread(group.stack.values(metric))
    if spread is None:
        return None, None
    if is_share(metric):
        low, high = share_interval(spread, confidence)
        return float(low), float(high)
    return _around(spread, confidence)


def _difference(
    group: Group, metric: str, pair: tuple[Stack, Stack] | None, known: Rows, confidence: float
) -> tuple[float | None, float | None, float | None]:
    if metric.startswith("kl_"):  # it is from the reference already
        return None, None, None
    own = group.rows[group.grid.cells[0]].get(f"{metric}{_AGAINST}{REFERENCE}")
    if len(group.grid) == 1 and own is not None:
        return own.value, own.ci_low, own.ci_high
    if pair is None or any(metric not in stacked.sums for stacked in pair):
        return _bare_difference(group.rows, known, metric), None, None
    spread = _spread(paired_values(*pair, metric))
    if spread is None:
        return None, None, None
    return float(spread.value), *_difference_bounds(spread, metric, confidence)


def _bare_difference(ours: Rows, theirs: Rows, metric: str) -> float | None:
    """The mean difference over the chains that both have: seeds differ more than methods do."""
    found = [
        own.value - other.value
        for cell in ours.keys() & theirs.keys()
        if (own := ours[cell].get(metric)) and (other := theirs[cell].get(metric))
        if own.value is not None and other.value is not None
    ]
    return fmean(found) if found else None


def _difference_bounds(spread: Spread, metric: str, confidence: float) -> tuple[float, float]:
    if is_share(metric) and has_no_variance(spread):
        return exact_difference(float(spread.value), spread.prompts_df + 1, confidence)
    return _around(spread, confidence)


def _around(spread: Spread, confidence: float) -> tuple[float, float]:
    half = spread.half_width(confidence)
    return float(spread.value - half), float(spread.value + half)


def _spread(values: Floats) -> Spread | None:
    """Of values of shape [R, S, P], or None where there are too few of them."""
    return crossed_spread(values) if values.shape[-1] > 1 and np.isfinite(values).all() else None


def scope(grid: Grid) -> Scope:
    """What an interval over these chains holds for."""
    if len(grid.seeds) < LEAST:
        return "policies"
    return "references" if len(grid.references) >= LEAST else "seeds"


# -- which of them differ --------------------------------------------------------------------------------------


def _family(methods: list[Group], reference: Group, confidence: float) -> list[Comparison]:
    """The declared family: each method with the reference, then each with each; both corrected by themselves."""
    groups = [group for group in (*methods, reference) if group.stack is not None]
    metric = primary_metric(group.stack.sums for group in groups if group.stack)
    if reference.stack is None or len(groups) < 2 or metric is None:
        return []
    stacks = dict(zip(groups, aligned([group.stack for group in groups if group.stack]), strict=True))
    if not len(stacks[reference].grid) or len(stacks[reference].rows) < 2:
        return []
    tested = groups[:-1]
    first = [(group, reference) for group in tested]
    return [
        comparison
        for pairs in (first, list(combinations(tested, 2)))
        for comparison in _compared(pairs, stacks, metric, confidence)
    ]


def _compared(
    pairs: list[tuple[Group, Group]], stacks: Mapping[Group, Stack], metric: str, confidence: float
) -> list[Comparison]:
    differences = [paired_values(stacks[one], stacks[other], metric) for one, other in pairs]
    spreads = [_spread(values) for values in differences]
    known = [
        (*pair, values, spread)
        for pair, values, spread in zip(pairs, differences, spreads, strict=True)
        if spread is not None and np.isfinite([float(spread.value), float(spread.variance)]).all()
    ]
    tests = _tested([(stacks[one], stacks[other], values, spread) for one, other, values, spread in known], metric)
    corrected = holm([p for p, _ in tests])
    return [
        _comparison(one, other, metric, spread, stacks[one], (p, test), len(known), confidence)
        for (one, other, _, spread), p, (_, test) in zip(known, corrected, tests, strict=True)
    ]


Test = Literal["crossed", "mcnemar", "swaps"]


def _tested(pairs: list[tuple[Stack, Stack, Floats, Spread]], metric: str) -> list[tuple[float, Test]]:
    """The p-value of each comparison, and how it was found."""
    found: dict[int, tuple[float, Test]] = {}
    swapped: dict[int, dict[int, Floats]] = {}
    for place, (one, other, differences, spread) in enumerate(pairs):
        both = [stacked.sums[metric] for stacked in (one, other)]
        if scope(one.grid) != "policies" and not has_no_variance(spread):
            found[place] = float(spread.p_value()), "crossed"
        elif len(one.grid) == 1 and all(
            _right_or_wrong(ratios.numerators, ratios.denominators) for ratios in both
        ):
            found[place] = mcnemar(both[0].numerators[0], both[1].numerators[0]), "mcnemar"
        else:
            swapped.setdefault(differences.shape[-1], {})[place] = differences.mean((0, 1))
    for columns in swapped.values():  # those of as many prompts have their swaps drawn once
        values = swap_tests(np.stack(list(columns.values()), axis=1))
        found |= {place: (float(p), "swaps") for place, p in zip(columns, values, strict=True)}
    return [found[place] for place in range(len(pairs))]


def _right_or_wrong(numerators: Floats, denominators: Floats) -> bool:
    return bool((denominators == 1).all() and ((numerators == 0) | (numerators == 1)).all())


def _comparison(
    one: Group,
    other: Group,
    metric: str,
    spread: Spread,
    stacked: Stack,
    tested: tuple[float, Test],
    tests: int,
    confidence: float,
) -> Comparison:
    low, high = _difference_bounds(spread, metric, confidence)
    return Comparison(
        dataset=one.first.dataset,
        model=one.first.model,
        round=one.first.round,
        metric=metric,
        first=one.first.algo,
        second=other.first.algo,
        difference=_kept(float(spread.value)),
        ci_low=_kept(low),
        ci_high=_kept(high),
        p=_kept(tested[0]),
        test=tested[1],
        detectable=_kept(_detectable(spread, metric, tested[1], tests, confidence)),
        over=scope(stacked.grid),
        references=len(stacked.grid.references),
        seeds=len(stacked.grid.seeds),
        n=spread.prompts_df + 1,
    )


def _detectable(spread: Spread, metric: str, test: Test, tests: int, confidence: float) -> float:
    by_spread = float(smallest_detectable(spread, tests, confidence))
    if is_share(metric) and test != "crossed":
        return max(by_spread, least_detectable_share(spread.prompts_df + 1, tests, confidence))
    return by_spread


def _kept(number: float) -> float:
    found = rounded(number)
    assert found is not None
    return found
