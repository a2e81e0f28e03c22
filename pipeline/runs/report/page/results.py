"""The results of a run as a page shows them: the tables of the terminal, and their numbers as series. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.cost import Compute, ComputeRow, CostRow, total
from pipeline.runs.looks import reading_order
from pipeline.runs.record import FrontRow, PooledRow, ResultRow, Results, primary_metric
from pipeline.runs.report.fronts import budget_tables, front_tables
from pipeline.runs.report.page.model import FrontPoint, PageTable, Series, Spent, StageCost
from pipeline.runs.report.tables import ANCHORS, HEADINGS, result_tables
from pipeline.terminal.columns import FittedTable

_Cell = TypeVar("_Cell", str, bool)
_Row = TypeVar("_Row", PooledRow, ResultRow, ComputeRow, CostRow)


def place_of(row: ResultRow | PooledRow | FrontRow | ComputeRow) -> str:
    """Dataset and model in words."""
    return f"{row.dataset} · {row.model}"


def chain_of(reference: int | None, seed: int | None) -> str:
    """The reference and seed of a chain in words: ``seed 0``, ``reference 1, seed 0``."""
    own = "all seeds" if seed is None else f"seed {seed}"
    return own if reference is None else f"reference {reference}, {own}"


# -- tables ----------------------------------------------------------------------------------------------------


def tables_of(results: Results, compute: Compute) -> list[PageTable]:
    """The tables that the terminal shows, with all their columns; rows that a test tells apart are marked."""
    found = [
        page_table(table, _marks(table, place, results))
        for table, place in zip(result_tables(results, compute.costs), _places(results), strict=True)
    ]
    more = [*front_tables(results), *budget_tables(compute.budgets, results)]
    return found + [page_table(table) for table in more]


def page_table(table: FittedTable, marks: Mapping[int, str] | None = None) -> PageTable:
    """A table of the terminal."""
    return PageTable(
        title=table.title,
        caption=table.caption,
        headings=[column.heading for column in table.columns],
        right=[column.right for column in table.columns],
        rows=table.texts,
        ends=table.ends,
        marks=marks or {},
    )


def comparison_table(table: FittedTable) -> PageTable:
    """The same of runs side by side, with what they are judged by behind their names: a narrow page ends soon."""
    found = page_table(table)
    order = sorted(range(len(table.columns)), key=lambda at: min(table.columns[at].rank, 2))

    def ordered(cells: Sequence[_Cell]) -> list[_Cell]:
        return [cells[at] for at in order]

    return replace(
        found,
        headings=ordered(found.headings),
        right=ordered(found.right),
        rows=list(map(ordered, found.rows)),
    )


def _places(results: Results) -> list[tuple[str, str]]:
    """Dataset and model of each table of results."""
    return list(dict.fromkeys((row.dataset, row.model) for row in results.pooled))


def _marks(table: FittedTable, place: tuple[str, str], results: Results) -> dict[int, str]:
    """Rows whose method differs from the reference at the level of the run."""
    told = {
        (one.first, str(one.round)): "better" if one.difference > 0 else "worse"
        for one in results.comparisons
        if (one.dataset, one.model) == place and one.second == REFERENCE and one.p < 1 - results.confidence
    }
    rows = enumerate(table.texts)
    return {at: told[row[0], row[1]] for at, row in rows if (row[0], row[1]) in told}


# -- series ----------------------------------------------------------------------------------------------------


def metrics_of(results: Results) -> list[tuple[str, str]]:
    """Metrics with their headings: first the one by which methods are judged, then those of the table."""
    plain = dict.fromkeys(row.metric for row in results.pooled if "/" not in row.metric and row.value is not None)
    by_algo: dict[tuple[str, str, str, int], list[str]] = {}
    for row in results.pooled:
        if row.value is not None:
            by_algo.setdefault((row.dataset, row.model, row.algo, row.round), []).append(row.metric)
    first = primary_metric(by_algo.values())
    known = [name for name in HEADINGS if name in plain]
    known.sort(key=lambda name: name != first)
    return [(name, HEADINGS[name]) for name in known] + [(name, name) for name in plain if name not in HEADINGS]


def series_of(results: Results) -> list[Series]:
    """Every metric of every method round by round; of its chains, where it has several, those of the table."""
    pooled = [row for row in _ordered(results.pooled) if "/" not in row.metric]
    chains = [row for row in _ordered(results.rows) if row.metric in HEADINGS]
    several = {(row.dataset, row.model, row.algo) for row in pooled if row.references * row.seeds > 1}
    return [
        *_series((row, "") for row in pooled),
        *_series(
            (row, chain_of(row.reference, row.seed))
            for row in chains
            if (row.dataset, row.model, row.algo) in several
        ),
    ]


def _ordered(rows: Iterable[_Row]) -> list[_Row]:
    """By dataset, model and method, as they are read."""
    return sorted(rows, key=lambda row: (row.dataset, row.model, reading_order(row.algo)))


def _series(rows: Iterable[tuple[PooledRow | ResultRow, str]]) -> Iterator[Series]:
    grouped: dict[tuple[str, str, str, str], list[PooledRow | ResultRow]] = {}
    for row, chain in rows:
        grouped.setdefault((place_of(row), row.algo, chain, row.metric), []).append(row)
    for (place, algo, chain, metric), own in grouped.items():
        own.sort(key=lambda row: row.round)
        yield Series(
            place=place,
            algo=algo,
            chain=chain,
            metric=metric,
            rounds=[row.round for row in own],
            values=[row.value for row in own],
            lows=[row.ci_low for row in own],
            highs=[row.ci_high for row in own],
        )


def anchors_of(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Place -> ``greedy`` and ``optimum``, where they are known -> their metrics."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in results.pooled:
        anchor, _, metric = row.metric.partition("/")
        if row.algo == REFERENCE and anchor in ANCHORS and row.value is not None:
            found.setdefault(place_of(row), {}).setdefault(anchor, {})[metric] = row.value
    return found


def fronts_of(results: Results) -> list[FrontPoint]:
    """Points of methods that were run at several settings."""
    return [
        FrontPoint(
            place=place_of(row),
            front=row.front,
            point=row.point,
            metric=row.metric,
            kl=row.kl,
            kl_low=row.kl_low,
            kl_high=row.kl_high,
            value=row.value,
            low=row.ci_low,
            high=row.ci_high,
            is_best=row.is_best,
        )
        for row in results.fronts
    ]


# -- cost ------------------------------------------------------------------------------------------------------


def spent_of(compute: Compute) -> list[Spent]:
    """What methods take up to the end of each round."""
    return [
        Spent(
            place=f"{row.dataset} · {row.model}",
            algo=row.algo,
            round=row.round,
            flops=row.flops,
            answer=row.answer,
            device_s=row.device_s,
        )
        for row in _ordered(compute.costs)
    ]


def stages_of(compute: Compute) -> list[StageCost]:
    """What each stage of each method took."""
    grouped: dict[tuple[str, str, str], list[ComputeRow]] = {}
    for row in _ordered(compute.rows):
        grouped.setdefault((place_of(row), row.algo, row.stage), []).append(row)
    return [
        StageCost(
            place=place,
            algo=algo,
            stage=stage,
            device_s=total(row.device_s for row in rows),
            load_s=total(row.load_s for row in rows),
            flops=total(row.flops for row in rows),
            tokens=total(row.tokens for row in rows),
        )
        for (place, algo, stage), rows in grouped.items()
    ]
