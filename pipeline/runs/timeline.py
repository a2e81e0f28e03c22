"""Who used which device when: attempts at jobs as spans of the workers that made them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pipeline.plan.graph import Job
from pipeline.runs.job_view import AttemptView, JobView
from pipeline.runs.run_view import RunView


@dataclass(frozen=True, kw_only=True)
class Span:
    """A time during which a worker, and so its device, was taken by an attempt at a job.

    Attributes:
        job: Its id.
        chain: Its chain.
        round: Of the chain.
        stage: Of the round.
        attempt: From 1.
        worker: Index.
        device: In words.
        start: Seconds since 1970.
        end: Likewise; None while it goes on.
        outcome: ``done``, ``failed``, ``stopped``, ``running``, or ``lost`` with a run that was killed.
        is_member: Whether the worker lends its device to a job on several, which another worker leads.
    """

    job: str
    chain: str
    round: int
    stage: str
    attempt: int
    worker: int
    device: str
    start: float
    end: float | None
    outcome: str
    is_member: bool = False


def attempts_of(view: RunView, *, killed: bool) -> Iterator[tuple[JobView, AttemptView]]:
    """All attempts, in the order of jobs.

    Args:
        view: The run.
        killed: Whether its engine is gone without a word: then none goes on, and those that did are lost.
    """
    for job in view.jobs.values():
        for attempt in job.attempts:
            is_lost = killed and attempt.outcome == "running"
            yield job, _lost(attempt, view.last) if is_lost else attempt


def timeline(view: RunView, jobs: Mapping[str, Job], *, killed: bool) -> list[Span]:
    """The spans of a run, by begin; a job on several devices has one for each.

    Args:
        view: The run.
        jobs: Id -> job, of those that were planned.
        killed: As for `attempts_of`.
    """
    found = [
        span
        for job, attempt in attempts_of(view, killed=killed)
        for span in _spans(view, job, attempt, jobs[job.id].stage if job.id in jobs else "")
    ]
    return sorted(found, key=lambda span: (span.start, span.worker))


def _spans(view: RunView, job: JobView, attempt: AttemptView, stage: str) -> Iterator[Span]:
    if attempt.started is None:
        return
    for worker in (attempt.worker, *attempt.members):
        is_member, known = worker != attempt.worker, view.workers.get(worker)
        yield Span(
            job=job.id,
            chain=job.chain,
            round=job.round,
            stage=stage,
            attempt=attempt.number,
            worker=worker,
            device=(known.device if known else "") if is_member else attempt.device,
            start=attempt.started,
            end=attempt.ended,
            outcome=attempt.outcome,
            is_member=is_member,
        )


def _lost(attempt: AttemptView, end: float) -> AttemptView:
    reason = "it was under way when the run was killed"
    return replace(attempt, outcome="lost", kind="lost", reason=reason, ended=end)
