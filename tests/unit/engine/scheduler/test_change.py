"""A run goes on with another plan: what both have stays, what leaves is stopped, what is new starts."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from pipeline.engine.scheduler import reactions
from pipeline.engine.scheduler.state import THERE
from pipeline.engine.workers.messages import AttemptStopped, FailureKind
from pipeline.plan.graph import Job
from tests.doubles.engine import job, plan_of
from tests.doubles.on_paper import OnPaper


def change(paper: OnPaper, *jobs: Job, missing: Collection[str] | None = None) -> list[str]:
    there = {name for name, state in paper.run.state.jobs.items() if state.status in THERE}
    needed = {one.id for one in jobs} - there if missing is None else missing
    reactions.change_plan(paper.run, plan_of(*jobs), needed)
    return paper.decided()


def let_go(paper: OnPaper, *names: str) -> list[str]:
    reactions.let_go(paper.run, names)
    return paper.decided()


A, B, C = job("a", seconds=9), job("b", needs=["a"]), job("c", needs=["b"])


def test_jobs_of_both_plans_stay_where_they_are_and_new_ones_start() -> None:
    paper = OnPaper(A, B, job("x"), workers=2)
    paper.start()
    paper.finish("x")
    change(paper, A, B, job("x"), job("new"), job("after", needs=["x"]))
    assert paper.jobs() == {"a": "running", "b": "pending", "x": "done", "new": "ready", "after": "ready"}
    assert len(paper.start()) == 1
    paper.finish("a")
    assert paper.jobs()["b"] == "ready"
    while paper.run.state.unsettled:
        paper.start()
        for name, status in paper.jobs().items():
            if status == "running":
                paper.finish(name)
    assert set(paper.jobs().values()) == {"done"}


def test_a_job_that_leaves_does_not_start_and_one_that_runs_is_asked_to_stop_once() -> None:
    paper = OnPaper(A, B, C, job("other", seconds=1), workers=1)
    paper.start()
    paper.begin("a")
    assert let_go(paper, "a", "b", "c") == ["stop_job 0"]
    assert let_go(paper, "a", "b", "c") == []
    paper.hear(0, AttemptStopped(job_id="a", attempt=1))
    assert paper.jobs()["a"] == "pending"
    paper.ended(0)
    paper.ready(0)
    assert paper.start() == ["send other to 0"]  # not `a`, which is longer
    change(paper, job("other", seconds=1))
    assert paper.jobs() == {"other": "running"}


@pytest.mark.parametrize("end", ["done", "killed", "raised"])
def test_however_a_stopped_job_ends_its_device_goes_on(end: str) -> None:
    paper = OnPaper(A, job("other", seconds=1), workers=1)
    paper.start()
    paper.begin("a")
    let_go(paper, "a")
    if end == "done":
        paper.finish("a")
    elif end == "raised":
        paper.fail("a", FailureKind.transient)
    else:
        paper.ended(0)
        assert paper.run.state.jobs["a"].failures.total() == 0
    assert paper.start() == []
    if end != "killed":
        paper.ended(0, exit_code=0)
    paper.ready(0)
    change(paper, job("other", seconds=1))
    assert paper.start() == ["send other to 0"]
    paper.finish("other")
    assert not paper.run.state.unsettled


def test_a_job_of_another_key_is_another_job() -> None:
    paper = OnPaper(A, B, workers=1)
    paper.start()
    paper.finish("a")
    again = replace(A, key="f" * 40)
    change(paper, again, missing={"a"})
    assert paper.jobs() == {"a": "ready"}


def test_what_only_the_new_plan_needs_is_made_again() -> None:
    paper = OnPaper(A, B, stored=["a"], workers=1)  # whose output may be gone, as `b` alone was to read it
    paper.start()
    paper.finish("b")
    change(paper, A, B, job("new", needs=["a"]), missing={"a", "new"})
    assert paper.jobs() == {"a": "ready", "b": "done", "new": "pending"}


def test_a_new_job_that_needs_a_failed_one_is_blocked() -> None:
    paper = OnPaper(A, B, workers=1)
    paper.start()
    paper.begin("a")
    paper.fail("a", FailureKind.bug)
    assert change(paper, A, B, job("new", needs=["b"])) == ["JobBlocked b", "JobBlocked new"]
    assert paper.jobs() == {"a": "failed", "b": "blocked", "new": "blocked"}
    assert not paper.run.state.unsettled


def test_priority_orders_what_has_not_started() -> None:
    one, two = job("one", seconds=5), job("two", seconds=1)
    paper = OnPaper(A, one, two, workers=1)
    paper.start()
    change(paper, A, one, replace(two, priority=1e6))
    paper.finish("a")
    assert paper.start() == ["send two to 0"]


def test_where_the_plan_stays_held_jobs_start_after_all() -> None:
    paper = OnPaper(A, B, job("x"), stored=["x"], workers=1)
    let_go(paper, "a", "b")
    assert paper.start() == []
    reactions.keep_plan(paper.run)
    assert paper.start() == ["send a to 0"]
    assert paper.jobs()["x"] == "stored"
