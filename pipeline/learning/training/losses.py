"""Losses of value models. Shapes: B sequences, T positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.learning.training.atoms import SMALLEST_STEP


def token_bce(values: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of every supervised token with its sequence's label, summed over tokens.

    The minimiser is the conditional mean of the label given the prefix and the token: the Bernoulli case of Q#
    (arXiv 2502.20548, section 2) and the preference probability of PITA (arXiv 2507.20067).

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


def token_atoms(values: Tensor, mask: Tensor, labels: Tensor, rate: float = 0.0) -> Tensor:
    """Negative log-likelihood of labels under a distribution over n atoms, evenly spaced on [0, 1], summed.

    A label between two atoms is split between them, see `atom_weights`. With two atoms and a rate of 0 this is
    `token_bce` of the difference of the two logits.

    Args:
        values: Logits, shape [B, T, n], float32.
        mask: True where a token is supervised, shape [B, T].
        labels: In [0, 1], shape [B].
        rate: What is kept in the split.

    Returns:
        The sum over supervised tokens, a scalar.
    """
    weights = atom_weights(labels, values.shape[-1], rate)
    losses = -(values.log_softmax(-1) * weights[:, None]).sum(-1)
    return torch.where(mask, losses, torch.zeros_like(losses)).sum()


def atom_weights(labels: Tensor, count: int, rate: float = 0.0) -> Tensor:
    """Split labels between the two atoms beside them, so that ``E[exp(rate * label)]`` is kept.

    A tilt adds ``log E[exp(R / eta)]``, which is then exact at that eta; with labels on [0, 1] the rate is the
    width of the range over eta. A rate of 0 keeps the mean (as in Bellemare et al., arXiv 1707.06887, section 4),
    of which the tilt makes up to 0.47 nats too much at a rate of 20 with 11 atoms.

    Args:
        labels: In [0, 1], shape [B].
        count: Atoms, evenly spaced on [0, 1], at least 2.
        rate: Not negative.

    Returns:
        Shape [B, count], float32; each row sums to 1.
    """
    places = labels.double() * (count - 1)
    below = places.floor().clamp(max=count - 2)
    share = places - below
    step = rate / (count - 1)
    if step >= SMALLEST_STEP:
        # (exp(share * step) - 1) / (exp(step) - 1), written so that nothing overflows.
        share = ((share - 1) * step).exp() * torch.expm1(-share * step) / math.expm1(-step)
        share = share.clamp(0, 1)  # rounding may leave it a last digit above
    weights = torch.zeros(len(labels), count, dtype=torch.float64, device=labels.device)
    lower = below.long()[:, None]
    weights.scatter_(1, lower, 1 - share[:, None])
    return weights.scatter_(1, lower + 1, share[:, None]).float()


def expected_labels(values: Tensor, atoms: int) -> Tensor:
    """The mean label that logits stand for, shape [B, T]."""
    if atoms == 1:
        return values.sigmoid()
    return values.softmax(-1) @ torch.linspace(0, 1, atoms, device=values.device)


def chosen_values(values: Tensor, ids: Tensor) -> Tensor:
    """From the outputs of a Q head, the value of each token that was taken.

    Args:
        values: Output at each position for every next token, shape [B, T, V], or [B, T, V, n] with n atoms.
        ids: Token ids, shape [B, T].

    Returns:
        Shape [B, T] or [B, T, n]: at position t the value of token t given what precedes it; 0 at the first one.
    """
    if values.ndim == 4:
        places = ids[:, 1:, None, None].expand(-1, -1, 1, values.shape[-1])
        return F.pad(values[:, :-1].gather(2, places).squeeze(2), (0, 0, 1, 0))
    taken = values[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    return F.pad(taken, (1, 0))
