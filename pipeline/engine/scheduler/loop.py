"""Carries out a plan. With the modules that it hands over to, the one with clocks and side effects; one thread.

                 plan, what is stored
                          |
                          v
    signals --.     +-----------+   next_actions (pure)    +------+  RunJob   +----------+
               '--> |   state   | -----------------------> | pool | --------> | worker 0 |--+
                    |           |                          |      | --------> | worker n |  | commit
                    +-----------+ <----- one wait -------- +------+ <-------- +----------+  v
                      |   |    JobFinished, JobRaised,          ^    messages          +---------+
                      |   |    JobProgress, WorkerExited        |                      |  store  |
                      |   |                                     +- sentinels           +---------+
                      |   '--> judge, Blame, Watchdog (pure): retry here or elsewhere, kill what hangs,
                      v        quarantine a device, or fail a job and block what depends on it
                 journal (on disk before the next action), run log, whoever watches

Nothing is polled: the wait ends when a pipe, a sentinel or a signal has something, or when a deadline is due.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from pipeline.config.schema import ExecutionConfig
from pipeline.engine.devices.layout import Layout, plain_layout
from pipeline.engine.events import Event
from pipeline.engine.journal import Journal
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.delayed import Later
from pipeline.engine.scheduler.dispatch import Dispatch
from pipeline.engine.scheduler.job_state import JobStatus
from pipeline.engine.scheduler.ledger import RunAccount
from pipeline.engine.scheduler.makespan import account
from pipeline.engine.scheduler.memory_needs import Needs
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.reactions import Reactions
from pipeline.engine.scheduler.recovery import Recovery
from pipeline.engine.scheduler.run_context import Parts
from pipeline.engine.scheduler.runnable import check_runnable
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.scheduler.watchdog import Watchdog
from pipeline.engine.store.os_errors import explained
from pipeline.engine.store.scratch import Scratch, lock_of
from pipeline.engine.store.store import Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.messages import (
    FromWorker,
    JobFinished,
    JobProgress,
    JobRaised,
    JobStarted,
    JobStopped,
)
from pipeline.engine.workers.pool import Pool
from pipeline.errors import PlanError
from pipeline.plan.graph import Plan

__all__ = ["Outcome", "run_plan"]

TICK_S = 0.2
_QUIET_TICK_S = 0.5


log = logging.getLogger("pipeline")


def run_plan(
    plan: Plan,
    *,
    stored: Collection[str],
    store: Store,
    pool: Pool,
    journal: Journal,
    run_dir: Path,
    settings: ExecutionConfig,
    verified: Verified | None = None,
    layout: Layout | None = None,
    peaks: Mapping[str, int] | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
    on_tick: Callable[[], None] = lambda: None,
    on_stop: Callable[[str], None] = lambda _: None,
    signals: StopSignals | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Carry out a plan. When this returns or raises, no worker lives and nothing unfinished is left.

    Args:
        plan: The plan.
        stored: Ids of the jobs that need not run.
        store: Where outputs go.
        pool: Not started yet.
        journal: Gets every change of state.
        run_dir: Folder of the run: logs of the jobs, links to their outputs.
        settings: Barrier, retries, models a worker keeps.
        verified: What was found good while planning; None where nothing was looked at.
        layout: On which devices the workers of the pool are; one on each if None.
        peaks: Memory that jobs took in earlier runs, by `Job.memory_kind`.
        on_event: Told every event, see `engine.events`.
        on_tick: Called a few times a second, to show what was told.
        on_stop: Told in a line what happens now when a signal asks the run to stop.
        signals: Those of the caller, who holds them longer than jobs run; one that came already ends the run.
        clock: Monotonic seconds.

    Raises:
        PlanError: The plan cannot be carried out by this engine.
        WorkerError: Workers cannot be started.
    """
    layout = layout or plain_layout(pool.size)
    assert layout.workers == pool.size
    check_runnable(plan, layout, stored, peaks)
    needs = Needs(layout, peaks)
    return _Run(
        plan,
        stored,
        store,
        pool,
        journal,
        run_dir,
        settings,
        on_event,
        on_tick,
        on_stop,
        signals or StopSignals(),
        verified,
        layout,
        needs,
        clock,
    ).run()


class _Run:
    """One run: the state, and what the events and the clock do to it."""

    def __init__(
        self,
        plan: Plan,
        stored: Collection[str],
        store: Store,
        pool: Pool,
        journal: Journal,
        run_dir: Path,
        settings: ExecutionConfig,
        on_event: Callable[[Event], None],
        on_tick: Callable[[], None],
        on_stop: Callable[[str], None],
        signals: StopSignals,
        verified: Verified | None,
        layout: Layout,
        needs: Needs,
        clock: Callable[[], float],
    ) -> None:
        self.state = RunState(
            plan,
            stored,
            pool.size,
            barrier=settings.barrier,
            models_in_memory=settings.models_in_memory,
            device_failures=settings.retry.device_failures,
            layout=layout,
            needs=needs,
        )
        self.account = RunAccount(journal, clock, on_event)
        self.watchdog, self.later = Watchdog(settings), Later()
        self.parts = Parts(
            plan=plan,
            state=self.state,
            store=store,
            pool=pool,
            layout=layout,
            folder=RunFolder(run_dir),
            settings=settings,
            account=self.account,
            watchdog=self.watchdog,
            later=self.later,
            clock=clock,
        )
        self.layout, self.needs = layout, needs
        self.plan, self.store, self.pool, self.clock = plan, store, pool, clock
        self.on_tick, self.on_stop = on_tick, on_stop
        # The process id keeps apart two runs that were started in the same second.
        self.scratch = Scratch(store.scratch(f"{run_dir.parent.name}-{run_dir.name}-{os.getpid()}"))
        self.verified = verified or Verified(store, self.scratch.path / "verified")
        recovery = Recovery(self.parts)
        self.dispatch = Dispatch(self.parts, recovery, self.scratch.path, self.verified)
        self.reactions = Reactions(self.parts, recovery, self.dispatch.handover)
        self.start_s = self.next_tick_s = clock()
        self.signals = signals
        self.told_stop = self.ended_since = False
        """Whether it was said what a signal means for the jobs that run; whether one has ended after it."""

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self.account.write(
            "RunStarted",
            jobs=len(self.plan.jobs),
            unsettled=self.state.unsettled,
            pid=os.getpid(),
            host=os.uname().nodename,
        )
        with self.signals.calling(self.pool.interrupt):
            try:
                self._start()
                self._carry_out()
            finally:
                self._stop()
        outcome = self._outcome()
        counts = {status.value: 0 for status in JobStatus}
        for status in outcome.jobs.values():
            counts[status.value] += 1
        self.account.write("RunFinished", interrupted=outcome.interrupted, halted=outcome.halted, **counts)
        return outcome

    def _start(self) -> None:
        try:
            self.scratch.open()
        except OSError as error:
            raise explained(f"could not make {self.scratch.path}", error) from error
        for index in range(self.pool.size):
            self.account.worker_started(index)
        self.pool.start()
        for folder in (self.scratch.path, self.verified.folder):
            self.pool.watch_path(folder)
            self.pool.watch_path(lock_of(folder))

    def _carry_out(self) -> None:
        while self.state.unsettled and not self.signals.received and not self._halt():
            self._release_due()
            self.dispatch.start_jobs()
            if not self.state.unsettled:
                break
            self._check_progress_possible()
            self._tick(self.next_tick_s)
            self.pool.wait(self._patience(), self._take, [self.signals.fileno()])
            self._kill_what_hangs()
        self._tick(0.0)

    def _stop(self) -> None:
        self.parts.stopping = True
        self._tell_stop()
        self.signals.drain()
        try:
            # A second Ctrl-C skips the gentle steps.
            self.pool.stop(self._take, hurry=[self.signals.fileno()])
        finally:
            self.scratch.close()

    def _tell_stop(self) -> None:
        """Say once what a signal that has come means for the jobs that run."""
        if not self.signals.received or self.told_stop:
            return
        self.told_stop = True
        running = [worker.job_id for worker in self.state.workers if worker.job_id]
        log.warning("%s: no further job is started; waiting for %s", self.signals.received, running or "none")
        grace_s = self.parts.settings.stop_grace_s
        self.on_stop(_stopping(self.signals.received, len(running), grace_s, ended=self.ended_since))

    def _halt(self) -> bool:
        self.parts.halted = self.parts.halted or self.account.broken
        return bool(self.parts.halted)

    def _release_due(self) -> None:
        for job_id in self.later.due(self.clock()):
            self.state.retry(job_id)

    def _check_progress_possible(self) -> None:
        if self.state.running or self.state.can_start or self.later:
            return
        if self.state.unsettled:
            waiting = next(job_id for job_id, job in self.state.jobs.items() if job.status is JobStatus.pending)
            raise PlanError(f"{waiting} and {self.state.unsettled - 1} more jobs wait for rounds that come later")

    def _patience(self) -> float:
        now = self.clock()
        dues = [self.next_tick_s + _QUIET_TICK_S - TICK_S]
        dues += [due for due in (self.later.next_s(), self.watchdog.next_s()) if due is not None]
        return max(0.0, min(dues) - now)

    def _tick(self, due_s: float) -> None:
        now = self.clock()
        if now >= due_s:
            self.next_tick_s = now + TICK_S
            self.on_tick()

    def _kill_what_hangs(self) -> None:
        for index, reason in self.watchdog.overdue(self.clock()).items():
            self.reactions.kill_hanging(index, reason)

    def _take(self, index: int, message: FromWorker) -> None:
        self.reactions.take(index, message)
        if isinstance(message, JobStarted | JobProgress):
            # A worker that is this very process lets the loop run only here.
            self._tick(self.next_tick_s)
            self._tell_stop()
        elif isinstance(message, JobFinished | JobRaised | JobStopped):
            self.ended_since |= self.signals.received is not None

    # -- bookkeeping -------------------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        states = self.state.jobs
        books = self.account
        # A signal that came when nothing was left to do has interrupted nothing.
        interrupted = self.signals.received if self.state.unsettled else None
        return Outcome(
            jobs={job_id: state.status for job_id, state in states.items()},
            reasons={job_id: state.reason for job_id, state in states.items() if state.reason},
            root_causes={job_id: state.root_cause for job_id, state in states.items() if state.root_cause},
            attempts=books.attempts,
            workers=books.spans,
            interrupted=interrupted,
            halted=self.parts.halted,
            makespan=account(
                self.plan, books.attempts, books.spans, self.pool.size, self.start_s, self.layout.slots
            ),
            peaks_mb=self.needs.seen,
        )


def _stopping(signal_name: str, running: int, grace_s: float, *, ended: bool) -> str:
    """What happens now, and what a user can do about it; `ended` where a job has ended since the signal came."""
    asked = "Ctrl-C" if signal_name == "SIGINT" else signal_name
    if not running:
        return f"stopping on {asked}: no job is running{' any more' if ended else ''}"
    jobs = "1 job" if running == 1 else f"{running} jobs"
    return f"stopping on {asked}: waiting up to {grace_s:g} s for {jobs} to finish or save; {asked} again ends now"
