"""One run, as far as it can be told without looking outside: what the deciding modules read and change.

    an event, what the disk says about it, the time --> rules (pure) --> state changed, effects to be carried out

The rules are functions of `dispatch`, `ahead`, `reactions`, `recovery` and `worker_replacement`.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from pipeline.config.schema import ExecutionConfig
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.effects import Effect, Record, ReleaseClaim, Say, Tell
from pipeline.engine.scheduler.ledger import Ledger
from pipeline.engine.scheduler.makespan import Attempt
from pipeline.engine.scheduler.retry import Failure
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.scheduler.watchdog import Watchdog


@dataclass(kw_only=True)
class Run:
    """One run.

    Attributes:
        state: Its jobs and workers.
        settings: Budgets and limits.
        folder: Where its logs go. This and the other paths are absolute.
        store: Where outputs go.
        scratch: Where unfinished ones are.
        verified: Notes on which stored outputs were found good.
        watchdog: Knows what hangs.
        ledger: Attempts and lives of workers.
        delayed: Job that waits -> when it may go on.
        gathering: Jobs that have their devices, until processes that hold their memory are replaced.
        renewed: Workers whose processes are being replaced on purpose: their end is no loss.
        emptied: Those of them whose end others on the same device wait for, since they hold memory of it.
        doomed: Worker -> why it is being killed. What it still says no longer counts.
        unusable: Workers that cannot even be started.
        closed: Workers that have been ended for good, as their devices are given no more jobs.
        stops: Job -> attempts that ended since someone asked its worker to stop, and not the engine.
        nodes_lost: Job -> machines that were lost while they ran it.
        took_s: Kind of job -> seconds that its last ones took at most, see `ahead`.
        told_late: Worker and job of which it has spoken late: told once.
        told_waiting: Job that another run was found computing -> what was said of that.
        stopping: Whether workers are being ended.
        halted: Why no further job could succeed, or "".
        now_s: Monotonic seconds at the event that is decided about.
        effects: What is to be carried out for it, in this order.
    """

    state: RunState
    settings: ExecutionConfig
    folder: RunFolder
    store: str
    scratch: str
    verified: str
    watchdog: Watchdog = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    delayed: dict[str, float] = field(default_factory=dict)
    gathering: dict[str, None] = field(default_factory=dict)
    renewed: set[int] = field(default_factory=set)
    emptied: set[int] = field(default_factory=set)
    doomed: dict[int, Failure] = field(default_factory=dict)
    unusable: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    stops: Counter[str] = field(default_factory=Counter)
    nodes_lost: Counter[str] = field(default_factory=Counter)
    took_s: dict[tuple[str, str, str], float] = field(default_factory=dict)
    told_late: set[tuple[int, str]] = field(default_factory=set)
    told_waiting: dict[str, str] = field(default_factory=dict)
    stopping: bool = False
    halted: str = ""
    now_s: float = 0.0
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watchdog = Watchdog(self.settings)

    # -- effects -----------------------------------------------------------------------------------------------

    def do(self, effect: Effect) -> None:
        """Have something done outside."""
        self.effects.append(effect)

    def record(self, event: str, **fields: object) -> None:
        """Have an event in the journal."""
        self.do(Record(event, fields))

    def tell(self, event: str, **fields: object) -> None:
        """Have an event told that has no place in the journal."""
        self.do(Tell(event, fields))

    def say(self, text: str, level: int = logging.WARNING) -> None:
        """Have a line in the run's log."""
        self.do(Say(text, level))

    def decided(self) -> list[Effect]:
        """Take out what is to be carried out."""
        effects, self.effects = self.effects, []
        return effects

    # -- what rules share --------------------------------------------------------------------------------------

    def process_starts(self, index: int) -> None:
        """A process begins in the place of a worker."""
        self.state.workers[index].gone = False
        self.ledger.worker_started(index, self.now_s)
        self.tell("WorkerStarting", worker=index)

    def log_path(self, job_id: str, attempt: int) -> str:
        """The log of one attempt. A text, as orders have it: making paths takes longer than all the rest."""
        return f"{self.folder.path}/{self.log_name(job_id, attempt)}"

    def log_name(self, job_id: str, attempt: int) -> str:
        """The same within the folder of the run."""
        return f"{self.folder.job_name(job_id)}/log.{f'{attempt}.' if attempt > 1 else ''}txt"

    def end_attempt(self, job_id: str, index: int, outcome: str, load_s: float = 0.0) -> Attempt:
        """Close the books on an attempt, and let go of what it had.

        Args:
            job_id: The job.
            index: The worker that was given it.
            outcome: How it went, for the books.
            load_s: Of its time, how much went into loading.
        """
        job = self.state.jobs[job_id]
        self.watchdog.ended(index)
        self.gathering.pop(job_id, None)
        if job.job.key:
            self.do(ReleaseClaim(job_id))
        attempt = Attempt(
            job_id=job_id,
            attempt=job.attempts,
            worker=index,
            devices=self.state.slots_of(job.job),
            sent_s=job.sent_s,
            ended_s=self.now_s,
            load_s=load_s,
            outcome=outcome,
        )
        self.ledger.attempts.append(attempt)
        return attempt
