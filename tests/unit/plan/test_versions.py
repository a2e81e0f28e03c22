import pytest

from pipeline.config.load import load_config
from pipeline.datasets.addition import Addition
from pipeline.plan import versions
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Plan

SMALL = [
    "experiment.name=x",
    "algos=[PITA,DPO]",
    "rounds_of_training=1",
    "evaluation.num_prompts=10",
    "data_collection.prompts_per_round=10",
]
NAMED = [
    "datasets.addition.rewards={near: 1.0, length: 0.5, my.own: 1.0}",
    "datasets.addition.grading.options={near: {use: exact_match}}",
]


def plan() -> Plan:
    return build_plan(
        load_config(
            [
                "experiment.name=x",
                "algos=[PITA,DPO]",
                "rounds_of_training=1",
                "evaluation.num_prompts=10",
                "data_collection.prompts_per_round=10",
            ]
        )
    )


def changed(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> set[str]:
    before = plan()
    monkeypatch.setattr(owner, name, 2)
    keys = {job.key for job in before.jobs.values()}
    after = plan()
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
        ("DECODING", {"reference/evaluate", "PITA/generate", "DPO/generate"}),
        ("STATISTICS", {"reference/metrics", "PITA/metrics", "DPO/metrics"}),
        ("GRADING", {"reference/train"}),
        ("PREPARATION", {"reference/train"}),
    ],
)
def test_a_raised_version_gives_other_keys_to_the_stages_that_use_the_part(
    part: str, first_to_change: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed(monkeypatch, versions, part) == first_to_change


def test_so_does_that_of_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(monkeypatch, Addition, "version") == {"reference/train"}


def test_the_versions_of_every_reward_of_a_dataset_count() -> None:
    config = load_config(
        [
            "experiment.name=x",
            "datasets.addition.rewards={near: 1.0, length: 0.5, my.own: 1.0}",
            "datasets.addition.grading.options={near: {use: exact_match}}",
        ]
    )
    assert versions.reward_names(config.datasets["addition"]) == ["exact_match", "length", "my.own"]
