"""The table of results that a run ends with."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from statistics import median
from typing import NamedTuple

from rich.console import Console

from pipeline.config.schema import ENOUGH
from pipeline.config.tables import by_values
from pipeline.engine.run_folder import RunFolder
from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import ETA, SWEEP_SPLIT
from pipeline.runs import record
from pipeline.runs.cost import BudgetRow, CostRow, read_compute
from pipeline.runs.report.format import count, decimal, interval, reading_order, shown_path, si, title
from pipeline.terminal.columns import EXTRA, Column, FittedTable, align
from pipeline.terminal.console import say

# -- captions ----------------------------------------------------------------------------------------------------
# What is said below tables of results of rows that are not like the others.


_MOST_FEW = 6
"""Names in one sentence."""


def first_few(names: list[str], what: str) -> list[str]:
    """The first of them, and of ``what`` how many more there are."""
    more = [f"and {len(names) - _MOST_FEW} more {what}"] if len(names) > _MOST_FEW else []
    return [*names[:_MOST_FEW], *more]


class Chains(NamedTuple):
    """Numbers of references and of seeds that a row rests on."""

    references: int
    seeds: int


def about_fewer_chains(rows: Mapping[str, Chains], others: Iterable[Chains] = ()) -> list[str]:
    """Which rows lack references or seeds that other rows have, and so say less; nothing where none does.

    Args:
        rows: Row in words -> what it rests on.
        others: What rows of other tables of the same dataset and model rest on.
    """
    every = [*rows.values(), *others]
    fewer = [
        f"{row}: {chains[at]} of {most} {what}"
        for at, what in enumerate(Chains._fields)
        for most in [max((chains[at] for chains in every), default=0)]
        for row, chains in rows.items()
        if chains[at] < most
    ]
    return ["; ".join(first_few(fewer, "rows"))] if fewer else []


def about_starts(starts: Mapping[str, str], shown: Collection[str]) -> list[str]:
    """Which methods begin with the policy of another one; nothing where none does.

    Args:
        starts: Method -> that one.
        shown: Methods of the table.
    """
    begun: dict[str, list[str]] = {}
    for name in sorted(starts.keys() & set(shown)):
        begun.setdefault(starts[name], []).append(name)
    return [
        f"{', '.join(first_few(names, 'methods'))}: from the last policy of {start}, whose costs count; KL is "
        "from the reference."
        for start, names in begun.items()
    ]


def about_bounds(bounded: list[str], shown: Collection[str], so: str = "") -> list[str]:
    """What to say below numbers that rest on a divergence which is a bound; nothing where it is exact for all.

    Args:
        bounded: Methods of the table whose divergence is a bound.
        shown: Headings of the columns that are shown; without divergences there is nothing to say of them.
        so: What follows for other numbers of the table.
    """
    if not bounded or not (so or "KL/seq" in shown or "KL/token" in shown):
        return []
    return [f"{', '.join(first_few(bounded, 'methods'))}: KL is an upper bound{f', so {so}' if so else ''}."]


HEADINGS: Mapping[str, str] = {
    "pass@1": "pass@1",
    "reward": "reward",
    "kl_per_sequence": "KL/seq",
    "regularized_reward": "J",
    "regret": "regret",
    "kl_per_token": "KL/token",
    "length": "tokens",
    "truncated": "cut off",
}
"""Metrics of the table, in its order, with their headings. KL is in nats."""
_J, _REGRET = HEADINGS["regularized_reward"], HEADINGS["regret"]
_RANKS: Mapping[str, int] = {
    "round": 1,
    "interval": 3,
    "vs ref": 4,
    "kl_per_sequence": 5,
    "truncated": 5,
    "p": 6,
    "regret": 7,
    "regularized_reward": 8,
    "its interval": 9,
    "FLOPs": EXTRA,
    "per answer": EXTRA + 1,
    "length": EXTRA + 2,
    "device s": EXTRA + 3,
    "kl_per_token": EXTRA + 4,
}
"""What is left out first, where there is no room, has the highest rank."""
ANCHORS = ("greedy", "optimum")
"""Policies beside the reference whose metrics stand among its own, as ``NAME/METRIC``."""
_PRIMARY_RANK = 2
_SECOND_RANK = 7
_ITS_INTERVAL = "its interval"
LEAST_NAME = 12
"""Cells to which names of methods may be cut."""
_PASS = re.compile(r"pass@\d+")
_SMALLEST_P = 0.001

At = tuple[str, int]
"""Algorithm and round."""


def print_results(console: Console, results: record.Results, run: RunFolder, label: str = "") -> None:
    """Print the tables of results and where the rest of them is; a label goes to the titles."""
    compute = read_compute(run.path)
    tables = result_tables(results, compute.costs, label)
    tables += [*front_tables(results, label), *budget_tables(compute.budgets, results, label)]
    for table in tables:
        console.print()
        console.print(table)
    if not results.rows:
        say(console, "no results yet: no evaluation was finished")
        return
    if left_out := dict.fromkeys(name for table in tables for name in table.left_out(console.width)):
        say(console, f"No room for {', '.join(left_out)}: a wider terminal shows all.", "italic")
    say(console, "results:", copy=f"{shown_path(run.path)}/results.json, samples.jsonl")


def result_tables(results: record.Results, costs: Iterable[CostRow] = (), label: str = "") -> list[FittedTable]:
    """One table for each dataset and model: the reference with its anchors, then every algorithm round by round.

    A number is the mean over all seeds and references. What its interval holds for, what the p-values of the last
    round are corrected for, and what differences such a run finds at all, stand below the table.

    Args:
        results: The results.
        costs: What methods took.
        label: What tells these results from others that are printed beside them, for the titles; "" for nothing.
    """
    grouped: dict[tuple[str, str], dict[At, dict[str, record.PooledRow]]] = {}
    for row in results.pooled:
        table = grouped.setdefault((row.dataset, row.model), {})
        table.setdefault((row.algo, row.round), {})[row.metric] = row
    spent = {(row.dataset, row.model, row.algo, row.round): row for row in costs}
    tables = []
    for place, cells in grouped.items():
        own = {at: spent[*place, *at] for at in cells if (*place, *at) in spent}
        tested = [one for one in results.comparisons if (one.dataset, one.model) == place]
        headline = title(*place, *_sizes(cells, results.split), label)
        tables.append(_table(headline, cells, tested, own, results))
    align(tables)
    return tables


def number_column(heading: str, rank: int) -> Column:
    """A column of numbers; those of the highest rank are left out first."""
    return Column(heading=heading, right=True, rank=rank)


def _sizes(cells: Mapping[At, record.ByMetric], split: str | None) -> list[str]:
    """Numbers of references, seeds and prompts, without the prompts that strengths of guidance were tried on."""
    every = [row for cell in cells.values() for row in cell.values()]
    every = [row for row in every if f"/{ETA}" not in row.metric] or every
    references, seeds = max(row.references for row in every), max(row.seeds for row in every)
    crossed = [count(references, "reference")] if references > 1 else []
    prompt = f"{split} prompt" if split else "prompt"
    return [*crossed, count(seeds, "seed"), count(max(row.n for row in every), prompt)]


def _table(
    headline: str,
    cells: Mapping[At, record.ByMetric],
    comparisons: list[record.Comparison],
    costs: Mapping[At, CostRow],
    results: record.Results,
) -> FittedTable:
    metrics = _worth_showing(cells)
    valued = ([name for name, row in cell.items() if row.value is not None] for cell in cells.values())
    primary = record.primary_metric(valued)
    metrics.sort(key=lambda name: name != primary)
    comparisons = [one for one in comparisons if one.metric in metrics[:1]]
    anchors = _anchors(cells)
    bounded = results.bounded_among(algo for algo, _ in cells)

    def about(shown: Collection[str]) -> str:
        lines = [*_notes(cells, metrics, comparisons, results.confidence, shown)]
        if chosen := _chosen(cells):
            # A report on what was chosen by is of the luck of the choice too.
            same = results.split == SWEEP_SPLIT
            where = "the same prompts, which flatters" if same else f"{SWEEP_SPLIT} prompts"
            lines.append(f"evaluation.etas: chosen on {where}, {'; '.join(chosen)}.")
        lines += _about_anchors(anchors, results.common_eta, shown)
        lines += about_starts(results.starts, {algo for algo, _ in cells})
        if "device s" in shown and (loading := [cost.load_s for cost in costs.values() if cost.load_s]):
            lines.append(f"device s: without loading, up to {max(loading):.1f} s (load_s in compute.json).")
        return "\n".join([*lines, *about_bounds(bounded, shown, _so(shown))])

    table = FittedTable(
        _columns(metrics, results.confidence, with_costs=bool(costs)), title=headline, caption=about
    )
    p_values = {(one.first, one.round): one.p for one in comparisons if one.second == REFERENCE}
    last = ""
    for algo, number in sorted(cells, key=_reading):
        if last and algo != last:
            table.end_section()
        last = algo
        numbers = _numbers(cells[algo, number], metrics, p_values.get((algo, number)))
        table.add_row(algo, str(number), *numbers, *_spent(costs.get((algo, number))))
        if algo == REFERENCE:
            for name, cell in anchors.items():
                table.add_row(name, "-", *_numbers(cell, metrics, None))
    return table


def _reading(at: At) -> tuple[object, ...]:
    """What rows are sorted by."""
    return *reading_order(at[0]), at[1]


def _anchors(cells: Mapping[At, record.ByMetric]) -> dict[str, record.ByMetric]:
    """What results are held against besides the reference: rows of their own, of metrics that it has."""
    own = cells.get((REFERENCE, 0), {})
    found: dict[str, record.ByMetric] = {
        anchor: {
            name.removeprefix(f"{anchor}/"): row for name, row in own.items() if name.startswith(f"{anchor}/")
        }
        for anchor in ANCHORS
    }
    most = max((int(name.removeprefix("pass@")) for name in own if _PASS.fullmatch(name)), default=1)
    if most > 1:
        found = {"greedy": found["greedy"], f"pass@{most}": {"pass@1": own[f"pass@{most}"]}, **found}
    return {name: cell for name, cell in found.items() if cell}


def _columns(metrics: Iterable[str], confidence: float, *, with_costs: bool) -> Iterator[Column]:
    yield Column(heading="algorithm", least=LEAST_NAME)
    yield _number("round", "round")
    for position, name in enumerate(metrics):
        if position == 0:
            yield number_column(HEADINGS[name], _PRIMARY_RANK)
            yield _number("interval", _interval(confidence))
            yield _number("vs ref", "vs ref")
            yield _number(_ITS_INTERVAL, _ITS_INTERVAL)
            yield _number("p", "p")
        else:
            yield _number(name, HEADINGS[name])
    if with_costs:
        yield _number("FLOPs", "FLOPs")
        yield _number("per answer", "per answer")
        yield _number("device s", "device s")


def _interval(confidence: float) -> str:
    return f"{confidence:.0%} interval"


def _number(name: str, heading: str) -> Column:
    return number_column(heading, _RANKS.get(name, _SECOND_RANK))


def _spent(cost: CostRow | None) -> list[str]:
    if cost is None:
        return []
    flops = ["" if number is None else si(number) for number in (cost.flops, cost.answer)]
    return [*flops, "" if cost.device_s is None else f"{cost.device_s:.1f}"]


def _worth_showing(cells: Mapping[At, record.ByMetric]) -> list[str]:
    """Metrics that occur, without a reward that is correctness again, and without few completions cut off."""
    found = [name for name in HEADINGS if any(name in cell for cell in cells.values())]
    if all(_value(cell, "reward") == _value(cell, "pass@1") for cell in cells.values()):
        found = [name for name in found if name != "reward" or "pass@1" not in found]
    if all((_value(cell, "truncated") or 0) < record.MANY_CUT for cell in cells.values()):
        found = [name for name in found if name != "truncated"]
    return found


def _value(cell: record.ByMetric, metric: str) -> float | None:
    return cell[metric].value if metric in cell else None


def _numbers(cell: record.ByMetric, metrics: list[str], p: float | None) -> Iterator[str]:
    for name in metrics:
        row = cell.get(name)
        yield "-" if row is None or row.value is None else decimal(row.value)
        if name == metrics[0]:
            yield interval(row.ci_low, row.ci_high) if row else ""
            yield decimal(row.difference, "+") if row and row.difference is not None else ""
            yield interval(row.difference_low, row.difference_high, "+") if row else ""
            yield _p_value(p)


def _p_value(p: float | None) -> str:
    if p is None:
        return ""
    return f"<{_SMALLEST_P}" if p < _SMALLEST_P else f"{p:.3f}"


# -- what stands below a table ---------------------------------------------------------------------------------


def _notes(
    cells: Mapping[At, record.ByMetric],
    metrics: list[str],
    comparisons: list[record.Comparison],
    confidence: float,
    headings: Collection[str],
) -> Iterator[str]:
    shown = {at: cells[at][metrics[0]] for at in sorted(cells, key=_reading) if set(metrics[:1]) & set(cells[at])}
    rests = {f"{algo} round {number}": _rests_on(row) for (algo, number), row in shown.items()}
    numbers = sorted({row.n for row in shown.values()})
    lengths = (cell[name].n for cell in cells.values() for name in ("length", *metrics[:1]) if name in cell)
    if numbers and numbers[0] < (evaluated := max(lengths)):
        span = " to ".join(f"{number:,}" for number in dict.fromkeys((numbers[0], numbers[-1])))
        about = "the others have no score (n in results.json)"
        yield f"{HEADINGS[metrics[0]]}: of {span} of the {evaluated:,} prompts; {about}."
    yield from about_fewer_chains(rests, [Chains(row.references, row.seeds) for row in shown.values()])
    if {_interval(confidence), _ITS_INTERVAL} & set(headings) and any(
        row.ci_low is not None for row in shown.values()
    ):
        yield _what_intervals_hold_for(shown)
    with_reference = [one for one in comparisons if one.second == REFERENCE]
    if with_reference and "p" in headings:
        yield _what_p_says(with_reference)
    if "truncated" in metrics and HEADINGS["truncated"] in headings:
        yield f"{HEADINGS['truncated']}: share of completions that generation.max_new_tokens ended."
    if pairs := [one for one in comparisons if one.second != REFERENCE]:
        told = sum(one.p < 1 - confidence for one in pairs)
        of_what = "these policies" if all(one.over == "policies" for one in pairs) else "methods"
        yield (
            f"{told} of {count(len(pairs), 'pair')} of {of_what} differ{'s' if told == 1 else ''} at the level of "
            f"{1 - confidence:.2g}: comparisons in results.json"
        )


def _chosen(cells: Mapping[At, record.ByMetric]) -> list[str]:
    """Of each method, which strengths of guidance its last round is tested at."""
    found = []
    for algo, number in dict(
        sorted(cells, key=_reading)
    ).items():  # of each algorithm the highest round comes last
        cell = cells[algo, number]
        names = [
            name.removeprefix("chosen/") for name in cell if name.startswith("chosen/") and _value(cell, name)
        ]
        found += [f"{algo} at {' or '.join(sorted(names, key=by_values))}"] if names else []
    return found


def _about_anchors(
    anchors: Mapping[str, record.ByMetric], common_eta: float | None, shown: Collection[str]
) -> Iterator[str]:
    """What the rows of anchors are, and the columns of J and regret where these are shown."""
    of_reference = ["greedy: the reference's likeliest tokens"] if "greedy" in anchors else []
    of_reference += [
        f"{name}: one of its {name.removeprefix('pass@')} samples is right"
        for name in anchors
        if name not in ANCHORS
    ]
    if of_reference:
        yield "; ".join(of_reference) + "."
    if common_eta is not None and ("optimum" in anchors or _J in shown):
        regret = "; regret: how far J is below it" if _REGRET in shown else ""
        best = f"optimum: the highest J = reward - {common_eta:g} KL{regret}."
        yield best if "optimum" in anchors else f"J = reward - {common_eta:g} KL."


def _so(shown: Collection[str]) -> str:
    """What follows for J and regret where KL is an upper bound."""
    follows = {_J: "J is a lower one", _REGRET: "regret is an upper one"}
    return " and ".join(said for heading, said in follows.items() if heading in shown)


def _rests_on(row: record.PooledRow) -> Chains:
    """Of what a row's mean rests on and its difference, the fewer."""
    references, seeds = row.difference_references, row.difference_seeds
    return Chains(
        row.references if references is None else min(row.references, references),
        row.seeds if seeds is None else min(row.seeds, seeds),
    )


def _what_intervals_hold_for(shown: Mapping[At, record.PooledRow]) -> str:
    scopes = {scope for row in shown.values() for scope in (row.over, row.difference_over) if scope}
    if scopes == {"policies"}:
        chains = max(row.seeds * row.references for row in shown.values())
        tell = "seeds and prompts that all say the same do not tell"
        if min(_rests_on(row).seeds for row in shown.values()) < ENOUGH:
            tell = f"{ENOUGH} seeds or more tell"
        which = "this one policy" if chains == 1 else "these policies"
        return f"Intervals: noise of evaluating {which}; {tell} what another seed would give."
    few = [
        f"{algo} round {n}" for (algo, n), row in shown.items() if "policies" in (row.over, row.difference_over)
    ]
    some = f"; some of {', '.join(first_few(few, 'rows'))} for these policies alone" if few else ""
    if "seeds" not in scopes:
        return f"Intervals hold for other seeds and other references{some}."
    references = max(row.references for row in shown.values())
    which = "this model" if references == 1 else f"these {references} references"
    return f"Intervals hold for other seeds, conditional on {which}{some}."


def _what_p_says(comparisons: list[record.Comparison]) -> str:
    known = [one.detectable for one in comparisons if one.detectable is not None]
    least = f"; a difference of {decimal(median(known))} is about what such a run can find" if known else ""
    few = [one.first for one in comparisons if one.over == "policies"]
    alone = " These policies alone are compared." if len(few) == len(comparisons) else ""
    if few and not alone:
        alone = f" Of {', '.join(first_few(few, 'methods'))} these policies alone are compared."
    tests = f"corrected for {count(len(comparisons), 'comparison')} (Holm)"
    return f"p: with the reference, {tests}{least}.{alone}"


# -- fronts ------------------------------------------------------------------------------------------------------
# Tables below that of results: fronts of reward against divergence, and methods at equal training budgets.


_MATCHED = "(matched)"
_BEST = "best: no other point of the front has more at no more KL, or as much at less."
_HOW = (
    "(matched): on the line between the two best points beside that KL, as are the ends of its interval, which "
    "leaves the error of KL out; - is beyond what was measured. It picks the best points on these prompts, which "
    "flatters fronts of more points."
)
_SAME_SPLIT = "Compare points of the same split."
_WITHIN = "Each method after its last round whose training, all rounds before included, is within the budget."
_UNKNOWN = "what some of their rounds took is not known, so neither is which one is the last within a budget."


def front_tables(results: record.Results, label: str = "") -> list[FittedTable]:
    """One table for each dataset and model with fronts: their points by KL, then what they reach at equal KL."""
    tables = []
    for (dataset, model), rows in groupby(results.fronts, key=lambda row: (row.dataset, row.model)):
        matched = [row for row in results.matched if (row.dataset, row.model) == (dataset, model)]
        tables.append(_front_table(title(dataset, model, "fronts", label), list(rows), matched, results))
    return tables


def budget_tables(rows: Iterable[BudgetRow], results: record.Results, label: str = "") -> list[FittedTable]:
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


def _front_table(
    headline: str, rows: list[record.FrontRow], matched: list[record.MatchedRow], results: record.Results
) -> FittedTable:
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
    for front, own in fronts.items():
        for row in own:
            bounds = interval(row.ci_low, row.ci_high)
            best, of_kl = "yes" if row.is_best else "", interval(row.kl_low, row.kl_high)
            kl, value = decimal(row.kl), decimal(row.value)
            table.add_row(front, row.point, kl, value, row.split, bounds, best, of_kl)
        for at in at_equal[front]:
            kl, value = decimal(at.kl), "-" if at.value is None else decimal(at.value)
            table.add_row(front, _MATCHED, kl, value, at.split, interval(at.ci_low, at.ci_high))
        table.end_section()
    return table


def _budget_table(headline: str, rows: list[BudgetRow], results: record.Results) -> FittedTable:
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


def _fewer(rested: Mapping[str, Chains], place: record.FrontRow | BudgetRow, results: record.Results) -> list[str]:
    """Rows that rest on fewer chains than others of the same dataset and model, those in no front included."""
    others = [
        Chains(row.references, row.seeds)
        for row in results.pooled
        if (row.dataset, row.model) == (place.dataset, place.model)
    ]
    return about_fewer_chains(rested, others)
