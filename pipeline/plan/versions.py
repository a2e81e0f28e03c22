"""Versions of the code that ships, as part of keys.

A stored output answers for a job as long as their keys agree, so a key must change whenever the code that makes
the output would make other bytes. An algorithm and a dataset have a `version` of their own, a reward that of its
traits. Code that many stages share has its number here. A stage is covered by the numbers of the parts that it
uses, which follow from the sections of the configuration that it declares.

`tests/integration/test_golden.py` holds digests of a small run stage by stage, and fails until a number is raised.
"""

from __future__ import annotations

from pipeline.algos.base import Stage
from pipeline.config.own_code import import_object
from pipeline.config.schema import DatasetConfig
from pipeline.datasets.registry import DATASETS
from pipeline.rewards.registry import REWARDS
from pipeline.rewards.traits import traits_of

MODELS = 1
"""`pipeline.models`: how models are made, read, written, and what their heads compute."""
DECODING = 1
"""`pipeline.generation`: draws, caches, guidance, divergences."""
TRAINING = 1
"""`pipeline.training`: losses, optimizer, schedule, order of batches."""
GRADING = 1
"""`pipeline.rewards`: how scores and preferences follow from what rewards say."""
PREPARATION = 1
"""`pipeline.datasets`: how rows are read, adapted, dealt into splits and tokenised."""
STATISTICS = 1
"""`pipeline.evaluation`: metrics, intervals, tests."""


def shipped_versions(stage: Stage, dataset: DatasetConfig) -> dict[str, int]:
    """The numbers that cover a stage, by what they are of.

    Args:
        stage: The stage.
        dataset: The dataset of its chain.
    """
    sections = set(stage.config)
    found: dict[str, int] = {}
    if "model" in sections:
        found["models"] = MODELS
    if "generation" in sections:
        found["decoding"] = DECODING
    if "training" in sections or stage.scales:
        found["training"] = TRAINING
    if "dataset" in sections:
        found |= {"datasets": PREPARATION, "rewards": GRADING, **_of_dataset(dataset)}
    if "evaluation" in sections and "generation" not in sections:
        found["statistics"] = STATISTICS
    return found


def _of_dataset(dataset: DatasetConfig) -> dict[str, int]:
    path = dataset.class_path or DATASETS[dataset.kind]
    return {f"dataset {dataset.kind}": import_object(path).version} | {
        f"reward {name}": traits_of(import_object(REWARDS[name])).version
        for name in reward_names(dataset)
        if name in REWARDS
    }


def reward_names(dataset: DatasetConfig) -> list[str]:
    """The rewards that a dataset is graded by: names of those that ship, or dotted paths."""
    options = dataset.grading.options
    return [str((options.get(name) or {}).get("use", name)) for name in dataset.rewards or [dataset.reward]]
