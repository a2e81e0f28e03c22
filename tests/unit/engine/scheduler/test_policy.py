"""Which job starts next, and what that guarantees."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.schema import ExecutionConfig
from pipeline.engine.devices.select import Layout, Place, plain_layout
from pipeline.engine.scheduler.outcome import account
from pipeline.engine.scheduler.policy import BACKFILL_DEPTH, Reserve, Start, next_actions
from pipeline.engine.scheduler.reactions import check_runnable
from pipeline.engine.scheduler.state import JobStatus, RunState
from pipeline.engine.workers.messages import FailureKind
from pipeline.errors import PlanError
from pipeline.plan.graph import Job, Plan
from tests.doubles.simulate import simulate

SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(4, 12))]


def job(name: str, seconds: float = 1.0, affinity: str = "", number: int = 0) -> Job:
    return Job(id=name, key=name, entry="m:f", payload={}, seconds=seconds, affinity=affinity, round=number)


def ready_state(plan: Plan, workers: int, layout: Layout | None = None) -> RunState:
    state = RunState(plan, (), layout or plain_layout(workers), ExecutionConfig(models_in_memory=1))
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
    state.finished(1)
    assert next_actions(state) == [Start("d", 1)]
    state.finished(0)
    assert next_actions(state) == [Start("c", 0), Start("d", 1)]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_schedule_keeps_grahams_bound(seed: int, workers: int) -> None:
    plan = random_plan(seed)
    # The policy knows estimates; the bound holds for whatever the jobs really take.
    rng = random.Random(seed + 1000)
    seconds = {one.id: one.seconds * rng.uniform(0.2, 3) for one in plan.jobs.values()}
    attempts = simulate(plan, workers, seconds)
    makespan = max(attempt.ended_s for attempt in attempts)
    work, path = sum(seconds.values()), max(plan.longest_paths(seconds).values())
    assert max(path, work / workers) <= makespan + 1e-9
    assert makespan <= work / workers + (1 - 1 / workers) * path + 1e-9


# -- priorities of the user's own ---------------------------------------------------------


def test_a_priority_comes_before_the_longest_path() -> None:
    jobs = [replace(job(name, seconds), priority=first) for name, seconds, first in (("a", 9, 0), ("b", 1, 2))]
    assert next_actions(ready_state(Plan([*jobs, replace(job("c", 2), priority=2)], []), 3)) == [
        *(Start("c", 0), Start("b", 1), Start("a", 2))
    ]


@pytest.mark.parametrize("slots", [1, 2], ids=["memory is not looked at", "it is"])
def test_a_job_that_is_tried_again_is_the_first_of_its_priority(slots: int) -> None:
    first = {"again": 1, "later": 0, "equal": 1, "more": 2}
    jobs = [replace(job(name), priority=value, memory_mb=60) for name, value in first.items()]
    one_at_a_time = Layout(places=(Place(label="GPU 0", free_mb=100, usable_mb=100),), slots=slots)
    state = ready_state(Plan(jobs, []), slots, layout=one_at_a_time)
    state.start("again", 0)
    state.raised(0)
    state.blame.failed("again", 0, FailureKind.lost)
    state.retry("again")
    started = []
    while begun := [action for action in next_actions(state) if isinstance(action, Start)]:
        started += [action.job_id for action in begun]
        for action in begun:
            state.start(action.job_id, action.worker)
            state.finished(action.worker)
    assert started == ["more", "again", "equal", "later"]


@pytest.mark.properties
@given(st.integers(0, 10**9), st.sampled_from([2, 4, 8]), st.lists(st.integers(-3, 3), min_size=1, max_size=6))
def test_whatever_the_priorities_promises_are_kept_and_no_gang_starves(
    seed: int, workers: int, values: list[int]
) -> None:
    rng = random.Random(seed)
    bare = gang_plan(seed, workers, 30)
    plan = Plan([replace(one, priority=rng.choice(values)) for one in bare.jobs.values()], bare.graph.edges)
    promised: dict[str, float] = {}

    def watch(state: RunState, now_s: float) -> None:
        for name in state.reserved.keys() - promised.keys():
            ends = [
                state.jobs[one.job_id].sent_s + plan.jobs[one.job_id].seconds
                for one in state.workers
                if one.job_id
            ]
            promised[name] = max(ends)

    attempts = {one.job_id: one for one in simulate(plan, workers, watch=watch)}
    assert set(attempts) == set(plan.jobs)
    assert all(attempts[name].sent_s <= at + 1e-6 for name, at in promised.items())


# -- jobs of several devices ------------------------------------------------------------


def gang_plan(seed: int, devices: int = 8, jobs: int = 60) -> Plan:
    """A random plan in which some jobs need 2, 4 or 8 devices."""
    rng = random.Random(seed + 77)
    plan = random_plan(seed, jobs)
    widths = [width for width in (1, 1, 1, 2, 4, 8) if width <= devices]
    made = [replace(one, devices=rng.choice(widths)) for one in plan.jobs.values()]
    return Plan(made, plan.edges())


def wide(name: str, devices: int, seconds: float = 1.0) -> Job:
    return replace(job(name, seconds), devices=devices)


def test_all_devices_of_a_job_are_on_one_machine() -> None:
    places = tuple(Place(label=str(at), node=at // 2) for at in range(6))
    plan = Plan([job("runs", 9), wide("gang", 2, 5), wide("other", 2, 4), wide("last", 2, 3)], [])
    state = RunState(plan, (), Layout(places=places))
    for index in range(6):
        state.worker_ready(index, "")
    state.start("runs", 1)
    # Worker 0 is idle too, and its neighbour is not. What is left over waits for the machine that is free first.
    assert next_actions(state) == [Start("gang", 2, (3,)), Start("other", 4, (5,)), Reserve("last", 2)]
    state = RunState(Plan([wide("gang", 3)], []), (), Layout(places=places))
    with pytest.raises(PlanError, match="needs 3 devices at once, and there are 2"):
        check_runnable(state.plan, state.layout)


def test_a_gang_avoids_the_device_that_failed_it_while_there_are_others() -> None:
    plan = Plan([wide("gang", 2)], [])
    state = ready_state(plan, 3)
    state.start("gang", 0, (1,))
    state.raised(0)
    state.blame.failed("gang", 0, FailureKind.lost)
    state.retry("gang")
    assert next_actions(state) == [Start("gang", 1, (2,))]
    state.quarantine(2)
    assert next_actions(state) == [Start("gang", 0, (1,))]


@pytest.mark.parametrize("exact", [True, False], ids=["estimates are right", "estimates are wrong"])
@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_schedule_of_gangs_keeps_its_bound(seed: int, workers: int, exact: bool) -> None:
    plan = gang_plan(seed, workers)
    rng = random.Random(seed + 1000)
    seconds = {one.id: one.seconds * (1 if exact else rng.uniform(0.2, 3)) for one in plan.jobs.values()}
    made = account(plan, simulate(plan, workers, seconds), [], workers, 0.0)
    assert made is not None
    assert made.lower_bound_s <= made.actual_s + 1e-9
    widest = max(one.devices for one in plan.jobs.values())
    assert made.actual_s <= made.work_s / (workers - widest + 1) + made.critical_path_s + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_no_worker_idles_that_a_ready_job_could_use_unless_it_is_promised(seed: int) -> None:
    widest = max(one.devices for one in gang_plan(seed).jobs.values())

    def watch(state: RunState, now_s: float) -> None:
        idle = len(state.idle_workers())
        ready = [one.job.devices for one in state.jobs.values() if one.status is JobStatus.ready]
        if ready:
            assert idle < widest
        if not state.reserved:
            assert all(devices > idle for devices in ready)

    simulate(gang_plan(seed), 8, watch=watch)


def machines(number: int, each: int) -> Layout:
    return Layout(places=tuple(Place(label=str(at), node=at // each) for at in range(number * each)))


def test_each_machine_may_be_promised_to_a_job_of_its_own() -> None:
    jobs = [job("long", 9), job("short", 5), wide("first", 2, 4), wide("second", 2, 3), job("brief", 2)]
    state = RunState(Plan(jobs, []), (), machines(2, 2))
    for index in range(4):
        state.worker_ready(index, "")
    state.start("long", 0)
    state.start("short", 2)
    made = next_actions(state)
    assert made == [Reserve("first", 1), Reserve("second", 0), Start("brief", 1)]
    state.reserve("first", 1)
    state.reserve("second", 0)
    state.start("brief", 1)
    state.finished(2)
    assert next_actions(state, 5.0) == [Start("first", 2, (3,))]


def test_a_short_job_uses_a_promised_machine_however_many_long_ones_wait_before_it() -> None:
    many = [job(f"many{at}", 20) for at in range(BACKFILL_DEPTH + 1)]
    jobs = [job("runs", 9), wide("gang", 2, 30), *many, job("brief", 2)]
    state = ready_state(Plan(jobs, []), 2, layout=machines(1, 2))
    state.start("runs", 0)
    assert next_actions(state) == [Reserve("gang", 0), Start("brief", 1)]
