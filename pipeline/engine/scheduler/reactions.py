"""What becomes of the state when a worker says something, or ends: who has its device next, what is tried again.

It acts through the pool and writes to the books; clocks are the loop's.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

from pipeline.engine.scheduler.hearing import objection
from pipeline.engine.scheduler.recovery import Recovery
from pipeline.engine.scheduler.retry import Failure
from pipeline.engine.scheduler.run_context import Parts
from pipeline.engine.scheduler.worker_replacement import Handover
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
    WorkerExited,
    WorkerReady,
    WorkerUnreadable,
    WorkerUnusable,
)
from pipeline.errors import describe_exit

_MAX_REASON = 1_000
"""Characters of an exception's first line; all of it is in the job's log."""
_MAX_STOPS = 3
"""How often an attempt may end for a signal that its worker has had from elsewhere, and cost its job nothing."""

log = logging.getLogger("pipeline")


class Reactions:
    """Takes what the pool tells of its workers, message by message."""

    def __init__(self, parts: Parts, recovery: Recovery, handover: Handover) -> None:
        self._parts, self._recovery, self._handover = parts, recovery, handover
        self._plan, self._state, self._layout = parts.plan, parts.state, parts.layout
        self._store, self._pool = parts.store, parts.pool
        self._account, self._watchdog = parts.account, parts.watchdog
        self._doomed: dict[int, Failure] = {}
        """Worker -> why it is being killed. What it still says no longer counts."""
        self._told_late: set[tuple[int, str]] = set()
        """Worker and job of which it has spoken late: told once."""
        self._stops: Counter[str] = Counter()
        """Job -> attempts that ended since someone asked its worker to stop, and not the engine."""

    def take(self, index: int, message: FromWorker) -> None:
        """Do what a message calls for."""
        self._watchdog.heard(index, self._parts.clock())
        match message:
            case WorkerExited():
                self._worker_exited(index, message)
            case WorkerUnusable():
                self._recovery.unusable(index, message.reason)
            case WorkerUnreadable():
                self._distrust(index, message.reason)
            case _ if index in self._doomed:
                self._note_late(index, message)
            case _ if untrue := objection(self._state, self._parts.gathering, index, message):
                self._distrust(index, untrue)
            case WorkerReady():
                self._worker_ready(index, message)
            case Heartbeat():
                self._state.workers[index].rss_bytes = message.rss_bytes
                self._account.tell("Heartbeat", worker=index, **vars(message))
            case _ if not self._state.is_current(index, message.job_id, message.attempt):
                self._note_late(index, message)
            case JobStarted():
                self._state.workers[index].begun = True
                fields = {"job": message.job_id, "attempt": message.attempt, "worker": index}
                members = self._state.jobs[message.job_id].workers[1:]
                self._account.write("JobStarted", **fields, **({"members": members} if members else {}))
            case JobProgress():
                counts = {"done": message.done, "total": message.total, "tokens": message.tokens}
                self._account.tell(
                    "JobProgress", job=message.job_id, attempt=message.attempt, worker=index, **counts
                )
                self._watchdog.moved(index, self._parts.clock(), message.done, message.tokens)
            case JobFinished() if not self._is_stored(message.job_id):
                self._distrust(index, f"it said that {message.job_id} is done, and nothing is stored")
            case JobFinished():
                self._job_finished(index, message)
            case JobRaised():
                self._job_raised(index, message)
            case JobStopped():
                self._job_stopped(index, message)

    def kill_hanging(self, index: int, reason: str) -> None:
        """Kill a worker that has given no sign of life, or of progress, for too long."""
        log.warning("worker %d: %s: %s; killing it", index, self._state.workers[index].job_id, reason)
        self._doomed[index] = Failure(FailureKind.hang, f"worker {index} was killed: {reason}")
        self._pool.abort(index)

    def _distrust(self, index: int, reason: str) -> None:
        """A worker has sent what no worker sends. That costs its attempt and nothing else."""
        log.warning("worker %d: %s; killing it", index, reason)
        self._doomed.setdefault(index, Failure(FailureKind.lost, f"worker {index} was killed: {reason}"))
        self._watchdog.ended(index)
        self._pool.dismiss(index)

    def _note_late(self, index: int, message: Report) -> None:
        """A worker has spoken of an attempt that it does not have any more, as a thread of an earlier job may."""
        if isinstance(message, Heartbeat | WorkerReady):
            return
        if (index, message.job_id) not in self._told_late:
            self._told_late.add((index, message.job_id))
            log.warning("worker %d: late %s of %s", index, type(message).__name__, message.job_id)

    def _worker_ready(self, index: int, message: WorkerReady) -> None:
        device = message.device
        if self._layout.slots > 1:
            device += f", place {index // len(self._layout.places) + 1} of {self._layout.slots}"
        self._account.worker_ready(index)
        self._state.worker_ready(index, device, message.visible)
        log.info("worker %d: %s, pid %d", index, device, message.pid)
        self._account.write("WorkerStarted", worker=index, pid=message.pid, device=device)
        job_id = self._state.workers[index].job_id
        # While ranks work on its device, what they have is not left over; it is looked at when they are done.
        if message.not_free and (not job_id or job_id in self._parts.gathering):
            self._recovery.not_free(index, message.not_free)
        self._handover.send_if_gathered(self._state.workers[index].job_id)

    def _worker_exited(self, index: int, message: WorkerExited) -> None:
        self._account.worker_ended(index)
        self._watchdog.ended(index)
        before, doom = self._state.workers[index], self._doomed.pop(index, None)
        begun = before.begun
        self._account.write("WorkerExited", worker=index, exit_code=message.exit_code)
        if self._handover.ended(index):
            return
        members = self._state.jobs[before.job_id].workers[1:] if before.job_id else ()
        job_id = self._state.worker_lost(index)
        if self._parts.stopping:
            if job_id:
                self._note_stopped(job_id, index)
                self._state.retry(job_id)
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
            self._parts.end_attempt(job_id, index, failure.kind.value)
            # Of several devices none can be told to be the cause.
            self._recovery.failed(
                job_id, index, failure, suspect=index if self._plan.jobs[job_id].devices == 1 else None
            )
            if self._state.workers[index].status == "quarantined":
                self._recovery.close(index)
        elif before.status == "idle":
            log.warning("worker %d was lost (%s)", index, describe_exit(message.exit_code))
        if self._state.workers[index].status != "quarantined":
            self._account.worker_started(index)
            self._state.workers[index].status = "starting"
        self._handover.renew_gpus(members)

    def _is_stored(self, job_id: str) -> bool:
        """Whether a job that is said to be done has left its output, where it has one."""
        key = self._plan.jobs[job_id].key
        return not key or self._store.is_committed(key)

    def _job_finished(self, index: int, message: JobFinished) -> None:
        self._parts.end_attempt(message.job_id, index, "done", message.load_s)
        memory = {} if message.peak_mb is None else {"peak_mb": message.peak_mb}
        self._account.write(
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
        workers = self._state.jobs[message.job_id].workers
        self._state.finished(index, message.peak_mb, message.held_mb)
        if self._state.workers[index].status == "quarantined":
            self._recovery.leave_quarantined(index)
        if message.changed:
            self._replace(index, message)
        self._handover.renew_gpus(workers if len(workers) > 1 else ())

    def _job_raised(self, index: int, message: JobRaised) -> None:
        kind = message.kind
        self._parts.end_attempt(message.job_id, index, kind.value)
        workers = self._state.jobs[message.job_id].workers
        beside = kind is FailureKind.out_of_memory and self._state.ran_out_of_memory(message.job_id, index)
        job_id = self._state.raised(index, message.held_mb)
        what = (message.said.splitlines() or ["an exception that says nothing"])[0][:_MAX_REASON]
        failure = Failure(kind, what, traceback=message.traceback, damaged_key=message.damaged_key)
        is_gang = len(workers) > 1
        suspect = index if not is_gang else None if message.rank is None else workers[message.rank]
        if beside:
            self._recovery.try_alone(job_id, index, failure)
        else:
            self._recovery.failed(job_id, index, failure, suspect=suspect)
        if self._state.workers[index].status == "quarantined":
            self._recovery.leave_quarantined(index)
        # What the ranks of a gang have started may have outlived them; it ends with the worker that led them.
        if is_gang or kind in NEEDS_FRESH_WORKER or message.changed:
            self._replace(index, message)
        self._handover.renew_gpus(workers if is_gang else ())

    def _job_stopped(self, index: int, message: JobStopped) -> None:
        self._note_stopped(message.job_id, index)
        self._stopped_unasked(self._state.raised(index), index)
        self._renew(index)  # it takes no further job

    def _stopped_unasked(self, job_id: str, index: int) -> None:
        """Try a job again whose worker was asked to stop: not for ever where it was not the engine that asked."""
        self._stops[job_id] += not self._parts.stopping
        if self._stops[job_id] <= _MAX_STOPS:
            self._state.retry(job_id)
            return
        said = f"worker {index} was asked to stop once more, and not by the engine"
        self._recovery.failed(job_id, index, Failure(FailureKind.lost, said), suspect=None)

    def _replace(self, index: int, message: JobFinished | JobRaised) -> None:
        """Have the next job of a worker run in a fresh process, for what is left in the present one."""
        if message.changed:
            log.warning("worker %d: %s has left changed: %s", index, message.job_id, message.changed)
        self._renew(index)

    def _renew(self, index: int) -> None:
        if self._state.workers[index].status == "idle" and not self._parts.stopping:
            self._state.workers[index].status = "starting"
            self._pool.restart(index)

    def _note_stopped(self, job_id: str, index: int) -> None:
        attempt = self._parts.end_attempt(job_id, index, "stopped")
        self._account.write("JobStopped", job=job_id, attempt=attempt.attempt, worker=index)


def _worker_failure(index: int, exit_code: int | None, rss_bytes: int) -> Failure:
    how = describe_exit(exit_code) + _memory_hint(exit_code, rss_bytes)
    return Failure(FailureKind.lost, f"worker {index} was lost ({how})", exit_code=exit_code)


def _memory_hint(exit_code: int | None, rss_bytes: int) -> str:
    """What a SIGKILL that nobody here has sent most often means."""
    if exit_code != -9 or not rss_bytes:
        return ""
    return f"; it held {rss_bytes / 2**30:.1f} GiB, so the system may have been out of memory"
