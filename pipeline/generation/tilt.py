"""How values tilt a reference distribution: pure functions of one decoding step.

The guided policy is ``pi(a|s) ~ pi_ref(a|s) * exp(Q(s,a) / eta)`` over the candidates, the reference's likeliest
tokens. Tokens that are no candidates keep exactly the probability that the reference gives them, or none at all
where `truncate` says so. Adding a constant to all values of a step therefore changes nothing.

Shapes: B rows, V tokens of the vocabulary, K candidates; columns are sorted by the reference, likeliest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.generation.sampling import draw_tokens

Offset = Callable[[Tensor], Tensor]
"""From value logits z, any shape, to what is added to the reference's log-probabilities."""


def bernoulli_offset(eta: float) -> Offset:
    """Q# for rewards in {0, 1}: ``log(1 - p + p * exp(1/eta))``, ``p = sigmoid(z)`` (arXiv 2502.20548, section 3).

    It is log E[exp(R/eta)] for a reward R that is 1 with probability p. Written with softplus, it is exact for any
    z and eta.
    """
    return lambda z: F.softplus(z + 1 / eta) - F.softplus(z)


def atoms_offset(atoms: Sequence[float], eta: float) -> Offset:
    """Q# for rewards with a distribution: ``log E[exp(R/eta)]``, R one of n atoms (arXiv 2502.20548, section 3).

    Values have n logits each, in their last dimension. With the atoms 0 and 1 it is `bernoulli_offset` of the
    difference of the two logits.
    """
    return lambda z: (z.log_softmax(-1) + torch.tensor(atoms, device=z.device) / eta).logsumexp(-1)


def expected_offset(eta: float, low: float = 0.0, high: float = 1.0) -> Offset:
    """CD, the baseline of Q#: ``E[R] / eta``; R is `high` with chance sigmoid(z), else `low`."""
    return lambda z: (low + (high - low) * torch.sigmoid(z)) / eta


def expected_atoms_offset(atoms: Sequence[float], eta: float) -> Offset:
    """CD with a distribution: ``E[R] / eta``, R one of n atoms."""
    return lambda z: (z.softmax(-1) * torch.tensor(atoms, device=z.device)).sum(-1) / eta


def preference_offset(eta: float) -> Offset:
    """PITA: ``Psi(sigmoid(z)) / eta = z / eta``, the log-odds of being preferred (arXiv 2507.20067, section 3)."""
    return lambda z: z / eta


@dataclass(frozen=True)
class Tilt:
    """The settings of guidance.

    Attributes:
        offset: From values to offsets.
        top_k: Candidates per step at most.
        min_p: Tokens that the reference gives less are no candidates; the likeliest always is one.
        truncate: Whether tokens that are no candidates are dropped.
    """

    offset: Offset
    top_k: int
    min_p: float = 0.0
    truncate: bool = False


@dataclass(frozen=True)
class Candidates:
    """The candidates of a step.

    Attributes:
        ids: Token ids, shape [B, K].
        logprobs: The reference's, -inf where a column is no candidate of its row, shape [B, K].
    """

    ids: Tensor
    logprobs: Tensor


def find_candidates(logprobs: Tensor, tilt: Tilt) -> Candidates:
    """The candidates of each row; as many columns as the row with most candidates has.

    Args:
        logprobs: The reference's, shape [B, V].
        tilt: Settings of guidance.
    """
    found = logprobs.topk(min(tilt.top_k, logprobs.shape[-1]), dim=-1)
    if tilt.min_p <= 0:
        return Candidates(found.indices, found.values)
    dropped = found.values < math.log(tilt.min_p)
    dropped[:, 0] = False
    # Columns are sorted, so those that all rows drop are the last ones.
    width = dropped.shape[1] - int(dropped.all(0).sum())
    return Candidates(found.indices[:, :width], found.values.masked_fill_(dropped, -math.inf)[:, :width])


def guided_logprobs(candidates: Candidates, values: Tensor, tilt: Tilt) -> Tensor:
    """Log-probabilities of the candidates under the guided policy, shape [B, K].

    Args:
        candidates: Of the step.
        values: Their value logits z, shape [B, K], or [B, K, n] with n atoms.
        tilt: Settings of guidance.
    """
    tilted = (candidates.logprobs + tilt.offset(values.float())).log_softmax(-1)
    return tilted if tilt.truncate else tilted + candidates.logprobs.logsumexp(-1, keepdim=True)


def step_kl(candidates: Candidates, guided: Tensor) -> Tensor:
    """KL divergence of the guided policy from the reference at one step, in nats, exact, shape [B].

    Only candidates contribute: the others have the reference's probability, or none.
    """
    exact = guided.double()
    terms = exact.exp() * (exact - candidates.logprobs)
    return terms.masked_fill_(candidates.logprobs.isinf(), 0.0).sum(-1)


def full_row(logprobs: Tensor, candidates: Candidates, guided: Tensor, tilt: Tilt) -> Tensor:
    """The guided policy over the whole vocabulary as log-probabilities, shape [B, V]."""
    base = torch.full_like(logprobs, -math.inf) if tilt.truncate else logprobs
    kept = base.gather(-1, candidates.ids)
    return base.scatter(-1, candidates.ids, torch.where(candidates.logprobs.isinf(), kept, guided))


@dataclass(frozen=True)
class Draw:
    """Which part of the distribution a draw falls into, known before any value is.

    Attributes:
        uniform: The draw within that part, shape [B], float64.
        outside: Whether it falls on a token that is no candidate, shape [B].
        tokens: Which one, where it does, shape [B].
    """

    uniform: Tensor
    outside: Tensor
    tokens: Tensor


def split_draw(logprobs: Tensor, candidates: Candidates, uniform: Tensor, tilt: Tilt) -> Draw:
    """Decide whether a draw falls on a candidate.

    Tokens that are no candidates keep the reference's probability, so this does not depend on the values, and the
    token that will be taken can be put before the value model together with the candidates.

    Args:
        logprobs: The reference's, shape [B, V].
        candidates: Of the step.
        uniform: Shape [B], float64, in (0, 1).
        tilt: Settings of guidance.
    """
    if tilt.truncate:
        none = torch.zeros_like(uniform, dtype=torch.bool)
        return Draw(uniform, none, torch.zeros_like(uniform, dtype=torch.long))
    rest = logprobs.scatter(
        -1,
        candidates.ids,
        torch.where(candidates.logprobs.isinf(), logprobs.gather(-1, candidates.ids), -math.inf),
    )
    mass = rest.double().exp().sum(-1)
    outside = uniform < mass
    within = torch.where(
        outside, uniform / mass.clamp_min(1e-300), (uniform - mass) / (1 - mass).clamp_min(1e-300)
    )
    within = within.clamp(2.0**-53, 1 - 2.0**-53)
    tokens = draw_tokens(rest, within) if bool(outside.any()) else torch.zeros_like(uniform, dtype=torch.long)
    return Draw(within, outside, tokens.clamp_max(logprobs.shape[-1] - 1))


def draw_columns(guided: Tensor, draw: Draw) -> Tensor:
    """The column of the candidate that is drawn, shape [B]; of no meaning where the draw falls outside."""
    return draw_tokens(guided, draw.uniform).clamp_max(guided.shape[-1] - 1)
