"""A plan is an acyclic graph of jobs with unique ids."""

from collections.abc import Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.schema import Keep
from pipeline.errors import CycleError
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Job, Plan, Timed, estimated_makespan, missing_jobs, summarize
from pipeline.plan.keeping import Scores, kept
from tests.doubles.composing import quick_config


def job(name: str, seconds: float = 1.0, **fields: object) -> Job:
    return Job(id=name, key=f"key-{name}", entry="m:f", payload={}, seconds=seconds, **fields)  # type: ignore[arg-type]


def diamond() -> Plan:
    jobs = [job("a", 1), job("b", 5), job("c", 2), job("d", 1)]
    return Plan(jobs, [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])


def test_longest_path_counts_the_job_itself() -> None:
    plan = diamond()
    seconds = {job.id: job.seconds for job in plan.jobs.values()}
    assert plan.longest_paths(seconds) == {"a": 7, "b": 6, "c": 3, "d": 1}
    assert plan.longest_paths(seconds, {"c": 9, "b": 1}) == {"a": 12, "b": 6, "c": 11, "d": 1}
    assert plan.longest_paths_until(seconds) == {"a": 1, "b": 6, "c": 3, "d": 7}


def test_a_circle_is_named() -> None:
    with pytest.raises(CycleError, match="wait for each other"):
        Plan([job("a"), job("b")], [("a", "b"), ("b", "a")])


def test_the_graph_says_the_same() -> None:
    plan = diamond()
    assert list(plan.graph.edges) == list(plan.edges()) == [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    assert plan.inputs("d") == ["b", "c"]
    assert plan.readers("a") == ["b", "c"]
    assert [*plan.up_to(["b"]).jobs] == ["a", "b"]


@pytest.mark.parametrize(
    ("stored", "missing"),
    [
        (set(), ["a", "b", "c", "d"]),
        ({"a"}, ["b", "c", "d"]),
        ({"a", "b", "c", "d"}, []),
        ({"d"}, []),
        ({"b", "c"}, ["d"]),
        ({"b"}, ["a", "c", "d"]),
    ],
    ids=["nothing", "first", "all", "goal only", "inputs of the goal", "one branch"],
)
def test_only_what_leads_to_a_missing_goal_must_run(stored: set[str], missing: list[str]) -> None:
    assert missing_jobs(diamond(), lambda key: key.removeprefix("key-") in stored) == missing


def test_estimate_is_the_path_or_the_work_whichever_is_more() -> None:
    plan = diamond()
    everything = list(plan.jobs)
    assert estimated_makespan(plan, everything, devices=1) == 9
    assert estimated_makespan(plan, everything, devices=8) == 7
    assert estimated_makespan(plan, ["d"], devices=1) == 1
    assert estimated_makespan(plan, [], devices=1) == 0


def test_summary_counts_jobs_of_a_stage() -> None:
    where = {"algo": "X", "dataset": "d", "model": "m", "seed": 0, "round": 1, "stage": "generate"}
    plan = Plan([job("g0", 2, samples=10, **where), job("g1", 2, samples=5, **where)], [])
    (row,) = summarize(plan, ["g1"], timed=["g1"])
    assert (row.jobs, row.missing, row.samples, row.seconds) == (2, 1, 15, 2)
    assert summarize(plan, ["g0", "g1"], timed=["g1"])[0].seconds is None


SIZES = st.floats(0, 1e5)
SMALL = ["data_collection.prompts_per_round=20", "evaluation.num_prompts=20", "execution.shard_size=10"]


def test_a_small_job_that_took_long_does_not_make_large_ones_long() -> None:
    assert Timed(0.008, 0.14).expected_s(8.0) == pytest.approx(8.0, rel=0.1)
    assert Timed(0.02, 0.4).expected_s(34.0) == pytest.approx(34.0, rel=0.1)
    assert Timed(0.7, 9.0).expected_s(36.0) == pytest.approx(55.0, rel=0.1)  # a reference that was looked at too
    # Not even where the machine was so busy that beginning took seconds, or where there was nothing to do.
    assert Timed(0.02, 3.0).expected_s(34.0) == pytest.approx(37.0, rel=0.1)
    assert Timed(0.02, 0.0).expected_s(34.0) == pytest.approx(34.0, rel=0.2)


@pytest.mark.properties
@given(SIZES, SIZES, SIZES, SIZES)
def test_more_work_never_takes_less(size_s: float, took_s: float, one: float, other: float) -> None:
    timed = Timed(size_s, took_s)
    less, more = (timed.expected_s(each) for each in sorted((one, other)))
    assert 0 <= less <= more * (1 + 1e-9)


CHAIN = "addition/tiny/s0/PITA"


def plan_of(*overrides: str) -> Plan:
    asked = ["experiment.name=t", "algos=[PITA]", "rounds_of_training=3", "execution.shard_size=100000"]
    return build_plan(quick_config([*asked, *overrides]))


def trained(*rounds: int, chain: str = CHAIN) -> set[str]:
    return {f"{chain}/r{number}/train" for number in rounds}


@pytest.mark.parametrize(
    ("keep", "scores", "stay"),
    [
        (Keep.all, {}, (1, 2, 3)),
        (Keep.last, {}, (3,)),
        (Keep.results, {(CHAIN, 1): 1.0}, ()),
        (Keep.best, {}, (1, 2, 3)),
        (Keep.best, {(CHAIN, 1): 0.5}, (1, 2, 3)),
        (Keep.best, {(CHAIN, 1): 0.5, (CHAIN, 2): 0.4}, (1, 3)),
        (Keep.best, {(CHAIN, 1): 0.5, (CHAIN, 2): 0.4, (CHAIN, 3): 0.5}, (3,)),
        (Keep.best, {(CHAIN, 1): -0.5, (CHAIN, 2): None, (CHAIN, 3): None}, (1,)),
        (Keep.best, {(CHAIN, 1): None, (CHAIN, 2): None}, (2, 3)),
    ],
)
def test_what_stays(keep: Keep, scores: Scores, stay: tuple[int, ...]) -> None:
    assert kept(plan_of().jobs.values(), keep, scores) == trained(*stay)


def test_what_keeps_weights_does_not_change_what_comes_out_and_lets_them_go_early() -> None:
    plan, keeping = plan_of(), plan_of("execution.keep=last")
    assert [job.key for job in plan.jobs.values()] == [job.key for job in keeping.jobs.values()]
    assert {job.priority for job in plan.jobs.values()} == {0}
    assert {job.stage for job in keeping.jobs.values() if job.priority} == {"evaluate", "metrics"}
    assert {job.stage for job in keeping.jobs.values() if not job.priority} == {"train", "generate", "score"}
    own = plan_of("execution.keep=last", "execution.priority=tests.doubles.priorities.is_pita")
    assert {job.priority for job in own.jobs.values() if job.algo == "PITA"} == {1}


# -- what is to run ----------------------------------------------------------------------------------------------


def missing(
    plan: Plan, absent: Collection[str], removed: Collection[str], whole: Collection[str] = ()
) -> set[str]:
    keys: Callable[[Collection[str]], set[str]] = lambda ids: {plan.jobs[job_id].key for job_id in ids}  # noqa: E731
    gone, weightless = keys(absent), keys(removed)
    return set(
        missing_jobs(plan, lambda key: key not in gone | weightless, lambda key: key not in gone, whole=whole)
    )


def test_what_is_removed_counts_as_stored_unless_a_job_that_must_run_reads_it() -> None:
    plan = plan_of()
    assert missing(plan, [], trained(1, 2, 3)) == set()
    assert missing(plan, [f"{CHAIN}/r3/metrics"], trained(1, 2, 3)) == {f"{CHAIN}/r3/metrics"}
    assert missing(plan, [f"{CHAIN}/r3/metrics", f"{CHAIN}/r3/evaluate/000"], trained(1, 2)) == {
        f"{CHAIN}/r3/metrics",
        f"{CHAIN}/r3/evaluate/000",
    }
    assert missing(plan, [f"{CHAIN}/r3/metrics", f"{CHAIN}/r3/evaluate/000"], trained(1, 2, 3)) == {
        f"{CHAIN}/r3/metrics",
        f"{CHAIN}/r3/evaluate/000",
        *trained(1, 2, 3),
    }
