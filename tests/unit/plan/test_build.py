"""A plan that nobody could wait for is refused before it is built, with what would fit."""

from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from pipeline.config.schema import Config
from pipeline.errors import ConfigError, PlanError
from pipeline.plan.build import build_plan, check_size
from pipeline.plan.graph import Plan
from tests.doubles import priorities
from tests.doubles.composing import quick_config


@cache
def composed(*overrides: str) -> Config:
    return quick_config(["experiment.name=t", *overrides])


def request_of(*overrides: str, **changes: Any) -> Config:
    config = deepcopy(composed(*overrides))
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        setattr(getattr(config, section) if section else config, name, value)
    return config


def refused(config: Config) -> str:
    with pytest.raises(PlanError) as caught:
        check_size(config)
    with pytest.raises(PlanError):
        build_plan(config)
    return str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds_of_training": 1_000_000},
        {"experiment__seeds": list(range(100_000))},
        {"execution__shard_size": 1, "data_collection__prompts_per_round": 600_000},
    ],
    ids=["rounds", "seeds", "shards"],
)
def test_a_plan_that_is_too_large_is_refused_with_what_it_follows_from(changes: dict[str, Any]) -> None:
    told = refused(request_of(**changes))
    assert all(name.rpartition("__")[2] in told for name in changes)


HERE = "tests.doubles.priorities"


def plan_of(function: str | None) -> Plan:
    asked = "null" if function is None else function if "." in function else f"{HERE}.{function}"
    config = quick_config(["experiment.name=t", "algos=[PITA,DPO]", "rounds_of_training=2"])
    config.execution.priority = None if asked == "null" else asked
    return build_plan(config)


def test_each_job_has_the_number_that_the_function_gives_and_is_asked_for_once() -> None:
    priorities.CALLS.clear()
    plan = plan_of("estimate_job_priority")
    assert {job.priority for job in plan.jobs.values()} == {0, 100, 200}
    assert all(job.priority == job.round * 100 for job in plan.jobs.values())
    assert [job.id for job, _ in priorities.CALLS] == list(plan.jobs)
    assert priorities.CALLS[0][1].rounds_of_training == 2


@pytest.mark.parametrize("name", ["estimate_job_priority", "by_the_clock", "meddles"])
def test_what_comes_out_does_not_depend_on_it(name: str) -> None:
    bare, ordered = plan_of(None), plan_of(name)
    for job in bare.jobs.values():
        other = ordered.jobs[job.id]
        assert (other.key, other.payload, other.inputs) == (job.key, job.payload, job.inputs)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "to give a finite number, failed: TypeError"),
        ("not_a_number", "gave nan"),
        ("huge", "OverflowError"),
        ("array", "TypeError"),
        ("raises", "ZeroDivisionError: division by zero (/"),
        ("leaves", "SystemExit"),
        ("unshowable", "not today"),
        ("A_NUMBER", "this is 3, and must be a function"),
        ("estimate_job_priorty", "Did you mean 'estimate_job_priority'"),
    ],
)
def test_what_gives_no_number_is_refused_in_one_message(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(name)
    assert said in str(refused.value)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


TEST_SET = ["datasets.two.kind=addition", "datasets.two.digits=2", "datasets.two.trained_on=false"]
SMALLER = ["datasets.two.test_size=1000", "datasets.two.validation_size=100"]
FEW = ["algos=[PITA,DPO]", "evaluation.num_prompts=100", "evaluation.num_samples=2", *TEST_SET, *SMALLER]


def keys_of(*overrides: str) -> dict[str, str]:
    plan = build_plan(quick_config(["experiment.name=t", *FEW, "evaluation.on=[two]", *overrides]))
    return {job.id: job.key for job in plan.jobs.values()}


def test_what_is_evaluated_besides_changes_no_other_job() -> None:
    alone = build_plan(quick_config(["experiment.name=t", *FEW[:3]]))
    both = keys_of()
    assert {job.id: job.key for job in alone.jobs.values()}.items() <= both.items()
    added = both.keys() - alone.jobs.keys()
    assert {job_id.split("/")[0] for job_id in added} == {"addition@two"}
    assert all("/evaluate/" in job_id or job_id.endswith("/metrics") for job_id in added)
    longer = keys_of("rounds_of_training=3")
    assert both.items() <= longer.items()


def test_an_extended_evaluation_keeps_what_was_drawn() -> None:
    before = keys_of()
    grown = ["evaluation.grown_from=[[100,2]]", "evaluation.num_prompts=150", "evaluation.num_samples=5"]
    after = keys_of(*grown)
    drawn = {job_id: key for job_id, key in before.items() if "/metrics" not in job_id}
    assert drawn.items() <= after.items()
    plan = build_plan(quick_config(["experiment.name=t", *FEW, "evaluation.on=[two]", *grown]))
    jobs = [job for job in plan.jobs.values() if job.stage == "evaluate" and job.dataset == "addition"]
    assert {job.samples for job in jobs if job.algo == "DPO"} == {200, 300, 250}
    again = keys_of(
        "evaluation.grown_from=[[100,2],[150,5]]", "evaluation.num_prompts=150", "evaluation.num_samples=6"
    )
    assert {job_id: key for job_id, key in after.items() if "/metrics" not in job_id}.items() <= again.items()


def test_a_set_with_its_own_sampling_changes_its_own_evaluation_alone() -> None:
    usual = keys_of()
    own = keys_of("datasets.two.sampling={temperature: 0.5, max_new_tokens: 2, num_samples: 7}")
    changed = {job_id for job_id, key in own.items() if usual.get(job_id) != key}
    assert {job_id.split("/")[0] for job_id in changed} == {"addition@two"}
    # All of it is as where the whole run samples so: the reference, and what the divergence is measured by.
    all_so = keys_of(
        "generation.temperature=0.5", "generation.max_new_tokens=2", "evaluation.num_samples=7", "algos=[]"
    )
    assert {job_id for job_id in changed if "/reference/" in job_id} <= all_so.keys()
    assert {key for job_id, key in own.items() if job_id in changed and job_id in all_so} <= {*all_so.values()}


def test_the_own_dataset_can_be_left_out_of_the_evaluation() -> None:
    both, without = keys_of(), keys_of("evaluation.on_own=false")
    assert without.items() <= both.items()
    left_out = {tuple(job_id.split("/")) for job_id in both.keys() - without.keys()}
    assert {parts[0] for parts in left_out} == {"addition"}
    assert {stage for parts in left_out for stage in parts if stage in ("evaluate", "metrics", "train")} == {
        "evaluate",
        "metrics",
    }
    assert keys_of("evaluation.on_own=false", "evaluation.on=[two,addition]") == both


def test_a_greedy_set_has_one_completion_per_prompt() -> None:
    greedy = ["datasets.two.sampling.temperature=0", "evaluation.grown_from=[[50,1]]"]
    plan = build_plan(quick_config(["experiment.name=t", *FEW, "evaluation.on=[two]", *greedy]))
    jobs = [job for job in plan.jobs.values() if job.stage == "evaluate" and job.algo == "DPO"]
    assert {job.samples for job in jobs if job.dataset == "addition@two"} == {50}
    assert {job.samples for job in jobs if job.dataset == "addition"} == {50, 100}
    assert all(bool(job.payload.get("greedy")) == (job.dataset == "addition@two") for job in jobs)


def test_a_test_set_that_is_the_same_as_another_is_refused() -> None:
    twin = [word.replace(".two.", ".twin.") for word in (*TEST_SET, *SMALLER)]
    request = ["experiment.name=t", *FEW, *twin, "evaluation.on=[two,twin]"]
    with pytest.raises(ConfigError, match=r"datasets\.two and datasets\.twin are the same"):
        build_plan(quick_config(request))
    build_plan(quick_config([*request, "datasets.twin.seed=7"]))


def test_a_checkpoint_is_evaluated_once_whatever_the_rounds(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    also = f"evaluation.also={{mine: {tmp_path}}}"
    one, three = keys_of(also, "rounds_of_training=1"), keys_of(also, "rounds_of_training=3")
    evaluated = [{key for job_id, key in found.items() if "/mine/" in job_id} for found in (one, three)]
    assert evaluated[0] == evaluated[1]
    assert len(evaluated[0]) == 5


LOOKS = ["algos=[PITA,DPO]", "evaluation.num_prompts=100", "execution.shard_size=25", "rounds_of_training=2"]


def looked(*overrides: str) -> Plan:
    return build_plan(quick_config(["experiment.name=t", *LOOKS, *overrides]))


def prompts_of(plan: Plan, algo: str, number: int) -> list[list[int]]:
    return [
        job.determined_by["rows"]
        for job in plan.jobs.values()
        if (job.algo, job.round, job.stage) == (algo, number, "evaluate")
    ]


def test_fewer_prompts_of_a_chain_are_the_first_ones_and_jobs_of_the_whole_evaluation() -> None:
    whole, plan = looked(), looked("experiment.looks={DPO: [25, 50], addition/tiny/s0/PITA: [75, 25]}")
    assert prompts_of(plan, "DPO", 2) == [[0, 25], [25, 50]]
    assert prompts_of(plan, "PITA", 1) == [[0, 25], [25, 50], [50, 75]]
    assert prompts_of(plan, "reference", 0) == prompts_of(plan, "PITA", 1)  # as many as any chain needs
    drawn = {job.id: job.key for job in plan.jobs.values() if job.stage != "metrics"}
    assert drawn.items() < {job.id: job.key for job in whole.jobs.values()}.items()


def test_metrics_of_fewer_prompts_read_the_same_prompts_of_others_whatever_these_have_besides() -> None:
    plan, more = looked("experiment.looks={DPO: [75, 50]}"), looked("experiment.looks={DPO: [75, 50], PITA: [50]}")
    metrics = next(job for job in plan.jobs.values() if (job.algo, job.round, job.stage) == ("DPO", 2, "metrics"))
    assert {name: len(keys) for name, keys in metrics.inputs.items()} == dict.fromkeys(metrics.inputs, 2)
    assert {"evaluate", "evaluate@previous", "reference.evaluate"} == metrics.inputs.keys()
    assert more.jobs[metrics.id].key == metrics.key
    assert prompts_of(more, "PITA", 2) == prompts_of(looked(), "PITA", 2)  # a round that is not named has all


def test_looks_of_no_chain_are_refused_and_more_than_all_prompts_are_all() -> None:
    assert looked("experiment.looks={DPO: [1000, 100]}").jobs == looked().jobs
    with pytest.raises(ConfigError, match=r"experiment\.looks.*DPA"):
        looked("experiment.looks={DPA: [25]}")
