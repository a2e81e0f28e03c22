"""The effective batch of a trial: what one step of its optimizer sees on all devices together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BATCH, _GPUS, _ACCUMULATION = "batch_size", "num_gpus", "gradient_accumulation_steps"


def effective_batch(parameters: Mapping[str, Any], num_gpus: int) -> int | None:
    """Sequences of one step: of a device, times devices, times micro-batches.

    Args:
        parameters: Of the trial, by dotted name. ``batch_size`` is that of one device, as with torchrun.
        num_gpus: Devices of the trial.

    Returns:
        None where the parameters do not tell: without a batch size, or with nothing that it is multiplied by.
    """
    for name, size in parameters.items():
        section, _, last = name.rpartition(".")
        accumulated = parameters.get(f"{section}.{_ACCUMULATION}" if section else _ACCUMULATION)
        told = accumulated is not None or (not section and (num_gpus > 1 or _GPUS in parameters))
        factors = (size, accumulated if accumulated is not None else 1)
        if last == _BATCH and told and all(_is_count(factor) for factor in factors):
            return int(factors[0] * factors[1] * max(1, num_gpus))
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
