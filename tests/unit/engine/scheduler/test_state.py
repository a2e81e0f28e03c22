"""How events change the state of a run."""

from pipeline.config.schema import Barrier, ExecutionConfig
from pipeline.engine.devices.select import plain_layout
from pipeline.engine.scheduler.state import RunState
from pipeline.plan.graph import Job, Plan


def job(name: str, round: int = 0, **fields: object) -> Job:  # noqa: A002
    return Job(id=name, key=name, entry="m:f", payload={}, round=round, **fields)  # type: ignore[arg-type]


def chain_plan() -> Plan:
    """a -> b -> d, c -> d, e alone."""
    jobs = [job("a"), job("b", 1), job("c", 1), job("d", 2), job("e", 2)]
    return Plan(jobs, [("a", "b"), ("b", "d"), ("c", "d")])


def state_of(plan: Plan, *stored: str, workers: int = 2, barrier: Barrier = Barrier.none) -> RunState:
    state = RunState(plan, stored, plain_layout(workers), ExecutionConfig(barrier=barrier, models_in_memory=2))
    for index in range(workers):
        state.worker_ready(index, "cpu")
    return state


def status(state: RunState) -> dict[str, str]:
    return {name: one.status.value for name, one in state.jobs.items()}


def complete(state: RunState, name: str, worker: int = 0) -> None:
    state.start(name, worker)
    state.finished(worker)


def test_a_stored_job_may_lack_its_inputs() -> None:
    state = state_of(chain_plan(), "b", "c")
    assert status(state)["d"] == "ready"
    complete(state, "a")
    assert status(state)["b"] == "stored"


def test_a_stored_descendant_is_not_blocked() -> None:
    state = state_of(chain_plan(), "b")
    state.start("a", 0)
    state.raised(0)
    assert state.fail("a", "why") == []
    complete(state, "c")
    assert status(state)["d"] == "ready"


def test_a_worker_remembers_the_models_used_last() -> None:
    jobs = [job(str(index), affinity=affinity) for index, affinity in enumerate(["m1", "m2", "", "m1", "m3"])]
    state = state_of(Plan(jobs, []), workers=1)
    for one in jobs:
        complete(state, one.id)
    assert state.workers[0].holds == ["m1", "m3"]
    state.worker_lost(0)
    state.worker_ready(0, "cpu")
    assert state.workers[0].holds == []


def test_the_barrier_opens_a_round_when_the_one_before_is_settled() -> None:
    state = state_of(chain_plan(), barrier=Barrier.round)
    assert status(state) == {"a": "ready", "b": "pending", "c": "pending", "d": "pending", "e": "pending"}
    complete(state, "a")
    assert {name for name, where in status(state).items() if where == "ready"} == {"b", "c"}
    state.start("b", 0)
    state.raised(0)
    state.fail("b", "why")
    assert status(state)["e"] == "pending"
    complete(state, "c")
    assert status(state)["e"] == "ready"
