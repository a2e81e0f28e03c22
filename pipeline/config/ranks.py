"""On how many devices one training runs, and how they share it: what several keys say together."""

from __future__ import annotations

from typing import Any

from pipeline.config.schema import Config, Strategy

BY_TENSORS = "tensor_parallel"
"""The strategy of ranks that write texts together: each has a part of every layer (`generation.gpus_per_job`)."""


def devices_per_training(config: Config) -> int:
    """Devices that share one training."""
    asked = config.distributed
    if config.training.gpus_per_job > 1 or not asked.enabled:
        return config.training.gpus_per_job
    return asked.num_gpus or len(asked.ids or ()) or 1


def spread(config: Config) -> dict[str, Any]:
    """How they share it, as plain data."""
    named = (config.training.strategy, config.distributed.strategy)
    strategy = next((one for one in named if one is not Strategy.auto), Strategy.auto)
    return {
        "strategy": strategy.name,
        "sharding": config.distributed.fsdp_sharding_strategy.name,
        "cpu_offload": config.distributed.fsdp_cpu_offload,
    }
