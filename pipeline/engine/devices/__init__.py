"""Devices: what this machine has, which of it a run uses, and how a worker is made to see only its own.

For scripts, the functions below; the engine uses the modules. None of it imports torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.engine.devices.api import (
        auto_select_gpus_for_model,
        get_available_gpus,
        get_gpu_info,
        get_gpu_memory_usage,
        get_optimal_device,
        print_gpu_info,
        select_gpus,
        set_visible_gpus,
        setup_gpu_environment,
    )

__all__ = [
    "get_available_gpus",
    "get_gpu_info",
    "get_gpu_memory_usage",
    "print_gpu_info",
    "select_gpus",
    "set_visible_gpus",
    "get_optimal_device",
    "setup_gpu_environment",
    "auto_select_gpus_for_model",
]


def __getattr__(name: str) -> Any:
    # On use: every worker imports this package for its inventory, and should start no later for the rest.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipeline.engine.devices import api

    return getattr(api, name)
