"""Runs side by side: settings in which they differ, and what each method has reached after its last round.

A setting is compared among the runs that have it, and said in the rows that it is for: ``algos.PITA.eta`` in those
of PITA, in the one column ``algos.*.eta`` that it shares with other algorithms. Rows that then say the same of
several runs are one row.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any

from pipeline.config.schema import Config
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.looks import reading_order
from pipeline.runs.record import PooledRow, csv_cell, primary_metric
from pipeline.runs.report.format import decimal, interval, short, si, title
from pipeline.runs.report.tables import HEADINGS, LEAST_NAME, about_bounds, number_column
from pipeline.terminal.columns import EXTRA, Column, FittedTable, align

Key = tuple[str, ...]
"""A setting by its path; names of algorithms may have dots in them."""
_DOT = re.compile(r"(?<=[^./])\.(?=[^\W\d]|\*)")
"""What parts sections: no dot of a path or of a number."""
_OWN = {"experiment.name", "output_dir", "dry_run", "stage"}
"""Settings that say which run it is, or how much of it was asked for."""
_ENABLED = "enabled"
_TABLES = {"algos": "algo", "datasets": "dataset", "models": "model"}
"""Settings of one algorithm, dataset or model -> what of a row they are for."""
_OF_REFERENCES = ("datasets.", "models.")
"""What settings begin with that say which reference it is; two may have reached the same by chance."""
_KL, _J = "kl_per_sequence", "regularized_reward"


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A method of a run after its last round.

    Attributes:
        runs: Labels of the runs of which this holds.
        state: Of the first of them.
        dataset: Name of the dataset.
        model: Name of the model.
        algo: The method, or ``reference``.
        settings: Setting that differs -> its value here, as it is typed; without those that are not for this row
            or that the run does not have.
        result: Of the metric by which the runs are judged.
        kl: Divergence from the reference in nats per sequence.
        j: Reward less the common price of divergence.
        flops: Of training, the mean over chains.
        answer: FLOPs of an answer.
        device_s: Seconds on devices, of training, without loading.
    """

    runs: tuple[str, ...]
    state: str
    dataset: str
    model: str
    algo: str
    settings: Mapping[str, str]
    result: PooledRow
    kl: float | None
    j: float | None
    flops: float | None
    answer: float | None
    device_s: float | None


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Runs side by side.

    Attributes:
        labels: What the runs are called, in order.
        states: Of the runs, in one word.
        settings: Those that differ, in the order of the configuration: ``training.schedule``, ``algos.*.eta``.
        headings: Each of these as short as it can be without being another one.
        rows: By dataset, model, method and settings.
        bounded: Methods whose divergence is an upper bound.
        splits: Of the datasets, on which methods were evaluated; without those of results that do not say it.
    """

    labels: list[str]
    states: list[str]
    settings: list[str]
    headings: Mapping[str, str]
    rows: list[RunRow]
    bounded: list[str]
    splits: list[str]

    @property
    def without_results(self) -> list[str]:
        """Labels of the runs of which there is nothing to compare."""
        told = {label for row in self.rows for label in row.runs}
        return [label for label in self.labels if label not in told]


def compare_runs(runs: Sequence[LoadedRun], labels: Sequence[str] = ()) -> RunComparison:
    """Put runs side by side, in the order in which they are given.

    Args:
        runs: The runs.
        labels: What each is called; names of experiments and timestamps if left out.

    Raises:
        PipelineError: Results of one cannot be read.
    """
    labels, settings = list(labels) or _labels(runs), [dict(settings_of(run.config)) for run in runs]
    columns, primary = _differing(settings), _primary(runs)
    rows = [
        row
        for run, label, own in zip(runs, labels, settings, strict=True)
        for row in _rows(
            run, label, {key: value for key, value in own.items() if _column(key) in columns}, primary
        )
    ]
    return RunComparison(
        labels=labels,
        states=[run.state for run in runs],
        settings=columns,
        headings=headings_of(columns),
        rows=sorted(_merged(rows), key=lambda row: _order(row, columns)),
        bounded=sorted({name for run in runs for name in run.results.bounded}),
        splits=sorted({run.results.split for run in runs if run.results.split}),
    )


def same_settings(config: Mapping[str, Any]) -> str:
    """What two runs have in common whose settings lead to the same results."""
    return repr(sorted(settings_of(config)))


# -- settings --------------------------------------------------------------------------------------------------


def settings_of(config: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Settings that may change a result, with their values as they are typed; of algorithms, those that run."""
    algos = config.get("algos")
    if isinstance(algos, Mapping):
        chosen = {
            name: {key: value for key, value in own.items() if key != _ENABLED}
            for name, own in algos.items()
            if isinstance(own, Mapping) and own.get(_ENABLED, True)
        }
        config = {**config, "algos": chosen}
    return _flat(config)


def _flat(section: Mapping[str, Any], path: Key = ()) -> Iterator[tuple[Key, str]]:
    from pipeline.config.meaning import typed  # and OmegaConf, which whoever takes the headings alone does without

    for name, value in section.items():
        key = (*path, str(name))
        if isinstance(value, Mapping):
            yield from _flat(value, key)
        elif ".".join(key) not in _without_effect():
            yield key, typed(value)


@cache
def _without_effect() -> frozenset[str]:
    from pipeline.config.meaning import meanings  # as above

    return frozenset(each.key for each in meanings(Config) if not each.affects_result) | _OWN


def _differing(settings: Sequence[Mapping[Key, str]]) -> list[str]:
    """The columns of those that differ among the runs that have them. A table, as `rewards`, may lack an entry."""
    entries = [{key[:2] for key in own} for own in settings]
    keys = dict.fromkeys(key for own in settings for key in own)

    def values(key: Key) -> set[str | None]:
        runs = zip(settings, entries, strict=True)
        return {own.get(key) for own, there in runs if not _is_of_one(key) or key[:2] in there}

    return list(dict.fromkeys(_column(key) for key in keys if len(values(key)) > 1))


def _column(key: Key) -> str:
    return ".".join((key[0], "*", *key[2:]) if _is_of_one(key) else key)


def _is_of_one(key: Key) -> bool:
    """Whether it is a setting of one algorithm, dataset or model."""
    return key[0] in _TABLES and len(key) > 2


def headings_of(columns: Sequence[str], among: Iterable[str] = ()) -> dict[str, str]:
    """The ends of columns that no other one has; one that is itself the end of another keeps its name.

    Args:
        columns: Names with dots.
        among: Names that have no column, and that a heading is not to be taken for either.
    """
    every = {*columns, *among}

    def is_of_one(end: str) -> bool:
        return sum(f".{other}".endswith(f".{end}") for other in every) == 1

    return {name: next(filter(is_of_one, _ends(name)), name) for name in columns}


def _ends(name: str) -> Iterator[str]:
    parts = _DOT.split(name)
    # What is inside of an entry has the section in its name: `lora.rank` rather than `rank`.
    last = 2 if parts[0] in _TABLES and len(parts) > 3 else len(parts) - 1
    return (".".join(parts[at:]) for at in range(last, -1, -1))


# -- rows ------------------------------------------------------------------------------------------------------


def _labels(runs: Sequence[LoadedRun]) -> list[str]:
    names, stamps = {run.name for run in runs}, {run.stamp for run in runs}
    if len(names) == len(runs):
        return [run.name for run in runs]
    if len(names) == 1 and len(stamps) == len(runs):
        return [run.stamp for run in runs]
    return [f"{run.name}/{run.stamp}" for run in runs]


def _primary(runs: Iterable[LoadedRun]) -> Mapping[tuple[str, str], str | None]:
    """What methods of a dataset and model are judged by in all runs."""
    found: dict[tuple[str, str], dict[tuple[object, ...], set[str]]] = {}
    for number, run in enumerate(runs):
        for row in run.results.pooled:
            if row.value is not None:
                cells = found.setdefault((row.dataset, row.model), {})
                cells.setdefault((number, row.algo, row.round), set()).add(row.metric)
    return {place: primary_metric(cells.values()) for place, cells in found.items()}


def _rows(
    run: LoadedRun,
    label: str,
    settings: Mapping[Key, str],
    primary: Mapping[tuple[str, str], str | None],
) -> Iterator[RunRow]:
    cells: dict[tuple[str, str, str], dict[int, dict[str, PooledRow]]] = {}
    for row in run.results.pooled:
        if row.value is not None:
            rounds = cells.setdefault((row.dataset, row.model, row.algo), {})
            rounds.setdefault(row.round, {})[row.metric] = row
    costs = {(cost.dataset, cost.model, cost.algo, cost.round): cost for cost in run.compute.costs}
    for (dataset, model, algo), rounds in cells.items():
        last = max(rounds)
        result = rounds[last].get(primary[dataset, model] or "")
        if result is None:
            continue
        place = {"algo": algo, "dataset": dataset, "model": model}
        cost = costs.get((dataset, model, algo, last))
        yield RunRow(
            runs=(label,),
            state=run.state,
            **place,
            settings={
                _column(key): value
                for key, value in settings.items()
                if not _is_of_one(key) or key[1] == place[_TABLES[key[0]]]
            },
            result=result,
            kl=getattr(rounds[last].get(_KL), "value", None),
            j=getattr(rounds[last].get(_J), "value", None),
            flops=cost.flops if cost else None,
            answer=cost.answer if cost else None,
            device_s=cost.device_s if cost else None,
        )


def _merged(rows: Iterable[RunRow]) -> list[RunRow]:
    """One row for what is the same in several runs, such as a method whose settings do not differ.

    What no round has changed is the same whatever the rounds were to be: the reference of a model on a dataset is
    said once, with the settings that these runs share.
    """
    found: dict[str, RunRow] = {}
    for row in rows:
        settings = {
            name: value
            for name, value in row.settings.items()
            if row.result.round or name.startswith(_OF_REFERENCES)
        }
        said = repr((row.dataset, row.model, row.algo, settings, row.result, row.kl, row.j, row.answer))
        if (same := found.get(said)) is None:
            found[said] = row
        else:
            shared = {key: value for key, value in same.settings.items() if row.settings.get(key) == value}
            found[said] = replace(same, runs=(*same.runs, *row.runs), settings=shared)
    return list(found.values())


def _order(row: RunRow, columns: Sequence[str]) -> tuple[object, ...]:
    values = [_sortable(row.settings.get(name, "")) for name in columns]
    return row.dataset, row.model, reading_order(row.algo), values


def _sortable(value: str) -> tuple[float, str]:
    """Numbers by their size, before texts."""
    try:
        return float(value), value
    except ValueError:
        return math.inf, value


# -- names -------------------------------------------------------------------------------------------------------
# What runs are called where several stand together: names that tell them apart. Pure.


_LONGEST = 32
"""Characters of a value."""


def run_names(runs: Sequence[LoadedRun]) -> list[str]:
    """A name for each run: of its experiment, or of several runs of one the settings that tell them apart.

    ``eta=0.3`` and ``eta=1``, with the timestamp where settings do not suffice, and with the experiment before
    them where it is not that of all.
    """
    groups: dict[str, list[LoadedRun]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    told = {id(run): name for own in groups.values() for run, name in zip(own, _told_apart(own), strict=True)}
    if len(groups) == 1:
        return [told[id(run)] for run in runs]
    alone = {name for name, own in groups.items() if len(own) == 1}
    return [run.name if run.name in alone else f"{run.name} {told[id(run)]}" for run in runs]


def _told_apart(runs: Sequence[LoadedRun]) -> list[str]:
    """Names for runs of one experiment."""
    if len(runs) == 1:
        return [runs[0].name]
    names = _by_settings([dict(settings_of(run.config)) for run in runs])
    times = Counter(names)
    return [
        name if name and times[name] == 1 else ", ".join(filter(None, (name, run.stamp)))
        for run, name in zip(runs, names, strict=True)
    ]


def _by_settings(settings: Sequence[Mapping[Key, str]]) -> list[str]:
    """Of the settings that several runs have with different values the first ones that part these runs."""
    chosen: list[Key] = []
    parts = 1
    for key in dict.fromkeys(key for own in settings for key in own):
        if len({own[key] for own in settings if key in own}) < 2:
            continue
        parted = len({tuple(own.get(one) for one in (*chosen, key)) for own in settings})
        if parted > parts:
            chosen, parts = [*chosen, key], parted
    headings = headings_of([".".join(key) for key in chosen])
    return [
        ", ".join(f"{headings['.'.join(key)]}={_short(own[key])}" for key in chosen if key in own)
        for own in settings
    ]


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…"


# -- as tables, and as CSV ----------------------------------------------------------------------------------------


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
    others = [_setting(comparison, key, rows, 9) for key in shown if key not in telling]
    metric = HEADINGS.get(rows[0].result.metric, rows[0].result.metric)

    def first_of(row: RunRow) -> str:
        if len(row.runs) == len(comparison.labels) > 1:
            return "all"
        return row.runs[0] + (f" +{len(row.runs) - 1}" if len(row.runs) > 1 else "")

    def difference(row: RunRow) -> str:
        return "" if row.result.difference is None else decimal(row.result.difference, "+")

    run = Column(heading="runs", rank=2 if needs_run else 5, least=_LEAST_RUN), first_of
    return [
        (Column(heading="algorithm", least=LEAST_NAME), lambda row: row.algo),
        *(_setting(comparison, key, rows, 2) for key in telling),
        *([run] if needs_run else []),
        (number_column(metric, 1), lambda row: _number(row.result.value)),
        (number_column(_INTERVAL, 4), lambda row: interval(row.result.ci_low, row.result.ci_high)),
        (number_column("vs ref", 7), difference),
        (number_column("KL/seq", 5), lambda row: _number(row.kl)),
        (number_column("J", 8), lambda row: _number(row.j)),
        (number_column("round", 6), lambda row: str(row.result.round)),
        *others,
        (number_column("FLOPs", EXTRA), lambda row: "" if row.flops is None else si(row.flops)),
        (number_column("per answer", EXTRA + 1), lambda row: "" if row.answer is None else si(row.answer)),
        (number_column("device s", EXTRA + 2), lambda row: "" if row.device_s is None else f"{row.device_s:.1f}"),
        (number_column(_SEEDS, EXTRA + 3), lambda row: str(row.result.seeds)),
        *([] if needs_run else [run]),
    ]


def _setting(comparison: RunComparison, key: str, rows: Sequence[RunRow], rank: int) -> _Told:
    heading = _of_setting(comparison.headings[key], [_SEEDS])
    column = Column(heading=heading, right=True, rank=rank, least=LEAST_NAME)
    shown = _shortened({row.settings[key] for row in rows if key in row.settings})
    return column, lambda row: shown.get(row.settings.get(key, ""), "")


def _shortened(values: Collection[str]) -> dict[str, str]:
    """Values of a setting, fractions with four digits where these tell them apart."""
    shown = {value: value for value in values}
    for value in values:
        if set(value) & {".", "e"}:
            with suppress(ValueError):  # a text
                shown[value] = short(float(value))
    return shown if len(set(shown.values())) == len(shown) else {value: value for value in values}


def _of_setting(heading: str, others: Sequence[str]) -> str:
    """The heading of a setting, also where a column of results is called so."""
    return f"{heading} (setting)" if heading in others else heading


def _number(value: float | None) -> str:
    return "-" if value is None else decimal(value)


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


_MEASURED = ("round", "metric", "value", "ci_low", "ci_high", "difference", "difference_low", "difference_high")
_TAKEN = {
    "kl": "kl_per_sequence",
    "j": "j",
    "flops": "training_flops",
    "answer": "flops_per_answer",
    "device_s": "device_s",
}


def comparison_csv(comparison: RunComparison) -> str:
    """The same with every number in full, as a table for other programs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    before = ("runs", "state", "dataset", "model", "algo")
    rested = ("references", _SEEDS, "n")
    after = (*_MEASURED, *_TAKEN.values(), *rested)
    settings = [_of_setting(key, [*before, *after]) for key in comparison.settings]
    writer.writerow([*before, *settings, *after])
    for row in comparison.rows:
        cells: list[object] = [" ".join(row.runs), *(getattr(row, name) for name in before[1:])]
        cells += [row.settings.get(key) for key in comparison.settings]
        cells += [getattr(row.result, name) for name in _MEASURED]
        cells += [getattr(row, name) for name in _TAKEN]
        cells += [getattr(row.result, name) for name in rested]
        writer.writerow(map(csv_cell, cells))
    return text.getvalue()
