"""A policy that is split over several ranks, each of which has a part of every layer and computes with the others.

The plan of what is split how comes with each model class of transformers: heads of attention and the width of MLPs
by columns, what follows them by rows, whose sums are added up over ranks; embedding and output layer by tokens. So
every rank has all logits, in the same bits, and goes on from them as if it were alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pipeline.errors import JobError
from pipeline.learning.models.families import why_not_split

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig

    from pipeline.learning.training.distributed import Ranks

_RANKS = "split_over"
"""Attribute of a model that is split: the ranks that have its parts."""


def split_options(config: PreTrainedConfig, ranks: Ranks | None, name: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` by which each rank reads its parts of a policy.

    Args:
        config: Of the policy.
        ranks: Who does the job.
        name: What the policy is called in messages.

    Raises:
        JobError: It cannot be split so.
    """
    if ranks is None or not ranks.splits_tensors:
        return {}
    if why := why_not_split(config.to_dict(), ranks.size):
        raise JobError(f"{name}: {why}")
    # transformers goes by what torch was built for, whatever the job's device is.
    built_for = torch.accelerator.current_accelerator()
    if built_for is not None and not ranks.device.startswith(built_for.type):
        raise JobError(
            f"{name}: this build of torch splits models over devices of the kind {built_for.type} alone, and the "
            f"job is on {ranks.device}. Use generation.gpus_per_job=1, or the CPU build of torch"
        )
    from transformers.distributed.configuration_utils import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=ranks.size)}


def note_split(model: nn.Module, ranks: Ranks | None) -> None:
    """Remember with a model who has its parts: all that is done with it must be done by all of them."""
    if ranks is not None and ranks.splits_tensors:
        vars(model)[_RANKS] = ranks


def split_over(model: nn.Module) -> Ranks | None:
    """The ranks that a model is split over; None of one that is whole here."""
    found: Ranks | None = vars(model).get(_RANKS)
    return found
