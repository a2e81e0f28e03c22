"""What a run has measured for the estimates of later ones."""

import pytest

from pipeline.engine.scheduler.outcome import Attempt, Outcome
from pipeline.plan.graph import WORKER_LOAD, Job, Plan, Timed


def attempt(
    job_id: str, sent_s: float, ended_s: float, load_s: float, start_s: float | None = None, how: str = "done"
) -> Attempt:
    return Attempt(
        job_id=job_id,
        attempt=1,
        worker=0,
        sent_s=sent_s,
        ended_s=ended_s,
        load_s=load_s,
        start_s=start_s,
        outcome=how,
    )


def test_loading_is_measured_by_worker_and_by_later_job() -> None:
    """A worker that was replaced counts twice, and one whose first job failed says nothing of loading."""
    plan = Plan([Job(id=name, key=name, entry="m:f", payload={}, model="tiny") for name in "abcd"], [])
    outcome = Outcome(
        jobs={},
        attempts=[
            attempt("a", 1, 11, 8, 1), attempt("b", 11, 12, 0.2), attempt("c", 23, 34, 10, 3),
            attempt("d", 1, 5, 0, 1, "lost"), attempt("d", 34, 36, 0.4),
        ],
    )  # fmt: skip
    assert outcome.load_seconds(plan) == {WORKER_LOAD: 11.0, "load: tiny": pytest.approx(0.3)}
    assert Outcome(jobs={}).load_seconds(plan) == {}


def test_jobs_are_remembered_by_kind_without_what_they_loaded() -> None:
    sizes = {"a": 1.0, "b": 1.5, "c": 40.0, "d": 40.0}
    jobs = [Job(id=name, key=name, entry="m:f", payload={}, size_s=size) for name, size in sizes.items()]
    ended = [attempt("a", 0, 12, 10.0), attempt("b", 12, 16, 0.0), attempt("c", 16, 80, 4.0)]
    outcome = Outcome(jobs={}, attempts=[*ended, attempt("d", 80, 81, 0.0, how="lost")])
    found = outcome.durations(Plan(jobs, []), lambda _: "kind").jobs
    assert found == {"kind": Timed(40.0, 60.0)}
