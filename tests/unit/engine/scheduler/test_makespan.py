"""Where the device time went."""

import pytest

from pipeline.engine.scheduler.outcome import Attempt, Makespan, WorkerSpan, account
from pipeline.plan.graph import Job, Plan
from tests.doubles.simulate import simulate

PLAN = Plan(
    [Job(id=name, key=name, entry="m:f", payload={}) for name in ("a", "b", "c")], [("a", "b"), ("a", "c")]
)


def attempt(
    name: str, worker: int, sent: float, ended: float, load: float = 0.0, outcome: str = "done"
) -> Attempt:
    return Attempt(job_id=name, attempt=1, worker=worker, sent_s=sent, ended_s=ended, load_s=load, outcome=outcome)


def parts(made: Makespan | None) -> tuple[float, ...]:
    assert made is not None
    total = made.work_s + made.load_s + made.dependency_s + made.retry_s + made.tail_s
    assert total == pytest.approx(made.devices * made.actual_s)
    return tuple(round(value, 6) for value in (made.load_s, made.dependency_s, made.retry_s, made.tail_s))


def spans(*ready: float) -> list[WorkerSpan]:
    return [WorkerSpan(worker=index, started_s=0.0, ready_s=at) for index, at in enumerate(ready)]


def test_every_lost_second_has_a_cause() -> None:
    attempts = [
        attempt("a", 0, 1, 5, load=1),  # 1 s of start before, 1 s of loading inside
        attempt("b", 1, 5, 6, outcome="lost"),
        attempt("c", 0, 5, 8),
        attempt("b", 1, 7, 10),
    ]
    workers = [*spans(1.0, 2.0), WorkerSpan(worker=1, started_s=6.0, ready_s=7.0)]
    workers[1] = WorkerSpan(worker=1, started_s=0.0, ready_s=2.0, ended_s=6.0)
    made = account(PLAN, attempts, workers, 2, 0.0)
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
