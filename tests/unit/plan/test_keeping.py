"""Which weights stay, and which may go, follows from the plan, what is there and how rounds evaluate."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from pipeline.config.schema import Keep
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Plan, missing_jobs
from pipeline.plan.keeping import Scores, free, kept
from tests.doubles.composing import quick_config

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


def test_each_method_and_seed_has_its_own_last_round_and_references_are_never_asked_about() -> None:
    plan = plan_of("algos=[PITA,GRPO-HF]", "experiment.seeds=[0,1]")
    last = {
        f"addition/tiny/s{seed}/{stage}"
        for seed in (0, 1)
        for stage in ("PITA/r3/train", "GRPO-HF/r3/train", "GRPO-HF/r3/reward")
    }
    assert kept(plan.jobs.values(), Keep.last, {}) == last
    assert {job.algo for job in plan.jobs.values() if job.weights} == {"PITA", "GRPO-HF"}


def test_weights_may_go_once_all_that_reads_them_is_there() -> None:
    plan = plan_of()
    readers = set(plan.readers(f"{CHAIN}/r1/train"))
    assert readers == {f"{CHAIN}/r1/evaluate/000", f"{CHAIN}/r2/generate/000", f"{CHAIN}/r2/train"}
    there = {f"{CHAIN}/r1/train", *readers}
    assert free(plan.jobs, plan.readers, there, set()) == [f"{CHAIN}/r1/train"]
    assert free(plan.jobs, plan.readers, there, trained(1)) == []
    assert free(plan.jobs, plan.readers, there, set(), among=trained(2)) == []
    for reader in there:
        assert free(plan.jobs, plan.readers, there - {reader}, set()) == []


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
