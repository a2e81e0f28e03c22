"""What the modules that carry out a run share: the plan and its state, what they act on, and the books."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.schema import ExecutionConfig
from pipeline.engine.devices.layout import Layout
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.delayed import Later
from pipeline.engine.scheduler.ledger import RunAccount
from pipeline.engine.scheduler.makespan import Attempt
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.scheduler.watchdog import Watchdog
from pipeline.engine.store.store import Store
from pipeline.engine.workers.pool import Pool
from pipeline.locks import Claim
from pipeline.plan.graph import Plan


@dataclass(kw_only=True)
class Parts:
    """One run.

    Attributes:
        plan: Its jobs.
        state: Where they are.
        store: Where their outputs go.
        pool: Who works.
        layout: On which devices.
        folder: Of the run.
        settings: Budgets and limits.
        account: Its books.
        watchdog: Knows what hangs.
        later: Jobs that wait for a time.
        clock: Monotonic seconds.
        claims: Job -> the right to compute its key, which no other run that shares the store has meanwhile.
        gathering: Job that has its devices -> its attempt, until processes that hold their memory are replaced.
        stopping: Whether workers are being ended.
        halted: Why no further job could succeed, or "".
    """

    plan: Plan
    state: RunState
    store: Store
    pool: Pool
    layout: Layout
    folder: RunFolder
    settings: ExecutionConfig
    account: RunAccount
    watchdog: Watchdog
    later: Later
    clock: Callable[[], float]
    claims: dict[str, Claim] = field(default_factory=dict)
    gathering: dict[str, int] = field(default_factory=dict)
    stopping: bool = False
    halted: str = ""

    def log_path(self, job_id: str, attempt: int) -> Path:
        """The log of one attempt."""
        return self.folder.job(job_id).absolute() / ("log.txt" if attempt == 1 else f"log.{attempt}.txt")

    def end_attempt(self, job_id: str, index: int, outcome: str, load_s: float = 0.0) -> Attempt:
        """Close the books on an attempt, and let go of what it had.

        Args:
            job_id: The job.
            index: The worker that was given it.
            outcome: How it went, for the books.
            load_s: Of its time, how much went into loading.
        """
        self.watchdog.ended(index)
        self.gathering.pop(job_id, None)
        if job_id in self.claims:
            self.claims.pop(job_id).release()
        attempts, slots = self.state.jobs[job_id].attempts, self.state.slots_of(self.plan.jobs[job_id])
        return self.account.end_attempt(job_id, attempts, index, outcome, load_s, slots)
