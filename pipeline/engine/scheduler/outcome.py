"""What came of a run: the end of every job, every attempt with its times, and the account of device time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, median

from pipeline.engine.scheduler.job_state import JobStatus
from pipeline.engine.scheduler.makespan import Attempt, Makespan, WorkerSpan
from pipeline.plan.durations import Durations, Timed, averaged
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job
from pipeline.plan.summary import WORKER_LOAD, load_name


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a run.

    Attributes:
        jobs: Job id -> where it stands; after an interruption some are still pending or ready.
        reasons: Why jobs failed or are blocked.
        root_causes: Blocked job -> the failed job behind it.
        attempts: Every attempt, in the order in which they ended.
        workers: Every worker that was started.
        interrupted: ``SIGINT``, ``SIGTERM``, ``SIGHUP`` or ``SIGUSR2`` if that ended the run.
        halted: Why no further job could have succeeded, for example a full disk; or "".
        makespan: The account of device time, or None where nothing was finished.
        peaks_mb: The highest peaks of device memory that were measured, by `Job.memory_kind`.
        read: Bytes of outputs that jobs have read, where a run has several machines.
        moved: Those of them that another machine had made in this run, and that of the job had not read before.
    """

    jobs: Mapping[str, JobStatus]
    reasons: Mapping[str, str] = field(default_factory=dict)
    root_causes: Mapping[str, str] = field(default_factory=dict)
    attempts: Sequence[Attempt] = ()
    workers: Sequence[WorkerSpan] = ()
    interrupted: str | None = None
    halted: str = ""
    makespan: Makespan | None = None
    peaks_mb: Mapping[str, int] = field(default_factory=dict)
    read: int = 0
    moved: int = 0

    def failures(self) -> list[tuple[str, str]]:
        """Failed jobs with their reasons; those that they block are in `root_causes`."""
        return [
            (job_id, self.reasons[job_id]) for job_id, status in self.jobs.items() if status is JobStatus.failed
        ]

    def reason(self, job_id: str) -> str:
        """Why a job has no result, or "" where nothing is wrong with it."""
        return self.reasons.get(job_id, "")

    def durations(self, plan: Plan, name_of: Callable[[Job], str]) -> Durations:
        """What was measured for the estimates of later runs: of jobs, loading left out, and of loading."""
        timed: dict[str, list[Timed]] = {}
        for attempt in self.attempts:
            if attempt.succeeded:
                job = plan.jobs[attempt.job_id]
                timed.setdefault(name_of(job), []).append(Timed(job.size_s, attempt.work_s))
        return Durations({name: averaged(own) for name, own in timed.items()}, self.load_seconds(plan))

    def load_seconds(self, plan: Plan) -> dict[str, float]:
        """Measured seconds of loading, by the names of `pipeline.plan.summary`."""
        own = self._by_worker()
        found = ((span, _first(span, own.get(span.worker, ()))) for span in self.workers)
        firsts = [(span, first) for span, first in found if first and first.succeeded]
        starts = [max(0.0, (span.ready_s or span.started_s) - span.started_s) + at.load_s for span, at in firsts]
        counted = {id(first) for _, first in firsts}
        later: dict[str, list[float]] = {}
        for attempt in self.attempts:
            if attempt.succeeded and id(attempt) not in counted:
                later.setdefault(load_name(plan.jobs[attempt.job_id]), []).append(attempt.load_s)
        measured = {name: fmean(seconds) for name, seconds in later.items()}
        return measured | ({WORKER_LOAD: median(starts)} if starts else {})

    def _by_worker(self) -> dict[int, list[Attempt]]:
        """Worker -> its attempts, by when they were given to it."""
        found: dict[int, list[Attempt]] = {}
        for attempt in sorted(self.attempts, key=lambda attempt: attempt.sent_s):
            found.setdefault(attempt.worker, []).append(attempt)
        return found


def _first(span: WorkerSpan, own: Sequence[Attempt]) -> Attempt | None:
    """The first attempt of a worker, of which another one may have the same number later."""
    at = bisect_left(own, span.started_s, key=lambda attempt: attempt.sent_s)
    return own[at] if at < len(own) and own[at].sent_s <= (inf if span.ended_s is None else span.ended_s) else None
