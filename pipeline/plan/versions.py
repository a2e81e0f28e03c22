"""Versions of the code that ships, as part of keys.

A stored output answers for a job as long as their keys agree, so a key must change whenever the code that makes
the output would make other bytes. An algorithm and a dataset have a `version` of their own, as have the classes
that they are made from; a reward has that of its traits and those of its packages, since a score is an exact
claim. Code that many stages share has its number here. A stage is covered by the numbers of the parts that it
uses, which follow from the sections of the configuration that it declares.

Versions of torch, transformers and TRL are in no key: an upgrade of a library keeps what is stored. Manifests say
what made an output, and a table that rests on several says so (`runs.makers`).

`tests/integration/test_golden.py` holds digests of a small run stage by stage, and fails until a number is raised.
"""

from __future__ import annotations

from pipeline.config.bases import DatasetConfig, ModelConfig
from pipeline.config.schema import Attention, DType, GenerationConfig, SystemConfig, TextBackend
from pipeline.config.shipped import DATASETS, REWARD_MODEL, REWARD_NAMES
from pipeline.config.user_code import brought_torch, import_object, source_hash
from pipeline.learning.algos.base import Algorithm, Stage
from pipeline.learning.rewards.registry import package_versions, shipped_traits
from pipeline.learning.rewards.traits import GRADING

MODELS = 2
"""`pipeline.learning.models`: how models are made, read, written, and what their heads compute."""
TINY = 3
"""`pipeline.learning.models.tiny` and `imitation`: how a tiny reference begins, is trained and judged."""
DECODING = 2
"""`pipeline.learning.generation`: draws, caches, guidance, divergences."""
DRAWS = 1
"""`pipeline.learning.algos.groups`: what a round draws by a policy, and what it leaves."""
BACKENDS = {TextBackend.vllm: 1}
"""`pipeline.learning.generation.vllm_engine`: how others than our own decoder are asked."""
TRAINING = 4
"""`pipeline.learning.training`: losses, optimizer, schedule, order of batches."""
ROUNDING = 2
"""What of a training is kept, and in what a guide's candidates attend to themselves, where models are read in half
precision; without that nothing depends on it."""
ATTENTION = 2
"""How models attend that are trained anew; with the attention of torch nothing depends on it."""
PREPARATION = 8
"""`pipeline.learning.datasets`: how rows are read, adapted, dealt into splits and tokenised, and what is told."""
DIVERGENCES = 1
"""What the divergence of completions is measured against; without a nucleus nothing depends on it."""
EVALUATION = 3
"""`pipeline.learning.algos.evaluating`: what an evaluation draws and leaves for the metrics."""
STATISTICS = 3
"""`pipeline.learning.evaluation`: metrics, intervals, tests."""


_SHIPPED = "pipeline."


def shipped_versions(
    kind: type[Algorithm],
    stage: Stage,
    dataset: DatasetConfig,
    model: ModelConfig,
    generation: GenerationConfig,
    system: SystemConfig,
) -> dict[str, int | str | None]:
    """The versions that cover a stage, besides that of its algorithm's own class, by what they are of.

    Args:
        kind: The algorithm.
        stage: A stage of it.
        dataset: The dataset of its chain.
        model: The model of its chain.
        generation: How the run draws texts.
        system: What models are read in, and how they attend.
    """
    sections = set(stage.config)
    found = _of_bases(kind)
    if "model" in sections:
        found["models"] = MODELS
        if model.is_trained:
            found["tiny references"] = TINY
    if "generation" in sections:
        found["decoding"] = DECODING
        if stage.shards == "train":
            found["draws"] = DRAWS
        if generation.backend is not TextBackend.own:
            found[f"decoding by {generation.backend.name}"] = BACKENDS[generation.backend]
        if "evaluation" in sections and generation.top_p < 1:
            found["divergences"] = DIVERGENCES
    if "training" in sections or stage.scales:
        found["training"] = TRAINING
    if ("training" in sections or stage.scales) and system.attn_impl is not Attention.sdpa:
        found["attention"] = ATTENTION
    if system.dtype is not DType.float32 and {"system", "algo"} <= sections:
        found["rounding"] = ROUNDING
    if "dataset" in sections:
        found |= {"datasets": PREPARATION, **_of_dataset(dataset)}
        if stage.judges:
            found["rewards"] = GRADING
    if "evaluation" in sections:
        found |= {"evaluation": EVALUATION} if "generation" in sections else {"statistics": STATISTICS}
    return found


def _of_bases(kind: type) -> dict[str, int | str | None]:
    """Versions of the classes that a class is made from: its own hides them where it sets one."""
    return {
        f"class {_class_name(base)}": base.__dict__["version"]
        for base in kind.__mro__[1:]
        if "version" in base.__dict__
    }


def _class_name(kind: type) -> str:
    # What ships may move to another module and be the same.
    return kind.__qualname__ if kind.__module__.startswith(_SHIPPED) else f"{kind.__module__}.{kind.__qualname__}"


def _of_dataset(dataset: DatasetConfig) -> dict[str, int | str | None]:
    path = dataset.class_path or DATASETS[dataset.kind]
    kind = import_object(path)
    found = {f"dataset {dataset.kind}": kind.version, **_of_bases(kind)}
    for name, traits in shipped_traits(dataset).items():
        if name != REWARD_MODEL:
            found[f"reward {name}"] = traits.version
            found |= {f"package {name}": version for name, version in package_versions(traits).items()}
    return found


def reward_names(dataset: DatasetConfig) -> list[str]:
    """The rewards that a dataset is graded by: names of those that ship, or dotted paths."""
    options, names = dataset.grading.options, dataset.rewards or [dataset.reward]
    return [str((options.get(name) or {}).get("use", name)) for name in names if name]


# -- source code -------------------------------------------------------------------------------------------------
# The source of the user's own code as part of keys: an edited algorithm, dataset or reward runs again.
# Covered is what the class or function that the configuration names reaches in files of the user's own, by
# its code: comments and layout change nothing (`config.reached`). What cannot be seen there has `version`.


def class_source(class_path: str | None) -> dict[str, str | None]:
    """What keys cover of the source of a class by its dotted path: nothing of one that ships.

    Raises:
        ConfigError: There is no such class.
    """
    if class_path is None:
        return {}
    kind = import_object(class_path)
    # A package may hand on what one of its modules defines.
    path = f"{kind.__module__}:{kind.__qualname__}"
    return {} if path.startswith(_SHIPPED) else {path: source_hash(path)}


def dataset_source(dataset: DatasetConfig) -> dict[str, str | None]:
    """What keys cover of the source of a dataset and of its rewards, likewise.

    Rewards are looked at, not imported: they may need what the engine does without.

    Raises:
        ConfigError: A reward does not exist.
    """
    rewards = [
        name for name in reward_names(dataset) if name not in REWARD_NAMES and not name.startswith(_SHIPPED)
    ]
    return class_source(dataset.class_path) | {path: source_hash(path) for path in rewards}


def import_warnings() -> tuple[str, ...]:
    """What to tell a user whose modules import torch, which makes every start slow."""
    return tuple(
        f"{module} imports torch, or something that does, while the run is being planned. It works, but every "
        "start takes seconds longer, a dry run too: move such imports into the methods that need them, as "
        "pipeline/learning/algos/qsharp.py does."
        for module in brought_torch()
    )
