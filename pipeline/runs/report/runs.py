"""Runs side by side, as tables of the terminal and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import groupby

from pipeline.runs.comparison.runs import RunComparison, RunRow
from pipeline.runs.record import csv_cell
from pipeline.runs.report.captions import about_bounds
from pipeline.runs.report.format import decimal, interval, si, title
from pipeline.runs.report.tables import HEADINGS, LEAST_NAME, number_column
from pipeline.terminal.columns import EXTRA, Column, FittedTable, align

_NOTE = (
    "After the last round of each run. Intervals are of each run by itself: a test between settings needs them in "
    "one run, as points of a front (docs/evaluation.md)."
)

_SEEDS = "seeds"
_MANY = 3
"""Settings that may have no room side by side."""


def comparison_tables(comparison: RunComparison) -> list[FittedTable]:
    """One table for each dataset and model: a row for each method and combination of settings that differ."""
    tables = []
    for place, found in groupby(comparison.rows, key=lambda row: (row.dataset, row.model)):
        rows = list(found)
        shown = [key for key in comparison.settings if any(key in row.settings for row in rows)]
        telling = telling_apart(rows, shown)
        shown = [*telling, *(key for key in shown if key not in telling)]
        table = FittedTable(
            _columns(comparison, shown, telling, rows),
            title=title(*place, "runs side by side"),
        )
        for _, own in groupby(rows, key=lambda row: row.algo):
            for row in own:
                table.add_row(*_cells(row, shown))
            table.end_section()
        tables.append(table)
    if tables:
        tables[-1].caption = "\n".join([_NOTE, *_about(comparison)])
    align(tables)
    return tables


def telling_apart(rows: Sequence[RunRow], settings: Sequence[str]) -> list[str]:
    """Settings that tell the rows of each method apart, as few as will do: those that tell most apart go first."""
    found: list[str] = []

    def kinds(keys: Sequence[str]) -> int:
        return len({(row.algo, *(row.settings.get(key) for key in keys)) for row in rows})

    while left := [key for key in settings if key not in found]:
        best = max(left, key=lambda key: kinds([*found, key]))
        if kinds([*found, best]) == kinds(found):
            break
        found.append(best)
    return found


def _columns(
    comparison: RunComparison, shown: Sequence[str], telling: Sequence[str], rows: Sequence[RunRow]
) -> Iterator[Column]:
    needs_run = len({(row.algo, *row.settings.items()) for row in rows}) < len(rows)
    metric = rows[0].result.metric
    yield Column(heading="algorithm", least=LEAST_NAME)
    for key in shown:
        heading = _of_setting(comparison.headings[key], [_SEEDS])
        rank = 2 if key in telling else 9
        yield Column(heading=heading, right=True, rank=rank, least=LEAST_NAME)
    yield Column(heading="run", rank=2 if needs_run else EXTRA + 4, least=LEAST_NAME)
    yield number_column("round", 6)
    yield number_column(HEADINGS.get(metric, metric), 1)
    yield number_column("interval", 4)
    yield number_column("vs ref", 7)
    yield number_column("KL/seq", 5)
    yield number_column("J", 8)
    yield number_column("FLOPs", EXTRA)
    yield number_column("per answer", EXTRA + 1)
    yield number_column("device s", EXTRA + 2)
    yield number_column(_SEEDS, EXTRA + 3)


def _of_setting(heading: str, others: Sequence[str]) -> str:
    """The heading of a setting, also where a column of results is called so."""
    return f"{heading} (setting)" if heading in others else heading


def _cells(row: RunRow, shown: Sequence[str]) -> list[str]:
    result = row.result
    return [
        row.algo,
        *(row.settings.get(key, "") for key in shown),
        row.runs[0] + (f" and {len(row.runs) - 1} more" if len(row.runs) > 1 else ""),
        str(result.round),
        _number(result.value),
        interval(result.ci_low, result.ci_high),
        "" if result.difference is None else decimal(result.difference, "+"),
        _number(row.kl),
        _number(row.j),
        "" if row.flops is None else si(row.flops),
        "" if row.answer is None else si(row.answer),
        "" if row.device_s is None else f"{row.device_s:.1f}",
        str(result.seeds),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else decimal(value)


def _about(comparison: RunComparison) -> Iterator[str]:
    if len(comparison.settings) > _MANY:
        yield f"Settings that differ: {', '.join(comparison.settings)}; --csv has all of them."
    if not comparison.settings and len(comparison.labels) > 1:
        yield "No setting that changes results differs."
    if missing := comparison.without_results:
        yield f"No results: {', '.join(missing)}."
    going_on = [
        f"{label} ({state})"
        for label, state in zip(comparison.labels, comparison.states, strict=True)
        if state != "done" and label not in missing
    ]
    if going_on:
        yield f"Not done: {', '.join(going_on)}."
    algos = {row.algo for row in comparison.rows}
    yield from about_bounds([name for name in comparison.bounded if name in algos])


def comparison_csv(comparison: RunComparison) -> str:
    """The same with every number in full, as a table for other programs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measured = ("round", "metric", "value", "ci_low", "ci_high", "difference", "difference_low", "difference_high")
    taken = ("kl", "j", "flops", "answer", "device_s")
    place = ("dataset", "model", "algo")
    before, after = ("run", "state", *place), (*measured, *taken, "references", _SEEDS, "n")
    settings = [_of_setting(key, [*before, *after]) for key in comparison.settings]
    writer.writerow([*before, *settings, *after])
    for row in comparison.rows:
        cells: list[object] = [" ".join(row.runs), row.state, *(getattr(row, name) for name in place)]
        cells += [row.settings.get(key) for key in comparison.settings]
        cells += [getattr(row.result, name) for name in measured]
        cells += [getattr(row, name) for name in taken]
        cells += [row.result.references, row.result.seeds, row.result.n]
        writer.writerow(map(csv_cell, cells))
    return text.getvalue()
