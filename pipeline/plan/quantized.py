"""References whose weights are kept in few bits: requests that cannot have one, and what such a model is called.

Reads what packages and files say of themselves; imports neither torch nor what it asks about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.config.bases import ModelConfig
from pipeline.config.install import install_command
from pipeline.config.schema import Config, TextBackend
from pipeline.config.told import refuse_all
from pipeline.learning.algos.registry import load_algorithm
from pipeline.plan.widths import described_by_files

PACKAGE = "bitsandbytes"
OLDEST_ON_CPU = "0.50"
"""The first whose kernels for CPUs were tried."""


def check_quantization(config: Config, gpu: bool) -> None:
    """Refuse references in few bits where they cannot be had, or where weights in few bits would be trained.

    Args:
        config: The request, whose models are there.
        gpu: Whether it runs on GPUs.

    Raises:
        ConfigError: Says why, and what to install or to choose.
    """
    refuse_all([problem for name, model in _quantized(config) for problem in _problems(config, name, model, gpu)])


def named_by_bits(config: Config) -> Config:
    """The request with such models called by their bits too, ``hf-4bit``: in jobs, tables and files of results."""
    names = dict(called_by_bits(config))
    if all(name == called for name, called in names.items()):
        return config
    return replace(config, models={names[name]: model for name, model in config.models.items()})


def called_by_bits(config: Config) -> Iterator[tuple[str, str]]:
    """Names of models and what they are called in results."""
    for name, model in config.models.items():
        ending = f"-{model.in_bits}bit"
        yield name, name if model.in_bits is None or name.endswith(ending) else name + ending


def _quantized(config: Config) -> list[tuple[str, ModelConfig]]:
    return [(name, model) for name, model in config.models.items() if model.in_bits is not None]


def _problems(config: Config, name: str, model: ModelConfig, gpu: bool) -> Iterator[str]:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, as what follows is

    from packaging.version import Version

    given = f"models.{name}.quantization={model.in_bits}bit"
    whole = f"or use models.{name}.quantization=null"
    try:
        release = version(PACKAGE)
    except PackageNotFoundError:
        yield f"{given} needs a package: {install_command('quantization')}, {whole}"
    else:
        if not gpu and Version(release) < Version(OLDEST_ON_CPU):
            yield (
                f"{given}: {PACKAGE} {release} has no kernels for a CPU that were tried; those of {OLDEST_ON_CPU} "
                f"were: pip install -U {PACKAGE}, {whole}"
            )
    trained = [key for key, algo in config.algos.items() if algo.enabled and _trains_policy(key, algo.class_path)]
    if trained:
        yield (
            f"{given}: {', '.join(trained)} would train the policy, and only a frozen one can be in few bits. "
            f"Use algorithms that leave it frozen (PITA, QSharp, CD, QSharp-HF, BestOfN), {whole}"
        )
    if config.generation.backend is not TextBackend.own:
        backend = config.generation.backend.name
        yield f"{given} with generation.backend={backend}: use generation.backend=own, {whole}"
    if config.generation.gpus_per_job != 1:
        yield (
            f"{given} with generation.gpus_per_job={config.generation.gpus_per_job}: weights in few bits are not "
            f"split over devices. Use generation.gpus_per_job=1, {whole}"
        )
    if "quantization_config" in (described_by_files(model) or {}):
        yield f"{given}: models.{name}.path={model.path} has weights in few bits already; use null"


def _trains_policy(name: str, class_path: str | None) -> bool:
    return any(stage.saves == "policy" for stage in load_algorithm(name, class_path).stages)
