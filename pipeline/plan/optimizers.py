"""Optimizers that this machine cannot have, refused before anything starts. Does not import what it asks about."""

from __future__ import annotations

from pipeline.config.install import install_command
from pipeline.config.schema import Config, Optimizer
from pipeline.errors import ConfigError
from pipeline.plan.quantized import PACKAGE

_OTHERWISE = "use training.optimizer=adamw"


def check_optimizer(config: Config, gpu: bool) -> None:
    """Refuse moments in 8 bits without a GPU, or without the package that keeps them.

    Args:
        config: The request.
        gpu: Whether it runs on GPUs.

    Raises:
        ConfigError: Says why, and what to install or to choose.
    """
    trains = any(algo.enabled and algo.trains for algo in config.algos.values())
    if config.training.optimizer is not Optimizer.adamw_8bit or not trains:
        return
    if not gpu:
        raise ConfigError(f"training.optimizer=adamw_8bit is for GPUs, and this run uses none; {_OTHERWISE}")
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        version(PACKAGE)
    except PackageNotFoundError:
        raise ConfigError(
            f"training.optimizer=adamw_8bit needs a package: {install_command('quantization')}, or {_OTHERWISE}"
        ) from None
