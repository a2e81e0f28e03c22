"""Keys change with what determines a result and with nothing else."""

from dataclasses import fields

import pytest

from pipeline.config.schema import Tracker, TrackingConfig, TrackingMode
from pipeline.learning.algos.value_guided import PITA
from pipeline.learning.datasets.shipped import Addition
from pipeline.plan import contents
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Plan, ResultKeys, determining, result_key
from tests.doubles.composing import quick_config


@pytest.mark.parametrize("others", [{}, {"algo": "A", "version": 1, "code": {}}, {"stage": "x"}], ids=str)
def test_a_key_is_the_same_whoever_makes_it(others: dict[str, object]) -> None:
    config = {"b": float("inf"), "a": ["ä", None]}
    keys = ResultKeys()
    for _ in range(2):
        assert keys.key(others, config) == result_key({**others, "config": config})


def test_hints_are_left_out() -> None:
    config = quick_config(["experiment.name=t"])
    before = determining(config)
    config.algos["PITA"].num_workers = 7
    config.execution.workers = 5
    config.system.use_parallel_execution = False
    config.tracking = TrackingConfig(report_to=[*Tracker], project="p", mode=TrackingMode.online, samples=1)
    assert determining(config) == before
    assert not [field.name for field in fields(TrackingConfig) if field.metadata.get("affects_result", True)]
    config.algos["PITA"].batch_size += 1
    assert determining(config) != before


def test_an_option_at_its_default_leaves_keys_as_they_were() -> None:
    config = quick_config(["experiment.name=t"])
    assert "padding_free" not in determining(config)["training"]
    config.training.padding_free = True
    assert determining(config)["training"]["padding_free"] is True


SMALL = [
    "experiment.name=x",
    "algos=[PITA,DPO]",
    "rounds_of_training=1",
    "evaluation.num_prompts=10",
    "data_collection.prompts_per_round=10",
]


def plan(*overrides: str) -> Plan:
    return build_plan(quick_config([*SMALL, *overrides]))


def changed(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *overrides: str) -> set[str]:
    before = plan(*overrides)
    monkeypatch.setattr(owner, name, 1000)
    keys = {job.key for job in before.jobs.values()}
    after = plan(*overrides)
    new = {f"{job.algo}/{job.stage}" for job in after.jobs.values() if job.key not in keys}
    return {name for name in new if not _reads_one_of(after, name, new)}


def _reads_one_of(found: Plan, name: str, others: set[str]) -> bool:
    """Whether a stage changed because of what it reads, in which case it says nothing of its own."""
    reads = {
        f"{found.jobs[up].algo}/{found.jobs[up].stage}"
        for job in found.jobs.values()
        if f"{job.algo}/{job.stage}" == name
        for up in found.inputs(job.id)
    }
    return bool(reads & others)


@pytest.mark.parametrize(
    ("part", "first_to_change"),
    [
        ("TRAINING", {"reference/train"}),
        ("MODELS", {"reference/train"}),
        ("TINY", {"reference/train"}),
        ("DECODING", {"reference/evaluate", "PITA/generate", "DPO/generate"}),
        ("EVALUATION", {"reference/evaluate", "PITA/evaluate", "DPO/evaluate"}),
        ("STATISTICS", {"reference/metrics", "PITA/metrics", "DPO/metrics"}),
        ("GRADING", {"reference/evaluate", "PITA/score", "DPO/score"}),
        ("PREPARATION", {"reference/train"}),
    ],
)
def test_a_raised_version_gives_other_keys_to_the_stages_that_use_the_part(
    part: str, first_to_change: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed(monkeypatch, contents, part) == first_to_change


def test_divergences_are_measured_anew_where_a_nucleus_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations alone, and none where every token may be drawn."""
    evaluations = {"reference/evaluate", "PITA/evaluate", "DPO/evaluate"}
    assert changed(monkeypatch, contents, "DIVERGENCES", "generation.top_p=0.9") == evaluations
    assert changed(monkeypatch, contents, "DIVERGENCES") == set()
    assert changed(monkeypatch, contents, "ATTENTION", "system.attn_impl=eager") == {"reference/train"}
    assert changed(monkeypatch, contents, "ATTENTION") == set()


@pytest.mark.parametrize("asked", ["system.dtype=bfloat16", "system.attn_impl=eager"])
def test_references_that_compute_as_asked_are_trained_anew(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(monkeypatch, contents, "COMPUTING", asked) == {"reference/train"}
    assert changed(monkeypatch, contents, "COMPUTING") == set()


def test_what_pretrained_models_gave_stays_where_tiny_references_change(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("dataset=[jsonl]", "datasets.jsonl.path=x.jsonl", "model=[hf]", "models.hf.path=folder")
    before = keys(*given)
    monkeypatch.setattr(contents, "TINY", contents.TINY + 1)
    assert keys(*given) == before


def test_the_versions_of_every_reward_of_a_dataset_count() -> None:
    config = quick_config(
        [
            "experiment.name=x",
            "datasets.addition.rewards={near: 1.0, length: 0.5, my.own: 1.0}",
            "datasets.addition.grading.options={near: {use: exact_match}}",
        ]
    )
    assert contents.reward_names(config.datasets["addition"]) == ["exact_match", "length", "my.own"]


class Mine(PITA):
    """A user's subclass: its version hides the one that it inherits."""

    version = 3


class Counting(Addition):
    version = 3


def keys(*overrides: str) -> set[str]:
    return {job.key for job in build_plan(quick_config([*SMALL, *overrides])).jobs.values()}


def test_a_class_of_ones_own_is_covered_by_the_versions_of_what_it_is_made_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = ("algos=[]", f"algos.Mine.class_path={__name__}.Mine")
    before = keys(*given)
    monkeypatch.setattr(PITA, "version", 2)
    after = keys(*given)
    assert before - after, "what PITA writes is part of what Mine writes"
    assert before & after, "the reference is not made by PITA"
