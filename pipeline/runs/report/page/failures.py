"""What went wrong in a run: attempts that failed, devices that are used no more, jobs that are blocked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.runs.report.captions import first_few
from pipeline.runs.report.format import beginning, count
from pipeline.runs.report.page.model import Failure, Failures
from pipeline.runs.run_view import AttemptView, JobView, RunView

MOST = 500
LONGEST = 20_000
"""Characters of a reason or a traceback."""


Attempts = Iterable[tuple[JobView, AttemptView]]


def failures_of(view: RunView, lost: Attempts = (), rewards: Iterable[str] = ()) -> Failures:
    """What went wrong, so far as the journal tells.

    Args:
        view: The run.
        lost: Attempts that were under way when it was killed.
        rewards: What is said of completions at which rewards failed.
    """
    failed = sorted([*_failed(view), *lost], key=lambda pair: pair[1].ended or 0.0)
    return Failures(
        rows=[_failure(job, attempt) for job, attempt in failed[:MOST]],
        left_out=max(0, len(failed) - MOST),
        notes=[*_notes(view), *rewards],
    )


def _failed(view: RunView) -> Iterator[tuple[JobView, AttemptView]]:
    for job in view.jobs.values():
        attempts = [attempt for attempt in job.attempts if attempt.outcome == "failed"]
        if job.status == "failed" and not attempts:
            # It failed before a worker had it.
            attempts = [AttemptView(number=0, outcome="failed", kind=job.kind, reason=job.reason)]
        yield from ((job, attempt) for attempt in attempts)


def _failure(job: JobView, attempt: AttemptView) -> Failure:
    return Failure(
        job=job.id,
        attempt=attempt.number,
        device=attempt.device,
        kind=attempt.kind,
        reason=beginning(attempt.reason or job.reason, LONGEST),
        outcome=_outcome(job, attempt),
        traceback=beginning(attempt.traceback, LONGEST),
        log=attempt.log,
    )


def _outcome(job: JobView, attempt: AttemptView) -> str:
    if attempt.outcome == "lost":
        return "lost with the run"
    if not attempt.retry:
        return "given up"
    done = job.status == "done" and job.attempts[-1] is not attempt
    return f"tried again, done by attempt {job.attempts[-1].number}" if done else "tried again"


def _notes(view: RunView) -> Iterator[str]:
    for place in view.quarantined:
        jobs = f" Jobs that failed there: {', '.join(first_few(list(place.jobs), 'jobs'))}." if place.jobs else ""
        device, reason = place.device or f"worker {place.worker}", beginning(place.reason, LONGEST)
        yield f"{device} is used no more: {reason}.{jobs}"
    for cause, blocked in view.blocked_by().items():
        yield f"{count(len(blocked), 'job')} cannot run because {cause or 'another one'} failed."
