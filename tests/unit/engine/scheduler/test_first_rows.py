"""A run has first rows in its first half, where that can be, and is hardly longer for it."""

from dataclasses import replace
from functools import cache

import pytest

from pipeline.engine.scheduler.ready import paths_for_rows
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Job, Plan
from pipeline.plan.keeping import measures
from tests.doubles.composing import quick_config
from tests.doubles.simulate import simulate

TIMES = {
    "even": {"generate": 5.0, "evaluate": 10.0},
    "generation": {"generate": 60.0, "evaluate": 20.0},
    "training": {"generate": 2.0, "train": 5.0, "evaluate": 2.0},
    "evaluation": {"generate": 2.0, "train": 0.5, "evaluate": 60.0},
}
"""Which stages take most, for a model that is read: what each takes in times of what it does for the tiny one."""


@cache
def built(seeds: int, rounds: int, prompts: int = 500) -> Plan:
    # By how long jobs take which rows can be early is decided, and not by what a profile says next.
    asked = ["experiment.name=t", "algos=[PITA,DPO,GRPO]", "algos.PITA.epochs=4", "algos.GRPO.sampling=round"]
    asked.append(f"experiment.seeds={list(range(seeds))}")
    return build_plan(quick_config([*asked, f"rounds_of_training={rounds}", f"evaluation.num_prompts={prompts}"]))


def plan_of(seeds: int, rounds: int, prompts: int, mix: str) -> Plan:
    def takes_s(job: Job) -> float:
        return 0.2 if (job.round, job.stage) == (0, "train") else job.seconds * TIMES[mix].get(job.stage, 1.0)

    plan = built(seeds, rounds, prompts)
    return Plan([replace(job, seconds=takes_s(job)) for job in plan.jobs.values()], plan.edges())


def seconds_of(plan: Plan, there: tuple[str, ...] = ()) -> dict[str, float]:
    return {job.id: 0.0 if job.id in there else job.seconds for job in plan.jobs.values()}


@pytest.mark.parametrize("mix", TIMES)
@pytest.mark.parametrize(("seeds", "rounds", "number", "least"), [(2, 2, 8, 2), (1, 3, 4, 1)])
def test_first_rows_come_in_the_first_half_and_the_run_is_hardly_longer(
    seeds: int, rounds: int, number: int, least: int, mix: str
) -> None:
    plan = plan_of(seeds, rounds, 10_000 if mix == "evaluation" else 500, mix)
    plain, early = simulate(plan, number), simulate(plan, number, rows_early=True)
    rows = [one for one in early if measures(plan.jobs[one.job_id])]
    first_s = {plan.jobs[one.job_id].algo: one.ended_s for one in reversed(rows)}
    assert sum(at_s <= early[-1].ended_s / 2 for at_s in first_s.values()) >= least
    assert early[-1].ended_s <= 1.015 * plain[-1].ended_s


def test_a_row_that_cannot_be_there_in_the_first_half_is_not_hurried() -> None:
    plan = plan_of(1, 1, 500, "training")
    seconds = seconds_of(plan) | {next(iter(plan.jobs)): 1000.0}  # the reference's training
    assert paths_for_rows(plan, seconds, 4) == plan.longest_paths(seconds)


def test_a_plan_without_rows_goes_by_its_longest_paths() -> None:
    plan = Plan([Job(id="wide", key="", entry="m:f", payload={}, devices=4)], [])
    assert paths_for_rows(plan, {"wide": 3.0}, 2) == {"wide": 3.0}
    assert paths_for_rows(Plan([], []), {}, 1) == {}
