"""Compare runs: the settings in which they differ, and what each method has reached after its last round.

A setting is compared among the runs that have it, and shown in the rows that it affects: ``algos.PITA.eta`` in
those of PITA, in the column ``algos.*.eta`` shared with other algorithms. Settings of a test set have columns of
their own, as ``datasets.sums.seed``, beside those of the dataset that was trained on. Equal rows are merged.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any

from pipeline.config.plain import value_at
from pipeline.config.schema import Config
from pipeline.config.tables import is_mean, point_of
from pipeline.runs.cost import CostRow
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.record import KL, PooledRow, by_method, cells_of, csv_text, grouped, primary_metric
from pipeline.runs.report.format import decimal, places_of, reading_order, short, si, title
from pipeline.runs.report.tables import LEAST_NAME, about_bounds, numbers, result_columns
from pipeline.terminal.columns import EXTRA, Column, FittedTable, Told, align, told_table

Key = tuple[str, ...]
"""A setting by its path; names of algorithms may have dots in them."""
_OWN = {"experiment.name", "output_dir", "dry_run", "stage"}
"""Settings that identify a run, or say how many rounds and seeds it has."""
_ENABLED = "enabled"
_TABLES = ("algos", "datasets", "models")
"""Settings of one algorithm, dataset or model."""
_OF_REFERENCES = ("datasets.", "models.", "evaluation.num_")
"""Prefixes of settings that determine results of the reference, which may be the same by chance."""
_SETS: Key = ("evaluation", "on")


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A method of a run after its last round.

    Attributes:
        runs: Labels of the runs that this row describes.
        state: State of the first of them.
        settings: Setting that differs -> its value here, as typed; without settings that do not affect this row or
            that the run does not have.
        result: Value of the metric by which the runs are judged.
        kl: KL divergence from the reference in nats per sequence.
        j: Reward minus the common price of KL divergence.
        cost: Cost of the method, if known.
    """

    runs: tuple[str, ...]
    state: str
    settings: Mapping[str, str]
    result: PooledRow
    kl: float | None
    j: float | None
    cost: CostRow | None

    @property
    def place(self) -> tuple[str, str]:
        """Dataset and model."""
        return self.result.dataset, self.result.model

    @property
    def algo(self) -> str:
        """The method, or ``reference``."""
        return self.result.algo


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Comparison of runs.

    Attributes:
        states: Label of each run, in order -> its state in one word.
        settings: Settings that differ, in the order of the configuration, as ``algos.*.eta`` -> the shortest
            unambiguous heading.
        rows: Rows by dataset, model, method and settings.
        bounded: Methods whose KL divergence is an upper bound.
        splits: Splits on which methods were evaluated, as far as the results record it.
    """

    states: Mapping[str, str]
    settings: Mapping[str, str]
    rows: list[RunRow]
    bounded: list[str]
    splits: list[str]


def compare_runs(runs: Sequence[LoadedRun], labels: Sequence[str] = ()) -> RunComparison:
    """Compare runs, in the given order.

    Args:
        runs: The runs.
        labels: Names of the runs; by default those of experiments and timestamps.

    Raises:
        PipelineError: Results of one cannot be read.
    """
    labels = list(labels) or _labels(runs)
    settings = [dict([*settings_of(run.read_config()), *_sets_of(run.config)]) for run in runs]
    columns, primary = _differing(settings, runs), _primary(runs)
    by_content: dict[str, RunRow] = {}
    for run, label, own in zip(runs, labels, settings, strict=True):
        shown = {key: value for key, value in own.items() if {_column(key), ".".join(key)} & {*columns}}
        for row in _rows(run, label, shown, columns, primary):
            # A reference does not depend on the number of rounds: it has one row for each model and dataset, with
            # the settings that these runs share.
            telling = [
                (name, value)
                for name, value in row.settings.items()
                if row.result.round or name.startswith(_OF_REFERENCES)
            ]
            answer = getattr(row.cost, "answer", None)
            content = repr((telling, row.result, row.kl, row.j, answer))
            if same := by_content.get(content):
                shared = {name: value for name, value in same.settings.items() if row.settings.get(name) == value}
                row = replace(same, runs=(*same.runs, *row.runs), settings=shared)
            by_content[content] = row
    return RunComparison(
        states={label: run.state for run, label in zip(runs, labels, strict=True)},
        settings=headings_of(columns, ["seeds"]),
        rows=sorted(by_content.values(), key=lambda row: _order(row, columns)),
        bounded=sorted({name for run in runs for name in run.results.bounded}),
        splits=sorted({run.results.split for run in runs if run.results.split}),
    )


def same_settings(config: Mapping[str, Any]) -> str:
    """Return a key that is equal for runs whose settings lead to the same results."""
    return repr(sorted(settings_of(config)))


# -- settings --------------------------------------------------------------------------------------------------


def settings_of(config: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Yield settings that may change a result, with their values as typed.

    For algorithms only the enabled ones.
    """
    algos = config.get("algos")
    if isinstance(algos, Mapping):
        chosen = {
            name: {key: value for key, value in own.items() if key != _ENABLED}
            for name, own in algos.items()
            if isinstance(own, Mapping) and own.get(_ENABLED, True)
        }
        config = {**config, "algos": chosen}
    return _flat(config)


def _sets_of(config: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Yield the test sets: they change the mean of all of them, and no other result."""
    if isinstance(sets := value_at(config, "evaluation.on"), list):
        yield _SETS, ", ".join(map(str, sets))


def _flat(section: Mapping[str, Any], path: Key = ()) -> Iterator[tuple[Key, str]]:
    from pipeline.config.meaning import typed  # OmegaConf too, which readers of the headings do not need

    for name, value in section.items():
        key = (*path, str(name))
        if ".".join(key) in _without_effect():
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, key)
        else:
            yield key, typed(value)


@cache
def _without_effect() -> frozenset[str]:
    from pipeline.config.meaning import meanings  # as above

    return frozenset(meaning.key for meaning in meanings(Config) if not meaning.affects_result) | _OWN


def _differing(settings: Sequence[Mapping[Key, str]], runs: Iterable[LoadedRun]) -> list[str]:
    """Return the columns of settings that differ among the runs that have them.

    Entries of a table may be missing.
    """
    points = {point_of(row.dataset) for run in runs for row in run.results.pooled}
    trained_on, test_sets = ({point[part] for point in points} for part in (0, 1))
    entries = [{key[:2] for key in own} for own in settings]
    keys = dict.fromkeys(key for own in settings for key in own)

    def values(key: Key) -> set[str | None]:
        runs = zip(settings, entries, strict=True)
        return {own.get(key) for own, there in runs if not _is_of_one(key) or key[:2] in there}

    def columns(key: Key) -> Iterator[str]:
        if key[0] != "datasets" or key[1] in trained_on:
            yield _column(key)
        if key[0] == "datasets" and key[1] in test_sets:
            yield ".".join(key)

    return list(dict.fromkeys(column for key in keys if len(values(key)) > 1 for column in columns(key)))


def _column(key: Key) -> str:
    return ".".join((key[0], "*", *key[2:]) if _is_of_one(key) else key)


def _is_of_one(key: Key) -> bool:
    """Return whether it is a setting of one algorithm, dataset or model."""
    return key[0] in _TABLES and len(key) > 2


def headings_of(columns: Sequence[str], among: Iterable[str] = ()) -> dict[str, str]:
    """Return the shortest unique end of each column; a column that is itself the end of another keeps its name.

    Args:
        columns: Names with dots.
        among: Further names with which a heading must not be confused.
    """
    every = {*columns, *among}

    def is_of_one(end: str) -> bool:
        return sum(f".{other}".endswith(f".{end}") for other in every) == 1

    def heading(name: str) -> str:
        ends = (".".join(name.split(".")[-parts:]) for parts in range(1, name.count(".") + 1))
        return next(filter(is_of_one, ends), name)

    return {name: heading(name) for name in columns}


# -- rows ------------------------------------------------------------------------------------------------------


def _labels(runs: Sequence[LoadedRun]) -> list[str]:
    names, stamps = {run.name for run in runs}, {run.stamp for run in runs}
    if len(names) == len(runs):
        return [run.name for run in runs]
    if len(names) == 1 and len(stamps) == len(runs):
        return [run.stamp for run in runs]
    return [f"{run.name}/{run.stamp}" for run in runs]


def _primary(runs: Iterable[LoadedRun]) -> Mapping[tuple[str, str], str]:
    """Return the metric by which methods of a dataset and model are judged in all runs."""
    methods = (item for run in runs for item in by_method(run.results.pooled).items())
    by_place = grouped((place, cell) for place, own in methods for cell in cells_of(own))
    return {place: primary_metric(cells) or "" for place, cells in by_place.items()}


def _rows(
    run: LoadedRun,
    label: str,
    settings: Mapping[Key, str],
    columns: Collection[str],
    primary: Mapping[tuple[str, str], str],
) -> Iterator[RunRow]:
    costs = {(cost.dataset, cost.model, cost.algo, cost.round): cost for cost in run.compute.costs}
    test_sets = {point_of(row.dataset)[1] for row in run.results.pooled}
    for place, methods in by_method(run.results.pooled).items():
        trained_on, test_set = point_of(place[0])
        tested = test_sets if is_mean(place[0]) else {test_set}
        for algo, rounds in methods.items():
            number, last = max(rounds), rounds[max(rounds)]
            if result := last.get(primary[place]):
                names = {"algos": algo, "datasets": trained_on, "models": place[1]}
                own: dict[str, str] = {}
                for key, value in settings.items():
                    if names[key[0]] == key[1] if _is_of_one(key) else key != _SETS or is_mean(place[0]):
                        own[_column(key)] = value
                    if key[0] == "datasets" and key[1] in tested:
                        own[".".join(key)] = value
                own = {column: own[column] for column in columns if column in own}
                kl, j = (last[name].value if name in last else None for name in (KL, "regularized_reward"))
                cost = costs.get((*place, algo, number))
                yield RunRow(runs=(label,), state=run.state, settings=own, result=result, kl=kl, j=j, cost=cost)


def _order(row: RunRow, columns: Sequence[str]) -> tuple[object, ...]:
    def sortable(value: str) -> tuple[float, str]:
        """Return a sort key: numbers by size, before texts."""
        try:
            return float(value), value
        except ValueError:
            return math.inf, value

    values = [sortable(row.settings.get(name, "")) for name in columns]
    return *row.place, reading_order(row.algo), values


def run_names(runs: Sequence[LoadedRun]) -> list[str]:
    """Return a name for each run: its experiment, or the settings that distinguish several runs of one experiment.

    For example ``eta=0.3`` and ``eta=1``, with the timestamp if settings do not suffice, and after the experiment
    if there are several.
    """
    names = {}
    times = Counter(run.name for run in runs)
    for name in times:
        own = [run for run in runs if run.name == name]
        settings = [dict(settings_of(run.config)) for run in own]
        plain = [{".".join(key): value for key, value in texts.items()} for texts in settings]
        differing = [key for key in plain[0] if len({texts.get(key) for texts in plain}) > 1]
        telling = headings_of(telling_apart([("", texts) for texts in plain], differing))
        called = [
            ", ".join(f"{telling[key]}={_brief(texts[key])}" for key in telling if key in texts) for texts in plain
        ]
        for run, words in zip(own, called, strict=True):
            alone = words if called.count(words) == 1 else ", ".join(filter(None, (words, run.stamp)))
            before = [name] if len(times) > 1 or len(own) == 1 else []
            names[id(run)] = " ".join([*before, *([alone] if len(own) > 1 else [])])
    return [names[id(run)] for run in runs]


def _brief(value: str, most: int = 32) -> str:
    return value if len(value) <= most else f"{value[: most - 1]}…"


def telling_apart(rows: Sequence[tuple[str, Mapping[str, str]]], settings: Sequence[str]) -> list[str]:
    """Return few settings that distinguish the rows of each method: those that distinguish most rows first.

    Args:
        rows: Method and settings of each.
        settings: Settings to choose from.
    """
    chosen: list[str] = []

    def kinds(keys: Sequence[str]) -> int:
        return len({(algo, *(own.get(key) for key in keys)) for algo, own in rows})

    while remaining := [key for key in settings if key not in chosen]:
        best = max(remaining, key=lambda key: kinds([*chosen, key]))
        if kinds([*chosen, best]) == kinds(chosen):
            break
        chosen.append(best)
    return chosen


# -- as tables, and as CSV ----------------------------------------------------------------------------------------


_NOTE = "After the last round of each run."
_INTERVALS = " Intervals are of each run by itself: a test between settings needs them in one run, as a front."
_ELSEWHERE = "a wider terminal or --csv has them"


def comparison_tables(comparison: RunComparison) -> list[FittedTable]:
    """Return one table per dataset and model: a row for each method and combination of differing settings."""
    tables = []
    prompts = f"{' and '.join(comparison.splits)} prompts" if comparison.splits else ""
    for place, own_rows in groupby(comparison.rows, key=lambda row: row.place):
        rows = list(own_rows)
        methods = (own for _, own in groupby(rows, key=lambda row: row.algo))
        options = {"title": title(*place, prompts, "runs side by side"), "elsewhere": _ELSEWHERE}
        tables.append(told_table(_columns(comparison, rows), methods, **options))
    if tables:
        tables[-1].notes = lambda shown: "\n".join(_caption(comparison, shown))
    align(tables)
    return tables


def _columns(comparison: RunComparison, rows: Sequence[RunRow]) -> list[Told]:
    """Return the columns: those that distinguish rows, results, and others, as a narrow page cuts off the end."""
    shown = [key for key in comparison.settings if any(key in row.settings for row in rows)]
    telling = telling_apart([(row.algo, row.settings) for row in rows], shown)
    needs_run = len({(row.algo, *row.settings.items()) for row in rows}) < len(rows)
    apart = places_of(row.result.difference for row in rows)

    def first_of(row: RunRow) -> str:
        if len(row.runs) == len(comparison.states) > 1:
            return "all"
        return row.runs[0] + (f" +{len(row.runs) - 1}" if len(row.runs) > 1 else "")

    run = Column(heading="runs", rank=2 if needs_run else 5, least=8), first_of
    return [
        (Column(heading="algorithm", least=LEAST_NAME), lambda row: row.algo),
        *(_setting(comparison, key, rows, 2) for key in telling),
        *([run] if needs_run else []),
        *result_columns(rows[0].result.metric, rows, lambda row: row.result),
        numbers("vs ref", 7, lambda row: row.result.difference, lambda value: decimal(value, "+", apart)),
        numbers("KL/seq", 5, lambda row: row.kl, none="-"),
        numbers("J", 8, lambda row: row.j, none="-"),
        numbers("round", 6, lambda row: row.result.round, str),
        *(_setting(comparison, key, rows, 9) for key in shown if key not in telling),
        numbers("FLOPs", EXTRA, lambda row: getattr(row.cost, "flops", None), si),
        numbers("per answer", EXTRA + 1, lambda row: getattr(row.cost, "answer", None), si),
        numbers("device s", EXTRA + 2, lambda row: getattr(row.cost, "device_s", None), "{:.1f}".format),
        numbers("seeds", EXTRA + 3, lambda row: row.result.seeds, str),
        *([] if needs_run else [run]),
    ]


def _setting(comparison: RunComparison, key: str, rows: Sequence[RunRow], rank: int) -> Told:
    """Return the column of a setting; fractions have four digits if these distinguish its values."""
    column = Column(heading=comparison.settings[key], right=True, rank=rank, least=LEAST_NAME)
    shown = {row.settings[key]: row.settings[key] for row in rows if key in row.settings}
    brief = dict(shown)
    for value in shown:
        if set(value) & {".", "e"}:
            with suppress(ValueError):  # a text
                brief[value] = short(float(value))
    texts = brief if len(set(brief.values())) == len(brief) else shown
    return column, lambda row: texts.get(row.settings.get(key, ""), "")


def _caption(comparison: RunComparison, shown: Collection[str]) -> Iterator[str]:
    yield _NOTE + (_INTERVALS if "interval" in shown else "")
    if not comparison.settings and len(comparison.states) > 1:
        yield "No setting that changes results differs."
    there = {label for row in comparison.rows for label in row.runs}
    if missing := [label for label in comparison.states if label not in there]:
        yield f"No results: {', '.join(missing)}."
    if going_on := [
        f"{label} ({comparison.states[label]})" for label in there if comparison.states[label] != "done"
    ]:
        yield f"Not done: {', '.join(sorted(going_on))}."
    algos = {row.algo for row in comparison.rows}
    yield from about_bounds([name for name in comparison.bounded if name in algos], shown)


_MEASURED = ("round", "metric", "value", "ci_low", "ci_high", "difference", "difference_low", "difference_high")
_TAKEN = {"training_flops": "flops", "flops_per_answer": "answer", "device_s": "device_s"}


def comparison_csv(comparison: RunComparison) -> str:
    """Return the comparison with every number in full, as a table for other programs."""
    method, rested = ("dataset", "model", "algo"), ("references", "seeds", "n")
    names = ["runs", "state", *method, *comparison.settings, *_MEASURED, KL, "j", *_TAKEN, *rested]
    return csv_text(
        names,
        (
            [
                " ".join(row.runs),
                row.state,
                *(getattr(row.result, name) for name in method),
                *(row.settings.get(key) for key in comparison.settings),
                *(getattr(row.result, name) for name in _MEASURED),
                row.kl,
                row.j,
                *(getattr(row.cost, name, None) for name in _TAKEN.values()),
                *(getattr(row.result, name) for name in rested),
            ]
            for row in comparison.rows
        ),
    )
