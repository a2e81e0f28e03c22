"""Runs side by side: settings in which they differ, and what each method has reached after its last round. Pure.

A setting is compared among the runs that have it, and said in the rows that it is for: ``algos.PITA.eta`` in those
of PITA, in the one column ``algos.*.eta`` that it shares with other algorithms. Rows that then say the same of
several runs are one row.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from pipeline.config.schema import Config
from pipeline.runs.cost import CostRow
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.looks import reading_order
from pipeline.runs.record import PooledRow, Results, primary_metric

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
class ComparedRun:
    """What of a run is compared.

    Attributes:
        name: Of its experiment.
        stamp: Its timestamp.
        state: In one word.
        config: The resolved configuration, plain.
        results: What came out.
        costs: What methods took.
    """

    name: str
    stamp: str
    state: str
    config: Mapping[str, Any]
    results: Results
    costs: Sequence[CostRow] = ()


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


def compared(run: LoadedRun) -> ComparedRun:
    """What of a loaded run is compared.

    Raises:
        PipelineError: Its results cannot be read.
    """
    results, costs = run.results, run.compute.costs
    return ComparedRun(
        name=run.name, stamp=run.stamp, state=run.state, config=run.config, results=results, costs=costs
    )


def compare_runs(runs: Sequence[ComparedRun], labels: Sequence[str] = ()) -> RunComparison:
    """Put runs side by side, in the order in which they are given.

    Args:
        runs: The runs.
        labels: What each is called; names of experiments and timestamps if left out.
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
        if isinstance(value, Mapping) and value:
            yield from _flat(value, key)
        elif ".".join(key) not in _without_effect():
            yield key, typed(value)


@cache
def _without_effect() -> frozenset[str]:
    from pipeline.config.meaning import meanings  # as above

    return frozenset(each.key for each in meanings(Config) if not each.affects_result) | _OWN


def _differing(settings: Sequence[Mapping[Key, str]]) -> list[str]:
    """The columns of those that have several values among the runs that have them."""
    values: dict[Key, set[str]] = {}
    for own in settings:
        for key, value in own.items():
            values.setdefault(key, set()).add(value)
    return list(dict.fromkeys(_column(key) for key, found in values.items() if len(found) > 1))


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


def _labels(runs: Sequence[ComparedRun]) -> list[str]:
    names, stamps = {run.name for run in runs}, {run.stamp for run in runs}
    if len(names) == len(runs):
        return [run.name for run in runs]
    if len(names) == 1 and len(stamps) == len(runs):
        return [run.stamp for run in runs]
    return [f"{run.name}/{run.stamp}" for run in runs]


def _primary(runs: Iterable[ComparedRun]) -> Mapping[tuple[str, str], str | None]:
    """What methods of a dataset and model are judged by in all runs."""
    found: dict[tuple[str, str], dict[tuple[object, ...], set[str]]] = {}
    for number, run in enumerate(runs):
        for row in run.results.pooled:
            if row.value is not None:
                cells = found.setdefault((row.dataset, row.model), {})
                cells.setdefault((number, row.algo, row.round), set()).add(row.metric)
    return {place: primary_metric(cells.values()) for place, cells in found.items()}


def _rows(
    run: ComparedRun,
    label: str,
    settings: Mapping[Key, str],
    primary: Mapping[tuple[str, str], str | None],
) -> Iterator[RunRow]:
    cells: dict[tuple[str, str, str], dict[int, dict[str, PooledRow]]] = {}
    for row in run.results.pooled:
        if row.value is not None:
            rounds = cells.setdefault((row.dataset, row.model, row.algo), {})
            rounds.setdefault(row.round, {})[row.metric] = row
    costs = {(cost.dataset, cost.model, cost.algo, cost.round): cost for cost in run.costs}
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
            kl=_value(rounds[last].get(_KL)),
            j=_value(rounds[last].get(_J)),
            flops=cost.flops if cost else None,
            answer=cost.answer if cost else None,
            device_s=cost.device_s if cost else None,
        )


def _value(row: PooledRow | None) -> float | None:
    return None if row is None else row.value


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


class NamedRun(Protocol):
    """What of a run its name is made of."""

    @property
    def name(self) -> str:
        """Of its experiment."""

    @property
    def stamp(self) -> str:
        """Its timestamp."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration, plain."""


def run_names(runs: Sequence[NamedRun]) -> list[str]:
    """A name for each run: of its experiment, or of several runs of one the settings that tell them apart.

    ``eta=0.3`` and ``eta=1``, with the timestamp where settings do not suffice, and with the experiment before
    them where it is not that of all.
    """
    groups: dict[str, list[NamedRun]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    told = {id(run): name for own in groups.values() for run, name in zip(own, _told_apart(own), strict=True)}
    if len(groups) == 1:
        return [told[id(run)] for run in runs]
    alone = {name for name, own in groups.items() if len(own) == 1}
    return [run.name if run.name in alone else f"{run.name} {told[id(run)]}" for run in runs]


def _told_apart(runs: Sequence[NamedRun]) -> list[str]:
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
