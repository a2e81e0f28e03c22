"""What becomes of an attempt that failed, and of the device that it failed on."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from pipeline.engine.scheduler.retry import Failure, judge
from pipeline.engine.scheduler.run_context import Parts
from pipeline.engine.workers.failure import FailureKind

log = logging.getLogger("pipeline")


class Recovery:
    """Tries jobs again, gives them up, and keeps jobs away from broken devices."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._state, self._layout = parts, parts.state, parts.layout
        self._account, self._store = parts.account, parts.store
        self._job_of_key = {job.key: job.id for job in parts.plan.jobs.values()}
        self._unusable: set[int] = set()
        """Workers that cannot even be started."""
        self._closed: set[int] = set()
        """Workers that have been ended for good, as their devices are given no more jobs."""

    # -- jobs --------------------------------------------------------------------------------------------------

    def failed(self, job_id: str, index: int, failure: Failure, *, suspect: int | None) -> None:
        """Judge a failed attempt; `suspect` is the worker whose device may be at fault, if one can be named."""
        job = self._state.jobs[job_id]
        if failure.kind is FailureKind.storage:
            # No other job would fare better, and what they compute would be lost. So none is blamed, and the run
            # ends as if it had been interrupted.
            self._note_failure(job_id, index, failure, retry=True)
            self._parts.halted = f"{job_id}: {failure.message}"
            self._state.retry(job_id)
            return
        job.failures[failure.kind] += 1
        verdict = judge(failure, job.failures, self._parts.settings.retry)
        self._note_failure(job_id, index, failure, retry=verdict.retry, wait_s=verdict.wait_s)
        if suspect is not None:
            self._state.blame.failed(job_id, self._layout.device_of(suspect), failure.kind)
        if verdict.retry:
            wait = f" in {verdict.wait_s:g} s" if verdict.wait_s else ""
            log.warning("%s: attempt %d failed, trying again%s: %s", job_id, job.attempts, wait, failure.message)
            self._reopen_damaged(failure)
            if verdict.wait_s:
                self._parts.later.add(job_id, self._parts.clock() + verdict.wait_s)
                self._state.wait(job_id)
            else:
                self._state.retry(job_id)
        else:
            self.give_up(job_id, failure, verdict.reason)
        self._review_devices()

    def try_alone(self, job_id: str, index: int, failure: Failure) -> None:
        """Memory ran out on a shared device: no fault of the job, so this counts as no failure of it."""
        log.warning("%s: trying again with a device to itself: %s", job_id, failure.message)
        reason = f"{failure.message} (it shared the device; the next attempt does not)"
        self._note_failure(job_id, index, replace(failure, message=reason), retry=True)
        self._state.retry(job_id)

    def give_up(self, job_id: str, failure: Failure, reason: str) -> None:
        """Have a job fail for good, and block what depends on it."""
        attempts = self._state.jobs[job_id].attempts
        where = f" (log: {self._parts.log_path(job_id, attempts)})" if attempts else ""
        log.error("%s failed: %s%s", job_id, reason, where)
        fields = {"job": job_id, "attempts": attempts, "kind": failure.kind.value, "reason": reason}
        self._account.write("JobFailed", **fields)
        for blocked in self._state.fail(job_id, reason):
            log.warning("%s is blocked by %s", blocked, job_id)
            self._account.write("JobBlocked", job=blocked, root_cause=job_id)

    def _note_failure(
        self, job_id: str, index: int, failure: Failure, *, retry: bool, wait_s: float = 0.0
    ) -> None:
        attempt = self._state.jobs[job_id].attempts
        self._account.write(
            "AttemptFailed",
            job=job_id,
            attempt=attempt,
            worker=index,
            device=self._state.workers[index].device,
            kind=failure.kind.value,
            reason=failure.message,
            exit_code=failure.exit_code,
            log=os.path.relpath(self._parts.log_path(job_id, attempt), self._parts.folder.path),
            traceback=failure.traceback,
            retry=retry,
            wait_s=wait_s,
        )

    def _reopen_damaged(self, failure: Failure) -> None:
        if failure.damaged_key:
            problem = self._store.problem(failure.damaged_key)
            if problem is not None:
                self.set_aside(failure.damaged_key, problem)
            if failure.damaged_key in self._job_of_key:
                self._reopen(self._job_of_key[failure.damaged_key], problem or "it could not be read")

    def _reopen(self, job_id: str, reason: str) -> None:
        """Have a job run again, and with it all that it reads and that is not there any more."""
        if not self._state.reopen(job_id):
            return
        log.warning("%s runs again: its stored output cannot be used (%s)", job_id, reason)
        self._account.write("JobReopened", job=job_id, reason=reason)
        for upstream in self._parts.plan.inputs(job_id):
            if not self._store.has(self._parts.plan.jobs[upstream].key, checksums=False):
                self._reopen(upstream, "not stored")

    def set_aside(self, key: str, problem: str) -> None:
        """Take a damaged output out of the way, and keep it for whoever wants to look."""
        aside = self._store.set_aside(key)
        log.warning(
            "stored output %s is damaged (%s): %s", key, problem, f"set aside to {aside}" if aside else "gone"
        )

    # -- devices -----------------------------------------------------------------------------------------------

    def unusable(self, index: int, reason: str) -> None:
        """Give up a worker that cannot be used, whatever becomes of others."""
        self._unusable.add(index)
        self._quarantine(index, reason, [])

    def not_free(self, index: int, words: str) -> None:
        """The memory of a worker's device did not come back from the process before: jobs would fail on it."""
        if len(self._state.usable_devices()) > 1:
            self.unusable(index, words)
        else:
            log.warning("worker %d is the last one and goes on with what is free of %s", index, words)

    def _review_devices(self) -> None:
        """Give no more jobs to a device that is the likely cause of failures, and take back what proved wrong."""
        for device in range(len(self._layout.places)):
            jobs = self._state.blame.suspect(device)
            usable = self._state.usable_devices()
            for index in self._layout.workers_of(device):
                if not self._state.workers[index].usable:
                    if not jobs and index not in self._unusable:
                        self._release(index)
                elif jobs and len(usable) > 1:
                    self._quarantine(index, "jobs failed on it in a row, and on no other device", jobs)

    def leave_quarantined(self, index: int) -> None:
        """A job has ended on a device that is given no more: that may show that the device works after all."""
        self._review_devices()
        if not self._state.workers[index].usable:
            self.close(index)

    def _quarantine(self, index: int, reason: str, jobs: list[str]) -> None:
        device = self._state.workers[index].device
        names = f" ({', '.join(jobs)})" if jobs else ""
        log.error("worker %d, %s, is given no more jobs: %s%s", index, device or "not started", reason, names)
        self._account.write("DeviceQuarantined", worker=index, device=device, reason=reason, jobs=jobs)
        self._state.workers[index].quarantine()
        waiting = self._state.workers[index].job_id
        if not waiting or waiting in self._parts.gathering or self._state.is_lent(index):
            self.close(index)  # a job that runs beside those that failed may well finish
        if waiting in self._parts.gathering:
            leader = self._state.jobs[waiting].workers[0]
            failure = Failure(FailureKind.lost, f"worker {index}, whose device it was given, is given up")
            self._parts.end_attempt(waiting, leader, failure.kind.value)
            self.failed(self._state.raised(leader), leader, failure, suspect=None)

    def _release(self, index: int) -> None:
        log.warning("worker %d is given jobs again: what failed on it has failed elsewhere too", index)
        self._account.write("DeviceReleased", worker=index)
        worker = self._state.workers[index]
        if index in self._closed:
            self._closed.discard(index)
            worker.starts()
            self._account.worker_started(index)
            self._parts.pool.reopen(index)
        else:  # its job went on meanwhile
            worker.release()

    def close(self, index: int) -> None:
        """End a worker that is given no more jobs."""
        self._closed.add(index)
        self._parts.pool.close(index)
