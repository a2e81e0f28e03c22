"""Where the device time of a run went, and what it has measured for the estimates of later ones."""

import pytest

from pipeline.engine.scheduler.outcome import Attempt, Makespan, Outcome, WorkerSpan, account
from pipeline.plan.graph import WORKER_LOAD, Job, Plan, Timed
from tests.doubles.simulate import simulate


def attempt(
    job_id: str,
    sent_s: float,
    ended_s: float,
    load_s: float = 0.0,
    start_s: float | None = None,
    how: str = "done",
    worker: int = 0,
) -> Attempt:
    return Attempt(
        job_id=job_id,
        attempt=1,
        worker=worker,
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


def parts(made: Makespan | None) -> tuple[float, ...]:
    assert made is not None
    total = made.work_s + made.load_s + made.dependency_s + made.retry_s + made.tail_s
    assert total == pytest.approx(made.devices * made.actual_s)
    return tuple(round(value, 6) for value in (made.load_s, made.dependency_s, made.retry_s, made.tail_s))


def spans(*ready: float) -> list[WorkerSpan]:
    return [WorkerSpan(worker=index, started_s=0.0, ready_s=at) for index, at in enumerate(ready)]


def test_every_lost_second_has_a_cause() -> None:
    attempts = [
        attempt("a", 1, 5, load_s=1),  # 1 s of start before, 1 s of loading inside
        attempt("b", 5, 6, how="lost", worker=1),
        attempt("c", 5, 8),
        attempt("b", 7, 10, worker=1),
    ]
    workers = [*spans(1.0, 2.0), WorkerSpan(worker=1, started_s=6.0, ready_s=7.0)]
    workers[1] = WorkerSpan(worker=1, started_s=0.0, ready_s=2.0, ended_s=6.0)
    jobs = [Job(id=name, key=name, entry="m:f", payload={}) for name in "abc"]
    made = account(Plan(jobs, [("a", "b"), ("a", "c")]), attempts, workers, 2, 0.0)
    # load: starts 1 + 2 + 1, loading 1; dependency: worker 1 from 2 to 5; retry: lost 1; tail: worker 0.
    assert parts(made) == (5, 3, 1, 2)
    assert made is not None
    assert (made.work_s, made.critical_path_s, made.lower_bound_s, made.actual_s) == (9, 6, 6, 10)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_parts_add_up_for_any_schedule(workers: int) -> None:
    jobs = [Job(id=str(i), key=str(i), entry="m:f", payload={}, seconds=1 + i % 4) for i in range(30)]
    plan = Plan(jobs, [(str(i), str(i + 7)) for i in range(23)])
    made = account(plan, simulate(plan, workers), spans(*([0.0] * workers)), workers, 0.0)
    parts(made)
    assert made is not None
    assert made.ratio >= 1
