"""Which precision a training computes in. The weights that it changes are float32, whatever this is."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from pipeline.config.schema import DType
from pipeline.learning.training.distributed import ALONE, Ranks


def computing_in(dtype: DType, device: str, ranks: Ranks = ALONE) -> AbstractContextManager[object]:
    """Forward passes in `bfloat16` where that is asked for; sums and losses stay in float32 (torch.autocast).

    `float16` computes in float32: its range is too small for gradients without a scale for the loss.

    Args:
        dtype: `system.dtype`.
        device: ``cpu`` or ``cuda``.
        ranks: Who shares the models; where FSDP gathers them in that type nothing is left to do.
    """
    if dtype is not DType.bfloat16 or ranks.gathers_rounded:
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)
