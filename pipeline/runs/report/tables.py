"""The table of results that a run ends with, and those of fronts and training budgets below it."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from statistics import median
from typing import Any

from rich.console import Console
from rich.filesize import decimal as filesize_decimal

from pipeline.config.schema import ENOUGH
from pipeline.config.tables import MEAN, by_values, is_mean, point_of, rows_of
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.gc import Garbage, Space, Usage
from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import ETA, HELD_OUT, SWEEP_SPLIT
from pipeline.plan.graph import PlanRow
from pipeline.runs import record
from pipeline.runs.cost import BudgetRow, CostRow, read_compute
from pipeline.runs.report.format import (
    count,
    decimal,
    duration,
    interval,
    places_of,
    reading_order,
    shown_path,
    si,
    title,
)
from pipeline.terminal.columns import EXTRA, Column, FittedTable, Told, align, told_table
from pipeline.terminal.console import say

HEADINGS: Mapping[str, str] = {
    "pass@1": "pass@1",
    "reward": "reward",
    record.KL: "KL/seq",
    "regularized_reward": "J",
    "regret": "regret",
    "kl_per_token": "KL/token",
    "length": "tokens",
    "truncated": "cut off",
}
"""Metrics of the table, in its order, with their headings. KL is in nats."""
_J, _REGRET, _CUT = (HEADINGS[name] for name in ("regularized_reward", "regret", "truncated"))
_APART, _APART_INTERVAL = "vs ref", "vs ref interval"
"""Headings of the difference to the reference, and of its interval."""
_RANKS: Mapping[str, int] = {
    "round": 1,
    _APART: 4,
    "KL/seq": 4,
    "p": 5,
    "cut off": 6,
    "regret": 7,
    "J": 8,
    _APART_INTERVAL: 9,
    "FLOPs": EXTRA,
    "per answer": EXTRA + 1,
    "tokens": EXTRA + 2,
    "device s": EXTRA + 3,
    "KL/token": EXTRA + 4,
}
"""Column -> rank; without room the highest is left out first. 2 is the metric by which methods are judged."""
ANCHORS = ("greedy", "optimum")
"""Policies beside the reference whose metrics stand among its own, as ``NAME/METRIC``."""
LEAST_NAME = 12
"""Cells to which names of methods may be cut."""
_MOST_FEW = 6
"""Names in one sentence."""
_PASS = re.compile(r"pass@(\d+)")

At = tuple[str, int]
"""Algorithm and round."""
Chains = Mapping[str, int]
"""Numbers of ``references`` and ``seeds`` that a row rests on."""


def print_results(console: Console, results: record.Results, run: RunFolder, label: str = "") -> None:
    """Print the tables of results and where the rest of them is; a label goes to the titles."""
    compute = read_compute(run.path)
    tables = result_tables(results, compute.costs, label)
    tables += [
        *tables_of_sets(results, label),
        *front_tables(results, label),
        *budget_tables(compute.budgets, results, label),
    ]
    for table in tables:
        console.print()
        console.print(table)
    if not results.rows:
        say(console, "no results yet: no evaluation was finished")
        return
    if left_out := dict.fromkeys(name for table in tables for name in table.left_out(console.width)):
        say(console, f"No room for {', '.join(left_out)}: a wider terminal shows all.", "italic")
    say(console, "results:", copy=f"{shown_path(run.path)}/results.json, samples.jsonl")


def number_column(heading: str, rank: int) -> Column:
    """Return a column of numbers; those of the highest rank are left out first."""
    return Column(heading=heading, right=True, rank=rank)


def numbers(
    heading: str,
    rank: int,
    number: Callable[[Any], float | None],
    words: Callable[[Any], str] = decimal,
    none: str = "",
) -> Told:
    """Return a column of numbers in words; where a row has none, it has ``none``."""
    return number_column(heading, rank), lambda row: none if (found := number(row)) is None else words(found)


def result_columns(
    metric: str, rows: Iterable[Any], result_of: Callable[[Any], Any] = lambda row: row
) -> tuple[Told, Told]:
    """Return the column of a metric and that of its interval.

    Args:
        metric: The metric, or "" for none.
        rows: Rows of the table.
        result_of: Gives the row of results of one, if it has any.
    """
    places = places_of(end for row in rows for end in _level_of(result_of(row)))

    def value(row: Any) -> str:
        return _value(found.value, places) if (found := result_of(row)) else ""

    def ends(row: Any) -> str:
        return interval(found.ci_low, found.ci_high, places=places) if (found := result_of(row)) else ""

    return (number_column(HEADINGS.get(metric, metric or "value"), 1), value), (number_column("interval", 4), ends)


def _value(number: float | None, places: int = 3, *, none: str = "-", sign: str = "") -> str:
    return none if number is None else decimal(number, sign, places)


def _level_of(row: Any) -> Iterator[float | None]:
    """Yield the value of a row of results, and the ends of its interval; nothing for no row."""
    yield from (row.value, row.ci_low, row.ci_high) if row else ()


def _difference_of(row: record.PooledRow) -> Iterator[float | None]:
    yield from (row.difference, row.difference_low, row.difference_high)


def p_value(p: float | None) -> str:
    """Format a p-value; "" for none."""
    return "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


# -- captions ----------------------------------------------------------------------------------------------------


def first_few(names: Iterable[str], what: str, between: str = ", ") -> str:
    """Return the first names, and the number of others with the word ``what``."""
    every = list(names)
    more = [f"and {len(every) - _MOST_FEW} more {what}"] if len(every) > _MOST_FEW else []
    return between.join([*every[:_MOST_FEW], *more])


def _by_source(taken: Mapping[str, str], algos: Collection[str]) -> list[tuple[str, str]]:
    """Return each method whose model others use, and the names of those of them that are shown."""
    users = record.grouped((taken[name], name) for name in sorted(taken.keys() & set(algos)))
    return [(source, first_few(names, "methods")) for source, names in users.items()]


def about_bounds(bounded: list[str], shown: Collection[str], so: str = "") -> list[str]:
    """Return notes below numbers that depend on an upper bound of the KL divergence; empty if all are exact.

    Args:
        bounded: Methods of the table whose divergence is a bound.
        shown: Headings of the columns that are shown.
        so: Consequence for other numbers of the table.
    """
    if not bounded or not (so or "KL/seq" in shown or "KL/token" in shown):
        return []
    return [f"{first_few(bounded, 'methods')}: KL is an upper bound{f', so {so}' if so else ''}."]


def _about_fewer(rows: Mapping[str, Chains], others: Iterable[Chains] = ()) -> list[str]:
    """Say which rows lack references or seeds that other rows of the same dataset and model have."""
    every = [*rows.values(), *others]
    fewer = [
        f"{row}: {chains[what]} of {most} {what}"
        for what in ("references", "seeds")
        for most in [max((chains[what] for chains in every), default=0)]
        for row, chains in rows.items()
        if chains[what] < most
    ]
    return [first_few(fewer, "rows", "; ")] if fewer else []


def _chains(row: record.PooledRow | record.FrontRow | BudgetRow) -> Chains:
    return {"references": row.references or 0, "seeds": row.seeds or 0}


# -- results -----------------------------------------------------------------------------------------------------


def result_tables(results: record.Results, costs: Iterable[CostRow] = (), label: str = "") -> list[FittedTable]:
    """Return one table per dataset and model: the reference with its baselines, then every algorithm by round.

    A number is the mean over all seeds and references. What its interval holds for, what the p-values of the last
    round are corrected for, and what differences such a run finds at all, stand below the table.

    Args:
        results: The results.
        costs: Costs of methods.
        label: Name of these results among others printed beside them, for the titles; "" for none.
    """
    grouped: dict[tuple[str, str], dict[At, dict[str, record.PooledRow]]] = {}
    for row in results.pooled:
        if is_mean(row.dataset):
            continue
        table = grouped.setdefault((row.dataset, row.model), {})
        table.setdefault((row.algo, row.round), {})[row.metric] = row
    spent = {(row.dataset, row.model, row.algo, row.round): row for row in costs}
    tables, notes = [], dict[tuple[str, str], dict[str, tuple[str, str]]]()
    for place, cells in grouped.items():
        own = {at: spent[*place, *at] for at in cells if (*place, *at) in spent}
        of_sets = notes.setdefault((point_of(place[0])[0], place[1]), {})
        tables.append(_ResultTable(results, place, cells, own, of_sets).table(label))
    align(tables)
    return tables


def tables_of_sets(results: record.Results, label: str = "") -> list[FittedTable]:
    """Return a table per dataset and model with several test sets: all methods on each set after the last round.

    Args:
        results: The results.
        label: As in `result_tables`.
    """
    methods = record.by_method(results.pooled)
    return [_table_of_sets(results, methods, place, label) for place in methods if is_mean(place[0])]


def _table_of_sets(
    results: record.Results, methods: Mapping[tuple[str, str], record.Methods], mean: tuple[str, str], label: str
) -> FittedTable:
    (dataset, model), trained_on = mean, point_of(mean[0])[0]
    metric = next(iter(record.cells_of(methods[mean])[0]))
    sets = [
        place for place in methods if place != mean and (point_of(place[0])[0], place[1]) == (trained_on, model)
    ]
    rows = [rounds[max(rounds)][metric] for rounds in methods[mean].values()]
    rows.sort(key=lambda row: reading_order(row.algo))
    tested = [row for row in results.comparisons if row.dataset == dataset]
    p_values = {row.first: row.p for row in tested if (row.model, row.second) == (model, REFERENCE)}

    def on(place: tuple[str, str], row: record.PooledRow) -> record.PooledRow | None:
        return methods[place].get(row.algo, {}).get(row.round, {}).get(metric)

    every = [*rows, *(on(place, row) for place in sets for row in rows)]
    level = places_of(end for one in every for end in _level_of(one))
    apart = places_of(end for row in rows for end in _difference_of(row))

    def on_set(place: tuple[str, str]) -> Told:
        return number_column(rows_of(place[0]), 2), lambda row: _value(
            getattr(on(place, row), "value", None), level
        )

    columns: list[Told] = [
        (Column(heading="algorithm", least=LEAST_NAME), lambda row: row.algo),
        numbers("round", 5, lambda row: row.round, str),
        *map(on_set, sets),
        (number_column(MEAN, 2), lambda row: _value(row.value, level)),
        (
            number_column(f"{results.confidence:.0%} interval", 3),
            lambda row: interval(row.ci_low, row.ci_high, places=level),
        ),
        numbers(_APART, 4, lambda row: row.difference, lambda value: decimal(value, "+", apart)),
        (
            number_column(_APART_INTERVAL, 9),  # means tell the difference, too
            lambda row: interval(row.difference_low, row.difference_high, "+", apart),
        ),
        numbers("p", 3, lambda row: p_values.get(row.algo), p_value),
    ]
    return told_table(
        columns if len(rows) > 1 else columns[:-3],  # beside the reference
        [rows],
        title=title(trained_on, model, count(len(sets), "test set"), label),
        caption=partial(_about_sets, metric, tested, results),
    )


def _about_sets(
    metric: str, tested: Sequence[record.Comparison], results: record.Results, shown: Collection[str]
) -> str:
    """Say what the columns of a table of test sets hold."""
    notes = [f"{metric} on each test set, and the {MEAN} of the sets with equal weights."]
    ends = [f"the interval is of one {MEAN} alone"] if f"{results.confidence:.0%} interval" in shown else []
    if tested and "p" in shown:
        family = count(_family(results, tested[0]), "comparison")
        ends.append(f"p is of the difference to the reference, corrected for {family} on all test sets (Holm)")
    if ends:
        both = "both allow" if len(ends) > 1 else "it allows"
        said = "; ".join([*ends, f"{both} for answers that the few prompts of a small set have not shown"])
        notes.append(f"{said[0].upper()}{said[1:]}.")
    return " ".join(notes)


class _ResultTable:
    """The results of one dataset and model, from which its table and what stands below it are made."""

    def __init__(
        self,
        results: record.Results,
        place: tuple[str, str],
        cells: Mapping[At, record.ByMetric],
        costs: Mapping[At, CostRow],
        notes: dict[str, tuple[str, str]],
    ) -> None:
        """Sort the cells, and choose the metrics.

        Args:
            results: The results.
            place: The dataset and model.
            cells: Algorithm and round -> metrics.
            costs: Costs of methods.
            notes: Note -> the first place below which it stands; those of other test sets are not repeated.
        """
        self._results, self._place, self._costs, self._said = results, place, costs, notes
        self._cells = {at: cells[at] for at in sorted(cells, key=lambda at: (*reading_order(at[0]), at[1]))}
        self._metrics = self._worth_showing()
        self._anchors = self._find_anchors()
        tested = [row for row in results.comparisons if (row.dataset, row.model) == place]
        self._tested = [row for row in tested if row.metric in self._metrics[:1]]
        self._interval = f"{results.confidence:.0%} interval"
        rows = [self._cells.values(), self._anchors.values()]
        self._places = {
            name: places_of(end for cell in chain(*rows) if (row := cell.get(name)) for end in _level_of(row))
            for name in self._metrics
        }
        differences = (cell[name] for name in self._metrics[:1] for cell in self._cells.values() if name in cell)
        self._places_apart = places_of(end for row in differences for end in _difference_of(row))

    def table(self, label: str) -> FittedTable:
        """Return the table, with a label in its title."""
        headline = title(*self._place, *self._sizes(), label)
        table = FittedTable(self._columns(), title=headline, caption=self._caption)
        p_values = {(row.first, row.round): row.p for row in self._tested if row.second == REFERENCE}
        last = ""
        for at, cell in self._cells.items():
            algo, number = at
            if last and algo != last:
                table.end_section()
            last = algo
            cost = self._costs.get(at)
            took = [] if cost is None else ["" if one is None else si(one) for one in (cost.flops, cost.answer)]
            took += [] if cost is None else ["" if cost.device_s is None else f"{cost.device_s:.1f}"]
            table.add_row(algo, str(number), *self._numbers(cell, p_values.get(at)), *took)
            if algo == REFERENCE:
                for name, anchor in self._anchors.items():
                    table.add_row(name, "-", *self._numbers(anchor, None))
        return table

    def _sizes(self) -> list[str]:
        """Return the numbers of references, seeds and prompts, ignoring prompts of a sweep and of training."""
        every = [row for cell in self._cells.values() for row in cell.values()]
        every = [row for row in every if f"/{ETA}" not in row.metric and row.metric != HELD_OUT] or every
        references, seeds, prompts = (
            max(getattr(row, name) for row in every) for name in ("references", "seeds", "n")
        )
        crossed = [count(references, "reference")] if references > 1 else []
        prompt = f"{self._results.split} prompt" if self._results.split else "prompt"
        return [*crossed, count(seeds, "seed"), count(prompts, prompt)]

    def _worth_showing(self) -> list[str]:
        """Return the metrics to show, the primary one first, without a reward that equals correctness."""
        cells = [{name: row.value for name, row in cell.items()} for cell in self._cells.values()]
        metrics = [name for name in HEADINGS if any(name in cell for cell in cells)]
        if "pass@1" in metrics and all(cell.get("reward") == cell.get("pass@1") for cell in cells):
            metrics = [name for name in metrics if name != "reward"]
        if all((cell.get("truncated") or 0) < record.MANY_CUT for cell in cells):
            metrics = [name for name in metrics if name != "truncated"]
        valued = ([name for name, value in cell.items() if value is not None] for cell in cells)
        primary = record.primary_metric(valued)
        return sorted(metrics, key=lambda name: name != primary)

    def _find_anchors(self) -> dict[str, record.ByMetric]:
        """Return the baselines besides the reference: rows of their own, with their metrics."""
        own = self._cells.get((REFERENCE, 0), {})
        anchors: dict[str, record.ByMetric] = {
            anchor: {
                name.removeprefix(f"{anchor}/"): row for name, row in own.items() if name.startswith(f"{anchor}/")
            }
            for anchor in ANCHORS
        }
        most = max((int(match[1]) for name in own if (match := _PASS.fullmatch(name))), default=1)
        if most > 1:
            anchors = {"greedy": anchors["greedy"], f"pass@{most}": {"pass@1": own[f"pass@{most}"]}, **anchors}
        return {name: cell for name, cell in anchors.items() if cell}

    def _columns(self) -> Iterator[Column]:
        yield Column(heading="algorithm", least=LEAST_NAME)
        first, *others = [HEADINGS[name] for name in self._metrics] or [""]
        tested = [first, self._interval, _APART, _APART_INTERVAL, "p"] if first else []
        headings = ["round", *tested, *others]
        headings += ["FLOPs", "per answer", "device s"] if self._costs else []
        own = {**_RANKS, first: 2, self._interval: 3}
        yield from (number_column(heading, own.get(heading, 7)) for heading in headings)

    def _numbers(self, cell: record.ByMetric, p: float | None) -> Iterator[str]:
        for name in self._metrics:
            row, places, apart = cell.get(name), self._places[name], self._places_apart
            yield _value(row.value if row else None, places)
            if name == self._metrics[0]:
                yield interval(row.ci_low, row.ci_high, places=places) if row else ""
                yield _value(row.difference if row else None, apart, none="", sign="+")
                yield interval(row.difference_low, row.difference_high, "+", apart) if row else ""
                yield p_value(p)

    # -- what stands below it ----------------------------------------------------------------------------------

    def _caption(self, shown: Collection[str]) -> str:
        notes = self._notes(shown)
        return "\n".join(note for note in notes if self._said.setdefault(note, self._place) == self._place)

    def _legend(self, note: str) -> str:
        """Return a note on rows or columns, which stands below each table that has them."""
        self._said[note] = self._place
        return note

    def _notes(self, shown: Collection[str]) -> Iterator[str]:
        """Yield notes on the columns that are shown."""
        results = self._results
        primary = self._metrics[:1]
        rows = {at: cell[primary[0]] for at, cell in self._cells.items() if set(primary) & set(cell)}
        rests = {f"{algo} round {number}": _rests_on(row) for (algo, number), row in rows.items()}
        sizes = sorted({row.n for row in rows.values()})
        named = [cell[name].n for cell in self._cells.values() for name in ("length", *primary) if name in cell]
        if sizes and sizes[0] < (evaluated := max(named)):
            span = " to ".join(f"{number:,}" for number in dict.fromkeys((sizes[0], sizes[-1])))
            reason = "the others have no score, or were not drawn (n in results.json)"
            yield f"{HEADINGS[primary[0]]}: of {span} of the {evaluated:,} prompts; {reason}."
        yield from _about_fewer(rests, map(_chains, rows.values()))
        with_ends = any(row.ci_low is not None for row in rows.values())
        if with_ends and {self._interval, _APART_INTERVAL} & set(shown):
            yield what_intervals_hold_for(rows)
        with_reference = [row for row in self._tested if row.second == REFERENCE]
        if with_reference and "p" in shown:
            yield _what_p_says(with_reference, _family(results, with_reference[0]))
        if results.grown_from and self._tested:
            prompts, samples = results.grown_from[-1]
            before = f"{count(min(prompts, max(named)), 'prompt')} with {count(samples, 'completion')} each"
            yield f"Extended from {before}: p assumes that nobody looked at results before."
        if "truncated" in self._metrics and _CUT in shown:
            yield self._legend(f"{_CUT}: share of completions that reached the limit of new tokens.")
        if pairs := [row for row in self._tested if row.second != REFERENCE]:
            apart = sum(row.p < 1 - results.confidence for row in pairs)
            of_what = "these policies" if all(row.over == "policies" for row in pairs) else "methods"
            note = (
                f"{apart} of {count(len(pairs), 'pair')} of {of_what} differ{'s' if apart == 1 else ''} at the "
                f"level of {1 - results.confidence:.2g}: comparisons in results.json"
            )
            yield self._legend(note)  # a number of this test set, which another may share
        if chosen := self._chosen():
            # A report on what was chosen by is of the luck of the choice too.
            same = results.split == SWEEP_SPLIT
            where = "the same prompts, which flatters" if same else f"{SWEEP_SPLIT} prompts"
            yield f"evaluation.etas: chosen on {where}, {'; '.join(chosen)}."
        yield from self._about_anchors(shown)
        algos = {algo for algo, _ in self._cells}
        for start, names in _by_source(results.starts, algos):
            yield f"{names}: from the last policy of {start}, whose costs count; KL is from the reference."
        for teacher, names in _by_source(results.teachers, algos):
            yield f"{names}: with the last value model of {teacher}, whose costs count."
        if "device s" in shown and (loading := [cost.load_s for cost in self._costs.values() if cost.load_s]):
            left_out = f"evaluation and loading, which took up to {max(loading):.1f} s (load_s in compute.json)"
            yield f"device s: of training, without {left_out}."
        if "KL/seq" in shown and (unknown := self._without_kl()):
            why = "it needs the tokens of the reference, and finite probabilities"
            yield self._legend(f"{first_few(unknown, 'methods')}: no KL, as {why}.")
        follows = {_J: "J is a lower one", _REGRET: "regret is an upper one"}
        so = " and ".join(bound for heading, bound in follows.items() if heading in shown)
        yield from about_bounds(results.bounded_among(algos), shown, so)

    def _without_kl(self) -> list[str]:
        """Return the methods without a divergence, if the reference has one."""
        values = {algo: getattr(cell.get(record.KL), "value", None) for (algo, _), cell in self._cells.items()}
        known = {algo for algo, value in values.items() if value is not None}
        return sorted(values.keys() - known) if REFERENCE in known else []

    def _chosen(self) -> list[str]:
        """Return for each method the guidance strengths at which its last round is tested."""
        by_method = {}
        for (algo, _), cell in self._cells.items():  # of each algorithm the highest round comes last
            names = [
                name.removeprefix("chosen/") for name in cell if name.startswith("chosen/") and cell[name].value
            ]
            by_method[algo] = f"{algo} at {' or '.join(sorted(names, key=by_values))}" if names else ""
        return [choice for choice in by_method.values() if choice]

    def _about_anchors(self, shown: Collection[str]) -> Iterator[str]:
        """Yield notes on the rows of baselines, and on the columns of J and regret if shown."""
        of_reference = ["greedy: the reference's likeliest tokens"] if "greedy" in self._anchors else []
        others = [name for name in self._anchors if name not in ANCHORS]
        of_reference += [f"{name}: one of its {name[len('pass@') :]} samples is right" for name in others]
        if of_reference:
            yield self._legend("; ".join(of_reference) + ".")
        eta = self._results.common_eta
        if eta is not None and "optimum" in self._anchors:
            regret = "; regret: how far J is below it" if _REGRET in shown else ""
            yield self._legend(f"optimum: the highest J = reward - {eta:g} KL{regret}.")
        elif eta is not None and _J in shown:
            yield self._legend(f"J = reward - {eta:g} KL.")


def _rests_on(row: record.PooledRow) -> Chains:
    """Return the smaller sizes of a row's mean and its difference."""
    other = {"references": row.difference_references, "seeds": row.difference_seeds}
    return {
        what: min(number, number if (own := other[what]) is None else own) for what, number in _chains(row).items()
    }


def what_intervals_hold_for(rows: Mapping[At, record.PooledRow]) -> str:
    """Say what the intervals of these rows cover, in one sentence."""
    scopes = {scope for row in rows.values() for scope in (row.over, row.difference_over) if scope}
    if scopes == {"policies"}:
        chains = max(row.seeds * row.references for row in rows.values())
        tell = "seeds and prompts that all say the same do not tell"
        if min(_rests_on(row)["seeds"] for row in rows.values()) < ENOUGH:
            tell = f"{ENOUGH} seeds or more tell"
        which = "this one policy" if chains == 1 else "these policies"
        return f"Intervals: noise of evaluating {which}; {tell} what another seed would give."
    few = [f"{algo} round {n}" for (algo, n), row in rows.items() if "policies" in (row.over, row.difference_over)]
    some = f"; some of {first_few(few, 'rows')} for these policies alone" if few else ""
    if "seeds" not in scopes:
        return f"Intervals hold for other seeds and other references{some}."
    references = max(row.references for row in rows.values())
    which = "this model" if references == 1 else f"these {references} references"
    return f"Intervals hold for other seeds, conditional on {which}{some}."


def _family(results: record.Results, one: record.Comparison) -> int:
    """Return the number of comparisons with the reference that are corrected together, on all test sets."""
    with_reference = [row for row in results.comparisons if (row.model, row.second) == (one.model, REFERENCE)]
    return sum(point_of(row.dataset)[0] == point_of(one.dataset)[0] for row in with_reference)


def _what_p_says(comparisons: list[record.Comparison], family: int) -> str:
    sizes = [row.detectable for row in comparisons if row.detectable is not None]
    size = decimal(median(sizes), places=places_of([median(sizes)])) if sizes else ""
    least = f"; such a run can find a difference of about {size} from it" if sizes else ""
    few = [row.first for row in comparisons if row.over == "policies"]
    which = f" of {first_few(few, 'methods')}" if len(few) < len(comparisons) else ""
    alone = f" p{which} does not cover other seeds." if few else ""
    sets = " on all test sets" if family > len(comparisons) else ""
    tests = f"corrected for {count(family, 'comparison')}{sets} (Holm)"
    return f"p: against the reference, {tests}{least}.{alone}"


# -- fronts and budgets ------------------------------------------------------------------------------------------


_MATCHED = "(matched)"
_OF_FRONTS = {
    "best": "best: no other point of the front has more at no more KL, or as much at less.",
    "KL/seq": "(matched): on the line between the two best points beside that KL, as are the ends of its "
    "interval, which leaves the error of KL out; - is beyond what was measured. It picks the best points on these "
    "prompts, which flatters fronts of more points.",
    "split": "Compare points of the same split.",
}
_WITHIN = "Each method after its last round whose training, all rounds before included, is within the budget."
_UNKNOWN = "what some of their rounds took is not known, so neither is which one is the last within a budget."


def _of_place(results: record.Results, place: tuple[str, str]) -> list[Chains]:
    return [_chains(row) for row in results.pooled if (row.dataset, row.model) == place]


def front_tables(results: record.Results, label: str = "") -> list[FittedTable]:
    """Return one table per dataset and model with fronts: their points by KL, then rewards at equal KL."""
    return [
        _front_table(results, place, list(rows), label)
        for place, rows in groupby(results.fronts, key=lambda row: (row.dataset, row.model))
    ]


def _front_table(
    results: record.Results, place: tuple[str, str], rows: list[record.FrontRow], label: str
) -> FittedTable:
    rested = {row.point if row.point == REFERENCE else f"{row.front} {row.point}": _chains(row) for row in rows}
    bounded = results.bounded_among(row.front for row in rows)

    def caption(shown: Collection[str]) -> str:
        how = " ".join(note for heading, note in _OF_FRONTS.items() if heading in shown)
        so = "(matched) is a lower one" if "KL/seq" in shown else ""
        fewer = _about_fewer(rested, _of_place(results, place))
        return "\n".join([how, *fewer, *about_bounds(bounded, shown, so)]).strip()

    matched = [row for row in results.matched if (row.dataset, row.model) == place]
    value, ends = result_columns(rows[0].metric, [*rows, *matched])
    columns: list[Told] = [
        (Column(heading="front", least=LEAST_NAME), lambda row: row.front),
        (Column(heading="point", least=LEAST_NAME), lambda row: getattr(row, "point", _MATCHED)),
        (number_column("KL/seq", 2), lambda row: decimal(row.kl)),
        value,
        (Column(heading="split", rank=3), lambda row: row.split),
        ends,
        (Column(heading="best", rank=5), lambda row: "yes" if getattr(row, "is_best", False) else ""),
        (
            number_column("KL interval", 6),
            lambda row: interval(getattr(row, "kl_low", None), getattr(row, "kl_high", None)),
        ),
    ]
    by_front = groupby(rows, key=lambda row: row.front)
    sections = ([*own, *(at for at in matched if at.front == front)] for front, own in by_front)
    return told_table(columns, sections, title=title(*place, "fronts", label), caption=caption)


def budget_tables(rows: Iterable[BudgetRow], results: record.Results, label: str = "") -> list[FittedTable]:
    """Return one table per dataset and model: every method at every training budget.

    Args:
        rows: Methods at budgets.
        results: Results of the same run.
        label: As for `result_tables`.
    """
    return [
        _budget_table(results, place, list(own), label)
        for place, own in groupby(rows, key=lambda row: (row.dataset, row.model))
    ]


def _budget_table(
    results: record.Results, place: tuple[str, str], rows: list[BudgetRow], label: str
) -> FittedTable:
    metric = next((row.metric for row in rows if row.metric), "")
    unknown = dict.fromkeys(row.algo for row in rows if not row.is_known)
    rested = {f"{row.algo} round {row.round}": _chains(row) for row in rows if row.references is not None}
    notes = [_WITHIN, *_about_fewer(rested, _of_place(results, place))]
    notes += [f"{first_few(unknown, 'methods')}: {_UNKNOWN}"] if unknown else []
    bounded = results.bounded_among(row.algo for row in rows)
    columns: list[Told] = [
        (number_column("budget", 0), lambda row: si(row.budget)),
        (Column(heading="algorithm", least=LEAST_NAME), lambda row: row.algo),
        numbers("round", 2, lambda row: row.round, str, none="-"),
        numbers("FLOPs", 3, lambda row: row.flops, si),
        *result_columns(metric, rows),
        numbers("KL/seq", 5, lambda row: row.kl),
    ]
    return told_table(
        columns,
        (own for _, own in groupby(rows, key=lambda row: row.budget)),
        title=title(*place, "training budgets", label),
        caption=lambda shown: "\n".join([*notes, *about_bounds(bounded, shown)]),
    )


# -- plan --------------------------------------------------------------------------------------------------------
# Tables of what a run would do, and of what a store holds.


_LEAST_CHAIN = 16


def _estimate(row: PlanRow) -> str:
    return "" if not row.missing else "-" if row.seconds is None else duration(row.seconds)


def plan_table(rows: Iterable[PlanRow]) -> FittedTable:
    """Return jobs per round, chain and stage with stored ones, and devices if any job takes several."""
    rows = list(rows)
    of_round = {row.round: row for row in reversed(rows)}  # the first of each, which alone names it
    of_chain = {(row.round, row.chain): row for row in reversed(rows)}
    columns: list[Told] = [
        (Column(heading="round"), lambda row: str(row.round) if row is of_round[row.round] else ""),
        (
            Column(heading="chain", rank=1, least=_LEAST_CHAIN),
            lambda row: row.chain if row is of_chain[row.round, row.chain] else "",
        ),
        (Column(heading="stage", rank=2), lambda row: row.stage),
        (number_column("jobs", 3), lambda row: str(row.jobs)),
        (number_column("devices", 6), lambda row: f"{row.devices}" if row.devices > 1 else ""),
        (number_column("stored", 5), lambda row: str(row.jobs - row.missing) if row.missing < row.jobs else ""),
        (number_column("samples", EXTRA), lambda row: f"{row.samples:,}" if row.samples else ""),
        (number_column("estimate", 4), _estimate),
    ]
    if all(row.devices == 1 for row in rows):
        columns = [(column, cell) for column, cell in columns if column.heading != "devices"]
    return told_table(columns, (own for _, own in groupby(rows, key=lambda row: row.round)), title="plan")


# -- store -------------------------------------------------------------------------------------------------------
# Tables about a store: what takes its space, and what a clean-up would remove.


_LEAST_STAGE = 8
_ELSEWHERE = "a wider terminal shows all"


def usage_table(usage: Usage) -> FittedTable:
    """Return outputs by experiment, chain, algorithm and stage, then everything else, with a total."""
    columns = [
        Column(heading="experiment", least=LEAST_NAME),  # which names what is no output, too
        Column(heading="dataset/model", rank=4, least=LEAST_NAME),
        Column(heading="algorithm", rank=2, least=LEAST_NAME),
        Column(heading="stage", rank=3, least=_LEAST_STAGE),
    ]
    return _space_table("store", columns, usage.items())


def garbage_table(garbage: Iterable[Garbage]) -> FittedTable:
    """Return what may be removed, by reason and by kind, with a total."""
    columns = [Column(heading="why"), Column(heading="what", rank=2, least=LEAST_NAME)]
    grouped: dict[tuple[str, str], Space] = {}
    for thing in garbage:
        grouped.setdefault((thing.kind.value, thing.what), Space()).add(thing.size)
    return _space_table("no longer needed", columns, grouped.items())


def _space_table(
    title: str, columns: Sequence[Column], spaces: Collection[tuple[Sequence[str], Space]]
) -> FittedTable:
    table = FittedTable(
        [*columns, number_column("number", EXTRA), number_column("size", 1)], title=title, elsewhere=_ELSEWHERE
    )
    for kind, space in spaces:
        table.add_row(*kind, f"{space.number:,}", filesize_decimal(space.size))
    table.end_section()
    total = filesize_decimal(sum(space.size for _, space in spaces))
    table.add_row("total", *[""] * len(columns), total, style="bold")
    return table
