"""What results took to make, as the store remembers it: tokens, FLOPs and device time by chain and round.

Device time depends on the machine, and what a store remembers may be lost where its outputs are not, so none of
this is in ``results.json``; it goes to ``compute.json``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.engine.store.store import ANSWERS, FLOPS, Store
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.learning.algos.base import GENERATE
from pipeline.plan.graph import Job
from pipeline.runs.origin import Maker
from pipeline.runs.record import Scope

FILE = "compute.json"
EVALUATION = ("evaluate", "metrics", "sweep")
"""Stages that measure and do not train."""
_Count = Annotated[int, Meta(ge=0, le=10**18)]
_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Flops = Annotated[float, Meta(ge=0, le=1e36)]

_Where = tuple[str, str, str, int | None, int, str]

log = logging.getLogger("pipeline")


@dataclass(frozen=True, order=True)
class ComputeRow:
    """What a stage of one round of a chain took, as far as it was carried out; what methods draw once, each took.

    A number is None where it is not known of some output, because its cost was lost, or an earlier version made it
    that did not count: the sum over the others would be too small.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference that the chain rests on; None where there is no such seed.
        algo: Algorithm, ``reference``, or ``dataset`` for its preparation.
        seed: Seed of the chain; None for work that all seeds share.
        round: Of the chain.
        stage: Of the round.
        tokens: Generated or trained on.
        device_s: Seconds that a device was held, without `load_s` and attempts that failed; a job on several
            devices holds all of them, and one that shares a device counts as if it did not.
        load_s: Seconds besides that it was held for importing libraries and loading models, which whoever comes
            first to a worker pays for all.
        answers: Completions that were evaluated.
        flops: What was computed, see `learning.models.flops`.
        flops_by_purpose: The same by what they went into: ``decoding``, ``guidance``, ``scoring``, ``rewards``,
            ``training``; without outputs of which it is not known.
    """

    dataset: str
    model: str
    reference: int | None = field(default=None, kw_only=True)
    algo: str
    seed: int | None
    round: int
    stage: str
    tokens: _Count | None
    device_s: _Amount | None
    load_s: _Amount | None
    answers: _Count | None = None
    flops: _Flops | None = None
    flops_by_purpose: Mapping[str, _Flops] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """What a chain of a method takes up to the end of a round: the mean over those that its result rests on.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        algo: The method.
        round: Of the chains; 0 for the reference.
        flops: Without evaluation; None where they are not known.
        answer: FLOPs of an answer after that round, likewise.
        device_s: Seconds that a device was held, without evaluation and loading, likewise.
        load_s: Seconds besides, for loading, likewise.
    """

    dataset: str
    model: str
    algo: str
    round: int
    flops: _Flops | None
    answer: _Flops | None
    device_s: _Amount | None
    load_s: _Amount | None = None


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    """A method at a training budget: after its last round whose training, all rounds before included, is within.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        algo: The method.
        budget: FLOPs that a chain may take.
        is_known: Whether FLOPs are known of every round that may be within; where they are not, no later field is.
        round: The round; None where the first one takes more.
        flops: What it has taken, the mean over the chains.
        metric: What methods are judged by.
        value: The result after that round.
        ci_low: Lower end of its interval.
        ci_high: Upper end.
        kl: Divergence from the reference in nats per sequence.
        over: What the interval holds for.
        references: Number of references that the value is over; None where there is no value, as are the next two.
        seeds: Number of seeds, which every one of the references has.
        n: Prompts.
    """

    dataset: str
    model: str
    algo: str
    budget: _Flops
    is_known: bool = True
    round: int | None = None
    flops: _Flops | None = None
    metric: str = ""
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    kl: float | None = None
    over: Scope | None = None
    references: _Count | None = None
    seeds: _Count | None = None
    n: _Count | None = None


@dataclass(frozen=True, kw_only=True)
class Compute:
    """What ``compute.json`` says.

    Attributes:
        rows: Of stages.
        costs: Of methods by round.
        budgets: Of methods at training budgets.
    """

    rows: list[ComputeRow] = field(default_factory=list)
    costs: list[CostRow] = field(default_factory=list)
    budgets: list[BudgetRow] = field(default_factory=list)


def collect_compute(store: Store, jobs: Iterable[Job]) -> list[ComputeRow]:
    """Add up the shards of every stage, those that were carried out."""
    every = list(jobs)
    made = _made(store, every)
    every += _drawn_for_others(every)
    found: dict[tuple[int | None, _Where], list[tuple[Job, Mapping[str, float]]]] = {}
    for job in every:
        if job.key in made:
            where = (job.dataset, job.model, job.algo, job.seed, job.round, job.stage)
            found.setdefault((job.reference, where), []).append((job, store.costs.of(job.key)))
    rows = [_row(where, reference, shards) for (reference, where), shards in found.items()]
    return sorted(rows, key=lambda row: tuple(str(value) for value in asdict(row).values()))


def _drawn_for_others(jobs: Sequence[Job]) -> list[Job]:
    """Jobs that draw for several methods, as those of the methods that they are not named after."""
    draws = {job.key: job for job in jobs if job.stage == GENERATE.name}
    found = {(key, job.algo) for job in jobs for keys in job.inputs.values() for key in keys if key in draws}
    return [replace(draws[key], algo=algo) for key, algo in sorted(found) if draws[key].algo != algo]


def total(amounts: Iterable[float | None]) -> float | None:
    """Their sum, 0 of none; None where one is not known."""
    found = list(amounts)
    known = [amount for amount in found if amount is not None]
    return sum(known) if len(known) == len(found) else None


def _made(store: Store, jobs: Iterable[Job]) -> set[str]:
    """Keys of outputs that are stored, and of those that they rest on, which may have been lost since."""
    inputs = {job.key: [key for keys in job.inputs.values() for key in keys] for job in jobs}
    made: set[str] = set()
    left = [key for key in inputs if store.is_committed(key)]
    while left:
        key = left.pop()
        if key not in made:
            made.add(key)
            left += inputs.get(key, [])
    return made


def _row(where: _Where, reference: int | None, shards: Sequence[tuple[Job, Mapping[str, float]]]) -> ComputeRow:
    def whole(name: str) -> int | None:
        found = total(cost.get(name) for _, cost in shards)
        return None if found is None else int(found)

    loading = total(_load_s(job, cost) for job, cost in shards)
    working = total(_work_s(job, cost) for job, cost in shards)
    purposes = sorted({name for _, cost in shards for name in cost if name.startswith(f"{FLOPS}/")})
    return ComputeRow(
        *where,
        whole("tokens"),
        None if working is None else round(working, 3),
        None if loading is None else round(loading, 3),
        whole(ANSWERS),
        total(cost.get(FLOPS) for _, cost in shards),
        {name.partition("/")[2]: sum(cost.get(name, 0) for _, cost in shards) for name in purposes},
        reference=reference,
    )


def _load_s(job: Job, cost: Mapping[str, float]) -> float | None:
    return cost["load_s"] * job.devices if "load_s" in cost else None


def _work_s(job: Job, cost: Mapping[str, float]) -> float | None:
    if "run_s" not in cost or "load_s" not in cost:
        return None
    return max(0.0, cost["run_s"] - cost["load_s"]) * job.devices


def write_compute(folder: Path, compute: Compute, makers: Iterable[Maker] = ()) -> None:
    """Write ``compute.json`` to the folder of a run: what was spent, and what the outputs were made with."""
    found = {**asdict(compute), "made_with": [asdict(maker) for maker in makers]}
    write_whole(folder / FILE, json_text(found, indent=1) + "\n")


def read_compute(folder: Path) -> Compute:
    """Read ``compute.json`` of a run; empty where it has none that can be used, as it is for people only."""
    path = folder / FILE
    try:
        return read_json_file(path, Compute, follow=True)
    except FileNotFoundError:
        return Compute()
    except (ForeignDataError, OSError) as error:
        log.warning("%s is passed over: %s", path, error)
        return Compute()
