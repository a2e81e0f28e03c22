"""What the view of a run is made of: its jobs and how many of them are where, their attempts, its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.engine.workers.messages import GpuLoad

SETTLED = frozenset({"done", "stored", "failed", "blocked"})
"""Statuses of a job that nothing more happens to in this run."""


@dataclass(kw_only=True)
class AttemptView:
    """One try at a job. Times are wall-clock seconds since 1970.

    Attributes:
        number: From 1.
        worker: Index of its worker.
        device: The worker's device in words.
        started: When the worker began it, or None where it did not come to that.
        ended: When it ended, or None while it runs.
        outcome: ``running``, ``done``, ``failed`` or ``stopped`` (by the end of the run).
        kind: Class of the failure, such as ``lost`` or ``bug``; else "".
        reason: The failure in words.
        exit_code: Of a worker that was lost.
        log: Path of its log in the run's folder, or "".
        traceback: Of an exception.
        retry: Whether the failure was followed by another attempt.
        wait_s: Seconds until that attempt might begin.
        run_s: Seconds that a finished attempt took, by the worker's clock.
        members: Workers that lend it their devices.
        done: Samples that are finished, as far as the engine tells while it runs.
        total: Samples that it has.
        tokens: Tokens so far.
        numbers: Of its present step, as ``loss``; None for one that is no finite number.
        loading: Whether it imports libraries or loads a model just now.
        read: Bytes of its inputs, where a run has several machines.
        moved: Those of them that its machine had neither made nor read before.
    """

    number: int
    worker: int = -1
    device: str = ""
    started: float | None = None
    ended: float | None = None
    outcome: str = "running"
    kind: str = ""
    reason: str = ""
    exit_code: int | None = None
    log: str = ""
    traceback: str = ""
    retry: bool = False
    wait_s: float = 0.0
    run_s: float = 0.0
    members: tuple[int, ...] = ()
    done: int = 0
    total: int = 0
    tokens: int = 0
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    loading: bool = False
    read: int = 0
    moved: int = 0

    @property
    def part(self) -> float:
        """How far it is, from 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    def elapsed_s(self, now: float) -> float:
        """Seconds between its begin and its end, or `now`."""
        if self.started is None:
            return 0.0
        return max(0.0, (now if self.ended is None else self.ended) - self.started)


@dataclass(kw_only=True)
class JobCounts:
    """How many jobs are in which state: those of a run, or of one chain in one round.

    Attributes:
        total: All of them.
        stored: Were in the store before they would have run.
        done: Were done in this run.
        running: Run now.
        failed: Failed.
        blocked: Cannot run because another one failed.
    """

    total: int = 0
    stored: int = 0
    done: int = 0
    running: int = 0
    failed: int = 0
    blocked: int = 0

    @property
    def there(self) -> int:
        """How many have an output."""
        return self.done + self.stored

    @property
    def given_up(self) -> int:
        """How many will have none."""
        return self.failed + self.blocked

    @property
    def left(self) -> int:
        """How many are still to be begun."""
        return self.total - self.there - self.given_up - self.running

    @property
    def settled(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.there + self.given_up == self.total

    def move(self, before: str, after: str) -> None:
        """One job comes from one state to another; what is in none of them is pending."""
        for status, change in ((before, -1), (after, 1)):
            if status != "pending":
                setattr(self, status, getattr(self, status) + change)

    def __add__(self, other: JobCounts) -> JobCounts:
        return JobCounts(**{name: number + getattr(other, name) for name, number in vars(self).items()})


@dataclass(kw_only=True)
class JobView:
    """Where a job stands.

    Attributes:
        id: Its id.
        chain: Its chain, or "" where there is no plan to know it from.
        round: Its round.
        status: ``pending``, ``running``, ``done``, ``stored``, ``failed`` or ``blocked``.
        attempts: In order.
        reason: Why it failed.
        kind: Class of that failure.
        root_cause: The failed job that blocks it, or "".
        waits: Why it waits although nothing that it reads is missing, or "".
        stopped: It was stopped with the run and goes on in the next.
        found_stored: Another run finished it meanwhile.
        reopened: Why it ran again in this run, each time that it did.
    """

    id: str
    chain: str = ""
    round: int = 0
    status: str = "pending"
    attempts: list[AttemptView] = field(default_factory=list)
    reason: str = ""
    kind: str = ""
    root_cause: str = ""
    waits: str = ""
    stopped: bool = False
    found_stored: bool = False
    reopened: list[str] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether nothing more happens to it in this run."""
        return self.status in SETTLED


@dataclass(kw_only=True)
class WorkerView:
    """One place in the pool.

    Attributes:
        index: Its number.
        device: Its device in words.
        pid: Of the process that is there now; 0 where there is none.
        job_id: The job that it runs, or "".
        lent_to: The job of another worker that has its device, or "".
        status: ``starting``, ``idle``, ``gone`` or ``quarantined``, whether or not it has a job.
        rss_bytes: Resident memory at the last heartbeat.
        gpu: Its GPU at the last heartbeat; None without one, or without a driver that tells.
        node: The machine that it is on, where a run has several.
    """

    index: int
    device: str = ""
    pid: int = 0
    job_id: str = ""
    lent_to: str = ""
    status: str = "idle"
    rss_bytes: int = 0
    gpu: GpuLoad | None = None
    node: str = ""

    @property
    def state(self) -> str:
        """Its status in one word; of one that is up, also ``running`` a job or ``lent`` to that of another."""
        if self.status != "idle":
            return self.status
        return "running" if self.job_id else "lent" if self.lent_to else "idle"


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """A device that is used no more.

    Attributes:
        worker: Index of the worker it belonged to.
        device: The device in words.
        reason: Why.
        jobs: Ids of the jobs that failed on it.
        time: When.
    """

    worker: int
    device: str
    reason: str
    jobs: tuple[str, ...]
    time: float
