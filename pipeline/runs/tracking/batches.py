"""What trackers are told of a chain: a batch for every output that has something for them, always the same.

a job that trains     a row for each step that its curve has, over the steps of all rounds
a job that measures   a row for the round: results with intervals, time and throughput; and a few samples
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pipeline.engine.store.store import Store
from pipeline.foreign import ForeignDataError
from pipeline.outputs.curves import CURVES, TrainingStep, read_curve
from pipeline.outputs.formats import METRICS, SAMPLES, Metric
from pipeline.outputs.manifest import MANIFEST
from pipeline.outputs.reading import problem_in_words, read_metrics, read_shown_samples
from pipeline.plan.graph import Job
from pipeline.plan.recorded import RecordedPlan
from pipeline.runs.rows import METRICS_STAGE
from pipeline.terminal.text import printable

# -- chains ------------------------------------------------------------------------------------------------------
# What of a plan becomes a run of a tracker: every chain with its settings, under a name and an id that stay.


_ID = 16
_NAMES = ("name", "class_path", "_schema_")
"""Of a section, besides its settings."""


@dataclass(frozen=True, kw_only=True)
class TrackedChain:
    """A chain as trackers know it.

    Attributes:
        id: Of the chain with these settings: the same in every run of the experiment, however many rounds it asks
            for; another where a setting that can change a result is another.
        name: ``ALGO/dataset/model/s0``, for people.
        experiment: What it is part of.
        settings: What its results depend on, as ``algo.eta``; plain values.
        jobs: Its jobs, in the order of the plan.
    """

    id: str
    name: str
    experiment: str
    settings: Mapping[str, str | float | bool]
    jobs: tuple[Job, ...]


def tracked_chains(plan: RecordedPlan, experiment: str) -> list[TrackedChain]:
    """The chains of a plan, in its order; references are chains too."""
    jobs: dict[str, list[Job]] = {}
    for job in plan.jobs.values():
        jobs.setdefault(job.chain, []).append(job)
    return [
        TrackedChain(
            id=_id(experiment, chain, found),
            name=_name(chain, found[0].algo),
            experiment=experiment,
            settings=_settings(plan, found),
            jobs=tuple(found),
        )
        for chain, found in jobs.items()
    ]


def _id(experiment: str, chain: str, jobs: list[Job]) -> str:
    """Of what the first round rests on: its keys cover every setting, and further rounds change none of them."""
    first = min(job.round for job in jobs)
    keys = sorted(job.key for job in jobs if job.round == first)
    return hashlib.sha256(json.dumps([experiment, chain, keys]).encode()).hexdigest()[:_ID]


def _name(chain: str, algo: str) -> str:
    """The algorithm first, so that trackers group by it; what all seeds share has none."""
    return f"{algo}/{chain.removesuffix(f'/{algo}').removesuffix('/any')}"


def _settings(plan: RecordedPlan, jobs: list[Job]) -> dict[str, str | float | bool]:
    sections: dict[str, object] = {}
    for job in jobs:
        if job.shard in (None, 0):
            sections |= plan.config(job.id)
    first = jobs[0]
    place = {name: getattr(first, name) for name in ("algo", "dataset", "model", "reference", "seed")}
    return dict(sorted(_flat({"chain": place, **sections}, "")))


def _flat(value: object, name: str) -> Iterator[tuple[str, str | float | bool]]:
    match value:
        case Mapping():
            for inner, part in value.items():
                if inner not in _NAMES:
                    yield from _flat(part, f"{name}.{inner}" if name else str(inner))
        case float() if not math.isfinite(value):
            yield name, str(value)  # JSON has no number for it
        case bool() | int() | float() | str():
            yield name, value
        case None:
            pass
        case _:
            yield name, json.dumps(value)


ROUND, STEP = "round", "train/step"
"""What numbers are drawn over: those of a round over rounds, those of trainings over their steps."""
COLUMNS = ("round", "prompt", "completion", "reward", "correct")
_TEXT = 2000
"""Characters of a prompt or a completion that a table of samples has."""
_T = TypeVar("_T")

log = logging.getLogger("pipeline")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Numbers at one place of an axis.

    Attributes:
        axis: `ROUND` or `STEP`.
        at: The place; steps count from the first of the chain's first round.
        round: Of the chain.
        values: Name -> number.
    """

    axis: str
    at: int
    round: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one output has for trackers.

    Attributes:
        id: Of the output; what it holds never changes.
        round: Of the chain.
        time: When the output was made, in seconds since 1970.
        rows: In order.
        samples: With the fields `COLUMNS`; texts that can be printed and are not long.
    """

    id: str
    round: int
    time: float
    rows: Sequence[Row]
    samples: Sequence[Mapping[str, str | float | None]] = field(default=())


class BatchReader:
    """Reads the batches of one chain, each once, as its jobs get done."""

    def __init__(self, chain: TrackedChain, store: Store, samples: int) -> None:
        """Prepare.

        Args:
            chain: The chain.
            store: Where its outputs are.
            samples: How many samples a batch has at most.
        """
        self._chain, self._store, self._samples = chain, store, samples
        self._left = telling(chain)
        self._steps: Counter[str] = Counter()

    def new(self, is_there: Callable[[Job], bool]) -> Iterator[Batch]:
        """Those of outputs that were not there before, in the order of the plan; many have nothing in them.

        Args:
            is_there: Says of a job whether its output is.
        """
        there = {job.id for job in self._left if is_there(job)}
        found = [job for job in self._left if job.id in there]
        self._left = [job for job in self._left if job.id not in there]
        for job in found:
            output = self._store.path(job.key)
            rows, samples = self._rows(job, output), self._shown(job, output)
            yield Batch(id=job.key, round=job.round, time=_made(output), rows=rows, samples=samples)

    def _rows(self, job: Job, output: Path) -> list[Row]:
        if job.stage != METRICS_STAGE:
            return _of_training(_read(job, CURVES, read_curve, output) or [], job.round, self._steps)
        results = _read(job, METRICS, read_metrics, output)
        values = {name: value for row in (results.rows if results else ()) for name, value in _result(row)}
        if not values:
            return []
        return [Row(axis=ROUND, at=job.round, round=job.round, values={**values, **self._time(job.round)})]

    def _time(self, number: int) -> dict[str, float]:
        """Seconds that devices were held by the stages of a round, and what they made in one of them."""
        sums: dict[tuple[str, str], float] = defaultdict(float)
        for job in self._chain.jobs:
            if job.round == number and job.stage != METRICS_STAGE:
                for name, amount in self._store.costs.of(job.key).items():
                    sums[job.stage, name] += amount
        found = {}
        for stage in {stage for stage, _ in sums}:
            if seconds := sums[stage, "run_s"]:
                made = {unit: sums[stage, unit] for unit in ("tokens", "samples")}
                found[f"time/{stage}/seconds"] = seconds
                found |= {f"time/{stage}/{unit}_per_s": much / seconds for unit, much in made.items() if much}
        return dict(sorted(found.items()))

    def _shown(self, job: Job, output: Path) -> list[dict[str, str | float | None]]:
        if job.stage != METRICS_STAGE or not self._samples:
            return []
        found = _read(job, SAMPLES, read_shown_samples, output)
        rows = (row for sample in found or () for row in _completions(job.round, sample))
        return [row for row, _ in zip(rows, range(self._samples), strict=False)]


def telling(chain: TrackedChain) -> list[Job]:
    """The jobs of a chain that may have something for a tracker: none of those that are split, as they draw."""
    return [job for job in chain.jobs if job.shard is None]


def _of_training(curve: Sequence[TrainingStep], number: int, before: Counter[str]) -> list[Row]:
    """Rows of the steps; counts the steps of this training to those `before` it."""
    rows = []
    for step in curve:
        told = {
            name: getattr(step, name) for name in ("loss", "grad_norm", "learning_rate", "tokens")
        } | step.extra
        values = {f"train/{step.training}/{name}": value for name, value in told.items() if value is not None}
        at = before[step.training] + step.step
        rows.append(Row(axis=STEP, at=at, round=number, values=values))
    before.update({step.training: step.steps for step in curve})
    return rows


def _result(row: Metric) -> Iterator[tuple[str, float]]:
    """The number and the ends of its interval, apart from it so that trackers show numbers first."""
    name = row.metric
    told = {f"eval/{name}": row.value, f"interval/{name}/low": row.ci_low, f"interval/{name}/high": row.ci_high}
    yield from ((place, value) for place, value in told.items() if value is not None)


def _completions(number: int, sample: Mapping[str, Any]) -> Iterator[dict[str, str | float | None]]:
    """A row for each completion of a sample; it may hold anything, as it is for people."""
    completions = sample.get("completions")
    for completion in completions if isinstance(completions, list) else []:
        if isinstance(completion, dict):
            yield {
                "round": number,
                "prompt": _text(sample.get("prompt")),
                "completion": _text(completion.get("text")),
                "reward": _number(completion.get("reward")),
                "correct": _number(completion.get("correct")),
            }


def _text(value: object) -> str:
    text = "" if value is None else str(value)
    return printable(text[:_TEXT]) + (" ..." if len(text) > _TEXT else "")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _read(job: Job, name: str, read: Callable[[Path], _T], output: Path) -> _T | None:
    """What a file of an output holds; None where there is none, or none that can be read, which is logged."""
    try:
        return read(output)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ForeignDataError, OSError, RecursionError) as error:
        said = str(error) if isinstance(error, RecursionError) else problem_in_words(error)
        log.warning("%s: its stored %s is passed over: %s", job.id, name, said)
        return None


def _made(output: Path) -> float:
    """When an output was committed; the same whoever asks, as a store never changes what it has."""
    try:
        return (output / MANIFEST).stat().st_mtime
    except OSError:
        return 0.0
