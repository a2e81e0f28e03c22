"""On how many devices policies write: as the request says, or as few as a declared amount of memory allows.

Reads files of models, so it comes before planning; imports neither torch nor transformers. A width follows from
the request and the models alone, never from the machine at hand: it is part of keys, the same anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.bases import AlgoConfig, ModelConfig
from pipeline.config.schema import AUTO, Config, DType, TextBackend
from pipeline.config.told import refuse_all
from pipeline.errors import ConfigError
from pipeline.foreign import ForeignDataError
from pipeline.learning.algos.base import Algorithm
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.hub import in_cache
from pipeline.learning.memory.decoding import (
    PROMPT_TOKENS,
    DecodingLoad,
    DecodingShape,
    decoding_footprint,
    least_width,
    shape_of_texts,
)
from pipeline.learning.models.adapter_folder import with_weights
from pipeline.learning.models.families import MOST_RANKS, split_widths, why_not_split
from pipeline.machine.memory import usable_bytes
from pipeline.plan.chains import REFERENCE, chains
from pipeline.plan.model_size import value_size, weights_of
from pipeline.plan.models import CONFIG, read_config
from pipeline.plan.text_backends import OLDEST_TRANSFORMERS

KEY = "generation.gpus_per_job"
_GB = 10**9

Widths = Mapping[tuple[str, str], int]
"""Algorithm and model -> devices of each job that writes; those that are not in it take one."""


def resolve_widths(config: Config) -> Widths:
    """On how many devices the policies of a request write.

    Args:
        config: The checked request, whose models are there.

    Raises:
        ConfigError: A model cannot be split over so many, or fits on none; says why, and what would do.
    """
    asked = config.generation.gpus_per_job
    if asked == 1:
        return {}
    problems: dict[str, None] = {}
    found: dict[tuple[str, str], int] = {}
    for name, model in config.models.items():
        for algo, settings, kind in _writers(config, name):
            try:
                width = asked if isinstance(asked, int) else _auto(config, name, model, settings, kind)
                if width > 1:
                    _check(config, name, model, width)
                    found[algo, name] = width
            except ConfigError as error:
                problems[str(error)] = None
    refuse_all(list(problems))
    return found


def _writers(config: Config, model: str) -> Iterator[tuple[str, AlgoConfig | None, type[Algorithm]]]:
    """Who writes by a model: the reference, and each algorithm."""
    seen = set()
    for chain in chains(config):
        if chain.model == model and chain.algo not in seen:
            seen.add(chain.algo)
            yield chain.algo, None if chain.algo == REFERENCE else chain.config, chain.kind


def _check(config: Config, name: str, model: ModelConfig, width: int) -> None:
    """Refuse what cannot be split over some devices, as far as files tell."""
    given = f"{KEY}={config.generation.gpus_per_job}"
    if config.generation.backend is not TextBackend.own:
        raise ConfigError(
            f"{given} with generation.backend={config.generation.backend.name}: the decoder of this package alone "
            "shares a model. Use generation.backend=own"
        )
    from importlib.metadata import version  # slow to import, as what follows is, and seldom asked

    from packaging.version import Version

    if Version(release := version("transformers")) < Version(OLDEST_TRANSFORMERS):
        raise ConfigError(
            f"{given}: it needs transformers {OLDEST_TRANSFORMERS}, and {release} is installed: "
            f"pip install -U transformers, or use {KEY}=1"
        )
    if model.is_trained:
        raise ConfigError(
            f"{given}: models.{name} is a small model that is trained in the run, a GPT-2, for which transformers "
            f"has no tensor-parallel plan, and which fits anywhere. Use {KEY}=1"
        )
    described = described_by_files(model)
    if described is not None and (why := why_not_split(described, width)):
        raise ConfigError(f"{given}: models.{name}.path={model.path}: {why}")


def _auto(
    config: Config, name: str, model: ModelConfig, settings: AlgoConfig | None, kind: type[Algorithm]
) -> int:
    """The fewest devices with the declared memory that hold what an algorithm writes with."""
    if model.is_trained:
        return 1
    memory = config.distributed.gpu_memory_gib
    if memory is None:
        raise ConfigError(
            f"{KEY}={AUTO} reckons with the memory of a GPU as it is declared, so that a plan is the same on "
            "every machine: set distributed.gpu_memory_gib (profile=a100_80gb and other profiles of GPUs do)"
        )
    described, weights = described_by_files(model), weights_of(model)
    if described is None or not weights:
        raise ConfigError(
            f"{KEY}={AUTO}: models.{name}.path={model.path}: its size is not known, as its config.json is not "
            f"here. Give a folder, or a number of devices: {KEY}=2"
        )
    writing = _writing(config, model, described, weights, settings, kind)
    usable = usable_bytes(int(memory * 2**30))
    width = least_width(writing, usable, _possible(described))
    if width is None:
        raise ConfigError(_too_large(name, model, writing, described, usable))
    return width


def _possible(described: Mapping[str, Any]) -> Sequence[int]:
    return [width for width in split_widths(described) if width <= MOST_RANKS]


def _writing(
    config: Config,
    model: ModelConfig,
    described: Mapping[str, Any],
    weights: int,
    settings: AlgoConfig | None,
    kind: type[Algorithm],
) -> DecodingLoad:
    policy = shape_of_texts(described, weights)
    value = policy if model.value_path is None else _of_value(model) or policy
    guides = settings is not None and settings.guides
    trains_policy = any(stage.saves == "policy" for stage in kind.stages) and settings is not None
    half = config.system.dtype is not DType.float32
    head = getattr(settings, "head", HeadType.v)
    return DecodingLoad(
        policy=policy,
        policies=2 if trains_policy else 1,
        exact=trains_policy and half,
        value=value if guides else None,
        outputs=policy.vocabulary if head is HeadType.q else 1,
        rows=config.generation.batch_size,
        tokens=PROMPT_TOKENS + config.generation.max_new_tokens,
        number_bytes=2 if half else 4,
    )


def _of_value(model: ModelConfig) -> DecodingShape | None:
    """What value models are made from where that is not the reference; None where nothing tells its size."""
    file, size = _config_file(str(model.value_path), model.revisions["value"]), value_size(model, None)
    return None if size is None else shape_of_texts((file and _read(file)) or {}, size.weights)


def _too_large(
    name: str, model: ModelConfig, writing: DecodingLoad, described: Mapping[str, Any], usable: int
) -> str:
    most = _possible(described)[-1]
    need = decoding_footprint(writing, most)
    ways = ["a smaller generation.batch_size"] if need.cache + need.logits > need.total // 10 else []
    if need.value > need.total // 10:
        ways.append(f"models.{name}.value_path with a smaller model to guide by, which every device has whole")
    if writing.number_bytes > 2:
        ways.append("system.dtype=bfloat16")
    kind = described.get("model_type")
    over = (
        f"each of {most} devices, the most that it can be split over"
        if most > 1
        else f"one device ({kind} cannot be split)"
    )
    return (
        f"{KEY}={AUTO}: models.{name}.path={model.path}: writing takes {need.total / _GB:.1f} GB of {over}, and "
        f"{usable / _GB:.1f} GB can be used of distributed.gpu_memory_gib. Try "
        + ", or ".join([*ways, "GPUs with more memory"])
    )


def described_by_files(model: ModelConfig) -> Mapping[str, Any] | None:
    """The `config.json` of a reference; None where it is not here, as of a GGUF file."""
    file = _config_file(str(model.path), model.revisions["reference"])
    return None if file is None else _read(file)


def _config_file(path: str, revision: str | None) -> Path | None:
    path, revision = with_weights(path, revision)
    if Path(path).is_dir():
        return Path(path) / CONFIG
    return None if Path(path).is_file() else in_cache(path, CONFIG, revision)


def _read(file: Path) -> Mapping[str, Any] | None:
    try:
        return read_config(file)
    except (OSError, ForeignDataError):
        return None
