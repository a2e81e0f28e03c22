"""Starts jobs: claims their keys, so that of several runs one computes each, and sends them to workers."""

from __future__ import annotations

import logging
from pathlib import Path

from pipeline.engine.scheduler.policy import Reserve, next_actions
from pipeline.engine.scheduler.recovery import Recovery
from pipeline.engine.scheduler.retry import Failure
from pipeline.engine.scheduler.run_context import Parts
from pipeline.engine.scheduler.runnable import too_few_devices, too_wide
from pipeline.engine.scheduler.worker_replacement import Handover
from pipeline.engine.store.store import NOT_STORED
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.failure import FailureKind
from pipeline.engine.workers.messages import RunJob
from pipeline.plan.job import Job

_OTHER_RUN_S = 1.0
"""How often to look whether another run is done with a job; a lock on a file cannot be waited on with the rest."""

log = logging.getLogger("pipeline")


class Dispatch:
    """Carries out what the policy decides.

    Attributes:
        handover: Replaces processes that are in the way of a job before the job is sent.
    """

    def __init__(self, parts: Parts, recovery: Recovery, scratch: Path, verified: Verified) -> None:
        """Start nothing yet.

        Args:
            parts: The run.
            recovery: Gives up jobs that no device of it can run.
            scratch: Folder of unfinished outputs.
            verified: What was found good among the stored outputs.
        """
        self._parts, self._state, self._layout = parts, parts.state, parts.layout
        self._recovery, self._scratch, self._verified = recovery, scratch, verified
        self.handover = Handover(parts, self._send)
        self._waiting: set[str] = set()
        """Jobs that another run was found computing."""

    def start_jobs(self) -> None:
        """Give jobs to idle workers as the policy says, until none can start."""
        for job_id in too_wide(self._state):
            usable = self._state.usable_devices()
            said = too_few_devices(self._parts.plan.jobs[job_id], usable, self._layout, self._state.needs)
            failure = Failure(FailureKind.device, said)
            self._state.wait(job_id)
            self._recovery.give_up(job_id, failure, failure.message)
        # A job may turn out to need no worker, which leaves one idle for the next.
        while actions := next_actions(self._state, self._parts.clock()):
            for action in actions:
                if isinstance(action, Reserve):
                    # Where devices are shared this is said of every job that waits for another to end.
                    level = logging.INFO if self._parts.plan.jobs[action.job_id].devices > 1 else logging.DEBUG
                    log.log(level, "%s: the next free devices are kept for it", action.job_id)
                    self._state.reserve(action.job_id)
                    continue
                job = self._parts.plan.jobs[action.job_id]
                if not job.key or (self._claim(job) and not self._is_there(job)):
                    attempt = self._state.start(job.id, action.worker, action.members, self._parts.clock())
                    self.handover.gather(job, attempt, action.emptied)

    def _send(self, job: Job, attempt: int) -> None:
        workers = self._state.jobs[job.id].workers
        for worker in workers:
            self._parts.account.sent(worker)
        self._parts.watchdog.began(workers[0], self._parts.clock())
        self._parts.pool.send(workers[0], self._order(job, attempt))

    def _claim(self, job: Job) -> bool:
        """Claim the job's key, or have the job wait while another run that shares the store computes it."""
        claim = self._parts.store.claim(job.key)
        if claim is not None:
            self._parts.claims[job.id] = claim
            return True
        if job.id not in self._waiting:
            self._waiting.add(job.id)
            log.info("%s: another run computes it; waiting for that", job.id)
            self._parts.account.write("JobWaits", job=job.id, reason="another run computes it")
        self._state.wait(job.id)
        self._parts.later.add(job.id, self._parts.clock() + _OTHER_RUN_S)
        return False

    def _is_there(self, job: Job) -> bool:
        """Whether the output of a job that is about to start exists: another run may share the store."""
        problem = self._verified.problem(job.key)
        if problem == NOT_STORED:
            return False
        if problem is not None:
            self._recovery.set_aside(job.key, problem)
            return False
        self._parts.claims.pop(job.id).release()
        log.info("%s: another run has stored it", job.id)
        self._parts.account.write("JobFoundStored", job=job.id)
        self._state.found(job.id)
        return True

    def _order(self, job: Job, attempt: int) -> RunJob:
        workers = self._state.jobs[job.id].workers
        return RunJob(
            job_id=job.id,
            attempt=attempt,
            key=job.key,
            entry=job.entry,
            payload=job.payload,
            inputs={name: list(keys) for name, keys in job.inputs.items()},
            store=str(self._parts.store.root.absolute()),
            scratch=str(self._scratch.absolute()),
            verified=str(self._verified.folder.absolute()),
            log_path=str(self._parts.log_path(job.id, attempt)),
            gang=[self._state.workers[worker].visible for worker in workers] if len(workers) > 1 else [],
            keep_models=self._state.jobs[job.id].keep_models,
            slots=self._layout.slots,
            shared=not self._state.jobs[job.id].whole,
        )
