"""Losses of pairs by the policy's own likelihood alone: ORPO (arXiv 2403.07691) and SimPO (arXiv 2405.14734).

Both go by the log-probability per token of each completion. Tests hold them to TRL's trainers.

Shapes: P pairs, in 2P sequences: chosen and rejected one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.learning.training.curve import add_to_curve, is_drawn, of_pairs
from pipeline.learning.training.policy import TrainingSet
from pipeline.learning.training.scoring import completion_logprobs
from pipeline.learning.training.sequences import Batch, Sequences

_SURE = -1e-7
"""Log-probability per token from which on odds have no finite logarithm in float32."""


def orpo_set(model: nn.Module, pairs: Sequences, beta: float, device: str) -> TrainingSet:
    """Pairs, and the loss of ORPO on them (equations 6 and 7, with the odds of equation 4).

    As in TRL and in the authors' code, the likelihood is of all tokens of prompt and chosen completion.

    Args:
        model: The policy that is trained, on its device.
        pairs: Chosen and rejected completions, one after the other.
        beta: Weight of the odds ratio; the paper's lambda.
        device: Of the model.
    """

    def log_odds(mean: Tensor) -> Tensor:
        mean = mean.clamp(max=_SURE)
        return mean - torch.log(-torch.expm1(mean))

    def loss(chosen: Tensor, rejected: Tensor) -> Tensor:
        return -beta * F.logsigmoid(log_odds(chosen) - log_odds(rejected))

    whole = replace(pairs, starts=np.minimum(pairs.lengths, 1), left_out=None)
    return _pair_set(model, pairs, loss, device, beta, read=whole, likelihood=1.0)


def simpo_set(
    model: nn.Module, pairs: Sequences, beta: float, gamma: float, device: str, alpha: float = 0.0
) -> TrainingSet:
    """Pairs, and the loss of SimPO on them (equation 6).

    Args:
        model: The policy that is trained, on its device.
        pairs: Chosen and rejected completions, one after the other.
        beta: Scale of the log-probability per token.
        gamma: Margin by which the chosen one is to be ahead.
        device: Of the model.
        alpha: Weight of the chosen completions' negative log-likelihood.
    """

    def loss(chosen: Tensor, rejected: Tensor) -> Tensor:
        return -F.logsigmoid(beta * (chosen - rejected) - gamma)

    return _pair_set(model, pairs, loss, device, beta, read=pairs, likelihood=alpha)


def _pair_set(
    model: nn.Module,
    pairs: Sequences,
    loss: Callable[[Tensor, Tensor], Tensor],
    device: str,
    scale: float,
    *,
    read: Sequences,
    likelihood: float,
) -> TrainingSet:
    """Pairs, their loss by what is said per token, and some weight of the likelihood of tokens of the chosen.

    Args:
        model: The policy.
        pairs: As above.
        loss: From the log-probabilities per token of chosen and rejected completions, each of shape [P], to the
            losses.
        device: Of the model.
        scale: What the curve's rewards have beside these log-probabilities.
        read: The same sequences, with all tokens supervised that are to be likely.
        likelihood: Weight of the negative log-likelihood of these, a mean over the tokens of a batch.
    """
    tokens = read.supervised

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:
        logprobs = completion_logprobs(model, batch)
        mask = torch.from_numpy(pairs.mask(part, batch.ids.shape[1])).to(device)
        mean = torch.where(mask, logprobs, torch.zeros_like(logprobs)).sum(-1) / mask.sum(-1).clamp(min=1)
        if is_drawn():
            add_to_curve(**of_pairs(scale * mean.detach()))
        total = loss(mean[0::2], mean[1::2]).sum() / (len(whole) // 2)
        if likelihood:
            total = total - likelihood * logprobs[0::2].sum() / max(1, int(tokens[whole[0::2]].sum()))
        return total

    return TrainingSet(read, loss_of, group=2, about={"pairs": len(pairs) // 2})
