"""Tables below that of results: fronts of reward against divergence, and methods at equal training budgets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.cost import BudgetRow
from pipeline.runs.record import FrontRow, MatchedRow, Results
from pipeline.runs.report.format import decimal, interval, si, title
from pipeline.runs.report.tables import (
    HEADINGS,
    LEAST_NAME,
    Chains,
    about_bounds,
    about_fewer_chains,
    first_few,
    number_column,
)
from pipeline.terminal.columns import Column, FittedTable

_MATCHED = "(matched)"
_PLACES, _MOST_PLACES = 3, 6
"""Decimal places of KL in a front."""
_BEST = "best: no other point of the front has more at no more KL, or as much at less."
_HOW = (
    "(matched): on the line between the two best points beside that KL, as are the ends of its interval, which "
    "leaves the error of KL out; - is beyond what was measured. It picks the best points on these prompts, which "
    "flatters fronts of more points."
)
_SAME_SPLIT = "Compare points of the same split."
_WITHIN = "Each method after its last round whose training, all rounds before included, is within the budget."
_UNKNOWN = "what some of their rounds took is not known, so neither is which one is the last within a budget."


def front_tables(results: Results, label: str = "") -> list[FittedTable]:
    """One table for each dataset and model with fronts: their points by KL, then what they reach at equal KL."""
    tables = []
    for (dataset, model), rows in groupby(results.fronts, key=lambda row: (row.dataset, row.model)):
        matched = [row for row in results.matched if (row.dataset, row.model) == (dataset, model)]
        tables.append(_front_table(title(dataset, model, "fronts", label), list(rows), matched, results))
    return tables


def budget_tables(rows: Iterable[BudgetRow], results: Results, label: str = "") -> list[FittedTable]:
    """One table for each dataset and model: every method at every training budget.

    Args:
        rows: Methods at budgets.
        results: Of the same run.
        label: As for `result_tables`.
    """
    tables = []
    for (dataset, model), own in groupby(rows, key=lambda row: (row.dataset, row.model)):
        tables.append(_budget_table(title(dataset, model, "training budgets", label), list(own), results))
    return tables


def _front_table(headline: str, rows: list[FrontRow], matched: list[MatchedRow], results: Results) -> FittedTable:
    heading = HEADINGS[rows[0].metric]
    rested = {
        row.point if row.point == REFERENCE else f"{row.front} {row.point}": Chains(row.references, row.seeds)
        for row in rows
    }
    bounded = results.bounded_among(row.front for row in rows)

    def about(shown: Collection[str]) -> str:
        told = {"best": _BEST, "KL/seq": _HOW, "split": _SAME_SPLIT}
        how = " ".join(said for heading, said in told.items() if heading in shown)
        so = "(matched) is a lower one" if "KL/seq" in shown else ""
        return "\n".join([how, *_fewer(rested, rows[0], results), *about_bounds(bounded, shown, so)]).strip()

    table = FittedTable(
        [
            Column(heading="front", least=LEAST_NAME),
            Column(heading="point", least=LEAST_NAME),
            number_column("KL/seq", 2),
            number_column(heading, 1),
            Column(heading="split", rank=3),
            number_column("interval", 4),
            Column(heading="best", rank=5),
            number_column("KL interval", 6),
        ],
        title=headline,
        caption=about,
    )
    fronts = {front: list(points) for front, points in groupby(rows, key=lambda row: row.front)}
    at_equal = {front: [row for row in matched if row.front == front] for front in fronts}
    # The same for all, so that points of numbers stand below each other and equal numbers look alike.
    places = max(
        _places_apart([row.kl for row in own] + [row.kl for row in at_equal[front]])
        for front, own in fronts.items()
    )
    for front, own in fronts.items():
        for row in own:
            bounds = interval(row.ci_low, row.ci_high)
            best, of_kl = "yes" if row.is_best else "", interval(row.kl_low, row.kl_high, places=places)
            kl, value = decimal(row.kl, places=places), decimal(row.value)
            table.add_row(front, row.point, kl, value, row.split, bounds, best, of_kl)
        for at in at_equal[front]:
            kl, value = decimal(at.kl, places=places), "-" if at.value is None else decimal(at.value)
            table.add_row(front, _MATCHED, kl, value, at.split, interval(at.ci_low, at.ci_high))
        table.end_section()
    return table


def _places_apart(numbers: Iterable[float]) -> int:
    """Decimal places that tell different numbers apart, as far as a table has room for them."""
    different = set(numbers)
    for places in range(_PLACES, _MOST_PLACES):
        if len({decimal(number, places=places) for number in different}) == len(different):
            return places
    return _MOST_PLACES


def _budget_table(headline: str, rows: list[BudgetRow], results: Results) -> FittedTable:
    metric = next((row.metric for row in rows if row.metric), "")
    unknown = dict.fromkeys(row.algo for row in rows if not row.is_known)
    rested = {
        f"{row.algo} round {row.round}": Chains(row.references, row.seeds)
        for row in rows
        if row.references is not None and row.seeds is not None
    }
    about = [_WITHIN, *_fewer(rested, rows[0], results)]
    if unknown:
        about.append(f"{', '.join(first_few(list(unknown), 'methods'))}: {_UNKNOWN}")
    bounded = results.bounded_among(row.algo for row in rows)
    table = FittedTable(
        [
            number_column("budget", 0),
            Column(heading="algorithm", least=LEAST_NAME),
            number_column("round", 2),
            number_column("FLOPs", 3),
            number_column(HEADINGS.get(metric, "value"), 1),
            number_column("interval", 4),
            number_column("KL/seq", 5),
        ],
        title=headline,
        caption=lambda shown: "\n".join([*about, *about_bounds(bounded, shown)]),
    )
    for budget, own in groupby(rows, key=lambda row: row.budget):
        for row in own:
            table.add_row(
                si(budget),
                row.algo,
                "-" if row.round is None else str(row.round),
                "" if row.flops is None else si(row.flops),
                "-" if row.value is None else decimal(row.value),
                interval(row.ci_low, row.ci_high),
                "" if row.kl is None else decimal(row.kl),
            )
        table.end_section()
    return table


def _fewer(rested: Mapping[str, Chains], place: FrontRow | BudgetRow, results: Results) -> list[str]:
    """Rows that rest on fewer chains than others of the same dataset and model, those in no front included."""
    others = [
        Chains(row.references, row.seeds)
        for row in results.pooled
        if (row.dataset, row.model) == (place.dataset, place.model)
    ]
    return about_fewer_chains(rested, others)
