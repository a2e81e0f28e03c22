"""Several jobs on one device, and devices of different sizes: what fits where, and what that guarantees."""

import random
from collections import defaultdict

import pytest

from pipeline.engine.devices.select import Layout, Place
from pipeline.engine.scheduler.policy import Action, Reserve, Room, Start, next_actions
from pipeline.engine.scheduler.ready import MARGIN, Needs
from pipeline.engine.scheduler.state import JobStatus, RunState
from pipeline.plan.graph import Job, Plan
from tests.doubles.simulate import simulate

SEEDS = [*range(12), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(12, 40))]


def job(name: str, memory_mb: int | None = None, seconds: float = 1.0, devices: int = 1, kind: str = "") -> Job:
    return Job(
        id=name, key=name, entry="m:f", payload={}, seconds=seconds, devices=devices, memory_mb=memory_mb,
        memory_kind=kind,
    )  # fmt: skip


def layout(*sizes: int, slots: int = 4, vouched: bool = False) -> Layout:
    places = tuple(Place(label=f"GPU {at}", free_mb=size, usable_mb=size) for at, size in enumerate(sizes))
    return Layout(places=places, slots=slots, vouched=vouched)


def ready(where: Layout, *jobs: Job, peaks: dict[str, int] | None = None) -> RunState:
    state = RunState(Plan(jobs, []), (), where, needs=Needs(where, peaks))
    for index in range(where.workers):
        state.worker_ready(index, "gpu")
    return state


def carry_out(state: RunState, now_s: float = 0.0) -> list[Action]:
    """Decide, and do it."""
    actions = next_actions(state, now_s)
    for action in actions:
        if isinstance(action, Reserve):
            state.reserve(action.job_id, action.node)
        else:
            state.start(action.job_id, action.worker, action.members, now_s)
    return actions


def on(state: RunState) -> dict[int, list[str]]:
    """Device -> the jobs on it."""
    found: dict[int, list[str]] = defaultdict(list)
    for worker in state.workers:
        if worker.job_id:
            found[state.layout.device_of(worker.index)].append(worker.job_id)
    return dict(found)


# -- several jobs on one device ---------------------------------------------------------


def test_a_job_of_unknown_need_is_alone_until_its_kind_is_measured() -> None:
    state = ready(layout(100, 100), *(job(str(number), kind="k") for number in range(7)))
    carry_out(state)
    assert on(state) == {0: ["0"], 1: ["1"]}
    state.finished(0, peak_mb=20)
    carry_out(state)
    # 20 x 1.2 each; the other device stays with the job that began alone on it.
    assert on(state) == {0: ["2", "3", "4", "5"], 1: ["1"]}
    state.finished(1, peak_mb=60)
    assert state.needs.of(job("x", kind="k")) == 60
    assert state.needs.seen == {"k": 60}


def test_a_job_that_waits_for_memory_is_not_overtaken_for_ever() -> None:
    small = [job(f"s{number}", 40, seconds=1.0) for number in range(6)]
    state = ready(layout(100), job("first", 40, seconds=9), job("large", 80, seconds=5), *small)
    assert carry_out(state, 0.0)[1] == Reserve("large")
    # Those that end before the large one could start may run beside the first.
    assert on(state) == {0: ["first", "s0"]}
    state.finished(1)
    carry_out(state, 8.5)
    assert on(state) == {0: ["first"]}
    state.finished(0)
    carry_out(state, 9.0)
    assert on(state) == {0: ["large"]}


def test_memory_that_idle_workers_hold_is_emptied_where_it_is_needed() -> None:
    state = ready(layout(100), job("a", 50, seconds=9), job("b", 40, seconds=8), job("c", 90, seconds=3))
    carry_out(state)
    state.finished(0, held_mb=45)
    state.finished(1, held_mb=5)
    # The worker that holds most starts the job, as it lets go of its models first; 5 fit beside it.
    assert next_actions(state) == [Start("c", 0)]
    state.workers[1].held_mb = 30
    assert next_actions(state) == [Start("c", 0, (), (1,))]


def test_running_out_of_memory_beside_others_leads_to_an_attempt_alone() -> None:
    state = ready(layout(100), *(job(name, kind="k") for name in "ab"), peaks={"k": 30})
    carry_out(state)
    assert on(state) == {0: ["a", "b"]}
    assert state.charge("b", 0) == 36
    assert not state.jobs["a"].exclusive
    assert state.ran_out_of_memory("a", 0)
    state.raised(0)
    state.retry("a")
    carry_out(state)
    assert on(state) == {0: ["b"]}  # "a" waits for the whole device
    assert list(state.reserved) == ["a"]
    assert state.charge("b", 0) == 54
    state.finished(1, peak_mb=30)
    carry_out(state)
    assert on(state) == {0: ["a"]}
    assert state.jobs["a"].exclusive
    assert not state.ran_out_of_memory("a", 0)  # that one is its own fault


# -- devices of different sizes ---------------------------------------------------------


def test_the_smallest_device_that_does_is_taken_if_another_job_needs_the_larger() -> None:
    small, large = job("small", 10, seconds=9), job("large", 40, seconds=1)
    assert next_actions(ready(layout(80, 24, slots=1), small, large)) == [Start("small", 1), Start("large", 0)]
    assert next_actions(ready(layout(80, 24, slots=1), small)) == [Start("small", 0)]


def test_what_is_unknown_goes_to_the_largest_device_and_grows_out_of_the_small_ones() -> None:
    state = ready(layout(24, 80, slots=1), job("a", kind="k"), job("b", kind="k"), job("c", 50))
    carry_out(state)
    assert on(state)[1] == ["a"]
    assert not state.ran_out_of_memory("b", 0)
    state.raised(0)
    state.retry("b")
    assert state.fitting_devices(job("x", kind="k")) == [1]
    assert not [one for one in carry_out(state) if isinstance(one, Start)]


def test_a_measurement_refuses_nothing() -> None:
    state = ready(layout(24, 16, slots=1), job("a", kind="k"), peaks={"k": 40})
    assert state.fitting_devices(job("x", kind="k")) == [0]
    assert state.fitting_devices(job("x", 40)) == []
    carry_out(state)
    assert on(state) == {0: ["a"]}
    state.quarantine(0)
    assert state.fitting_devices(job("x", kind="k")) == [1]
    wide = ready(layout(24, 16, 8, slots=1), job("a", kind="k", devices=2), peaks={"k": 20})
    assert wide.fitting_devices(wide.jobs["a"].job) == [0, 1]


# -- whatever the jobs ------------------------------------------------------------------


def random_run(seed: int, *, said: bool, gangs: bool = False) -> tuple[Plan, Layout, dict[str, int]]:
    """Jobs in kinds, devices of up to three sizes, and what each job really takes."""
    rng = random.Random(seed)
    where = layout(*(rng.choice([24, 40, 80]) * 1000 for _ in range(rng.randint(1, 4))), slots=rng.randint(1, 4))
    most = max(place.free_mb or 0 for place in where.places)
    largest = sum(place.free_mb == most for place in where.places)
    kinds = [rng.randint(1, most) if rng.random() < 0.3 else rng.randint(1, most // 4) for _ in range(6)]
    jobs, peaks = [], {}
    for number in range(60):
        kind = rng.randrange(6)
        peak = int(kinds[kind] * rng.uniform(1, MARGIN) / MARGIN)
        width = rng.randint(1, largest) if gangs and rng.random() < 0.15 else 1
        name, takes_s = f"{number}", rng.choice([0.1, 1, 1, 2, 10]) * rng.random()
        jobs.append(job(name, kinds[kind] if said else None, takes_s, width, f"k{kind} on {width}"))
        peaks[name] = peak
    edges = [
        (str(up), str(down))
        for down in range(60)
        for up in rng.sample(range(down), min(down, rng.choice([0, 0, 0, 1, 2])))
    ]
    return Plan(jobs, edges), where, peaks


@pytest.mark.parametrize("said", [True, False], ids=["needs are said", "needs are measured"])
@pytest.mark.parametrize("seed", SEEDS)
def test_packing_never_exceeds_the_memory_of_a_device(seed: int, said: bool) -> None:
    plan, where, peaks = random_run(seed, said=said, gangs=seed % 2 == 0)
    shared = []

    def watch(state: RunState, now_s: float) -> None:
        for device, place in enumerate(where.places):
            workers = [state.workers[index] for index in where.workers_of(device)]
            running = [worker.job_id for worker in workers if worker.job_id]
            shared.append(len(running) > 1)
            takes = sum(peaks[name] for name in running)
            held = sum(worker.held_mb for worker in workers if not worker.job_id)
            if said:  # what nobody knows may start anywhere, but alone
                assert takes <= (place.free_mb or 0)
            if len(running) > 1:
                assert takes + held <= (place.usable_mb or 0)
                assert not any(state.jobs[name].exclusive for name in running)
            assert len(running) == len(set(running))  # the members of a gang are on devices of their own

    attempts = simulate(plan, 0, watch=watch, layout=where, peaks_mb=peaks)
    assert {attempt.job_id for attempt in attempts} == set(plan.jobs)
    assert any(shared) or where.slots == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_no_device_is_empty_while_a_ready_job_fits_it_unless_it_is_promised(seed: int) -> None:
    plan, where, peaks = random_run(seed, said=seed % 2 == 0)

    def watch(state: RunState, now_s: float) -> None:
        used = on(state)
        waiting = [one.job for one in state.jobs.values() if one.status is JobStatus.ready]
        for device in set(range(len(where.places))) - set(used):
            fitting = [one for one in waiting if device in state.fitting_devices(one)]
            # What is promised a place for its memory has one that is in use; no other job may wait for it here.
            assert not fitting

    simulate(plan, 0, watch=watch, layout=where, peaks_mb=peaks)


def test_what_is_promised_a_place_has_it_when_it_should() -> None:
    """However many small jobs turn up: it starts when by the estimates it could at the time of the promise."""
    promises = 0
    for seed in range(15):
        plan, where, _ = random_run(seed, said=True, gangs=seed % 2 == 0)
        promised: dict[str, float] = {}

        def watch(state: RunState, now_s: float, promised: dict[str, float] = promised) -> None:
            for name in state.reserved.keys() - promised.keys():
                room = Room(state, now_s)
                promised[name] = min(room.start_s(name, node) for node in state.layout.devices_by_node)

        started = {one.job_id: one.sent_s for one in simulate(plan, 0, watch=watch, layout=where)}
        assert all(started[name] <= at + 1e-5 for name, at in promised.items())
        promises += len(promised)
    assert promises > 40
