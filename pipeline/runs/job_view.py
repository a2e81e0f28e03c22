"""What the view of a run is made of: its jobs, their attempts, its workers, devices that are used no more."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    def elapsed_s(self, now: float) -> float:
        """Seconds between its begin and its end, or `now`."""
        if self.started is None:
            return 0.0
        return max(0.0, (now if self.ended is None else self.ended) - self.started)


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
        pid: Of the process that is there now.
        job_id: The job that it runs, or "".
        status: ``ready``, ``gone`` or ``quarantined``.
    """

    index: int
    device: str = ""
    pid: int = 0
    job_id: str = ""
    status: str = "ready"


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
