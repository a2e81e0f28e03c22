"""Runs side by side, as tables of the terminal and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby

from pipeline.runs.comparison.runs import RunComparison, RunRow
from pipeline.runs.record import csv_cell
from pipeline.runs.report.format import decimal, interval, short, si, title
from pipeline.runs.report.tables import HEADINGS, LEAST_NAME, about_bounds, number_column
from pipeline.terminal.columns import EXTRA, Column, FittedTable, align

_NOTE = "After the last round of each run."
_INTERVALS = (
    " Intervals are of each run by itself: a test between settings needs them in one run, as points of a front "
    "(docs/evaluation.md)."
)

_SEEDS, _INTERVAL = "seeds", "interval"
_LEAST_RUN = 8
_Told = tuple[Column, Callable[[RunRow], str]]
"""A column, and what stands in it of a row."""
_ELSEWHERE = "a wider terminal or --csv has them"
_MOST_DIGITS = 17
"""With so many no two numbers are the same."""


def comparison_tables(comparison: RunComparison) -> list[FittedTable]:
    """One table for each dataset and model: a row for each method and combination of settings that differ."""
    tables = []
    prompts = f"{' and '.join(comparison.splits)} prompts" if comparison.splits else ""
    for place, found in groupby(comparison.rows, key=lambda row: (row.dataset, row.model)):
        rows = list(found)
        shown = [key for key in comparison.settings if any(key in row.settings for row in rows)]
        columns = _columns(comparison, shown, telling_apart(rows, shown), rows)
        table = FittedTable(
            (column for column, _ in columns),
            title=title(*place, prompts, "runs side by side"),
            elsewhere=_ELSEWHERE,
        )
        for _, own in groupby(rows, key=lambda row: row.algo):
            for row in own:
                table.add_row(*(told(row) for _, told in columns))
            table.end_section()
        tables.append(table)
    if tables:
        tables[-1].about = lambda shown: "\n".join(_about(comparison, shown))
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
) -> list[_Told]:
    """What tells rows apart, what they have reached, and then what else there is, as a narrow page ends early."""
    needs_run = len({(row.algo, *row.settings.items()) for row in rows}) < len(rows)
    run = _run(comparison, 2 if needs_run else 5)
    others = [_setting(comparison, key, rows, 9) for key in shown if key not in telling]
    return [
        (Column(heading="algorithm", least=LEAST_NAME), lambda row: row.algo),
        *(_setting(comparison, key, rows, 2) for key in telling),
        *([run] if needs_run else []),
        *_reached(rows[0].result.metric),
        *others,
        *_TAKEN,
        *([] if needs_run else [run]),
    ]


def _setting(comparison: RunComparison, key: str, rows: Sequence[RunRow], rank: int) -> _Told:
    heading = _of_setting(comparison.headings[key], [_SEEDS])
    column = Column(heading=heading, right=True, rank=rank, least=LEAST_NAME)
    shown = _shortened({row.settings[key] for row in rows if key in row.settings})
    return column, lambda row: shown.get(row.settings.get(key, ""), "")


def _shortened(values: Collection[str]) -> dict[str, str]:
    """Values of a setting, fractions with no more digits than tell them apart, and at least four."""
    for digits in range(4, _MOST_DIGITS):
        shown = {value: _with_digits(value, digits) for value in values}
        if len(set(shown.values())) == len(shown):
            return shown
    return {value: value for value in values}


def _with_digits(value: str, digits: int) -> str:
    try:
        return short(float(value), digits) if set(value) & {".", "e"} else value
    except ValueError:
        return value


def _run(comparison: RunComparison, rank: int) -> _Told:
    def first_of(row: RunRow) -> str:
        if len(row.runs) == len(comparison.labels) > 1:
            return "all"
        return row.runs[0] + (f" +{len(row.runs) - 1}" if len(row.runs) > 1 else "")

    return Column(heading="runs", rank=rank, least=_LEAST_RUN), first_of


def _reached(metric: str) -> list[_Told]:
    return [
        (number_column(HEADINGS.get(metric, metric), 1), lambda row: _number(row.result.value)),
        (number_column(_INTERVAL, 4), lambda row: interval(row.result.ci_low, row.result.ci_high)),
        (number_column("vs ref", 7), _difference),
        (number_column("KL/seq", 5), lambda row: _number(row.kl)),
        (number_column("J", 8), lambda row: _number(row.j)),
        (number_column("round", 6), lambda row: str(row.result.round)),
    ]


def _difference(row: RunRow) -> str:
    return "" if row.result.difference is None else decimal(row.result.difference, "+")


def _of_setting(heading: str, others: Sequence[str]) -> str:
    """The heading of a setting, also where a column of results is called so."""
    return f"{heading} (setting)" if heading in others else heading


def _number(value: float | None) -> str:
    return "-" if value is None else decimal(value)


_TAKEN: list[_Told] = [
    (number_column("FLOPs", EXTRA), lambda row: "" if row.flops is None else si(row.flops)),
    (number_column("per answer", EXTRA + 1), lambda row: "" if row.answer is None else si(row.answer)),
    (number_column("device s", EXTRA + 2), lambda row: "" if row.device_s is None else f"{row.device_s:.1f}"),
    (number_column(_SEEDS, EXTRA + 3), lambda row: str(row.result.seeds)),
]


def _about(comparison: RunComparison, shown: Collection[str]) -> Iterator[str]:
    yield _NOTE + (_INTERVALS if _INTERVAL in shown else "")
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
    yield from about_bounds([name for name in comparison.bounded if name in algos], shown)


def comparison_csv(comparison: RunComparison) -> str:
    """The same with every number in full, as a table for other programs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measured = ("round", "metric", "value", "ci_low", "ci_high", "difference", "difference_low", "difference_high")
    taken = ("kl", "j", "flops", "answer", "device_s")
    named = ("kl_per_sequence", "j", "training_flops", "flops_per_answer", "device_s")
    place = ("dataset", "model", "algo")
    before, after = ("runs", "state", *place), (*measured, *named, "references", _SEEDS, "n")
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
