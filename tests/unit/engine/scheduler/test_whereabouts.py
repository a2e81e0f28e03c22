"""Among what is equal otherwise, jobs go where their inputs are, and what moved all the same is counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from pipeline.engine.devices.layout import Layout, Place
from pipeline.engine.scheduler.policy import Start, by_models, next_actions
from pipeline.engine.scheduler.ready import WORTH_BYTES, Whereabouts
from pipeline.engine.scheduler.run import OnDisk
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.workers.failure import FailureKind
from pipeline.plan.graph import Job, Plan
from pipeline.runs.report.status import read_and_moved
from tests.doubles.engine import job as stored_job
from tests.doubles.on_paper import OnPaper

GB = 10**9


def job(name: str, affinity: str = "", seconds: float = 1.0, devices: int = 1) -> Job:
    return Job(id=name, key=name, entry="m:f", payload={}, seconds=seconds, affinity=affinity, devices=devices)


def state_of(
    plan: Plan, nodes: Sequence[str], layout: Layout | None = None, stored: Sequence[str] = ()
) -> RunState:
    state = RunState(plan, stored, len(nodes), layout=layout)
    for index, node in enumerate(nodes):
        state.worker_ready(index, "cpu", node=node)
    return state


def pairs(state: RunState) -> dict[str, int]:
    actions = next_actions(state)
    assert all(isinstance(action, Start) for action in actions)
    return {action.job_id: action.worker for action in actions if isinstance(action, Start)}


def two_chains(*affinities: str) -> Plan:
    """`readA` reads what `makeA` made, and so on: all readers are equally urgent."""
    names = "ABCD"[: len(affinities)]
    made = [job(f"make{name}") for name in names]
    read = [job(f"read{name}", affinity) for name, affinity in zip(names, affinities, strict=True)]
    return Plan([*made, *read], [(f"make{name}", f"read{name}") for name in names])


# -- what is preferred -----------------------------------------------------------------------------------------


def test_a_job_without_a_model_goes_to_the_machine_that_made_what_it_reads() -> None:
    plan = two_chains("", "", "")
    state = state_of(plan, ["x", "y", "z"], stored=["makeA", "makeB", "makeC"])
    assert pairs(state) == {"readA": 0, "readB": 1, "readC": 2}
    for name, node in zip("ABC", "zxy", strict=True):
        state.whereabouts.made(f"make{name}", node, GB)
    assert pairs(state) == {"readA": 2, "readB": 0, "readC": 1}


def test_one_worker_gets_the_job_whose_inputs_its_machine_has() -> None:
    state = state_of(two_chains("m", "m", "m"), ["x", "y"], stored=["makeA", "makeB", "makeC"])
    state.workers[1].quarantined = True
    state.whereabouts.made("makeB", "x", GB)
    state.whereabouts.made("makeC", "x", 2 * GB)
    for held in ([], ["m"]):  # whether it has to load their model or not
        state.workers[0].holds = held
        assert pairs(state) == {"readC": 0}


def test_a_new_model_is_loaded_where_it_was_made() -> None:
    state = state_of(two_chains("mA", "mB"), ["x", "x", "y", "y"], stored=["makeA", "makeB"])
    state.whereabouts.made("makeA", "y", 16 * GB)
    state.whereabouts.made("makeB", "x", 16 * GB)
    assert pairs(state) == {"readA": 2, "readB": 0}


def test_a_model_that_nobody_holds_comes_before_one_that_is_at_hand_and_held_by_others() -> None:
    state = state_of(two_chains("mA", "mB"), ["x", "y"], stored=["makeA", "makeB"])
    state.workers[1].holds, state.workers[1].quarantined = ["mA"], True
    state.whereabouts.made("makeA", "x", GB)
    assert pairs(state) == {"readB": 0}


def test_what_a_machine_has_read_counts_as_what_it_made() -> None:
    state = state_of(two_chains("", ""), ["x", "y"], stored=["makeA", "makeB"])
    state.whereabouts.weighs({"makeA": GB})
    state.whereabouts.reads("readA", ["y"])
    assert pairs(state) == {"readA": 1, "readB": 0}


def test_a_model_in_memory_outweighs_what_is_on_the_machine() -> None:
    state = state_of(two_chains("m1", "m2"), ["x", "y"], stored=["makeA", "makeB"])
    state.workers[0].holds, state.workers[1].holds = ["m1"], ["m2"]
    state.whereabouts.made("makeA", "y", GB)
    state.whereabouts.made("makeB", "x", GB)
    assert pairs(state) == {"readA": 0, "readB": 1}


def test_it_does_not_outweigh_urgency() -> None:
    plan = Plan([job("make"), job("read"), job("urgent", seconds=2)], [("make", "read")])
    state = state_of(plan, ["x", "y"], stored=["make"])
    state.workers[1].quarantined = True
    state.whereabouts.made("make", "x", GB)
    assert pairs(state) == {"urgent": 0}


def test_a_free_worker_elsewhere_is_not_left_idle() -> None:
    plan = Plan([job("make"), *(job(f"read{at}") for at in range(3))], [("make", f"read{at}") for at in range(3)])
    state = state_of(plan, ["x", "y", "y"], stored=["make"])
    state.whereabouts.made("make", "x", GB)
    assert set(pairs(state).values()) == {0, 1, 2}


def test_a_job_of_several_devices_begins_on_the_machine_that_has_its_inputs() -> None:
    places = tuple(Place(label=str(index), node=index // 2) for index in range(4))
    plan = Plan([job("make"), job("train", devices=2)], [("make", "train")])
    state = state_of(plan, ["x", "x", "y", "y"], Layout(places=places), stored=["make"])
    assert next_actions(state) == [Start("train", 0, (1,))]
    state.whereabouts.made("make", "y", GB)
    assert next_actions(state) == [Start("train", 2, (3,))]
    state.workers[2].holds = ["m"]  # which would have to go
    assert next_actions(state) == [Start("train", 0, (1,))]


def test_where_jobs_share_devices_one_goes_where_its_inputs_are() -> None:
    places = tuple(Place(label=str(index), free_mb=80, usable_mb=80, node=index) for index in range(2))
    state = state_of(
        Plan([job("make"), job("read")], [("make", "read")]),
        list("xyxy"),
        Layout(places=places, slots=2),
        ["make"],
    )
    assert pairs(state) == {"read": 0}
    state.whereabouts.made("make", "y", GB)
    assert pairs(state) == {"read": 1}


@pytest.mark.parametrize("size", [0, WORTH_BYTES - 1])
def test_what_is_small_is_not_looked_for(size: int) -> None:
    state = state_of(two_chains(""), ["x", "y"], stored=["makeA"])
    state.whereabouts.made("makeA", "y", size)
    assert pairs(state) == {"readA": 0}


def test_on_one_machine_nothing_is_known_and_nothing_counted() -> None:
    for node in ("", "x"):
        state = state_of(two_chains("", ""), [node, node], stored=["makeA", "makeB"])
        state.whereabouts.made("makeB", node, GB)
        assert state.whereabouts.near("readB") == {}
        assert pairs(state) == {"readA": 0, "readB": 1}
    assert Whereabouts(two_chains("")).reads("readA", ["", ""]) == (0, 0)


@pytest.mark.parametrize("seed", range(40))
def test_every_idle_worker_has_a_job_and_as_many_models_are_loaded(seed: int) -> None:
    draw = random.Random(seed)
    models = ["", "m1", "m2", "m3"]
    jobs = [job(f"read{at}", draw.choice(models)) for at in range(draw.randint(1, 40))]
    edges = [(f"make{draw.randrange(5)}", one.id) for one in jobs for _ in range(draw.randint(0, 2))]
    plan = Plan([*(job(f"make{at}") for at in range(5)), *jobs], edges)
    nodes = [draw.choice("xyz") for _ in range(draw.randint(2, 9))]
    state = state_of(plan, [*nodes, "x", "y"])
    for worker in state.workers:
        worker.holds = draw.sample(models[1:], draw.randint(0, 2))
    for at in range(5):
        state.whereabouts.made(f"make{at}", draw.choice("xyz"), draw.choice([1, GB, 9 * GB]))
        state.whereabouts.reads(draw.choice(jobs).id, draw.choice("xyz"))
    bucket = {model: {one.id: None for one in jobs if one.affinity == model} for model in models}
    bucket = {model: names for model, names in bucket.items() if names}
    idle = {worker.index: worker for worker in state.workers if draw.random() < 0.7}
    holders = Counter(model for worker in state.workers for model in worker.holds)

    def given(where: Whereabouts | None) -> list[tuple[str, int]]:
        return by_models(bucket, idle, lambda: holders.copy(), where)

    with_it, without = given(state.whereabouts), given(None)
    assert given(state.whereabouts) == with_it
    assert len({worker for _, worker in with_it}) == len({name for name, _ in with_it}) == len(with_it)
    assert len(with_it) == min(len(jobs), len(idle))

    def loaded(found: list[tuple[str, int]]) -> Counter[str]:
        affinity = {name: plan.jobs[name].affinity for name, _ in found}
        return Counter(affinity[name] for name, worker in found if affinity[name] not in idle[worker].holds)

    assert loaded(with_it).total() == loaded(without).total()


# -- what is counted -------------------------------------------------------------------------------------------


def test_a_machine_reads_once_over_the_network_what_another_made() -> None:
    plan = Plan([job("make"), job("a"), job("b")], [("make", "a"), ("make", "b")])
    where = Whereabouts(plan)
    for node in "xyz":
        where.joined(node)
    where.made("make", "x", 5)
    assert where.reads("a", ["x"]) == (5, 0)
    assert where.reads("a", ["y"]) == (5, 5)
    assert where.reads("b", ["y", "y"]) == (5, 0)  # as a job of two devices there
    assert where.reads("b", ["x", "y", "z"]) == (15, 5)  # as one of three machines
    assert (where.read, where.moved) == (30, 10)
    where.made("make", "z", 5)  # anew, as it was damaged
    assert where.reads("b", ["x"]) == (5, 5)


def test_the_journal_tells_what_each_attempt_read_and_the_outcome_the_sum() -> None:
    jobs = [stored_job("old"), stored_job("new", needs=["old"]), stored_job("last", needs=["old", "new"])]
    paper = OnPaper(*jobs, workers=2, nodes=["x", "y"], stored=["old"])
    assert paper.run.state.whereabouts.unknown("new") == ["old"]
    paper.start(OnDisk(sizes={"old": 100}))
    paper.begin("new")
    assert paper.record("JobStarted") == {"job": "new", "attempt": 1, "worker": 0, "read": 100, "moved": 0}
    paper.finish("new", output_bytes=7)
    paper.start()
    paper.fail("last", FailureKind.lost)  # on the machine that has both
    paper.wait(60)
    paper.start()
    paper.begin("last")
    assert paper.worker("last") == 1
    assert {name: paper.record("JobStarted")[name] for name in ("read", "moved")} == {
        "read": 107,
        "moved": 7,
    }  # who has "old" nobody knows
    where = paper.run.state.whereabouts
    assert read_and_moved(paper.view) == (where.read, where.moved) == (314, 7)
    assert paper.view.nodes == {"x", "y"}


def test_without_machines_to_tell_apart_the_journal_has_no_word_of_it() -> None:
    paper = OnPaper(stored_job("a"), stored_job("b", needs=["a"]))
    paper.start()
    paper.finish("a", output_bytes=7)
    paper.start()
    paper.begin("b")
    assert paper.record("JobStarted") == {"job": "b", "attempt": 1, "worker": 0}
    assert read_and_moved(paper.view) == (0, 0)
    assert paper.view.nodes == set()
