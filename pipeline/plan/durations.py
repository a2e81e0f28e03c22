"""How long jobs took, what that says of jobs of another size, and a plan in few rows. Pure.

The size of a job is what it was estimated to take before anything was timed (`estimates`): its tokens or samples
times what one of them costs. So a measurement tells how wrong that estimate is for a kind of job, and one of a
small job tells little else than what beginning with it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from pipeline.plan.graph import WORKER_LOAD_S, Job, Plan

LONGEST_S = 1e7
_OVERHEAD_S = 0.5
"""What a job that took longer than its size spent on beginning and ending, at most, and else whatever its size."""
_TELLING_S = 5.0
"""Size of a job that tells as much of what work costs as is thought of it before."""
_FASTEST = 0.01
"""Least pace that is believed: a job may have found nothing to do."""
_SMALLEST_S = 1e-6
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]


@dataclass(frozen=True)
class Timed:
    """What a job took.

    Attributes:
        size_s: Its size, see above.
        took_s: Seconds, without loading.
    """

    size_s: Seconds
    took_s: Seconds

    def expected_s(self, size_s: float) -> float:
        """What a job of the same kind and another size takes.

        Work beyond what was measured costs what that cost, or the less was measured, what it was estimated to cost
        before. Work that is missing saves its part, of all but the overhead.
        """
        overhead_s = min(max(0.0, self.took_s - self.size_s), _OVERHEAD_S)
        if size_s < self.size_s:
            return overhead_s + (self.took_s - overhead_s) * size_s / self.size_s
        measured = max(_FASTEST, (self.took_s - overhead_s) / max(self.size_s, _SMALLEST_S))
        pace = measured ** (self.size_s / (self.size_s + _TELLING_S))
        return float(self.took_s + pace * (size_s - self.size_s))


@dataclass(frozen=True)
class Durations:
    """What earlier runs measured.

    Attributes:
        jobs: Kind of job -> what a typical one took.
        seconds: Seconds by name, of loading.
    """

    jobs: Mapping[str, Timed] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def knows(self, name: str) -> bool:
        """Whether a kind of job, or a loading, was timed."""
        return name in self.jobs or name in self.seconds

    def expected_s(self, kind: str, size_s: float) -> float:
        """What a job of a kind and size takes; its size where nothing was measured."""
        return self.jobs[kind].expected_s(size_s) if kind in self.jobs else size_s

    def updated(self, newer: Durations) -> Durations:
        """These, with newer ones in the place of those of the same name."""
        return Durations({**self.jobs, **newer.jobs}, {**self.seconds, **newer.seconds})


def typical(timed: Sequence[Timed]) -> Timed:
    """The one of median pace, since the first job of a kind takes longer, among the large ones."""
    least_s = max(each.size_s for each in timed) / 2
    large = [each for each in timed if each.size_s >= least_s]
    return sorted(large, key=lambda each: each.took_s / max(each.size_s, _SMALLEST_S))[(len(large) - 1) // 2]


# -- summary -----------------------------------------------------------------------------------------------------
# A plan in few rows, for people: jobs by round, chain and stage, and how many are stored already.


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """The jobs of one stage of one round of a chain.

    Attributes:
        round: 0 for the reference.
        chain: ``dataset/model/seed/algorithm``.
        stage: Name of the stage.
        jobs: How many jobs it has.
        missing: How many of them must run.
        samples: Samples over all of its jobs.
        seconds: Estimated seconds of those that must run, one after the other.
        devices: Devices that each of them takes at once.
    """

    round: int
    chain: str
    stage: str
    jobs: int
    missing: int
    samples: int
    seconds: float
    devices: int = 1


def summarize(plan: Plan, missing: Collection[str]) -> list[PlanRow]:
    """Group a plan's jobs, in plan order within each round.

    Args:
        plan: The plan.
        missing: Ids of the jobs that must run.
    """
    waiting = set(missing)
    grouped: dict[tuple[int, str, str], list[str]] = {}
    for number, jobs in plan.rounds().items():
        for job in jobs:
            grouped.setdefault((number, job.chain, job.stage), []).append(job.id)
    return [
        PlanRow(
            round=number,
            chain=chain,
            stage=stage,
            jobs=len(ids),
            missing=sum(job_id in waiting for job_id in ids),
            samples=sum(plan.jobs[job_id].samples for job_id in ids),
            seconds=sum(plan.jobs[job_id].seconds for job_id in ids if job_id in waiting),
            devices=plan.jobs[ids[0]].devices,
        )
        for (number, chain, stage), ids in grouped.items()
    ]


WORKER_LOAD = "load: worker"
"""Under which name it is remembered what a worker takes until its first job can begin: start, imports, a model."""


def load_name(job: Job) -> str:
    """Under which name it is remembered what each later job of a model takes to load."""
    return f"load: {job.model}"


def estimated_load(plan: Plan, missing: Collection[str], workers: int, seconds: Mapping[str, float]) -> float:
    """Seconds that each worker spends on loading.

    Args:
        plan: The plan.
        missing: Ids of the jobs that must run.
        workers: How many there are.
        seconds: Measured, by the names above; a model of which nothing was measured counts nothing.
    """
    if not missing:
        return 0.0
    jobs = [plan.jobs[job_id] for job_id in missing]
    every_s = sum(seconds.get(load_name(job), 0.0) * job.devices for job in jobs)
    return seconds.get(WORKER_LOAD, WORKER_LOAD_S) + every_s / workers


def estimated_makespan(plan: Plan, missing: Collection[str], devices: int) -> float:
    """Seconds that the missing jobs take at best, without loading.

    The longest path, the work per device, or the jobs that cannot run at once since each needs more than half of
    the devices, whichever is more.
    """
    if not missing:
        return 0.0
    waiting = set(missing)
    seconds = {job.id: job.seconds if job.id in waiting else 0.0 for job in plan.jobs.values()}
    work_s = sum(seconds[job.id] * job.devices for job in plan.jobs.values())
    alone_s = sum(seconds[job.id] for job in plan.jobs.values() if 2 * job.devices > devices > 1)
    return max(max(plan.longest_paths(seconds).values()), work_s / devices, alone_s)
