"""Under a budget rows of results are finished one after the other, and nothing starts once it is spent."""

from dataclasses import replace

import pytest

from pipeline.config.schema import BudgetConfig
from pipeline.engine.scheduler.ready import ranks_of_rows
from pipeline.engine.workers.messages import FailureKind
from pipeline.plan.graph import Plan
from pipeline.plan.keeping import measures
from tests.doubles.engine import job
from tests.doubles.on_paper import OnPaper
from tests.doubles.simulate import simulate
from tests.unit.engine.scheduler.test_first_rows import TIMES, built, plan_of

HOUR_S = 3600.0


def hours(budget: float) -> BudgetConfig:
    return BudgetConfig(device_hours=budget)


# -- order -------------------------------------------------------------------------------------------------------


def test_rows_come_by_round_then_by_seed_and_then_as_planned() -> None:
    plan = built(seeds=2, rounds=2)
    ranks = ranks_of_rows(plan)
    rows = sorted(filter(measures, plan.jobs.values()), key=lambda row: ranks[row.id])
    assert [row.round for row in rows] == sorted(row.round for row in rows)
    first = [(row.algo, row.seed) for row in rows if row.round == 1]
    planned = list(dict.fromkeys(row.algo for row in plan.jobs.values() if row.round == 1))
    assert first == [(algo, seed) for seed in (0, 1) for algo in planned]
    for row in rows:
        assert all(ranks[need] <= ranks[row.id] for need in plan.needs([row.id]))


@pytest.mark.parametrize("mix", TIMES)
def test_one_worker_finishes_a_row_before_it_begins_the_next_whatever_was_timed(mix: str) -> None:
    plan = plan_of(2, 2, 500, mix)
    ranks = ranks_of_rows(plan)
    order = [one.job_id for one in simulate(plan, 1, rows_first=True)]
    assert [ranks[job_id] for job_id in order] == sorted(ranks[job_id] for job_id in order)
    other = Plan([replace(one, seconds=7.0) for one in plan.jobs.values()], plan.edges())
    assert order == [one.job_id for one in simulate(other, 1, rows_first=True)]


@pytest.mark.parametrize("mix", TIMES)
@pytest.mark.parametrize("workers", [2, 4])
def test_no_second_round_begins_before_all_first_rounds_are_evaluated(mix: str, workers: int) -> None:
    plan = plan_of(2, 2, 500, mix)
    attempts = simulate(plan, workers, rows_first=True)
    ended_s = {
        number: max(a.ended_s for a in attempts if plan.jobs[a.job_id].round == number) for number in (0, 1)
    }
    for one in attempts:
        if (number := plan.jobs[one.job_id].round) > 0:
            assert one.sent_s >= ended_s[number - 1]
    rows = [one.ended_s for one in attempts if measures(plan.jobs[one.job_id])]
    assert rows[0] <= attempts[-1].ended_s / 2


# -- spending ----------------------------------------------------------------------------------------------------


def test_no_job_starts_once_the_hours_are_spent_and_running_ones_end() -> None:
    paper = OnPaper(*(job(name) for name in "abcd"), budget=hours(2.5))
    assert paper.start() == ["send a to 0", "send b to 1"]
    paper.run.now_s += HOUR_S
    paper.finish("a")
    assert paper.start() == ["send c to 0"]  # two hours, of which one is still running
    paper.run.now_s += HOUR_S / 2
    paper.finish("c")
    paper.start()
    assert "may still end: b" in paper.said()
    assert (paper.run.halted, paper.jobs()["d"]) == ("", "ready")
    paper.run.now_s += HOUR_S
    paper.finish("b")
    assert paper.start() == []
    assert "4 of 2.5 " in paper.run.halted  # b counts to its end
    assert paper.jobs() == {"a": "done", "b": "done", "c": "done", "d": "ready"}


def test_each_device_and_each_lost_attempt_counts() -> None:
    paper = OnPaper(job("wide", devices=2), job("next"), budget=hours(2.5))
    paper.start()
    paper.begin("wide")
    paper.run.now_s += HOUR_S
    paper.finish("wide")
    paper.ready(0, 1)
    assert paper.run.spent_s == 2 * HOUR_S
    assert paper.start() == ["send next to 0"]
    paper.run.now_s += HOUR_S
    paper.fail("next", FailureKind.transient)
    assert paper.run.spent_s == 3 * HOUR_S
    paper.wait(HOUR_S)
    assert paper.start() == []
    assert paper.jobs()["next"] == "ready"


def test_flops_count_when_a_job_is_done_and_the_first_limit_ends_the_run() -> None:
    both = BudgetConfig(device_hours=1.0, flops=100.0)
    paper = OnPaper(job("a"), job("b"), job("c"), workers=1, budget=both)
    for name in "ab":
        assert paper.start() == [f"send {name} to 0"]
        paper.finish(name, flops={"training": 40.0, "decoding": 20.0})
    assert paper.start() == []
    assert "FLOPs" in paper.run.halted
    assert "hours" not in paper.run.halted


def test_a_run_without_a_budget_or_with_enough_ends_by_itself() -> None:
    for budget in (None, hours(1e6)):
        paper = OnPaper(job("a"), workers=1, budget=budget)
        paper.start()
        paper.run.now_s += 1e6
        paper.finish("a")
        paper.start()
        assert (paper.run.spent, paper.run.halted) == ("", "")
