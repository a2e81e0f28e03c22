"""Losses of value models. Shapes: B sequences, T positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def token_bce(values: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of every supervised token with its sequence's label, summed over tokens.

    The minimiser is the conditional mean of the label given the prefix and the token: the Bernoulli case of Q#
    (arXiv 2502.20548, section 3) and the preference probability of PITA (arXiv 2507.20067, section 3).

    Args:
        values: Logits z, shape [B, T], float32.
        mask: True where a token is supervised, shape [B, T].
        labels: In [0, 1], shape [B].

    Returns:
        The sum over supervised tokens, a scalar; divide by their number for the mean.
    """
    targets = labels[:, None].expand_as(values)
    losses = F.binary_cross_entropy_with_logits(values, targets, reduction="none")
    return torch.where(mask, losses, torch.zeros_like(losses)).sum()


def chosen_values(values: Tensor, ids: Tensor) -> Tensor:
    """From the outputs of a Q head, the value of each token that was taken.

    Args:
        values: Output at each position for every next token, shape [B, T, V].
        ids: Token ids, shape [B, T].

    Returns:
        Shape [B, T]: at position t the value of token t given what precedes it; 0 at the first position.
    """
    taken = values[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    return F.pad(taken, (1, 0))
