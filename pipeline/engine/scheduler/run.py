"""State of one run that needs no look outside: what the rules read and change.

    an event, what the disk says about it, the time --> rules (no I/O) --> state changed, effects to be carried out

The rules are functions of `reactions` and `attempts`.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from pipeline.config.schema import BudgetConfig, ExecutionConfig, RetryConfig
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.outcome import Attempt, WorkerSpan
from pipeline.engine.scheduler.state import JobState, RunState
from pipeline.engine.workers.messages import FailureKind, RunJob

SPENT = "experiment.budget is spent"
"""Beginning of the reason for which a run ended that had a budget."""

# -- retry -------------------------------------------------------------------------------------------------------
# Judge a failed attempt: a pure rule.


MAX_DAMAGED_INPUTS = 5
"""Times a job may find an input damaged before chance is ruled out as the cause."""


@dataclass(frozen=True)
class Failure:
    """A failed attempt.

    Attributes:
        kind: Kind of the failure.
        message: One line on what was observed.
        traceback: Traceback of the job's own code, if there is one.
        exit_code: Exit code of its worker, if that ended; negative is a signal number.
        damaged_key: Key of the stored output that the job could not use, or "".
    """

    kind: FailureKind
    message: str
    traceback: str = ""
    exit_code: int | None = None
    damaged_key: str = ""


def judge(failure: Failure, count: int, settings: RetryConfig) -> tuple[str, float]:
    """Decide about a job whose attempt failed.

    Args:
        failure: The failed attempt.
        count: Number of the job's attempts that failed in this way, including this one.
        settings: Retry budgets.

    Returns:
        Why the job is given up, or "" for a retry; and the seconds to wait before the retry.
    """
    if failure.kind is FailureKind.bug:
        return failure.message, 0.0
    budget = {
        FailureKind.lost: settings.worker_lost,
        FailureKind.hang: settings.hang,
        FailureKind.out_of_memory: settings.out_of_memory,
        FailureKind.device: settings.device,
        FailureKind.transient: settings.transient,
        FailureKind.damaged_input: MAX_DAMAGED_INPUTS,
    }[failure.kind]
    if count < budget:
        longer = min(settings.max_wait_s, settings.wait_s * 2.0 ** min(count - 1, 64))
        return "", longer if failure.kind is FailureKind.transient else 0.0
    outcome = f"given up after {count} attempt{'s' if count != 1 else ''}"
    if failure.kind is FailureKind.lost and count > 1:
        outcome = f"set aside after it ended {count} workers"
    return f"{failure.message} ({outcome})", 0.0


# -- watchdog ----------------------------------------------------------------------------------------------------
# Detect workers that hang: no heartbeat, no progress, or too long at one job. Pure: it has no clock.


@dataclass
class _Watch:
    sent_s: float
    heard_s: float
    moved_s: float
    progress: tuple[int, int] = (0, 0)


class Watchdog:
    """Detects hanging workers among those that have a job."""

    def __init__(self, settings: ExecutionConfig) -> None:
        self._settings = settings
        self._watches: dict[int, _Watch] = {}
        self._earliest_s = math.inf
        """Time before which nothing is due: messages put it off, and only a new job brings it forward."""

    def began(self, worker: int, now_s: float) -> None:
        """Note that a worker was given a job."""
        watch = self._watches[worker] = _Watch(now_s, now_s, now_s)
        self._earliest_s = min(self._earliest_s, self._due_s(watch))

    def heard(self, worker: int, now_s: float) -> None:
        """Note a message from a worker."""
        if worker in self._watches:
            self._watches[worker].heard_s = now_s

    def moved(self, worker: int, now_s: float, done: int, tokens: int) -> None:
        """Note the progress of a worker's job; only a change counts as progress."""
        watch = self._watches.get(worker)
        if watch and (done, tokens) != watch.progress:
            watch.progress, watch.moved_s = (done, tokens), now_s

    def ended(self, worker: int) -> None:
        """Note that a worker's job is over."""
        self._watches.pop(worker, None)

    def overdue(self, now_s: float) -> dict[int, str]:
        """Return the workers that hang, each with the reason; each is returned once."""
        reasons: dict[int, str] = {}
        if now_s >= self._earliest_s:
            for worker, watch in list(self._watches.items()):
                reached = (f"{what} execution.{key}" for at_s, what, key in self._limits(watch) if now_s >= at_s)
                if reason := next(reached, ""):
                    reasons[worker] = reason
                    del self._watches[worker]
            self._earliest_s = min(map(self._due_s, self._watches.values()), default=math.inf)
        return reasons

    def next_s(self) -> float | None:
        """Return the earliest time at which a worker may be overdue; None if there is no limit."""
        return self._earliest_s if self._watches else None

    def _due_s(self, watch: _Watch) -> float:
        return min(at_s for at_s, _, _ in self._limits(watch))

    def _limits(self, watch: _Watch) -> Iterator[tuple[float, str, str]]:
        """Yield when a worker reaches each limit, what that means, and the name of the limit."""
        settings = self._settings
        if (limit := settings.job_timeout_s) is not None:
            yield watch.sent_s + limit, "took longer than", f"job_timeout_s={limit:g}"
        limit = settings.heartbeat_timeout_s
        yield watch.heard_s + limit, "no sign of life for", f"heartbeat_timeout_s={limit:g}"
        if (limit := settings.progress_timeout_s) is not None:
            yield watch.moved_s + limit, "no progress for", f"progress_timeout_s={limit:g}"


# -- effects -----------------------------------------------------------------------------------------------------
# Effects of a run outside of its own state, as plain data: the rules decide them, `loop.Outside` executes them in
# order. Every job makes several of them; frozen dataclasses would take ten times as long.


class Record(Struct, frozen=True):
    """Add an event to the journal, and then pass it to the listener. `Outside.settle` says when."""

    event: str
    fields: Mapping[str, Any]


class Tell(Struct, frozen=True):
    """Pass an event that is not written to the journal to the listener."""

    event: str
    fields: Mapping[str, Any]


class Say(Struct, frozen=True):
    """Write a line to the run's log."""

    text: str
    level: int


class Send(Struct, frozen=True):
    """Give a worker a job."""

    worker: int
    order: RunJob


class ProcessOrder(Struct, frozen=True):
    """Call the method of `Pool` with this name for the process of a worker."""

    action: Literal["restart", "dismiss", "abort", "stop_job", "open", "close"]
    worker: int


class ReleaseClaim(Struct, frozen=True):
    """Let other runs that share the store compute a job."""

    job_id: str


class GiveBack(Struct, frozen=True):
    """Let other runs have a device on which this run has no process any more."""

    device: int


class SetAside(Struct, frozen=True):
    """Move a damaged output out of the way, and keep it for inspection."""

    key: str
    problem: str


Effect = Record | Tell | Say | Send | ProcessOrder | ReleaseClaim | GiveBack | SetAside


class OnDisk(Struct, frozen=True, kw_only=True):
    """State of an output in the store, for a decision that depends on it.

    Attributes:
        claimed: Whether this run may compute it; False while another one does.
        stored: Whether the output is there.
        problem: Why it cannot be used, or "".
        maker: The job of this run that makes it, or "".
        missing: Finished jobs upstream of that job whose outputs are gone.
    """

    claimed: bool = True
    stored: bool = False
    problem: str = ""
    maker: str = ""
    missing: frozenset[str] = frozenset()


@dataclass(kw_only=True)
class Run:
    """One run.

    Attributes:
        state: State of its jobs and workers.
        settings: Budgets and limits.
        folder: Folder of its logs. All paths here are absolute.
        store: Path of the store.
        scratch: Path of unfinished outputs.
        verified: Path of the notes on which stored outputs were found intact.
        watchdog: Detects hanging workers.
        attempts: Every attempt, by the time of its end.
        spans: Every worker process that was started.
        present: Worker -> its latest span.
        delayed: Waiting job -> when it may go on.
        gathering: Jobs that have their devices, but wait until processes that hold device memory are replaced.
        renewed: Workers whose processes are being replaced on purpose, so that their end is no failure.
        emptied: Workers among them that hold device memory which others on the same device wait for.
        doomed: Worker -> why it is being killed. Its further messages are ignored.
        dropped: Workers that get no more jobs, whatever became of their earlier jobs.
        took_s: Entry and stage of jobs -> about the longest duration of recent ones.
        excused: Job -> number of attempts that ended through a foreign signal to the worker, or the loss of its
            machine.
        told_late: Workers and jobs of late messages, each reported once.
        asked: Workers that are to end their job, which leaves the plan, and then their process.
        leaving: Devices that are given back once no process of the run is on them.
        closing: Workers on them whose processes were asked to end.
        told_waiting: Jobs that were reported as being computed by another run.
        stopping: Whether workers are being ended.
        halted: Why no further job could succeed, or "".
        budget: What it may spend.
        spent_s: Device-seconds of the attempts that have ended.
        flops: FLOPs of finished jobs.
        spent: How much was spent when the budget ended, in words; "" before.
        now_s: Monotonic seconds at the event being handled.
        effects: Effects to execute for it, in this order.
    """

    state: RunState
    settings: ExecutionConfig
    folder: RunFolder
    store: str
    scratch: str
    verified: str
    watchdog: Watchdog = field(init=False)
    attempts: list[Attempt] = field(default_factory=list)
    spans: list[WorkerSpan] = field(default_factory=list)
    present: dict[int, WorkerSpan] = field(default_factory=dict)
    delayed: dict[str, float] = field(default_factory=dict)
    gathering: dict[str, None] = field(default_factory=dict)
    renewed: set[int] = field(default_factory=set)
    emptied: set[int] = field(default_factory=set)
    doomed: dict[int, Failure] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    took_s: dict[tuple[str, str], float] = field(default_factory=dict)
    excused: Counter[str] = field(default_factory=Counter)
    told_late: set[tuple[int, str]] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)
    closing: set[int] = field(default_factory=set)
    told_waiting: set[str] = field(default_factory=set)
    stopping: bool = False
    halted: str = ""
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    spent_s: float = 0.0
    flops: float = 0.0
    spent: str = ""
    now_s: float = 0.0
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watchdog = Watchdog(self.settings)

    # -- effects -----------------------------------------------------------------------------------------------

    def do(self, effect: Effect) -> None:
        """Add an effect to execute."""
        self.effects.append(effect)

    def record(self, event: str, **fields: object) -> None:
        """Add an event to the journal."""
        self.do(Record(event, fields))

    def tell(self, event: str, **fields: object) -> None:
        """Pass an event that is not written to the journal to the listener."""
        self.do(Tell(event, fields))

    def say(self, text: str, level: int = logging.WARNING) -> None:
        """Add a line to the run's log."""
        self.do(Say(text, level))

    def decided(self) -> list[Effect]:
        """Take out the effects to execute."""
        effects, self.effects = self.effects, []
        return effects

    # -- what rules share --------------------------------------------------------------------------------------

    def process_starts(self, index: int) -> None:
        """Note that a process starts for a worker."""
        self.state.workers[index].gone = False
        self.asked.discard(index)
        self.present[index] = WorkerSpan(worker=index, started_s=self.now_s)
        self.spans.append(self.present[index])
        self.tell("WorkerStarting", worker=index)

    def log_path(self, job_id: str, attempt: int) -> str:
        """Return the path of an attempt's log, as text: making path objects would take too long."""
        return f"{self.folder.path}/{self.log_name(job_id, attempt)}"

    def log_name(self, job_id: str, attempt: int) -> str:
        """Return the path of an attempt's log within the folder of the run."""
        return f"{self.folder.job_name(job_id)}/log.{f'{attempt}.' if attempt > 1 else ''}txt"

    def end_attempt(self, job_id: str, index: int, outcome: str, load_s: float = 0.0, flops: float = 0.0) -> None:
        """Record the end of an attempt, and release its workers.

        Args:
            job_id: The job.
            index: Index of the worker that had the job.
            outcome: Its outcome, for the account.
            load_s: Seconds of it spent loading.
            flops: FLOPs that it computed.
        """
        job = self.state.jobs[job_id]
        self.watchdog.ended(index)
        self.gathering.pop(job_id, None)
        if job.job.key:
            self.do(ReleaseClaim(job_id))
        span = self.present[index]
        is_first, span.used = not span.used and span.ready_s is not None, True
        attempt = Attempt(
            job_id=job_id,
            attempt=job.attempts,
            worker=index,
            devices=self.state.slots_of(job.job),
            sent_s=job.sent_s,
            ended_s=self.now_s,
            load_s=load_s,
            start_s=(span.ready_s or 0.0) - span.started_s if is_first else None,
            outcome=outcome,
            flops=flops,
        )
        self.flops += flops
        self.attempts.append(attempt)
        self.spent_s += attempt.total_s * job.job.devices

    # -- budget ------------------------------------------------------------------------------------------------

    def running(self) -> list[JobState]:
        """Return the jobs that workers have begun, or were sent."""
        assigned = (worker.job_id for worker in self.state.workers if worker.job_id and not worker.lent)
        return [self.state.jobs[job_id] for job_id in assigned if job_id not in self.gathering]

    def check_budget(self) -> None:
        """Note whether the budget is spent; then no job starts, and the run ends after those that run."""
        if self.budget and not self.spent:
            self.spent = self._over_budget()
            if self.spent:
                names = [job.job.id for job in self.running()]
                still = f"; may still end: {', '.join(names)}" if names else ""
                self.say(f"{SPENT}, {self.spent}: no further job starts{still}")
        if self.spent and not self.state.running:
            self.halted = self.halted or f"{SPENT}, {self._over_budget() or self.spent}"  # with what ended since

    def _over_budget(self) -> str:
        """Return what is spent of each limit that is reached; "" if none is."""
        spent_s = self.spent_s + sum((self.now_s - job.sent_s) * job.job.devices for job in self.running())
        used = {"device hours": spent_s / 3600, "FLOPs": self.flops}
        limits = {"device hours": self.budget.device_hours, "FLOPs": self.budget.flops}
        over = [name for name, limit in limits.items() if limit is not None and used[name] >= limit]
        return " and ".join(f"{used[name]:.3g} of {limits[name]:g} {name}" for name in over)
