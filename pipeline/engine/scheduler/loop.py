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
                      |   '--> judge, Blame, Watchdog (pure): retry here or elsewhere, kill what hangs,
                      v        quarantine a device, or fail a job and block what depends on it
                 journal (on disk before the next action), run log, snapshots

Nothing is polled: the wait ends when a pipe, a sentinel or a signal has something, or when a deadline is due.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from pipeline.config.schema import ExecutionConfig
from pipeline.engine.devices.layout import Layout, plain_layout
from pipeline.engine.journal import Journal
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.delayed import Later
from pipeline.engine.scheduler.hearing import objection
from pipeline.engine.scheduler.ledger import RunAccount
from pipeline.engine.scheduler.makespan import account
from pipeline.engine.scheduler.memory_needs import Needs
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.policy import Reserve, next_actions
from pipeline.engine.scheduler.recovery import Recovery
from pipeline.engine.scheduler.retry import Failure
from pipeline.engine.scheduler.run_context import Parts
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.scheduler.snapshot import Observer
from pipeline.engine.scheduler.state import JobStatus, RunState, check_runnable, too_few_devices
from pipeline.engine.scheduler.watchdog import Watchdog
from pipeline.engine.scheduler.worker_replacement import Handover
from pipeline.engine.status import RunStatus
from pipeline.engine.store.os_errors import explained
from pipeline.engine.store.scratch import Scratch, lock_of
from pipeline.engine.store.store import NOT_STORED, Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.failure import NEEDS_FRESH_WORKER, FailureKind
from pipeline.engine.workers.messages import (
    FromWorker,
    Heartbeat,
    JobFinished,
    JobProgress,
    JobRaised,
    JobStarted,
    JobStopped,
    Report,
    RunJob,
    WorkerExited,
    WorkerReady,
    WorkerUnreadable,
    WorkerUnusable,
)
from pipeline.engine.workers.pool import Pool
from pipeline.errors import PlanError, describe_exit
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job

__all__ = ["Outcome", "run_plan"]

STATUS_INTERVAL_S = 0.2
_QUIET_INTERVAL_S = 0.5
_OTHER_RUN_S = 1.0
"""How often to look whether another run is done with a job; a lock on a file cannot be waited on with the rest."""

_MAX_REASON = 1_000
"""Characters of an exception's first line; all of it is in the job's log."""
_MAX_STOPS = 3
"""How often an attempt may end for a signal that its worker has had from elsewhere, and cost its job nothing."""

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
    verified: Verified | None = None,
    layout: Layout | None = None,
    peaks: Mapping[str, int] | None = None,
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
        on_status: Gets a snapshot a few times a second.
        verified: What was found good while planning; None where nothing was looked at.
        layout: On which devices the workers of the pool are; one on each if None.
        peaks: Memory that jobs took in earlier runs, by `Job.memory_kind`.
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
        on_status,
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
        on_status: Callable[[RunStatus], None],
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
        self.account = RunAccount(journal, clock)
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
        self.recovery, self.handover = Recovery(self.parts), Handover(self.parts, self._send)
        self.layout, self.needs = layout, needs
        self.plan, self.store, self.pool, self.clock = plan, store, pool, clock
        self.observer, self.on_status, self.on_stop = Observer(self.state), on_status, on_stop
        # The process id keeps apart two runs that were started in the same second.
        self.scratch = Scratch(store.scratch(f"{run_dir.parent.name}-{run_dir.name}-{os.getpid()}"))
        self.verified = verified or Verified(store, self.scratch.path / "verified")
        self.doomed: dict[int, Failure] = {}
        """Worker -> why it is being killed. What it still says no longer counts."""
        self.told_late: set[tuple[int, str]] = set()
        """Worker and job of which it has spoken late: told once."""
        self.stops: Counter[str] = Counter()
        """Job -> attempts that ended since someone asked its worker to stop, and not the engine."""
        self.waiting: set[str] = set()
        """Jobs that another run was found computing."""
        self.start_s = self.next_status_s = clock()
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
            self._dispatch()
            if not self.state.unsettled:
                break
            self._check_progress_possible()
            self._show(self.next_status_s)
            self.pool.wait(self._patience(), self._take, [self.signals.fileno()])
            self._kill_what_hangs()
        self._show(0.0)

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

    def _dispatch(self) -> None:
        for job_id in self.state.too_wide():
            usable = self.state.usable_devices()
            said = too_few_devices(self.plan.jobs[job_id], usable, self.layout, self.needs)
            failure = Failure(FailureKind.device, said)
            self.state.wait(job_id)
            self.recovery.give_up(job_id, failure, failure.message)
        # A job may turn out to need no worker, which leaves one idle for the next.
        while actions := next_actions(self.state, self.clock()):
            for action in actions:
                if isinstance(action, Reserve):
                    # Where devices are shared this is said of every job that waits for another to end.
                    level = logging.INFO if self.plan.jobs[action.job_id].devices > 1 else logging.DEBUG
                    log.log(level, "%s: the next free devices are kept for it", action.job_id)
                    self.state.reserve(action.job_id)
                    continue
                job = self.plan.jobs[action.job_id]
                if not job.key or (self._claim(job) and not self._is_there(job)):
                    attempt = self.state.start(job.id, action.worker, action.members, self.clock())
                    self.handover.gather(job, attempt, action.emptied)

    def _send(self, job: Job, attempt: int) -> None:
        workers = self.state.jobs[job.id].workers
        for worker in workers:
            self.account.sent(worker)
        self.watchdog.began(workers[0], self.clock())
        self.pool.send(workers[0], self._order(job, attempt))

    def _claim(self, job: Job) -> bool:
        """Claim the job's key, or have the job wait while another run that shares the store computes it."""
        claim = self.store.claim(job.key)
        if claim is not None:
            self.parts.claims[job.id] = claim
            return True
        if job.id not in self.waiting:
            self.waiting.add(job.id)
            log.info("%s: another run computes it; waiting for that", job.id)
            self.account.write("JobWaits", job=job.id, reason="another run computes it")
        self.state.wait(job.id)
        self.later.add(job.id, self.clock() + _OTHER_RUN_S)
        return False

    def _is_there(self, job: Job) -> bool:
        """Whether the output of a job that is about to start exists: another run may share the store."""
        problem = self.verified.problem(job.key)
        if problem == NOT_STORED:
            return False
        if problem is not None:
            self.recovery.set_aside(job.key, problem)
            return False
        self.parts.claims.pop(job.id).release()
        log.info("%s: another run has stored it", job.id)
        self.account.write("JobFoundStored", job=job.id)
        self.state.found(job.id)
        return True

    def _order(self, job: Job, attempt: int) -> RunJob:
        workers = self.state.jobs[job.id].workers
        return RunJob(
            job_id=job.id,
            attempt=attempt,
            key=job.key,
            entry=job.entry,
            payload=job.payload,
            inputs={name: list(keys) for name, keys in job.inputs.items()},
            store=str(self.store.root.absolute()),
            scratch=str(self.scratch.path.absolute()),
            verified=str(self.verified.folder.absolute()),
            log_path=str(self.parts.log_path(job.id, attempt)),
            gang=[self.state.workers[worker].visible for worker in workers] if len(workers) > 1 else [],
            keep_models=self.state.jobs[job.id].keep_models,
            slots=self.layout.slots,
            shared=not self.state.jobs[job.id].whole,
        )

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
        dues = [self.next_status_s + _QUIET_INTERVAL_S - STATUS_INTERVAL_S]
        dues += [due for due in (self.later.next_s(), self.watchdog.next_s()) if due is not None]
        return max(0.0, min(dues) - now)

    def _show(self, due_s: float) -> None:
        now = self.clock()
        if now >= due_s:
            self.next_status_s = now + STATUS_INTERVAL_S
            running_s = {
                worker.index: self.account.running_s(worker.index)
                for worker in self.state.workers
                if worker.job_id
            }
            self.on_status(self.observer.snapshot(now - self.start_s, running_s))

    def _kill_what_hangs(self) -> None:
        for index, reason in self.watchdog.overdue(self.clock()).items():
            log.warning("worker %d: %s: %s; killing it", index, self.state.workers[index].job_id, reason)
            self.doomed[index] = Failure(FailureKind.hang, f"worker {index} was killed: {reason}")
            self.pool.abort(index)

    # -- events ------------------------------------------------------------------------------------------------

    def _take(self, index: int, message: FromWorker) -> None:
        self.watchdog.heard(index, self.clock())
        match message:
            case WorkerExited():
                self._worker_exited(index, message)
            case WorkerUnusable():
                self.recovery.unusable(index, message.reason)
            case WorkerUnreadable():
                self._distrust(index, message.reason)
            case _ if index in self.doomed:
                self._note_late(index, message)
            case _ if untrue := objection(self.state, self.parts.gathering, index, message):
                self._distrust(index, untrue)
            case WorkerReady():
                self._worker_ready(index, message)
            case Heartbeat():
                worker = self.state.workers[index]
                worker.rss_bytes, worker.gpu = message.rss_bytes, message.gpu
            case _ if not self.state.is_current(index, message.job_id, message.attempt):
                self._note_late(index, message)
            case JobStarted():
                self.state.workers[index].begun = True
                fields = {"job": message.job_id, "attempt": message.attempt, "worker": index}
                members = self.state.jobs[message.job_id].workers[1:]
                self.account.write("JobStarted", **fields, **({"members": members} if members else {}))
            case JobProgress():
                worker = self.state.workers[index]
                worker.done, worker.total, worker.tokens = message.done, message.total, message.tokens
                self.watchdog.moved(index, self.clock(), message.done, message.tokens)
            case JobFinished() if not self._is_stored(message.job_id):
                self._distrust(index, f"it said that {message.job_id} is done, and nothing is stored")
            case JobFinished():
                self._job_finished(index, message)
            case JobRaised():
                self._job_raised(index, message)
            case JobStopped():
                self._job_stopped(index, message)
        if isinstance(message, JobStarted | JobProgress):
            # A worker that is this very process lets the loop run only here.
            self._show(self.next_status_s)
            self._tell_stop()
        elif isinstance(message, JobFinished | JobRaised | JobStopped):
            self.ended_since |= self.signals.received is not None

    def _distrust(self, index: int, reason: str) -> None:
        """A worker has sent what no worker sends. That costs its attempt and nothing else."""
        log.warning("worker %d: %s; killing it", index, reason)
        self.doomed.setdefault(index, Failure(FailureKind.lost, f"worker {index} was killed: {reason}"))
        self.watchdog.ended(index)
        self.pool.dismiss(index)

    def _note_late(self, index: int, message: Report) -> None:
        """A worker has spoken of an attempt that it does not have any more, as a thread of an earlier job may."""
        if isinstance(message, Heartbeat | WorkerReady):
            return
        if (index, message.job_id) not in self.told_late:
            self.told_late.add((index, message.job_id))
            log.warning("worker %d: late %s of %s", index, type(message).__name__, message.job_id)

    def _worker_ready(self, index: int, message: WorkerReady) -> None:
        device = message.device
        if self.layout.slots > 1:
            device += f", place {index // len(self.layout.places) + 1} of {self.layout.slots}"
        self.account.worker_ready(index)
        self.state.worker_ready(index, device, message.visible)
        log.info("worker %d: %s, pid %d", index, device, message.pid)
        self.account.write("WorkerStarted", worker=index, pid=message.pid, device=device)
        job_id = self.state.workers[index].job_id
        # While ranks work on its device, what they have is not left over; it is looked at when they are done.
        if message.not_free and (not job_id or job_id in self.parts.gathering):
            self.recovery.not_free(index, message.not_free)
        self.handover.send_if_gathered(self.state.workers[index].job_id)

    def _worker_exited(self, index: int, message: WorkerExited) -> None:
        self.account.worker_ended(index)
        self.watchdog.ended(index)
        before, doom = self.state.workers[index], self.doomed.pop(index, None)
        begun = before.begun
        self.account.write("WorkerExited", worker=index, exit_code=message.exit_code)
        if self.handover.ended(index):
            return
        members = self.state.jobs[before.job_id].workers[1:] if before.job_id else ()
        job_id = self.state.worker_lost(index)
        if self.parts.stopping:
            if job_id:
                self._note_stopped(job_id, index)
                self.state.retry(job_id)
            return
        if job_id and not begun and not doom and message.exit_code == 0:
            self._note_stopped(job_id, index)  # before it had the order, which another worker can carry out
            self._stopped_unasked(job_id, index)
        elif job_id:
            failure = (
                replace(doom, exit_code=message.exit_code)
                if doom
                else _worker_failure(index, message.exit_code, before.rss_bytes)
            )
            self.parts.end_attempt(job_id, index, failure.kind.value)
            # Of several devices none can be told to be the cause.
            self.recovery.failed(
                job_id, index, failure, suspect=index if self.plan.jobs[job_id].devices == 1 else None
            )
            if self.state.workers[index].status == "quarantined":
                self.recovery.close(index)
        elif before.status == "idle":
            log.warning("worker %d was lost (%s)", index, describe_exit(message.exit_code))
        if self.state.workers[index].status != "quarantined":
            self.account.worker_started(index)
            self.state.workers[index].status = "starting"
        self.handover.renew_gpus(members)

    def _is_stored(self, job_id: str) -> bool:
        """Whether a job that is said to be done has left its output, where it has one."""
        key = self.plan.jobs[job_id].key
        return not key or self.store.is_committed(key)

    def _job_finished(self, index: int, message: JobFinished) -> None:
        attempt = self.parts.end_attempt(message.job_id, index, "done", message.load_s)
        self.observer.measured(self.plan.jobs[message.job_id].seconds, attempt.total_s)
        memory = {} if message.peak_mb is None else {"peak_mb": message.peak_mb}
        self.account.write(
            "JobFinished",
            job=message.job_id,
            attempt=message.attempt,
            worker=index,
            load_s=message.load_s,
            run_s=message.run_s,
            samples=message.samples,
            tokens=message.tokens,
            **memory,
        )
        workers = self.state.jobs[message.job_id].workers
        self.state.finished(index, message.samples, message.tokens, message.peak_mb, message.held_mb)
        if self.state.workers[index].status == "quarantined":
            self.recovery.leave_quarantined(index)
        if message.changed:
            self._replace(index, message)
        self.handover.renew_gpus(workers if len(workers) > 1 else ())

    def _job_raised(self, index: int, message: JobRaised) -> None:
        kind = message.kind
        self.parts.end_attempt(message.job_id, index, kind.value)
        workers = self.state.jobs[message.job_id].workers
        beside = kind is FailureKind.out_of_memory and self.state.ran_out_of_memory(message.job_id, index)
        job_id = self.state.raised(index, message.held_mb)
        what = (message.said.splitlines() or ["an exception that says nothing"])[0][:_MAX_REASON]
        failure = Failure(kind, what, traceback=message.traceback, damaged_key=message.damaged_key)
        is_gang = len(workers) > 1
        suspect = index if not is_gang else None if message.rank is None else workers[message.rank]
        if beside:
            self.recovery.try_alone(job_id, index, failure)
        else:
            self.recovery.failed(job_id, index, failure, suspect=suspect)
        if self.state.workers[index].status == "quarantined":
            self.recovery.leave_quarantined(index)
        # What the ranks of a gang have started may have outlived them; it ends with the worker that led them.
        if is_gang or kind in NEEDS_FRESH_WORKER or message.changed:
            self._replace(index, message)
        self.handover.renew_gpus(workers if is_gang else ())

    def _job_stopped(self, index: int, message: JobStopped) -> None:
        self._note_stopped(message.job_id, index)
        self._stopped_unasked(self.state.raised(index), index)
        self._renew(index)  # it takes no further job

    def _stopped_unasked(self, job_id: str, index: int) -> None:
        """Try a job again whose worker was asked to stop: not for ever where it was not the engine that asked."""
        self.stops[job_id] += not self.parts.stopping
        if self.stops[job_id] <= _MAX_STOPS:
            self.state.retry(job_id)
            return
        said = f"worker {index} was asked to stop once more, and not by the engine"
        self.recovery.failed(job_id, index, Failure(FailureKind.lost, said), suspect=None)

    def _replace(self, index: int, message: JobFinished | JobRaised) -> None:
        """Have the next job of a worker run in a fresh process, for what is left in the present one."""
        if message.changed:
            log.warning("worker %d: %s has left changed: %s", index, message.job_id, message.changed)
        self._renew(index)

    def _renew(self, index: int) -> None:
        if self.state.workers[index].status == "idle" and not self.parts.stopping:
            self.state.workers[index].status = "starting"
            self.pool.restart(index)

    def _note_stopped(self, job_id: str, index: int) -> None:
        attempt = self.parts.end_attempt(job_id, index, "stopped")
        self.account.write("JobStopped", job=job_id, attempt=attempt.attempt, worker=index)

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


def _worker_failure(index: int, exit_code: int | None, rss_bytes: int) -> Failure:
    how = describe_exit(exit_code) + _memory_hint(exit_code, rss_bytes)
    return Failure(FailureKind.lost, f"worker {index} was lost ({how})", exit_code=exit_code)


def _memory_hint(exit_code: int | None, rss_bytes: int) -> str:
    """What a SIGKILL that nobody here has sent most often means."""
    if exit_code != -9 or not rss_bytes:
        return ""
    return f"; it held {rss_bytes / 2**30:.1f} GiB, so the system may have been out of memory"
