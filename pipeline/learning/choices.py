"""Choices that settings offer, and that modules carry out which import torch.

Settings load no torch, and what computes knows no algorithm, so these stand apart from both.
"""

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

    sigmoid = "sigmoid"  # of DPO itself (arXiv 2305.18290)
    hinge = "hinge"  # of SLiC (arXiv 2305.10425)
    ipo = "ipo"  # a squared distance (arXiv 2310.12036)
    exo_pair = "exo_pair"  # of EXO (arXiv 2402.00856)
    nca_pair = "nca_pair"  # of NCA (arXiv 2402.05369)
    robust = "robust"  # with labels that may be wrong (arXiv 2403.00409)
    bco_pair = "bco_pair"  # of BCO (arXiv 2404.04656)
    sppo_hard = "sppo_hard"  # of SPPO with hard labels (arXiv 2405.00675)
    apo_zero = "apo_zero"  # raises chosen and lowers rejected completions (arXiv 2408.06266)
    apo_down = "apo_down"  # lowers both, rejected ones further (arXiv 2408.06266)
    discopop = "discopop"  # found by a search (arXiv 2406.08414)
    sigmoid_norm = "sigmoid_norm"  # as sigmoid, per token of a completion


class GRPOLoss(Enum):
    """How GRPO averages over tokens, by TRL's names."""

    grpo = "grpo"  # over the tokens of each completion, then over completions
    bnpo = "bnpo"  # over all tokens of a batch
    dr_grpo = "dr_grpo"  # summed over tokens, divided by completions and the longest length allowed
    dapo = "dapo"  # summed over tokens, divided by the tokens that an average batch of what was drawn has
    cispo = "cispo"  # as dapo, of log-probabilities weighted with the clipped ratio (arXiv 2506.13585, equation 4)


class ImportanceSampling(Enum):
    """What GRPO's ratio of probabilities is of, by TRL's names."""

    token = "token"  # each token
    sequence = "sequence"  # a whole completion, to the power of one over its tokens: GSPO (arXiv 2507.18071)
    product = "product"  # a whole completion as it is, which TRL has in RLOO alone


class VLLMCorrection(Enum):
    """Which ratio of the trainer's probability to vLLM's weighs GRPO's loss, by TRL's names."""

    none = "none"  # no weights; the difference is measured all the same
    token_truncate = "token_truncate"  # of each token, moved to the nearest bound
    token_mask = "token_mask"  # of each token, 0 beyond the bounds
    sequence_truncate = "sequence_truncate"  # of the whole completion, moved to the nearest bound
    sequence_mask = "sequence_mask"  # of the whole completion, 0 beyond the bounds


class ScaleRewards(Enum):
    """What GRPO divides advantages by, by TRL's names."""

    group = "group"  # the standard deviation of the group
    batch = "batch"  # the standard deviation of all completions of the round, or of the batch
    mean = "mean"  # the mean reward of the group, which may not have one below 0: MaxRL (arXiv 2602.02710)
    none = "none"  # nothing


SMALLEST_STEP = 1e-6
"""Rate times the distance of atoms: below it, keeping the mean is the same, and the split would lose digits."""
