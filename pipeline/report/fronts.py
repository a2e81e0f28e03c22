"""Tables below that of results: fronts of reward against divergence, and methods at equal training budgets."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from pipeline.report.tables import HEADINGS
from pipeline.report.words import si
from pipeline.results.compute import BudgetRow
from pipeline.results.record import FrontRow, MatchedRow, Results
from pipeline.terminal.columns import Column, FittedTable

_LEAST_NAME = 12
_MATCHED = "(matched)"
_HOW = (
    "best: no other point of the front has more at no more KL, or as much at less. (matched): on the line between "
    "the two best points beside that KL, as are the ends of its interval, which leaves the error of KL out; - is "
    "beyond what was measured. Compare points of the same split."
)
_WITHIN = "Each method after its last round whose training, all rounds before included, is within the budget."


def front_tables(results: Results, label: str = "") -> list[FittedTable]:
    """One table for each dataset and model with fronts: their points by KL, then what they reach at equal KL."""
    tables = []
    for (dataset, model), rows in groupby(results.fronts, key=lambda row: (row.dataset, row.model)):
        matched = [row for row in results.matched if (row.dataset, row.model) == (dataset, model)]
        tables.append(_front_table(_title(dataset, model, "fronts", label), list(rows), matched))
    return tables


def budget_tables(rows: Iterable[BudgetRow], label: str = "") -> list[FittedTable]:
    """One table for each dataset and model: every method at every training budget."""
    tables = []
    for (dataset, model), own in groupby(rows, key=lambda row: (row.dataset, row.model)):
        tables.append(_budget_table(_title(dataset, model, "training budgets", label), list(own)))
    return tables


def _title(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _front_table(title: str, rows: list[FrontRow], matched: list[MatchedRow]) -> FittedTable:
    heading = HEADINGS[rows[0].metric]
    table = FittedTable(
        [
            Column(heading="front", least=_LEAST_NAME),
            Column(heading="point", least=_LEAST_NAME),
            _number("KL/seq", 1),
            _number(heading, 1),
            Column(heading="split", rank=2),
            _number("interval", 3),
            Column(heading="best", rank=4),
            _number("KL interval", 5),
        ],
        title=title,
        caption=_HOW,
    )
    for front, points in groupby(rows, key=lambda row: row.front):
        for row in points:
            bounds = (_interval(row.ci_low, row.ci_high), _interval(row.kl_low, row.kl_high))
            best = "yes" if row.is_best else ""
            own, of_kl = bounds
            table.add_row(front, row.point, _shown(row.kl), _shown(row.value), row.split, own, best, of_kl)
        for at in (row for row in matched if row.front == front):
            value = "-" if at.value is None else f"{at.value:.3f}"
            interval = _interval(at.ci_low, at.ci_high)
            table.add_row(front, _MATCHED, _shown(at.kl), value, at.split, interval, "", "")
        table.end_section()
    return table


def _budget_table(title: str, rows: list[BudgetRow]) -> FittedTable:
    metric = next((row.metric for row in rows if row.metric), "")
    table = FittedTable(
        [
            _number("budget", 0),
            Column(heading="algorithm", least=_LEAST_NAME),
            _number("round", 1),
            _number("FLOPs", 2),
            _number(HEADINGS.get(metric, "value"), 1),
            _number("interval", 3),
            _number("KL/seq", 4),
        ],
        title=title,
        caption=_WITHIN,
    )
    for budget, own in groupby(rows, key=lambda row: row.budget):
        for row in own:
            table.add_row(
                si(budget),
                row.algo,
                "-" if row.round is None else str(row.round),
                "" if row.flops is None else si(row.flops),
                "-" if row.value is None else f"{row.value:.3f}",
                _interval(row.ci_low, row.ci_high),
                "" if row.kl is None else f"{row.kl:.3f}",
            )
        table.end_section()
    return table


def _number(heading: str, rank: int) -> Column:
    return Column(heading=heading, right=True, rank=rank)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{_shown(low)}, {_shown(high)}]"


def _shown(number: float) -> str:
    return f"{number:z.3f}"
