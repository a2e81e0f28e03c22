"""Which job starts next, and what that guarantees."""

import random
import time

import pytest

from pipeline.config.schema import Barrier
from pipeline.plan.graph import Plan, longest_paths
from pipeline.plan.job import Job
from pipeline.scheduler.policy import Start, next_actions
from pipeline.scheduler.state import RunState
from tests.doubles.simulate import simulate


def job(name: str, seconds: float = 1.0, affinity: str = "", number: int = 0) -> Job:
    return Job(id=name, key=name, entry="m:f", payload={}, seconds=seconds, affinity=affinity, round=number)


def ready_state(plan: Plan, workers: int, **options: object) -> RunState:
    state = RunState(plan, (), workers, **options)  # type: ignore[arg-type]
    for index in range(workers):
        state.worker_ready(index, "cpu")
    return state


def random_plan(seed: int, jobs: int = 60) -> Plan:
    rng = random.Random(seed)
    made = [
        job(str(index), rng.choice([0.1, 1, 1, 2, 10]) * rng.random(), str(index % 5)) for index in range(jobs)
    ]
    edges = [
        (str(up), str(down))
        for down in range(jobs)
        for up in rng.sample(range(down), min(down, rng.choice([0, 0, 1, 2, 4])))
    ]
    return Plan(made, edges)


def test_the_longest_remaining_path_goes_first() -> None:
    plan = Plan([job("long", 5), job("short", 2), job("head", 1), job("tail", 9)], [("head", "tail")])
    assert next_actions(ready_state(plan, 2)) == [Start("head", 0), Start("long", 1)]


def test_the_estimate_of_the_whole_path_counts_not_that_of_the_job() -> None:
    plan = Plan([job("a", 3), job("b", 1), job("c", 1), job("d", 1.5)], [("b", "c"), ("c", "d")])
    assert next_actions(ready_state(plan, 1)) == [Start("b", 0)]


def test_equal_jobs_start_in_the_order_of_the_plan() -> None:
    plan = Plan([job(name) for name in "cab"], [])
    assert [action.job_id for action in next_actions(ready_state(plan, 3))] == ["c", "a", "b"]


def test_equal_jobs_go_to_the_worker_that_holds_their_model() -> None:
    plan = Plan(
        [job(name, affinity=model) for name, model in zip("abcd", ["m1", "m2", "m1", "m2"], strict=True)], []
    )
    state = ready_state(plan, 2)
    first = next_actions(state)
    assert first == [Start("a", 0), Start("b", 1)]  # one model for each worker rather than both for one
    for action in first:
        state.start(action.job_id, action.worker)
    state.finished(1, 0, 0)
    assert next_actions(state) == [Start("d", 1)]
    state.finished(0, 0, 0)
    assert next_actions(state) == [Start("c", 0), Start("d", 1)]


def test_a_model_in_memory_does_not_outweigh_urgency() -> None:
    plan = Plan([job("a", 2, "m1"), job("urgent", 1.5, "m2"), job("held", 1, "m1")], [])
    state = ready_state(plan, 1)
    state.start("a", 0)
    state.finished(0, 0, 0)
    assert next_actions(state) == [Start("urgent", 0)]


def test_a_new_model_goes_to_the_worker_that_holds_least() -> None:
    plan = Plan([job("a", 9, "m1"), job("b", 1, "m2")], [])
    state = ready_state(plan, 2)
    state.start("a", 0)
    state.finished(0, 0, 0)
    assert next_actions(state) == [Start("b", 1)]


def test_the_last_bits_of_a_sum_do_not_tell_equal_jobs_apart() -> None:
    plan = Plan([job("a", 0.1 + 0.2, "m2"), job("b", 0.3, "m1"), job("c", 1, "m1")], [])
    state = ready_state(plan, 1)
    state.start("c", 0)
    state.finished(0, 0, 0)
    assert next_actions(state) == [Start("b", 0)]


def test_nothing_starts_on_workers_that_are_busy_or_not_there() -> None:
    plan = Plan([job("a"), job("b")], [])
    state = RunState(plan, (), 2)
    assert next_actions(state) == []
    state.worker_ready(1, "cpu")
    assert next_actions(state) == [Start("a", 1)]
    state.start("a", 1)
    assert next_actions(state) == []
    state.worker_lost(1)
    assert next_actions(state) == []


def test_the_policy_does_not_change_the_state() -> None:
    state = ready_state(random_plan(1), 3)
    assert next_actions(state) == next_actions(state)


def test_no_round_overtakes_another_behind_the_barrier() -> None:
    jobs = [job(f"{number}/{index}", 1 + index, number=number) for number in range(3) for index in range(4)]
    attempts = simulate(Plan(jobs, []), 3, barrier=Barrier.round)
    for number in (1, 2):
        earlier = [one.ended_s for one in attempts if one.job_id.startswith(f"{number - 1}/")]
        later = [one.sent_s for one in attempts if one.job_id.startswith(f"{number}/")]
        assert max(earlier) <= min(later)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(12))
def test_a_schedule_keeps_grahams_bound(seed: int, workers: int) -> None:
    plan = random_plan(seed)
    # The policy knows estimates; the bound holds for whatever the jobs really take.
    rng = random.Random(seed + 1000)
    seconds = {one.id: one.seconds * rng.uniform(0.2, 3) for one in plan.jobs.values()}
    attempts = simulate(plan, workers, seconds)
    makespan = max(attempt.ended_s for attempt in attempts)
    work, path = sum(seconds.values()), max(longest_paths(plan.graph, seconds).values())
    assert max(path, work / workers) <= makespan + 1e-9
    assert makespan <= work / workers + (1 - 1 / workers) * path + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_inputs_end_before_their_readers_start(seed: int) -> None:
    plan = random_plan(seed)
    attempts = {attempt.job_id: attempt for attempt in simulate(plan, 4)}
    assert set(attempts) == set(plan.jobs)
    assert all(attempts[up].ended_s <= attempts[down].sent_s for up, down in plan.graph.edges)


@pytest.mark.parametrize(
    "seconds", [lambda index: 1.0, lambda index: 1 + index / 7], ids=["equal", "all different"]
)
def test_twenty_thousand_jobs_are_no_burden(seconds: object) -> None:
    plan = Plan([job(str(index), seconds(index), str(index % 50)) for index in range(20_000)], [])  # type: ignore[operator]
    start = time.process_time()
    simulate(plan, 8)
    # About 0.3 s; a policy that looked at every ready job each time would take many minutes.
    assert time.process_time() - start < 20
