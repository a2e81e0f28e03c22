"""Who decodes: stages that another than our own decoder serves, and requests that it cannot serve.

Reads what packages say of themselves; imports neither torch nor what it asks about.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.config.bases import AlgoConfig
from pipeline.config.install import install_command
from pipeline.config.schema import Config, TextBackend
from pipeline.config.told import refuse_all
from pipeline.learning.algos.base import Stage
from pipeline.learning.models.adapter_folder import with_weights
from pipeline.learning.models.families import why_not_paged
from pipeline.plan.models import CONFIG, read_config

OLDEST_TRANSFORMERS = "5.23"
"""The first whose continuous batching was tried; 5.17 names its settings otherwise."""
_OURS = "or use generation.backend=own"


def decodes_itself(algo: AlgoConfig, stage: Stage) -> bool:
    """Whether a stage leaves `generation.backend` aside: it belongs to an algorithm that guides, or draws nothing.

    Args:
        algo: Settings of the algorithm.
        stage: One of its stages.
    """
    return algo.guides or not stage.draws


def check_text_backend(config: Config, gpu: bool) -> None:
    """Refuse a backend that is not there, that the devices have no use for, or that does not take the models.

    Args:
        config: The request.
        gpu: Whether it runs on GPUs.

    Raises:
        ConfigError: Says why, and what to install or to choose.
    """
    if config.generation.backend is TextBackend.transformers:
        refuse_all([*_old_transformers(), *_not_paged(config)])
    if config.generation.backend is TextBackend.vllm:
        refuse_all([*_without_gpus(gpu)] or [*_unfit_vllm()])  # to install it is no remedy without GPUs


def _old_transformers() -> Iterator[str]:
    from importlib.metadata import version  # slow to import, as what follows is, and seldom asked

    from packaging.version import Version

    release = version("transformers")
    if Version(release) < Version(OLDEST_TRANSFORMERS):
        yield (
            f"generation.backend=transformers: it needs transformers {OLDEST_TRANSFORMERS}, and {release} is "
            f"installed: pip install -U transformers, {_OURS}"
        )


def _not_paged(config: Config) -> Iterator[str]:
    """Models of which the files tell; of an id of the hub the first job that loads it says the same."""
    for name, model in config.models.items():
        folder = Path(with_weights(model.path or "", None).path)
        if model.is_trained or not model.path or not folder.is_dir():
            continue
        if why := why_not_paged(read_config(folder / CONFIG)):
            yield f"generation.backend=transformers: models.{name}.path={model.path}: {why}"


def _without_gpus(gpu: bool) -> Iterator[str]:
    if not gpu:
        yield (
            "generation.backend=vllm: vLLM as pip installs it computes on GPUs, and this run has CPU slots. Use "
            "generation.backend=own, or run it on a machine with GPUs"
        )


def _unfit_vllm() -> Iterator[str]:
    """That vLLM is not installed, or was made for other versions than are."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    try:
        release = version("vllm")
    except PackageNotFoundError:
        yield f"generation.backend=vllm needs a package: {install_command('vllm')}, {_OURS}"
        return
    for wanted in map(Requirement, requires("vllm") or ()):
        if wanted.name not in ("torch", "transformers") or (wanted.marker and not wanted.marker.evaluate()):
            continue
        found = version(wanted.name)
        if not wanted.specifier.contains(found, prereleases=True):
            yield (
                f"generation.backend=vllm: vLLM {release} was made for {wanted.name}{wanted.specifier}, and "
                f"{wanted.name} {found} is installed. Install what fits: {install_command('vllm')}, {_OURS}"
            )
