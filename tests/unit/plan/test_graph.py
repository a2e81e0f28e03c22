"""A plan is an acyclic graph of jobs with unique ids."""

import pytest

from pipeline.errors import CycleError
from pipeline.plan.durations import estimated_makespan, summarize
from pipeline.plan.graph import Job, Plan, missing_jobs


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
    (row,) = summarize(plan, ["g1"])
    assert (row.jobs, row.missing, row.samples, row.seconds) == (2, 1, 15, 2)


def test_seeds_are_counted_where_a_summary_would_be_long() -> None:
    def of(seed: int | None, algo: str) -> Job:
        where = {"algo": algo, "dataset": "d", "model": "m", "seed": seed, "round": 1, "stage": "generate"}
        return job(f"d/m/{seed}/{algo}", 2, samples=10, **where)

    plan = Plan([of(None, "R"), *[of(seed, algo) for seed in range(3) for algo in "XY"]], [])
    assert len(summarize(plan, [], most=7)) == 7
    rows = summarize(plan, ["d/m/0/X", "d/m/2/X"], most=6)
    assert [(row.chain, row.jobs, row.missing, row.samples) for row in rows] == [
        ("d/m/any/R", 1, 0, 10), ("d/m/3 seeds/X", 3, 2, 30), ("d/m/3 seeds/Y", 3, 0, 30)
    ]  # fmt: skip
