"""Choices that settings offer, and that modules carry out which import torch.

Settings load no torch, and what computes knows no algorithm, so these stand apart from both.
"""

from __future__ import annotations

from enum import Enum


class Others(Enum):
    """What guidance does to tokens that are no candidates."""

    kept = "kept"  # each keeps exactly the probability that the reference gives it
    offset_zero = "offset_zero"  # an offset of 0 where candidates have theirs, and all share what there is
    dropped = "dropped"  # none is ever drawn


class HeadType(Enum):
    """Shape of a value model's output."""

    v = "v"  # one scalar, read at the position of a candidate token that was appended
    q = "q"  # one scalar per vocabulary entry, read at the last position of the prefix


class DPOLoss(Enum):
    """Losses of `trl.DPOTrainer`, by its names: those that are a mean over pairs."""

    sigmoid = "sigmoid"
    hinge = "hinge"
    ipo = "ipo"
    exo_pair = "exo_pair"
    nca_pair = "nca_pair"
    robust = "robust"
    bco_pair = "bco_pair"
    sppo_hard = "sppo_hard"
    apo_zero = "apo_zero"
    apo_down = "apo_down"
    discopop = "discopop"
    sigmoid_norm = "sigmoid_norm"


class GRPOLoss(Enum):
    """How GRPO averages over tokens, by TRL's names."""

    grpo = "grpo"  # over the tokens of each completion, then over completions
    bnpo = "bnpo"  # over all tokens of a batch
    dr_grpo = "dr_grpo"  # summed over tokens, divided by completions and the longest length allowed
    dapo = "dapo"  # summed over tokens, divided by the tokens that an average batch of the round has


class ScaleRewards(Enum):
    """What GRPO divides advantages by, by TRL's names."""

    group = "group"  # the standard deviation of the group
    batch = "batch"  # the standard deviation of all completions of the round
    none = "none"  # nothing
