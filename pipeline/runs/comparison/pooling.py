"""What a run says of its methods: their numbers over all seeds and references, and which of them differ.

The rows of chains are about single policies. A method is judged by the mean over its policies, with an interval
that holds for other seeds, and for other references where there are enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from pipeline.learning.algos.base import REFERENCE
from pipeline.learning.evaluation.crossed import Spread, known_spread, share_interval
from pipeline.learning.evaluation.metrics import is_share, rounded
from pipeline.learning.evaluation.paired import Bounds
from pipeline.runs.comparison.cells import Grid, GridCell, Stack, aligned, whole_grid
from pipeline.runs.comparison.differences import Difference, difference_of, intervals
from pipeline.runs.comparison.family import compared
from pipeline.runs.comparison.groups import Group, Read
from pipeline.runs.record import Comparison, PooledRow, ResultRow, Scope

_AGAINST = "/vs_"


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
            comparisons += compared(last, reference, confidence)
    return sorted(found, key=lambda row: (row.dataset, row.model, row.algo, row.round, row.metric)), comparisons


@dataclass(frozen=True)
class _Number:
    """A number with its interval, what that holds for, and what both rest on: chains and prompts."""

    value: float | None
    low: float | None
    high: float | None
    over: Scope
    grid: Grid
    prompts: int


def _rows_of(group: Group, reference: Group | None, confidence: float) -> list[PooledRow]:
    metrics = sorted({name for cell in group.grid.cells for name in group.rows[cell] if _AGAINST not in name})
    differences = _differences(group, reference, metrics, confidence) if reference is not None else {}
    return [_row(group, metric, _level(group, metric, confidence), differences.get(metric)) for metric in metrics]


def _row(group: Group, metric: str, level: _Number, difference: _Number | None) -> PooledRow:
    apart = difference or _Number(None, None, None, group.grid.scope, group.grid, 0)
    return PooledRow(
        algo=group.first.algo,
        dataset=group.first.dataset,
        model=group.first.model,
        round=group.first.round,
        metric=metric,
        value=rounded(level.value),
        ci_low=rounded(level.low),
        ci_high=rounded(level.high),
        difference=rounded(apart.value),
        difference_low=rounded(apart.low),
        difference_high=rounded(apart.high),
        over=level.over,
        references=len(level.grid.references),
        seeds=len(level.grid.seeds),
        n=level.prompts,
        difference_over=difference.over if difference else None,
        difference_references=len(difference.grid.references) if difference else None,
        difference_seeds=len(difference.grid.seeds) if difference else None,
        difference_n=difference.prompts if difference else None,
    )


# -- levels ----------------------------------------------------------------------------------------------------


def _level(group: Group, metric: str, confidence: float) -> _Number:
    """The mean over all chains: by prompt where that is known of several, else of what the chains say."""
    own = [group.rows[cell][metric] for cell in group.grid.cells if metric in group.rows[cell]]
    if len(group.grid) > 1 and group.stack is not None and metric in group.stack.sums:
        values = group.stack.values(metric)
        if (spread := known_spread(values)) is not None:
            low, high = _interval(spread, metric, confidence)
            over = group.grid.scope_of(spread)
            return _Number(float(spread.value), low, high, over, group.grid, values.shape[-1])
    known = [row.value for row in own if row.value is not None]
    value = fmean(known) if known and len(known) == len(group.grid) else None
    ends = (own[0].ci_low, own[0].ci_high) if len(group.grid) == 1 else (None, None)
    return _Number(value, *ends, group.grid.scope, group.grid, min(row.n for row in own))


def _interval(spread: Spread, metric: str, confidence: float) -> Bounds:
    if is_share(metric):
        low, high = share_interval(spread, confidence)
        return float(low), float(high)
    half = float(spread.half_width(confidence))
    return float(spread.value) - half, float(spread.value) + half


# -- differences to the reference ------------------------------------------------------------------------------


def _differences(
    group: Group, reference: Group, metrics: Iterable[str], confidence: float
) -> Mapping[str, _Number]:
    """Of the metrics that are compared: by prompt where that is known, else of what the chains say."""
    pair = _paired(group, reference)
    found: dict[str, _Number] = {}
    by_prompt: dict[str, Difference] = {}
    for metric in metrics:
        if metric.startswith("kl_"):  # it is from the reference already
            continue
        known = pair and all(metric in stacked.sums for stacked in pair) and difference_of(*pair, metric)
        if known:
            by_prompt[metric] = known
        elif bare := _bare_difference(group, reference, metric):
            found[metric] = bare
    ends = intervals(list(by_prompt.values()), confidence)
    for (metric, one), (low, high) in zip(by_prompt.items(), ends, strict=True):
        found[metric] = _Number(one.value, low, high, one.over, one.grid, one.prompts)
    return found


def _paired(group: Group, reference: Group) -> tuple[Stack, Stack] | None:
    """A method and the reference where both have the same chains and prompts."""
    if group.stack is None or reference.stack is None:
        return None
    ours, theirs = aligned([group.stack, reference.stack])
    return (ours, theirs) if len(ours.grid) else None


def _bare_difference(group: Group, reference: Group, metric: str) -> _Number | None:
    """That of the means of chains that both have, without an interval but for that of a single chain."""
    cells = {
        cell: (own, other)
        for cell in group.rows.keys() & reference.rows.keys()
        if (own := _told(group, cell, metric)) and (other := _told(reference, cell, metric))
    }
    grid = whole_grid(cells)
    if not len(grid):
        return None
    pairs = [cells[cell] for cell in grid.cells]
    value = fmean((own.value or 0) - (other.value or 0) for own, other in pairs)
    prompts = min(row.n for pair in pairs for row in pair)
    paired = group.rows[grid.cells[0]].get(f"{metric}{_AGAINST}{REFERENCE}")
    if len(grid) == 1 and paired is not None:
        return _Number(paired.value, paired.ci_low, paired.ci_high, grid.scope, grid, paired.n)
    return _Number(value, None, None, grid.scope, grid, prompts)


def _told(group: Group, cell: GridCell, metric: str) -> ResultRow | None:
    row = group.rows[cell].get(metric)
    return row if row is not None and row.value is not None else None
