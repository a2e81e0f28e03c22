"""Where each job of a run stands, as plain data.

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


# No sets: the hash of a member is a function in Python.
THERE = (JobStatus.done, JobStatus.stored)
SETTLED = (JobStatus.done, JobStatus.stored, JobStatus.failed, JobStatus.blocked)


@dataclass
class JobState:
    """One job of the run.

    Attributes:
        job: The job.
        status: Where it stands.
        waits_for: Inputs that are not there yet.
        attempts: How many were begun.
        sent_s: When the last of them was given to its worker.
        failures: How many of them failed in each way.
        reason: Why it failed, or is blocked.
        root_cause: The failed job that blocks it, or "".
        workers: While it runs, its workers in the order of ranks; the first is given the job, the others lend
            their devices.
        exclusive: While it runs, whether it shares its device with no other job.
        limit_mb: While it runs beside others, MiB of its device that are set aside for it; else 0.
        must_be_exclusive: Whether its next attempt must have a device to itself, as memory ran out beside others.
        keep_models: Whether the worker that runs it may keep models of earlier jobs.
    """

    job: Job
    status: JobStatus = JobStatus.pending
    waits_for: int = 0
    attempts: int = 0
    sent_s: float = 0.0
    failures: Counter[FailureKind] = field(default_factory=Counter)
    reason: str = ""
    root_cause: str = ""
    workers: tuple[int, ...] = ()
    exclusive: bool = True
    limit_mb: int = 0
    must_be_exclusive: bool = False
    keep_models: bool = True
