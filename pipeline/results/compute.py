"""What results took to make, as the store remembers it: tokens, FLOPs and device time by chain and round.

Device time depends on the machine, and what a store remembers may be lost where its outputs are not, so none of
this is in ``results.json``; it goes to ``compute.json``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.plan.job import Job
from pipeline.results.makers import Maker
from pipeline.results.paths import json_text, write_whole
from pipeline.results.store import FLOPS, Store

FILE = "compute.json"
EVALUATION = ("evaluate", "metrics", "sweep")
"""Stages that measure and do not train."""
ANSWERING = ("decoding", "guidance")
"""What FLOPs of an evaluation go into answers, and not into measuring them."""
_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Flops = Annotated[float, Meta(ge=0, le=1e36)]

_Where = tuple[str, str, str, int | None, int, str]

log = logging.getLogger("pipeline")


@dataclass(frozen=True, order=True)
class ComputeRow:
    """What the stages of one round of a chain took.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference that the chain rests on; None where there is no such seed.
        algo: Algorithm, ``reference``, or ``dataset`` for its preparation.
        seed: Seed of the chain; None for work that all seeds share.
        round: Of the chain.
        stage: Of the round.
        tokens: Generated or trained on.
        device_s: Seconds that a device was held, loading included, without attempts that failed; a job on several
            devices holds all of them, and one that shares a device counts as if it did not.
        load_s: Seconds of them spent loading.
        samples: Completions that a stage was asked for, where it is split by prompts.
        flops: What was computed, see `models.flops`; None where a version that did not count made some of it.
        flops_by_purpose: The same by what they went into: ``decoding``, ``guidance``, ``scoring``, ``rewards``,
            ``training``.
    """

    dataset: str
    model: str
    reference: int | None = field(default=None, kw_only=True)
    algo: str
    seed: int | None
    round: int
    stage: str
    tokens: Annotated[int, Meta(ge=0, le=10**18)]
    device_s: _Amount
    load_s: _Amount
    samples: Annotated[int, Meta(ge=0, le=10**18)] = 0
    flops: _Flops | None = None
    flops_by_purpose: Mapping[str, _Flops] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    """A method at a training budget: after its last round whose training, all rounds before included, is within.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        algo: The method.
        budget: FLOPs that a chain may take.
        round: The round; None where the first one takes more.
        flops: What it has taken, the mean over the chains.
        metric: What methods are judged by.
        value: The result after that round.
        ci_low: Lower end of its interval.
        ci_high: Upper end.
        kl: Divergence from the reference in nats per sequence.
    """

    dataset: str
    model: str
    algo: str
    budget: _Flops
    round: int | None = None
    flops: _Flops | None = None
    metric: str = ""
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    kl: float | None = None


@dataclass(frozen=True, kw_only=True)
class Compute:
    """What ``compute.json`` says.

    Attributes:
        rows: Of stages.
        budgets: Of methods at training budgets.
    """

    rows: list[ComputeRow] = field(default_factory=list)
    budgets: list[BudgetRow] = field(default_factory=list)


def collect_compute(store: Store, jobs: Iterable[Job]) -> list[ComputeRow]:
    """Add up the shards of every stage whose outputs are stored."""
    found: dict[tuple[int | None, _Where], list[tuple[Job, Mapping[str, float]]]] = {}
    for job in jobs:
        cost = store.cost(job.key)
        if not cost or not store.has(job.key, checksums=False):
            continue  # an interrupted run
        where = (job.dataset, job.model, job.algo, job.seed, job.round, job.stage)
        found.setdefault((job.reference, where), []).append((job, cost))
    rows = [_row(where, reference, shards) for (reference, where), shards in found.items()]
    return sorted(rows, key=lambda row: tuple(str(value) for value in asdict(row).values()))


def of_training(rows: Iterable[ComputeRow], algo: str, number: int) -> tuple[list[ComputeRow], int]:
    """Rows of an algorithm up to a round, without those of evaluation, and how many chains they are of."""
    found = [row for row in rows if row.algo == algo and row.round <= number and row.stage not in EVALUATION]
    return found, len({(row.reference, row.seed) for row in found})


def to_train(rows: Iterable[ComputeRow], algo: str, number: int) -> float | None:
    """FLOPs of an algorithm up to a round without evaluation, the mean over its chains.

    Returns:
        None where some were not counted.
    """
    found, chains = of_training(rows, algo, number)
    counted = [row.flops for row in found if row.flops is not None]
    return sum(counted) / chains if chains and len(counted) == len(found) else None


def to_answer(rows: Iterable[ComputeRow]) -> float | None:
    """FLOPs of an answer, the mean over what was evaluated; None where they were not counted.

    What guides it or picks it counts, as do further completions that it is picked from; a prompt counts once for
    all of its samples.
    """
    evaluated = [row for row in rows if row.stage == "evaluate"]
    samples = sum(row.samples for row in evaluated)
    if not samples or any(row.flops is None for row in evaluated):
        return None
    return sum(row.flops_by_purpose.get(name, 0) for row in evaluated for name in ANSWERING) / samples


def _row(where: _Where, reference: int | None, shards: Sequence[tuple[Job, Mapping[str, float]]]) -> ComputeRow:
    def seconds(name: str) -> float:
        return round(sum(cost.get(name, 0) * job.devices for job, cost in shards), 3)

    purposes = sorted({name for _, cost in shards for name in cost if name.startswith(f"{FLOPS}/")})
    return ComputeRow(
        *where,
        int(sum(cost.get("tokens", 0) for _, cost in shards)),
        seconds("run_s"),
        seconds("load_s"),
        sum(job.samples for job, _ in shards),
        None if any(FLOPS not in cost for _, cost in shards) else sum(cost[FLOPS] for _, cost in shards),
        {name.partition("/")[2]: sum(cost.get(name, 0) for _, cost in shards) for name in purposes},
        reference=reference,
    )


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
