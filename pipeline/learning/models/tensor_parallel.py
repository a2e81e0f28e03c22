"""Split a policy over several ranks, each of which has a part of every layer and computes with the others.

Each model class of transformers defines how its layers are split: attention heads and the width of MLPs by
columns, the layers after them by rows, whose outputs are summed over ranks; embedding and output layer by tokens.
So every rank has all logits, with equal bits, and continues as if it were alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from pipeline.errors import JobError
from pipeline.learning.models.kinds import why_not_split

if TYPE_CHECKING:
    from pipeline.learning.training.distributed import Ranks


_RANKS = "split_over"
"""Attribute of a split model: the ranks that have its parts."""


def split_options(config: PreTrainedConfig, ranks: Ranks | None, name: str) -> dict[str, Any]:
    """Return the arguments with which `from_pretrained` loads each rank's part of a policy.

    Args:
        config: Configuration of the policy.
        ranks: Ranks of the job.
        name: Name of the policy in messages.

    Raises:
        JobError: The policy cannot be split over these ranks or devices.
    """
    if ranks is None or not ranks.splits_tensors:
        return {}
    if why := why_not_split(config.to_dict(), ranks.size):
        raise JobError(f"{name}: {why}")
    # transformers uses the accelerator for which torch was built, whatever the job's device is.
    built_for = torch.accelerator.current_accelerator()
    if built_for is not None and not ranks.device.startswith(built_for.type):
        raise JobError(
            f"{name}: this build of torch splits models over devices of the kind {built_for.type} alone, and the "
            f"job is on {ranks.device}. Use generation.gpus_per_job=1, or the CPU build of torch"
        )
    from transformers.distributed.configuration_utils import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=ranks.size)}


def note_split(model: nn.Module, ranks: Ranks | None) -> None:
    """Attach the ranks to a split model: all of them must take part in every computation."""
    if ranks is not None and ranks.splits_tensors:
        vars(model)[_RANKS] = ranks


def split_over(model: nn.Module) -> Ranks | None:
    """Return the ranks that a model is split over; None if the model is not split."""
    ranks: Ranks | None = vars(model).get(_RANKS)
    return ranks
