"""What a snapshot says."""

import pytest

from pipeline.engine.scheduler.snapshot import Observer
from pipeline.engine.scheduler.state import RunState
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job


def make() -> tuple[RunState, Observer]:
    jobs = [Job(id=str(i), key=str(i), entry="m:f", payload={}, samples=10, seconds=2, algo="A") for i in range(4)]
    state = RunState(Plan(jobs, [("0", "3")]), (), 2)
    for index in range(2):
        state.worker_ready(index, f"cpu slot {index}")
    return state, Observer(state)


def test_jobs_are_counted_by_state_and_chain() -> None:
    state, observer = make()
    state.start("0", 0)
    state.start("1", 1)
    state.raised(1)
    state.fail("1", "why")
    status = observer.snapshot(1.0, {0: 0.5})
    assert (status.total.total, status.total.running, status.total.failed) == (4, 1, 1)
    assert list(status.cells) == [("//any/A", 0)]
    assert (status.workers[0].job_id, status.workers[0].running_s, status.workers[0].total) == ("0", 0.5, 10)
    assert status.workers[1].state == "idle"


def test_rates_look_at_the_last_seconds_only() -> None:
    state, observer = make()
    state.start("0", 0)
    state.workers[0].done, state.workers[0].tokens = 5, 50
    status = observer.snapshot(10.0, {})
    assert (status.samples_per_s, status.tokens_per_s) == (0.5, 5.0)
    state.finished(0, samples=10, tokens=100)
    assert observer.snapshot(20.0, {}).samples_per_s == pytest.approx(0.5)
    assert observer.snapshot(30.0, {}).samples_per_s == pytest.approx(0.0)


def test_a_lost_attempt_is_no_negative_speed() -> None:
    state, observer = make()
    state.start("0", 0)
    state.workers[0].done = 9
    observer.snapshot(1.0, {})
    state.worker_lost(0)
    state.retry("0")
    assert observer.snapshot(2.0, {}).samples_per_s >= 0


def test_the_time_left_follows_the_pace_so_far() -> None:
    state, observer = make()
    assert observer.snapshot(0.0, {}).remaining_s is None
    state.start("0", 0)
    state.finished(0, 10, 0)
    observer.measured(planned_s=2, actual_s=4)
    # Three jobs of 2 s at half the planned pace, on two workers.
    assert observer.snapshot(4.0, {}).remaining_s == pytest.approx(6.0)
    state.start("1", 1)
    assert observer.snapshot(6.0, {1: 2.0}).remaining_s == pytest.approx(5.0)
