"""Stages that a request does not ask for are left out of its plan."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.checks import check_config
from pipeline.errors import ConfigError
from pipeline.learning.algos.base import METRICS, TEACHER_TRAIN, Algorithm, JobContext, Stage
from pipeline.learning.algos.dpo import DPO
from pipeline.learning.algos.grpo import GRPO
from pipeline.learning.algos.policy_config import TaughtConfig
from pipeline.learning.algos.registry import check_algorithm
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Plan
from tests.doubles.composing import quick_config

SMALL = ("experiment.name=t", "algos=[QSharp,DPO]", "rounds_of_training=1")


def plan_of(*overrides: str) -> Plan:
    return build_plan(quick_config([*SMALL, *overrides]))


def test_strengths_are_tried_where_there_are_some() -> None:
    bare, swept = plan_of(), plan_of("evaluation.etas=[0.1,1]")
    assert not [job for job in bare.jobs.values() if job.stage == "sweep"]
    new = [job for job in swept.jobs.values() if job.stage == "sweep"]
    assert {job.algo for job in new} == {"QSharp"}
    keys = {job.key for job in new}
    readers = {job.stage for job in swept.jobs.values() if keys & set(job.inputs.get("sweep", ()))}
    assert readers == {"evaluate", "metrics"}


ONE_SHARD = "data_collection.prompts_per_round=100"
IN_ROUNDS = (
    *("algos=[DPO,RAFT,KTO,BestOfN,GRPO,RLOO]", "algos.GRPO.sampling=round", "algos.RLOO.sampling=round"),
    ONE_SHARD,
)


def draws_of(plan: Plan) -> dict[str, set[str]]:
    """Jobs that draw, by their names -> the methods that read what they have drawn."""
    drawing = {job.id for job in plan.jobs.values() if job.stage == "generate"}
    return {name: {plan.jobs[reader].algo for reader in plan.readers(name)} for name in drawing}


def test_a_round_is_drawn_once_for_all_methods_that_begin_with_the_same_policy() -> None:
    """But for log-probabilities, which some need of what they train on; from then on each policy is another."""
    shared = draws_of(plan_of(*IN_ROUNDS, "rounds_of_training=2"))
    first = [readers for name, readers in shared.items() if "/r1/" in name]
    assert sorted(map(sorted, first)) == [["BestOfN", "DPO", "KTO", "RAFT"], ["GRPO", "RLOO"]]
    assert len(shared) == 2 + 6
    others = draws_of(plan_of(*IN_ROUNDS, "algos.DPO.num_generations=8", "algos.KTO.beta=0.1"))
    assert sorted(map(sorted, others.values())) == [["BestOfN", "KTO", "RAFT"], ["DPO"], ["GRPO", "RLOO"]]


def test_keys_follow_from_what_a_method_begins_with() -> None:
    asked = ("algos=[RAFT,DPO,KTO]", ONE_SHARD, "rounds_of_training=2")
    started = (*asked, "algos.DPO.start=RAFT", "algos.KTO.start=RAFT")
    plans = plan_of(*asked), plan_of(*started), plan_of(*started, "algos.RAFT.learning_rate=1e-5")
    of_raft, others = (
        [{job.key for job in plan.jobs.values() if job.round and (job.algo == "RAFT") == raft} for plan in plans]
        for raft in (True, False)
    )
    assert of_raft[1] <= of_raft[0] | others[0]  # where all begin alike the first round is drawn once, for all
    assert not others[1] & (others[0] | others[2])
    first = [readers for name, readers in draws_of(plans[1]).items() if "/r1/" in name]
    assert sorted(map(sorted, first)) == [["DPO", "KTO"], ["RAFT"]]


class Judged(Algorithm):
    name = "Judged"
    config_class = TaughtConfig
    is_fixed = True
    stages = (Stage("evaluate", shards="eval", reads=(TEACHER_TRAIN,)), METRICS)

    def evaluate(self, ctx: JobContext) -> None: ...

    def metrics(self, ctx: JobContext) -> None: ...


def test_a_value_model_of_another_method_is_that_of_its_last_round_and_is_trained_once() -> None:
    judged = f"algos.Judged={{class_path: {__name__}.Judged, enabled: true, teacher: QSharp}}"
    alone, both = plan_of("rounds_of_training=2"), plan_of("rounds_of_training=2", judged)
    new = {job.id: job for job in both.jobs.values() if job.key not in {one.key for one in alone.jobs.values()}}
    assert {job.algo for job in new.values()} == {"Judged"}
    (teacher,) = {key for job in new.values() for key in job.inputs.get(TEACHER_TRAIN.name, ())}
    (last,) = (job.key for job in both.jobs.values() if (job.algo, job.stage, job.round) == ("QSharp", "train", 2))
    assert teacher == last


@pytest.mark.parametrize("teacher", ["null", "CD", "DPO"])
def test_a_value_model_that_no_method_of_the_run_has_is_refused(teacher: str) -> None:
    judged = f"algos.Judged={{class_path: {__name__}.Judged, enabled: true, teacher: {teacher}}}"
    with pytest.raises(ConfigError, match=rf"algos.Judged.teacher={teacher}: .* Known: QSharp\."):
        check_config(quick_config([*SMALL, judged]))


@pytest.mark.parametrize(
    ("asked", "setting", "anew"),
    [
        (("algos=[DPO]",), "data_collection.reward_batch_size=7", {"score", "train", "evaluate", "metrics"}),
        (
            (
                "algos=[DPO,KTO,ORPO,SimPO]",
                *(f"algos.{one}.pairs=existing" for one in ("DPO", "KTO", "ORPO", "SimPO")),
            ),
            "generation.temperature=0.7",
            {"evaluate", "metrics"},
        ),
    ],
    ids=["scored otherwise", "drawn otherwise, where pairs are there"],
)
def test_what_does_not_follow_from_a_setting_stays_where_it_changes(
    asked: tuple[str, ...], setting: str, anew: set[str]
) -> None:
    before, after = plan_of(*asked), plan_of(*asked, setting)
    stored = {job.key for job in before.jobs.values()}
    assert {job.stage for job in after.jobs.values() if job.round and job.key not in stored} == anew


class OwnPolicy(DPO):
    """Draws by another policy, and would do it under the name of DPO's draws."""

    name = "OwnPolicy"

    def current_policy(self, ctx: JobContext, dataset: Any) -> Any:
        """Some other."""
        return super().current_policy(ctx, dataset)


def test_a_method_that_draws_otherwise_shares_nothing() -> None:
    own = f"algos.OwnPolicy.class_path={__name__}.OwnPolicy"
    assert sorted(map(sorted, draws_of(plan_of("algos=[DPO]", own, ONE_SHARD)).values())) == [
        ["DPO"],
        ["OwnPolicy"],
    ]


class _Misspelt(GRPO):
    name = "Misspelt"

    def advantage(self, ctx: JobContext) -> None:
        """Would be called by nothing."""

    def _advantage(self) -> None:
        """Is its own affair."""


class _WithHelper(_Misspelt):
    name = "WithHelper"

    def advantages(self, ctx: JobContext, samples: object) -> None:
        """Calls the other."""


class _Called(_Misspelt):
    name = "Called"

    def training_set(self, ctx: JobContext, model: object, folders: object) -> None:  # type: ignore[override]
        """Uses the other, which so is what it says."""
        [self.advantage(each) for each in (ctx,)]


def test_a_method_that_is_almost_called_as_one_it_inherits_is_refused() -> None:
    """Else the inherited one would run in its place, and its results have the name of the new method."""
    with pytest.raises(
        ConfigError, match=r"its method advantage\(\) is used by none of its methods, .*def advantages"
    ):
        check_algorithm("a.path", _Misspelt)
    check_algorithm("a.path", _WithHelper)
    check_algorithm("a.path", _Called)


class _OtherArguments(GRPO):
    name = "OtherArguments"

    def advantages(self, samples: object) -> None:  # type: ignore[override]
        """Forgets the context."""

    def data(self, rewards: object, mean: object) -> None:  # type: ignore[override]
        """Is meant as something else."""


class _MoreArguments(GRPO):
    name = "MoreArguments"

    def advantages(self, context: JobContext, found: object, *, scale: float = 1.0) -> None:
        """Can be called as the other."""


def test_a_method_that_cannot_be_called_as_the_one_it_overrides_is_refused() -> None:
    """Else the first training would fail, after all that it needs was made."""
    with pytest.raises(ConfigError) as caught:
        check_algorithm("a.path", _OtherArguments)
    said = str(caught.value)
    assert (
        "advantages() is called as that of GRPO, which it overrides: write def advantages(self, ctx, samples)"
        in said
    )
    assert (
        "data() is called as that of PostTrainingAlgorithms, which it overrides: write def data(self, ctx)" in said
    )
    check_algorithm("a.path", _MoreArguments)


# -- test references ---------------------------------------------------------------------------------------------
# Several references of one model: every chain rests on exactly one, and what they share is made once.


def referring(*overrides: str) -> Plan:
    return build_plan(quick_config(["experiment.name=t", "algos=[PITA]", "rounds_of_training=1", *overrides]))


@pytest.fixture(scope="module")
def two() -> Plan:
    return referring("models.tiny.seeds=[0,3]", "experiment.seeds=[0,1]")


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
    keys = [{job_id: job.key for job_id, job in referring(*given).jobs.items()} for given in ([], same)]
    assert keys[0] == keys[1]


def test_a_model_that_is_made_from_no_seed_has_one_reference_without_a_name(tmp_path: Path) -> None:
    plan = referring(
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
