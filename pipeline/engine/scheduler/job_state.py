"""Where each job and each worker of a run stands, as plain data.

pending -> ready -> running -> done -----.
|        ^ |        |-----> failed    |
|        | |        |                 |
|        '-|--------'                 |   a failed attempt that is retried
|          '-> stored                 |   there before the run, or made by another run meanwhile
'-> blocked      |                    |   something it reads has failed
^----------------'--------------------'   its output was found damaged
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from pipeline.engine.workers.failure import FailureKind
from pipeline.plan.job import Job


class JobStatus(Enum):
    """Where a job stands."""

    pending = "pending"
    ready = "ready"
    running = "running"
    done = "done"
    stored = "stored"
    failed = "failed"
    blocked = "blocked"


THERE = frozenset({JobStatus.done, JobStatus.stored})
SETTLED = frozenset({JobStatus.done, JobStatus.stored, JobStatus.failed, JobStatus.blocked})


@dataclass
class JobState:
    """One job of the run.

    Attributes:
        job: The job.
        status: Where it stands.
        waits_for: Inputs that are not there yet.
        attempts: How many were begun.
        failures: How many of them failed in each way.
        reason: Why it failed, or is blocked.
        root_cause: The failed job that blocks it, or "".
        workers: While it runs, its workers in the order of ranks; the first is given the job, the others lend
            their devices.
        whole: While it runs, whether it shares its device with no other job.
        alone: Whether its next attempt must have a device to itself, since memory ran out beside others.
        keep_models: Whether the worker that runs it may keep models of earlier jobs.
    """

    job: Job
    status: JobStatus = JobStatus.pending
    waits_for: int = 0
    attempts: int = 0
    failures: Counter[FailureKind] = field(default_factory=Counter)
    reason: str = ""
    root_cause: str = ""
    workers: tuple[int, ...] = ()
    whole: bool = True
    alone: bool = False
    keep_models: bool = True


@dataclass
class WorkerState:
    """One place in the pool and what it does.

    Attributes:
        index: Number of the worker.
        device: Its device in words.
        status: ``starting``, ``idle``, ``running``, ``parked``, ``gone`` or ``quarantined``.
        job_id: The job that it runs, or for which it is parked: its device is lent to that job; or "".
        started_s: When that job was given to it.
        up: Whether there is a process that could take a job.
        begun: Whether it has said that the code of its job runs.
        fresh: Whether that process has run no job, and so holds no memory of its device.
        visible: What the process was given as CUDA_VISIBLE_DEVICES.
        holds: Affinity keys whose models it has in memory, the one used last at the end.
        rss_bytes: Resident memory at the last heartbeat.
        held_mb: Memory of its device that it holds between jobs, where others share the device.
    """

    index: int
    device: str = ""
    status: str = "starting"
    job_id: str = ""
    started_s: float = 0.0
    up: bool = False
    begun: bool = False
    fresh: bool = False
    visible: str = ""
    holds: list[str] = field(default_factory=list)
    rss_bytes: int = 0
    held_mb: int = 0

    def keeps_models(self, affinity: str, *, shared: bool) -> bool:
        """Whether it may keep models in its memory for a job.

        On a device that it shares with other workers, only if the job works with the same: what one holds for
        later, the others lack now.
        """
        return not shared or (affinity != "" and self.holds == [affinity])

    def remember(self, affinity: str, most: int, *, shared: bool) -> None:
        """Note which models it has in memory now: those of its last jobs, or on a shared device of this one."""
        if shared:
            self.holds = [affinity] if affinity else []
        elif affinity:
            others = [held for held in self.holds if held != affinity]
            self.holds = [*others, affinity][-most:]
