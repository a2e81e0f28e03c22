"""Several references of one model: every chain rests on exactly one, and what they share is made once."""

import re
from pathlib import Path

import pytest

from pipeline.config.checks import check_config
from pipeline.errors import ConfigError
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Plan
from tests.doubles.composing import quick_config


def plan_of(*overrides: str) -> Plan:
    return build_plan(quick_config(["experiment.name=t", "algos=[PITA]", "rounds_of_training=1", *overrides]))


@pytest.fixture(scope="module")
def two() -> Plan:
    return plan_of("models.tiny.seeds=[0,3]", "experiment.seeds=[0,1]")


def test_every_reference_has_a_chain_of_every_seed(two: Plan) -> None:
    judged = {(job.reference, job.seed, job.algo) for job in two.jobs.values() if job.stage == "metrics"}
    assert judged == {(ref, seed, algo) for ref in (0, 3) for seed in (0, 1) for algo in ("reference", "PITA")}
    trained = [job for job in two.jobs.values() if (job.algo, job.stage) == ("reference", "train")]
    assert [(job.reference, job.payload["config"]["model"]["seed"]) for job in trained] == [(0, 0), (3, 3)]


def test_no_job_reads_what_rests_on_another_reference(two: Plan) -> None:
    assert {(two.jobs[one].reference, two.jobs[other].reference) for one, other in two.graph.edges} == {
        (0, 0),
        (3, 3),
    }


@pytest.mark.parametrize("same", [["models.tiny.seed=0"], ["models.tiny.seeds=[0]"]], ids=["seed", "seeds"])
def test_the_list_itself_is_in_no_key(same: list[str]) -> None:
    keys = [{job_id: job.key for job_id, job in plan_of(*given).jobs.items()} for given in ([], same)]
    assert keys[0] == keys[1]


def test_a_model_that_is_made_from_no_seed_has_one_reference_without_a_name(tmp_path: Path) -> None:
    plan = plan_of(
        "dataset=[jsonl]", f"datasets.jsonl.path={tmp_path}", "model=[hf]", f"models.hf.path={tmp_path}"
    )
    assert {job.reference for job in plan.jobs.values()} == {None}
    assert "jsonl/hf/s0/PITA/r1/train" in plan.jobs


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["models.tiny.seed=0", "models.tiny.seeds=[1,2]"],
            "models.tiny.seed=0 and models.tiny.seeds=[1, 2] both say which references there are",
        ),
        (["models.tiny.seeds=[]"], "models.tiny.seeds is empty: give at least one"),
    ],
    ids=["both", "none"],
)
def test_references_that_make_no_sense_are_refused(given: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_config(quick_config(["experiment.name=t", *given]))
