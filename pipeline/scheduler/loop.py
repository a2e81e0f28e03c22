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
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.config.schema import ExecutionConfig
from pipeline.devices.layout import Layout, plain_layout
from pipeline.errors import PlanError, describe_exit
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job
from pipeline.results.faults import explained
from pipeline.results.journal import Journal
from pipeline.results.locks import Claim
from pipeline.results.paths import RunFolder
from pipeline.results.status import GpuLoad, RunStatus
from pipeline.results.store import NOT_STORED, Store
from pipeline.results.verified import Verified
from pipeline.scheduler.account import RunAccount
from pipeline.scheduler.later import Later
from pipeline.scheduler.makespan import Attempt, account
from pipeline.scheduler.needs import Needs
from pipeline.scheduler.outcome import Outcome
from pipeline.scheduler.policy import Reserve, next_actions
from pipeline.scheduler.retry import Failure, judge
from pipeline.scheduler.signals import StopSignals
from pipeline.scheduler.snapshot import Observer
from pipeline.scheduler.state import JobStatus, RunState, check_runnable, too_few_devices
from pipeline.scheduler.watchdog import Watchdog
from pipeline.workers.failure import NEEDS_FRESH_WORKER, FailureKind
from pipeline.workers.messages import (
    FromWorker,
    Heartbeat,
    JobFinished,
    JobProgress,
    JobRaised,
    JobStarted,
    JobStopped,
    RunJob,
    WorkerExited,
    WorkerReady,
    WorkerUnusable,
)
from pipeline.workers.pool import Pool

__all__ = ["Outcome", "run_plan"]

STATUS_INTERVAL_S = 0.2
_QUIET_INTERVAL_S = 0.5
_OTHER_RUN_S = 1.0
"""How often to look whether another run is done with a job; a lock on a file cannot be waited on with the rest."""

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
        plan, stored, store, pool, journal, run_dir, settings, on_status, verified, layout, needs, clock
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
        self.layout, self.needs = layout, needs
        self.plan, self.store, self.pool = plan, store, pool
        self.folder = RunFolder(run_dir)
        self.settings, self.clock = settings, clock
        self.observer, self.on_status = Observer(self.state), on_status
        # The process id keeps apart two runs that were started in the same second.
        self.scratch = store.scratch(f"{run_dir.parent.name}-{run_dir.name}-{os.getpid()}")
        self.verified = verified or Verified(store, self.scratch / "verified")
        self.account = RunAccount(journal, clock)
        self.claims: dict[str, Claim] = {}
        """Job -> the right to compute its key, which no other run that shares the store has meanwhile."""
        self.watchdog = Watchdog(settings)
        self.later = Later()
        self.job_of_key = {job.key: job.id for job in plan.jobs.values()}
        self.hangs: dict[int, str] = {}
        """Worker -> why it is being killed. What it still says about its job no longer counts."""
        self.waiting: set[str] = set()
        """Jobs that another run was found computing."""
        self.gathering: dict[str, int] = {}
        """Job of several devices that has them -> its attempt, until fresh processes are on all of them."""
        self.renewed: set[int] = set()
        """Workers whose processes are being replaced on purpose: their end is no loss."""
        self.emptied: set[int] = set()
        """Those of them whose end others on the same device wait for, since they hold memory of it."""
        self.unusable: set[int] = set()
        """Workers that cannot even be started."""
        self.closed: set[int] = set()
        """Workers that have been ended for good, as their devices are given no more jobs."""
        self.start_s = self.next_status_s = clock()
        self.signals = StopSignals(pool.interrupt)
        self.stopping = False
        self.halted = ""
        """Why no further job could succeed, or ""."""

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self.account.write(
            "RunStarted",
            jobs=len(self.plan.jobs),
            unsettled=self.state.unsettled,
            pid=os.getpid(),
            host=os.uname().nodename,
        )
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
        self.account.write("RunFinished", interrupted=outcome.interrupted, halted=outcome.halted, **counts)
        return outcome

    def _start(self) -> None:
        try:
            self.scratch.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explained(f"could not make {self.scratch}", error) from error
        for index in range(self.pool.size):
            self.account.worker_started(index)
        self.pool.start()
        for folder in (self.scratch, self.verified.folder):
            self.pool.watch_folder(folder)

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
        self.stopping = True
        if self.signals.received:
            running = [worker.job_id for worker in self.state.workers if worker.job_id]
            log.warning("%s: no further job is started; waiting for %s", self.signals.received, running or "none")
        self.signals.drain()
        try:
            # A second Ctrl-C skips the gentle steps.
            self.pool.stop(self._take, hurry=[self.signals.fileno()])
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _halt(self) -> bool:
        self.halted = self.halted or self.account.broken
        return bool(self.halted)

    def _dispatch(self) -> None:
        for job_id in self.state.too_wide():
            usable = self.state.usable_devices()
            said = too_few_devices(self.plan.jobs[job_id], usable, self.layout, self.needs)
            failure = Failure(FailureKind.device, said)
            self.state.wait(job_id)
            self._give_up(job_id, failure, failure.message)
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
                    self._gather(job, attempt, action.emptied)

    def _send(self, job: Job, attempt: int) -> None:
        workers = self.state.jobs[job.id].workers
        for worker in workers:
            self.account.sent(worker)
        self.watchdog.began(workers[0], self.clock())
        self.pool.send(workers[0], self._order(job, attempt))

    def _gather(self, job: Job, attempt: int, emptied: Collection[int]) -> None:
        """Replace processes that hold memory of the devices which a job is about to use, and send it then."""
        self.gathering[job.id] = attempt
        workers = self.state.jobs[job.id].workers
        for worker in workers:
            self.account.sent(worker)
            if len(workers) > 1 and not self.state.workers[worker].fresh:
                self._renew(worker)
        for worker in emptied:
            self.emptied.add(worker)
            self._renew(worker)
        self._send_if_gathered(job.id)

    def _renew(self, worker: int) -> None:
        self.renewed.add(worker)
        self.state.renew(worker)
        self.pool.restart(worker)

    def _send_if_gathered(self, job_id: str) -> None:
        if job_id in self.gathering and self.state.is_gathered(job_id):
            devices = {self.layout.device_of(worker) for worker in self.state.jobs[job_id].workers}
            if not any(self.layout.device_of(worker) in devices for worker in self.emptied):
                self._send(self.plan.jobs[job_id], self.gathering.pop(job_id))

    def _claim(self, job: Job) -> bool:
        """Claim the job's key, or have the job wait while another run that shares the store computes it."""
        claim = self.store.claim(job.key)
        if claim is not None:
            self.claims[job.id] = claim
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
            self._set_aside(job.key, problem)
            return False
        self.claims.pop(job.id).release()
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
            scratch=str(self.scratch.absolute()),
            verified=str(self.verified.folder.absolute()),
            log_path=str(self._log_path(job.id, attempt)),
            gang=[self.state.workers[worker].visible for worker in workers] if len(workers) > 1 else [],
            keep_models=self.state.jobs[job.id].keep_models,
            slots=self.layout.slots,
            shared=not self.state.jobs[job.id].whole,
        )

    def _log_path(self, job_id: str, attempt: int) -> Path:
        return self.folder.job(job_id).absolute() / ("log.txt" if attempt == 1 else f"log.{attempt}.txt")

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
            self.hangs[index] = reason
            self.pool.abort(index)

    # -- events ------------------------------------------------------------------------------------------------

    def _take(self, index: int, message: FromWorker) -> None:
        self.watchdog.heard(index, self.clock())
        match message:
            case WorkerReady():
                self._worker_ready(index, message)
            case WorkerExited():
                self._worker_exited(index, message)
            case WorkerUnusable():
                self.unusable.add(index)
                self._quarantine(index, message.reason, [])
            case Heartbeat():
                worker = self.state.workers[index]
                worker.rss_bytes = message.rss_bytes
                worker.gpu = GpuLoad(**message.gpu) if message.gpu else None
            case _ if index in self.hangs or not self.state.is_current(index, message.job_id, message.attempt):
                log.warning("worker %d: late %s of %s", index, type(message).__name__, message.job_id)
            case JobStarted():
                fields = {"job": message.job_id, "attempt": message.attempt, "worker": index}
                members = self.state.jobs[message.job_id].workers[1:]
                self.account.write("JobStarted", **fields, **({"members": members} if members else {}))
            case JobProgress():
                worker = self.state.workers[index]
                worker.done, worker.total, worker.tokens = message.done, message.total, message.tokens
                self.watchdog.moved(index, self.clock(), message.done, message.tokens)
            case JobFinished():
                self._job_finished(index, message)
            case JobRaised():
                self._job_raised(index, message)
            case JobStopped():
                self._job_stopped(index, message)
        if isinstance(message, JobStarted | JobProgress):
            # A worker that is this very process lets the loop run only here.
            self._show(self.next_status_s)

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
        if message.not_free and (not job_id or job_id in self.gathering):
            self._not_free(index, message.not_free)
        self._send_if_gathered(self.state.workers[index].job_id)

    def _not_free(self, index: int, words: str) -> None:
        """The memory of a worker's device did not come back from the process before: jobs would fail on it."""
        if len(self.state.usable_devices()) > 1:
            self.unusable.add(index)
            self._quarantine(index, words, [])
        else:
            log.warning("worker %d is the last one and goes on with what is free of %s", index, words)

    def _worker_exited(self, index: int, message: WorkerExited) -> None:
        self.account.worker_ended(index)
        self.watchdog.ended(index)
        self.emptied.discard(index)
        before = self.state.workers[index]
        self.account.write("WorkerExited", worker=index, exit_code=message.exit_code)
        if not self.stopping and (index in self.renewed or self.state.is_lent(index)):
            # The job that has its device goes on, or waits for the process that follows.
            self.renewed.discard(index)
            self.state.renew(index)
            if before.status != "quarantined":
                self.account.worker_started(index)
            for job_id in list(self.gathering):
                self._send_if_gathered(job_id)
            return
        members = self.state.jobs[before.job_id].workers[1:] if before.job_id else ()
        job_id = self.state.worker_lost(index)
        hang = self.hangs.pop(index, "")
        if self.stopping:
            if job_id:
                self._note_stopped(job_id, index)
                self.state.retry(job_id)
            return
        if job_id:
            failure = _worker_failure(index, message.exit_code, hang, before.rss_bytes)
            self._end_attempt(job_id, index, failure.kind.value)
            # Of several devices none can be told to be the cause.
            self._failed(job_id, index, failure, suspect=index if self.plan.jobs[job_id].devices == 1 else None)
            if self.state.workers[index].status == "quarantined":
                self._close(index)
        elif before.status == "idle":
            log.warning("worker %d was lost (%s)", index, describe_exit(message.exit_code))
        if self.state.workers[index].status != "quarantined":
            self.account.worker_started(index)
            self.state.workers[index].status = "starting"
        self._renew_gpus(members)

    def _renew_gpus(self, workers: Sequence[int]) -> None:
        """Replace the workers on GPUs that ranks had: a new one is ready once its GPU's memory has come back."""
        for index in workers:
            worker = self.state.workers[index]
            if worker.visible and worker.status in ("idle", "starting") and not self.stopping:
                worker.status = "starting"
                self.pool.restart(index)

    def _job_finished(self, index: int, message: JobFinished) -> None:
        attempt = self._end_attempt(message.job_id, index, "done", message.load_s)
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
            self._leave_quarantined(index)
        self._renew_gpus(workers if len(workers) > 1 else ())

    def _job_raised(self, index: int, message: JobRaised) -> None:
        kind = FailureKind(message.kind)
        self._end_attempt(message.job_id, index, kind.value)
        workers = self.state.jobs[message.job_id].workers
        beside = kind is FailureKind.out_of_memory and self.state.ran_out_of_memory(message.job_id, index)
        job_id = self.state.raised(index, message.held_mb)
        first_line = (message.message.strip().splitlines() or [""])[0]
        what = f"{message.error_type}: {first_line}" if first_line else message.error_type
        failure = Failure(kind, what, traceback=message.traceback, damaged_key=message.damaged_key)
        is_gang = len(workers) > 1
        suspect = index if not is_gang else None if message.rank is None else workers[message.rank]
        if beside:
            self._try_alone(job_id, index, failure)
        else:
            self._failed(job_id, index, failure, suspect=suspect)
        if self.state.workers[index].status == "quarantined":
            self._leave_quarantined(index)
        # What the ranks of a gang have started may have outlived them; it ends with the worker that led them.
        if (
            (is_gang or kind in NEEDS_FRESH_WORKER)
            and not self.stopping
            and self.state.workers[index].status == "idle"
        ):
            self.state.workers[index].status = "starting"
            self.pool.restart(index)
        self._renew_gpus(workers if is_gang else ())

    def _job_stopped(self, index: int, message: JobStopped) -> None:
        self._note_stopped(message.job_id, index)
        self.state.retry(self.state.raised(index))

    def _note_stopped(self, job_id: str, index: int) -> None:
        attempt = self._end_attempt(job_id, index, "stopped")
        self.account.write("JobStopped", job=job_id, attempt=attempt.attempt, worker=index)

    # -- failures ----------------------------------------------------------------------------------------------

    def _try_alone(self, job_id: str, index: int, failure: Failure) -> None:
        """Memory ran out on a shared device: no fault of the job, so this counts as no failure of it."""
        log.warning("%s: trying again with a device to itself: %s", job_id, failure.message)
        reason = f"{failure.message} (it shared the device; the next attempt does not)"
        self._note_failure(job_id, index, replace(failure, message=reason), retry=True)
        self.state.retry(job_id)

    def _failed(self, job_id: str, index: int, failure: Failure, *, suspect: int | None) -> None:
        """Judge a failed attempt; `suspect` is the worker whose device may be at fault, if one can be named."""
        job = self.state.jobs[job_id]
        if failure.kind is FailureKind.storage:
            # No other job would fare better, and what they compute would be lost. So none is blamed, and the run
            # ends as if it had been interrupted.
            self._note_failure(job_id, index, failure, retry=True)
            self.halted = f"{job_id}: {failure.message}"
            self.state.retry(job_id)
            return
        job.failures[failure.kind] += 1
        verdict = judge(failure, job.failures, self.settings.retry)
        self._note_failure(job_id, index, failure, retry=verdict.retry, wait_s=verdict.wait_s)
        if suspect is not None:
            self.state.blame.failed(job_id, self.layout.device_of(suspect), failure.kind)
        if verdict.retry:
            wait = f" in {verdict.wait_s:g} s" if verdict.wait_s else ""
            log.warning("%s: attempt %d failed, trying again%s: %s", job_id, job.attempts, wait, failure.message)
            self._reopen_damaged(failure)
            if verdict.wait_s:
                self.later.add(job_id, self.clock() + verdict.wait_s)
                self.state.wait(job_id)
            else:
                self.state.retry(job_id)
        else:
            self._give_up(job_id, failure, verdict.reason)
        self._review_devices()

    def _review_devices(self) -> None:
        """Give no more jobs to a device that is the likely cause of failures, and take back what proved wrong."""
        for device in range(len(self.layout.places)):
            jobs = self.state.blame.suspect(device)
            usable = self.state.usable_devices()
            for index in self.layout.workers_of(device):
                if self.state.workers[index].status == "quarantined":
                    if not jobs and index not in self.unusable:
                        self._release(index)
                elif jobs and len(usable) > 1:
                    self._quarantine(index, "jobs failed on it in a row, and on no other device", jobs)

    def _leave_quarantined(self, index: int) -> None:
        """A job has ended on a device that is given no more: that may show that the device works after all."""
        self._review_devices()
        if self.state.workers[index].status == "quarantined":
            self._close(index)

    def _release(self, index: int) -> None:
        log.warning("worker %d is given jobs again: what failed on it has failed elsewhere too", index)
        self.account.write("DeviceReleased", worker=index)
        worker = self.state.workers[index]
        if index in self.closed:
            self.closed.discard(index)
            worker.status = "starting"
            self.account.worker_started(index)
            self.pool.reopen(index)
        else:  # its job went on meanwhile
            worker.status = "running" if worker.job_id else "idle" if worker.up else "starting"

    def _close(self, index: int) -> None:
        self.closed.add(index)
        self.pool.close(index)

    def _note_failure(
        self, job_id: str, index: int, failure: Failure, *, retry: bool, wait_s: float = 0.0
    ) -> None:
        attempt = self.state.jobs[job_id].attempts
        self.account.write(
            "AttemptFailed",
            job=job_id,
            attempt=attempt,
            worker=index,
            device=self.state.workers[index].device,
            kind=failure.kind.value,
            reason=failure.message,
            exit_code=failure.exit_code,
            log=os.path.relpath(self._log_path(job_id, attempt), self.folder.path),
            traceback=failure.traceback,
            retry=retry,
            wait_s=wait_s,
        )

    def _give_up(self, job_id: str, failure: Failure, reason: str) -> None:
        attempts = self.state.jobs[job_id].attempts
        where = f" (log: {self._log_path(job_id, attempts)})" if attempts else ""
        log.error("%s failed: %s%s", job_id, reason, where)
        fields = {"job": job_id, "attempts": attempts, "kind": failure.kind.value, "reason": reason}
        self.account.write("JobFailed", **fields)
        for blocked in self.state.fail(job_id, reason):
            log.warning("%s is blocked by %s", blocked, job_id)
            self.account.write("JobBlocked", job=blocked, root_cause=job_id)

    def _quarantine(self, index: int, reason: str, jobs: list[str]) -> None:
        device = self.state.workers[index].device
        names = f" ({', '.join(jobs)})" if jobs else ""
        log.error("worker %d, %s, is given no more jobs: %s%s", index, device or "not started", reason, names)
        self.account.write("DeviceQuarantined", worker=index, device=device, reason=reason, jobs=jobs)
        self.state.quarantine(index)
        waiting = self.state.workers[index].job_id
        if not waiting or waiting in self.gathering or self.state.is_lent(index):
            self._close(index)  # a job that runs beside those that failed may well finish
        if waiting in self.gathering:
            leader = self.state.jobs[waiting].workers[0]
            failure = Failure(FailureKind.lost, f"worker {index}, whose device it was given, is given up")
            self._end_attempt(waiting, leader, failure.kind.value)
            self._failed(self.state.raised(leader), leader, failure, suspect=None)

    def _reopen_damaged(self, failure: Failure) -> None:
        if failure.damaged_key:
            problem = self.store.problem(failure.damaged_key)
            if problem is not None:
                self._set_aside(failure.damaged_key, problem)
            self._reopen(self.job_of_key[failure.damaged_key], problem or "it could not be read")

    def _reopen(self, job_id: str, reason: str) -> None:
        """Have a job run again, and with it all that it reads and that is not there any more."""
        if not self.state.reopen(job_id):
            return
        log.warning("%s runs again: its stored output cannot be used (%s)", job_id, reason)
        self.account.write("JobReopened", job=job_id, reason=reason)
        for upstream in self.plan.inputs(job_id):
            if not self.store.has(self.plan.jobs[upstream].key, checksums=False):
                self._reopen(upstream, "not stored")

    def _set_aside(self, key: str, problem: str) -> None:
        aside = self.store.set_aside(key)
        log.warning(
            "stored output %s is damaged (%s): %s", key, problem, f"set aside to {aside}" if aside else "gone"
        )

    # -- bookkeeping -------------------------------------------------------------------------------------------

    def _end_attempt(self, job_id: str, index: int, outcome: str, load_s: float = 0.0) -> Attempt:
        self.watchdog.ended(index)
        self.gathering.pop(job_id, None)
        if job_id in self.claims:
            self.claims.pop(job_id).release()
        attempts, slots = self.state.jobs[job_id].attempts, self.state.slots_of(self.plan.jobs[job_id])
        return self.account.end_attempt(job_id, attempts, index, outcome, load_s, slots)

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
            halted=self.halted,
            makespan=account(
                self.plan, books.attempts, books.spans, self.pool.size, self.start_s, self.layout.slots
            ),
            peaks_mb=self.needs.seen,
        )


def _worker_failure(index: int, exit_code: int | None, hang: str, rss_bytes: int) -> Failure:
    if hang:
        return Failure(FailureKind.hang, f"worker {index} was killed: {hang}", exit_code=exit_code)
    how = describe_exit(exit_code) + _memory_hint(exit_code, rss_bytes)
    return Failure(FailureKind.lost, f"worker {index} was lost ({how})", exit_code=exit_code)


def _memory_hint(exit_code: int | None, rss_bytes: int) -> str:
    """What a SIGKILL that nobody here has sent most often means."""
    if exit_code != -9 or not rss_bytes:
        return ""
    return f"; it held {rss_bytes / 2**30:.1f} GiB, so the system may have been out of memory"
