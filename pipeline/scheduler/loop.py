"""Carries out a plan. The only module of the scheduler with clocks and side effects; one thread.

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
                      |   '--> judge (pure): retry, or fail and block what depends on it
                      v
                 journal (on disk before the next action), run log, snapshots

Nothing is polled: the wait ends when a pipe, a sentinel or a signal has something, or when a snapshot is due.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from pipeline.config.schema import ExecutionConfig
from pipeline.errors import PlanError, describe_exit
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job
from pipeline.results.journal import Journal
from pipeline.results.paths import RunFolder
from pipeline.results.status import RunStatus
from pipeline.results.store import Store
from pipeline.scheduler.makespan import Attempt, WorkerSpan, account
from pipeline.scheduler.outcome import Outcome
from pipeline.scheduler.policy import next_actions
from pipeline.scheduler.retry import Failure, FailureKind, judge
from pipeline.scheduler.signals import StopSignals
from pipeline.scheduler.snapshot import Observer
from pipeline.scheduler.state import JobStatus, RunState, check_runnable
from pipeline.workers.messages import (
    FromWorker,
    Heartbeat,
    JobFinished,
    JobProgress,
    JobRaised,
    JobStarted,
    RunJob,
    WorkerExited,
    WorkerReady,
)
from pipeline.workers.pool import Pool

__all__ = ["Outcome", "run_plan"]

STATUS_INTERVAL_S = 0.2
_QUIET_INTERVAL_S = 0.5

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
    on_status: Callable[[RunStatus], None],
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
        on_status: Gets a snapshot a few times a second.
        clock: Monotonic seconds.

    Raises:
        PlanError: The plan cannot be carried out by this engine.
        WorkerError: Workers cannot be started.
    """
    check_runnable(plan)
    return _Run(plan, stored, store, pool, journal, run_dir, settings, on_status, clock).run()


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
        on_status: Callable[[RunStatus], None],
        clock: Callable[[], float],
    ) -> None:
        self.state = RunState(
            plan,
            stored,
            pool.size,
            barrier=settings.barrier,
            models_in_memory=settings.models_in_memory,
        )
        self.plan, self.store, self.pool, self.journal = plan, store, pool, journal
        self.folder = RunFolder(run_dir)
        self.settings, self.clock = settings, clock
        self.observer, self.on_status = Observer(self.state), on_status
        # The process id keeps apart two runs that were started in the same second.
        self.scratch = store.scratch(f"{run_dir.parent.name}-{run_dir.name}-{os.getpid()}")
        self.attempts: list[Attempt] = []
        self.spans: list[WorkerSpan] = []
        self.sent_s: dict[int, float] = {}
        self.start_s = self.next_status_s = clock()
        self.signals = StopSignals(pool.interrupt)
        self.stopping = False

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self.journal.write("RunStarted", jobs=len(self.plan.jobs), unsettled=self.state.unsettled)
        with self.signals:
            try:
                self._start()
                self._carry_out()
            finally:
                self._stop()
        outcome = self._outcome()
        counts = {status.value: 0 for status in JobStatus}
        for status in outcome.jobs.values():
            counts[status.value] += 1
        self.journal.write("RunFinished", interrupted=outcome.interrupted, **counts)
        return outcome

    def _start(self) -> None:
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.spans = [WorkerSpan(worker=index, started_s=self.clock()) for index in range(self.pool.size)]
        self.pool.start()
        self.pool.watch_folder(self.scratch)

    def _carry_out(self) -> None:
        while self.state.unsettled and not self.signals.received:
            self._dispatch()
            self._check_progress_possible()
            self._show(self.next_status_s)
            self.pool.wait(self._patience(), self._take, [self.signals.fileno()])
        self._show(0.0)

    def _stop(self) -> None:
        self.stopping = True
        if self.signals.received:
            log.warning("%s: stopping the workers", self.signals.received)
        self.signals.drain()
        try:
            # A second Ctrl-C skips the gentle steps.
            self.pool.stop(self._take, hurry=[self.signals.fileno()])
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _dispatch(self) -> None:
        for action in next_actions(self.state):
            job = self.plan.jobs[action.job_id]
            attempt = self.state.start(job.id, action.worker)
            self.sent_s[action.worker] = self.clock()
            self.pool.send(action.worker, self._order(job, attempt))

    def _order(self, job: Job, attempt: int) -> RunJob:
        return RunJob(
            job_id=job.id,
            attempt=attempt,
            key=job.key,
            entry=job.entry,
            payload=job.payload,
            inputs={name: list(keys) for name, keys in job.inputs.items()},
            store=str(self.store.root.absolute()),
            scratch=str(self.scratch.absolute()),
            log_path=str(self._log_path(job.id, attempt)),
        )

    def _log_path(self, job_id: str, attempt: int) -> Path:
        return self.folder.job(job_id).absolute() / ("log.txt" if attempt == 1 else f"log.{attempt}.txt")

    def _check_progress_possible(self) -> None:
        if self.state.running or self.state.ready:
            return
        if self.state.unsettled:
            waiting = next(job_id for job_id, job in self.state.jobs.items() if job.status is JobStatus.pending)
            raise PlanError(f"{waiting} and {self.state.unsettled - 1} more jobs wait for rounds that come later")

    def _patience(self) -> float:
        return max(0.0, self.next_status_s - self.clock() + _QUIET_INTERVAL_S - STATUS_INTERVAL_S)

    def _show(self, due_s: float) -> None:
        now = self.clock()
        if now >= due_s:
            self.next_status_s = now + STATUS_INTERVAL_S
            running_s = {
                worker.index: now - self.sent_s[worker.index] for worker in self.state.workers if worker.job_id
            }
            self.on_status(self.observer.snapshot(now - self.start_s, running_s))

    # -- events ------------------------------------------------------------------------------------------------

    def _take(self, index: int, message: FromWorker) -> None:
        match message:
            case WorkerReady():
                self._worker_ready(index, message)
            case WorkerExited():
                self._worker_exited(index, message)
            case Heartbeat():
                self.state.workers[index].rss_bytes = message.rss_bytes
            case _ if not self.state.is_current(index, message.job_id, message.attempt):
                log.warning("worker %d: late %s of %s", index, type(message).__name__, message.job_id)
            case JobStarted():
                fields = {"job": message.job_id, "attempt": message.attempt, "worker": index}
                self.journal.write("JobStarted", **fields)
            case JobProgress():
                worker = self.state.workers[index]
                worker.done, worker.total, worker.tokens = message.done, message.total, message.tokens
            case JobFinished():
                self._job_finished(index, message)
            case JobRaised():
                self._job_raised(index, message)
        if isinstance(message, JobStarted | JobProgress):
            # A worker that is this very process lets the loop run only here.
            self._show(self.next_status_s)

    def _worker_ready(self, index: int, message: WorkerReady) -> None:
        self.spans[self._span(index)] = replace(self.spans[self._span(index)], ready_s=self.clock())
        self.state.worker_ready(index, message.device)
        log.info("worker %d: %s, pid %d", index, message.device, message.pid)
        self.journal.write("WorkerStarted", worker=index, pid=message.pid, device=message.device)

    def _worker_exited(self, index: int, message: WorkerExited) -> None:
        now = self.clock()
        self.spans[self._span(index)] = replace(self.spans[self._span(index)], ended_s=now)
        job_id = self.state.worker_lost(index)
        self.journal.write("WorkerExited", worker=index, exit_code=message.exit_code)
        if job_id:
            self._end_attempt(job_id, index, "stopped" if self.stopping else "lost")
        if self.stopping:
            if job_id:
                self.state.retry(job_id)
            return
        self.spans.append(WorkerSpan(worker=index, started_s=now))
        self.state.workers[index].status = "starting"
        how = f"worker {index} was lost ({describe_exit(message.exit_code)})"
        log.warning("%s%s", how, f" while it ran {job_id}" if job_id else "")
        if job_id:
            self._failed(job_id, index, Failure(FailureKind.lost, how))

    def _job_finished(self, index: int, message: JobFinished) -> None:
        attempt = self._end_attempt(message.job_id, index, "done", message.load_s)
        self.observer.measured(self.plan.jobs[message.job_id].seconds, attempt.total_s)
        self.journal.write(
            "JobFinished",
            job=message.job_id,
            attempt=message.attempt,
            worker=index,
            load_s=message.load_s,
            run_s=message.run_s,
            samples=message.samples,
            tokens=message.tokens,
        )
        self.state.finished(index, message.samples, message.tokens)

    def _job_raised(self, index: int, message: JobRaised) -> None:
        self._end_attempt(message.job_id, index, "raised")
        job_id = self.state.raised(index)
        first_line = (message.message.strip().splitlines() or [""])[0]
        what = f"{message.error_type}: {first_line}" if first_line else message.error_type
        self._failed(job_id, index, Failure(FailureKind.raised, what), message.traceback)

    def _failed(self, job_id: str, index: int, failure: Failure, traceback: str = "") -> None:
        attempt = self.state.jobs[job_id].attempts
        about = {"job": job_id, "attempt": attempt, "worker": index, "reason": failure.message}
        verdict = judge(failure, attempt, self.settings.retry.max_attempts)
        if verdict.retry:
            log.warning("%s: attempt %d failed, trying again: %s", job_id, attempt, failure.message)
            self.journal.write("JobRetried", **about, kind=failure.kind.value)
            self.state.retry(job_id)
            return
        log.error("%s failed: %s (log: %s)", job_id, verdict.reason, self._log_path(job_id, attempt))
        self.journal.write("JobFailed", **about, kind=failure.kind.value, traceback=traceback)
        for blocked in self.state.fail(job_id, verdict.reason):
            log.warning("%s is blocked by %s", blocked, job_id)
            self.journal.write("JobBlocked", job=blocked, root_cause=job_id)

    # -- bookkeeping -------------------------------------------------------------------------------------------

    def _end_attempt(self, job_id: str, index: int, outcome: str, load_s: float = 0.0) -> Attempt:
        attempt = Attempt(
            job_id=job_id,
            attempt=self.state.jobs[job_id].attempts,
            worker=index,
            sent_s=self.sent_s[index],
            ended_s=self.clock(),
            load_s=load_s,
            outcome=outcome,
        )
        self.attempts.append(attempt)
        return attempt

    def _span(self, index: int) -> int:
        """Where in `spans` the worker is that is in this place now."""
        return next(at for at in range(len(self.spans) - 1, -1, -1) if self.spans[at].worker == index)

    def _outcome(self) -> Outcome:
        states = self.state.jobs
        # A signal that came when nothing was left to do has interrupted nothing.
        interrupted = self.signals.received if self.state.unsettled else None
        return Outcome(
            jobs={job_id: state.status for job_id, state in states.items()},
            reasons={job_id: state.reason for job_id, state in states.items() if state.reason},
            root_causes={job_id: state.root_cause for job_id, state in states.items() if state.root_cause},
            attempts=self.attempts,
            workers=self.spans,
            interrupted=interrupted,
            makespan=account(self.plan, self.attempts, self.spans, self.pool.size, self.start_s),
        )
