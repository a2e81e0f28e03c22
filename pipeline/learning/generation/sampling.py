"""Random draws per sample, the policy's distribution, and how values change it.

A draw is a hash of (seed, stream, row, sample, step), never the next number of a shared generator. So it does not
depend on the order of samples, on batches, on shards or on the number of workers. The drawn token depends on these
only through rounding of the distribution, which the batch size may change (`benchmarks/flips.py`).

Shapes: B rows being decoded, V tokens of the vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.errors import JobError
from pipeline.learning.choices import Others
from pipeline.outputs.formats import OffsetRule, Rule, Sampling

# -- host --------------------------------------------------------------------------------------------------------
# Synchronisation: what the host reads from a device during a step makes it wait for all earlier work. A step is
# hundreds of short operations. A GPU runs them faster than the host can launch them, unless the host waits for a
# number: then the GPU idles. So on a GPU steps have static shapes. On a CPU reading is free, and knowing a number
# saves work.


_SILENT: ContextVar[bool] = ContextVar("_SILENT", default=False)


def may_ask(tensor: Tensor) -> bool:
    """Return whether a number may be read from the device, in order to do less work."""
    return not is_silent() and not tensor.is_cuda


def has_any(marks: Tensor) -> bool:
    """Return whether any row is marked, shape [B]; on a CPU by searching a list, which is faster."""
    return bool(marks.any()) if marks.is_cuda else True in marks.tolist()


def is_silent() -> bool:
    """Return whether nothing may be read from the device, because a CUDA graph is being captured."""
    return _SILENT.get()


@contextmanager
def silent() -> Iterator[None]:
    """Forbid reading from the device inside."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


Keys = NDArray[np.uint64]
"""One RNG key per sample: names the sample's own stream of draws."""

LIKELIEST = np.uint64(2**64 - 1)
"""Key of a sample that is decoded greedily, beside sampled ones of its prompt."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FEW = 1024
"""Number of top tokens in which to search a nucleus first: sorting a large vocabulary takes longer than the draw.
"""
_BLOCK = 1024
"""Number of tokens whose weights a GPU sums at once: one group of threads."""
_DRAW_BITS = 48
"""Few enough that a draw times a total never rounds up to the total, in float64."""


def _mix(x: Keys) -> Keys:
    """Scramble 64 bits by the finaliser of SplitMix64, a bijection (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _absorb(key: Keys, value: Keys) -> Keys:
    return _mix((key ^ value) * _GOLDEN + _GOLDEN)


def _named(stream: str) -> Keys:
    return np.array([int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little")], np.uint64)


def stream_beside(keys: Keys, stream: str) -> Keys:
    """Return a further stream of each sample, for draws other than its tokens.

    Args:
        keys: Any shape.
        stream: Purpose of the draws.

    Returns:
        The shape of `keys`.
    """
    return _absorb(keys, _named(stream))


def sample_keys(seed: int, stream: str, rows: NDArray[np.int64], samples: int) -> Keys:
    """Return keys of `samples` samples for each row.

    Args:
        seed: Seed of the chain, 0 or more.
        stream: Purpose of the draws. Streams of different names are independent.
        rows: Stable ids of rows of a dataset, shape [R].
        samples: Samples per row.

    Returns:
        Shape [R, samples].
    """
    name = _named(stream)
    chain = _absorb(_absorb(np.array([seed], np.uint64), name), name)
    per_row = _absorb(chain, rows.astype(np.uint64))
    return _absorb(per_row[:, None], np.arange(samples, dtype=np.uint64)[None, :])


def split_keys(keys: Keys, count: int) -> Keys:
    """Split each stream into several independent ones, the first of which is the stream itself.

    Args:
        keys: Any shape.
        count: Number of streams of each, at least 1.

    Returns:
        Shape [*keys.shape, count].
    """
    more = _absorb(keys[..., None], np.arange(1, count, dtype=np.uint64))
    return np.concatenate([keys[..., None], more], -1)


def keys_after(keys: Keys, steps: int) -> Keys:
    """Return keys whose draws are those of `keys` from a step on: `uniforms` without its first columns."""
    return keys + np.array([steps], np.uint64) * _GOLDEN


def uniforms(keys: Keys, steps: int) -> NDArray[np.float64]:
    """Return draws in the open interval (0, 1), one per step of each key; they depend only on key and step.

    Args:
        keys: Any shape.
        steps: Number of steps.

    Returns:
        Shape [*keys.shape, steps]; NaN for `LIKELIEST`.
    """
    return uniforms_at(keys[..., None], np.arange(steps))


def uniforms_at(keys: Keys, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the draws of `uniforms` at given steps; keys and steps of shapes that broadcast."""
    counters = (steps + 1).astype(np.uint64) * _GOLDEN
    bits = _mix(keys + counters) >> np.uint64(64 - _DRAW_BITS)
    drawn: NDArray[np.float64] = (bits.astype(np.float64) + 0.5) * 2.0**-_DRAW_BITS
    drawn[np.broadcast_to(keys == LIKELIEST, drawn.shape)] = np.nan
    return drawn


def policy_logprobs(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log-probabilities of a model's whole distribution at a temperature.

    Guidance changes this distribution, as `cut`, so `eta` means the same at every temperature. KL is measured
    against the whole.

    Args:
        logits: Shape [..., V], any floating type.
        temperature: Above 0.

    Returns:
        Shape [..., V], float32.
    """
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    return logits.log_softmax(-1)


def is_no_number(logprobs: Tensor) -> Tensor:
    """Return which distributions are invalid: a logit is NaN or +inf, or all are -inf, shape [...].

    Args:
        logprobs: Result of `policy_logprobs`, shape [..., V].
    """
    return logprobs[..., 0].isnan()  # all values of a row are NaN, or none is


def no_number(what: str) -> JobError:
    """Return the error for a model with invalid outputs.

    Args:
        what: Name of the model in the message.
    """
    return JobError(
        f"what the {what} computes is no number (NaN or inf), so nothing can be drawn. Its weights are broken: a "
        "training that has diverged wants a lower learning rate; a model that overflows wants system.dtype=float32"
    )


def cut(logprobs: Tensor, sampling: Sampling) -> Tensor:
    """Restrict distributions to the tokens that may be drawn, their nucleus, and renormalise.

    Args:
        logprobs: Result of `policy_logprobs`, shape [..., V].
        sampling: The smallest set of likeliest tokens with at least the probability `top_p` is kept.

    Returns:
        Shape [..., V], -inf for tokens outside the nucleus.
    """
    if sampling.is_whole:
        return logprobs
    few = logprobs.shape[-1] > 2 * _FEW and not is_silent()
    kept = _nucleus_of_few(logprobs, sampling.top_p) if few else None
    if kept is None:
        # Ties go to the lower token id, whatever kernel sorts.
        ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
        kept = logprobs.scatter(-1, order, ordered.masked_fill(_outside(ordered, sampling.top_p), -math.inf))
    return kept.log_softmax(-1)


def _outside(ordered: Tensor, top_p: float) -> Tensor:
    """Return which tokens, sorted by descending probability, are outside of a nucleus."""
    probabilities = ordered.double().exp()
    return (probabilities.cumsum(-1) - probabilities) >= top_p


def _nucleus_of_few(logprobs: Tensor, top_p: float) -> Tensor | None:
    """Restrict to a nucleus by sorting only the top `_FEW` tokens; None if the nucleus may need other tokens.

    Returns:
        Shape [..., V]: -inf for tokens outside, and the input for the others.
    """
    values, order = logprobs.topk(_FEW, dim=-1)
    # Tokens as likely as the last one may be missing, so the nucleus must not need any of these.
    least = values[..., -1:]
    order = order.sort(dim=-1).values  # otherwise ties would not go to the lower token id
    values, places = logprobs.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    outside = _outside(values, top_p)
    if bool(((values <= least) & ~outside).any()):
        return None
    kept = values.masked_fill(outside, -math.inf)
    return logprobs.new_full(logprobs.shape, -math.inf).scatter(-1, order.gather(-1, places), kept)


def nucleus_kl(logprobs: Tensor, cut: Tensor) -> Tensor:
    """Return the exact KL divergence in nats between nucleus distributions and the original ones.

    It is the logarithm of the factor by which every token of a nucleus gains. A guided nucleus is farther from the
    whole distribution than from the nucleus by the same amount.

    Args:
        logprobs: Whole distributions, shape [..., V].
        cut: Result of `cut` for them.

    Returns:
        Shape [...], float64.
    """
    return -logprobs.masked_fill(cut.isinf(), -math.inf).double().logsumexp(-1)


def draw_tokens(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """Draw tokens by inverting the cumulative distribution, in the order of token ids.

    Args:
        logprobs: Shape [B, V]; need not be normalised, -inf is never drawn.
        uniform: Shape [B], float64, in (0, 1).

    Returns:
        Token ids, shape [B], int64.
    """
    # float64, so that the sum over a large vocabulary still resolves the draw.
    exact = logprobs.double()
    return draw_by_weight(exact.exp() if exact is logprobs else exact.exp_(), uniform)


def draw_by_weight(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw tokens by weights, in float64; the weights are overwritten to save memory."""
    if weights.is_cuda and weights.shape[-1] > 2 * _BLOCK:
        return by_blocks(weights, uniform)
    cumulative = weights.cumsum_(-1)
    target = uniform.unsqueeze(-1) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1)


def by_blocks(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw tokens by weights, first a block and then a token in it, since a long sum is slow on a GPU.

    The token is the same unless the draw is within rounding of a token's boundary.
    """
    blocks = F.pad(weights, (0, -weights.shape[-1] % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    ends = blocks.sum(-1).cumsum_(-1)
    target = uniform.unsqueeze(-1) * ends[..., -1:]
    block = torch.searchsorted(ends, target, right=True).clamp_max_(ends.shape[-1] - 1)
    before = F.pad(ends, (1, 0)).gather(-1, block)
    inside = blocks.gather(-2, block.unsqueeze(-1).expand(-1, 1, _BLOCK)).squeeze(-2).cumsum_(-1)
    # Rounding leads at most to the last token of the block with a weight.
    rest = (target - before).minimum(inside[..., -1:] * (1 - 2.0**-52))
    return (block * _BLOCK + torch.searchsorted(inside, rest, right=True)).squeeze(-1)


def take_tokens(logprobs: Tensor, uniform: Tensor, some_likeliest: bool) -> Tensor:
    """Draw tokens as `draw_tokens`, and take the likeliest one in rows without a draw.

    Args:
        logprobs: Shape [B, V].
        uniform: Shape [B], float64; NaN for none.
        some_likeliest: Whether there may be such rows, so that the device need not be read.
    """
    # An invalid distribution (`is_no_number`) gives an id out of range, which a GPU must not look up.
    drawn = draw_tokens(logprobs, uniform).clamp_max_(logprobs.shape[-1] - 1)
    return drawn.where(~uniform.isnan(), logprobs.argmax(-1)) if some_likeliest else drawn


# -- tilt --------------------------------------------------------------------------------------------------------
# Guidance: how values change a reference distribution, as pure functions of one decoding step. The guided policy
# is ``pi(a|s) ~ pi_ref(a|s) * exp(Q(s,a) / eta)`` over the candidates, the reference's likeliest tokens. A setting
# (`Others`) decides about all other tokens. If they keep exactly the reference's probability, or get none, adding
# a constant to all values of a step changes nothing. If they have an offset of 0, as in the papers' code for
# maths, the constant matters. As they share that offset, a last column stands for all of them. Shapes: B rows, V
# tokens of the vocabulary, K columns; candidates are sorted by the reference, likeliest first.


Offset = Callable[[Tensor], Tensor]
"""Function from value logits z, any shape, to offsets of the reference's log-probabilities."""


@dataclass(frozen=True)
class KnownOffset:
    """An offset with a saved rule, which can be rebuilt at another strength.

    Attributes:
        rule: Name of the rule, and the rewards of the head.
        eta: Strength; smaller is stronger. One number, or one for each row, shape [B, 1].
    """

    rule: OffsetRule
    eta: float | Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """Return the offsets of value logits."""
        return _RULES[self.rule.rule](z, self.eta, self.rule.rewards)


def bernoulli_offset(eta: float, low: float = 0.0, high: float = 1.0) -> KnownOffset:
    """Return Q#'s offset for two rewards: ``log(1 - p + p * exp(1/eta))``, ``p = sigmoid(z)`` (arXiv 2502.20548).

    It is log E[exp(R/eta)] for a reward R that is 1 with probability p, else 0. For rewards `low` and `high` it is
    the difference to the offset of `low`. It uses softplus, so it never overflows. In float32 its error is up to
    1e-7 of ``(high - low) / eta``: 1e-3 nats if that is 1e4, 0.06 if it is 1e6.
    """
    return KnownOffset(OffsetRule(rule="bernoulli", rewards=(low, high)), eta)


def atoms_offset(atoms: Sequence[float], eta: float) -> KnownOffset:
    """Return Q#'s offset for n rewards: ``log E[exp(R/eta)]``, R one of n atoms (arXiv 2502.20548, section 2).

    The last dimension of the values has the n logits. With the atoms 0 and 1 it equals `bernoulli_offset` of the
    difference of the two logits.
    """
    return KnownOffset(OffsetRule(rule="atoms", rewards=tuple(atoms)), eta)


def expected_offset(eta: float, low: float = 0.0, high: float = 1.0) -> KnownOffset:
    """Return CD's offset, a baseline of Q#: ``E[R] / eta``.

    R is `high` with probability sigmoid(z), else `low`.
    """
    return KnownOffset(OffsetRule(rule="expected", rewards=(low, high)), eta)


def expected_atoms_offset(atoms: Sequence[float], eta: float) -> KnownOffset:
    """Return CD's offset with a distribution: ``E[R] / eta``, R one of n atoms."""
    return KnownOffset(OffsetRule(rule="expected_atoms", rewards=tuple(atoms)), eta)


def preference_offset(eta: float) -> KnownOffset:
    """Return PITA's offset: ``Psi(sigmoid(z)) / eta = z / eta``, the log-odds of preference (arXiv 2507.20067)."""
    return KnownOffset(OffsetRule(rule="preference"), eta)


def _bernoulli(z: Tensor, eta: float | Tensor, rewards: Sequence[float]) -> Tensor:
    scaled = eta / (rewards[1] - rewards[0])
    return F.softplus(z + 1 / scaled) - F.softplus(z)


def _atoms(rewards: Sequence[float], eta: float | Tensor, device: torch.device) -> Tensor:
    return _on_device(tuple(rewards), device) / (eta[..., None] if isinstance(eta, Tensor) else eta)


def _expected(z: Tensor, eta: float | Tensor, rewards: Sequence[float]) -> Tensor:
    low, high = rewards
    return (low + (high - low) * torch.sigmoid(z)) / eta


@cache
def _on_device(rewards: tuple[float, ...], device: torch.device) -> Tensor:
    """Copy rewards to a device once, as every copy waits for the GPU."""
    with torch.inference_mode(mode=False):
        return torch.tensor(rewards, device=device)


_RULES: dict[Rule, Callable[[Tensor, float | Tensor, Sequence[float]], Tensor]] = {
    "preference": lambda z, eta, _: z / eta,
    "bernoulli": _bernoulli,
    "atoms": lambda z, eta, atoms: (z.log_softmax(-1) + _atoms(atoms, eta, z.device)).logsumexp(-1),
    "expected": _expected,
    "expected_atoms": lambda z, eta, atoms: (z.softmax(-1) * _on_device(tuple(atoms), z.device)).sum(-1) / eta,
}


@dataclass(frozen=True)
class Tilt:
    """The settings of guidance.

    Attributes:
        offset: Function from value logits to offsets.
        top_k: Most candidates per step.
        min_p: Least probability of a candidate under the reference; the likeliest token is always one.
        others: Treatment of tokens that are no candidates.
    """

    offset: Offset
    top_k: int
    min_p: float = 0.0
    others: Others = Others.kept

    def leaves_others(self, vocabulary: int) -> bool:
        """Return whether a token may be taken that is no candidate.

        Args:
            vocabulary: Size of the vocabulary.
        """
        return self.others is not Others.dropped and (self.top_k < vocabulary or self.min_p > 0)


@dataclass(frozen=True)
class Candidates:
    """The candidates of a step.

    Attributes:
        ids: Token ids, shape [B, K].
        logprobs: Log-probabilities under the reference, -inf for columns that are no candidate of their row, shape
            [B, K].
        pooled: Whether the last column stands for all other tokens together. Its probability is their sum, -inf if
            there are none, and its id is the token taken if the draw selects this column.
    """

    ids: Tensor
    logprobs: Tensor
    pooled: bool = False

    @cached_property
    def valid(self) -> Tensor:
        """Return which columns are candidates of their row, shape [B, K]; the first always is."""
        return self.logprobs != -math.inf

    def first(self, width: int) -> Candidates:
        """Keep only the first columns. Columns are sorted, so those that no row uses are the last ones."""
        return Candidates(self.ids[:, :width], self.logprobs[:, :width])


def find_candidates(
    logprobs: Tensor, tilt: Tilt, uniform: Tensor | None = None, some_likeliest: bool = False
) -> Candidates:
    """Find the candidates of each row; the number of columns is the largest number of candidates, or a bound.

    Args:
        logprobs: Log-probabilities under the reference, shape [B, V].
        tilt: Settings of guidance.
        uniform: With `offset_zero`: draws that select one of the other tokens, used for nothing else, shape [B],
            float64, in (0, 1); None takes the likeliest.
        some_likeliest: Whether NaN takes it likewise.
    """
    likeliest = _likeliest(logprobs, tilt)
    pooled = tilt.others is Others.offset_zero and tilt.leaves_others(logprobs.shape[-1])
    return _with_others(logprobs, likeliest, uniform, some_likeliest) if pooled else likeliest


def _likeliest(logprobs: Tensor, tilt: Tilt) -> Candidates:
    top = logprobs.topk(min(tilt.top_k, logprobs.shape[-1]), dim=-1)
    if tilt.min_p <= 0:
        return Candidates(top.indices, top.values)
    dropped = top.values < math.log(tilt.min_p)
    dropped[:, :1].zero_()
    whole = Candidates(top.indices, top.values.masked_fill_(dropped, -math.inf))
    if not may_ask(dropped):
        return whole
    return whole.first(dropped.shape[1] - dropped.all(0).tolist().count(True))


def _with_others(
    logprobs: Tensor, candidates: Candidates, uniform: Tensor | None, some_likeliest: bool
) -> Candidates:
    rest = _without(logprobs, candidates)
    # A row without other tokens draws an invalid one; its column is never taken.
    taken = rest.argmax(-1) if uniform is None else take_tokens(rest, uniform, some_likeliest)
    # float64: candidates may all be suppressed, and then the small probability of the others is all that is left.
    mass = rest.double().logsumexp(-1).to(logprobs.dtype)
    return Candidates(
        torch.cat([candidates.ids, taken[:, None]], -1),
        torch.cat([candidates.logprobs, mass[:, None]], -1),
        pooled=True,
    )


def _without(logprobs: Tensor, candidates: Candidates) -> Tensor:
    """Return the reference without the candidates, not normalised, shape [B, V]."""
    kept = logprobs.gather(-1, candidates.ids).masked_fill_(candidates.valid, -math.inf)
    return logprobs.scatter(-1, candidates.ids, kept)


def guided_logprobs(candidates: Candidates, values: Tensor, tilt: Tilt) -> Tensor:
    """Return log-probabilities of the columns under the guided policy, shape [B, K].

    Args:
        candidates: Candidates of the step.
        values: Their value logits z, shape [B, K], or [B, K, n] with n atoms; ignored in a pooled column. A row
            with an infinite value becomes NaN under any rule.
        tilt: Settings of guidance.
    """
    values = values.float()
    offsets = tilt.offset(values)
    # 0 times infinity is NaN. Applied after the rule, whose kernels round by the memory layout of their input.
    offsets = torch.add(offsets, values if values.ndim == offsets.ndim else values.sum(-1), alpha=0)
    if candidates.pooled:
        offsets = F.pad(offsets[:, :-1], (0, 1))
    tilted = (candidates.logprobs + offsets).log_softmax(-1)
    return tilted.add_(_of_all(candidates.logprobs)) if tilt.others is Others.kept else tilted


def _of_all(logprobs: Tensor) -> Tensor:
    """Return `logsumexp` over columns, knowing that the first is the largest and finite, which saves a check."""
    most = logprobs[:, :1]
    return (logprobs - most).exp_().sum(-1, keepdim=True).log_().add_(most)


def step_kl(candidates: Candidates, guided: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the exact KL divergence of the guided policy from the reference at one step, in nats, shape [B].

    Only the columns contribute: other tokens keep the reference's probability or have none, and the tokens of a
    pooled column share one ratio.

    Args:
        candidates: Candidates of the step.
        guided: The guided policy's log-probabilities, shape [B, K].
        weights: Probabilities of the columns in float64, if known.
    """
    exact = guided.double()
    terms = (exact.exp() if weights is None else weights) * (exact - candidates.logprobs)
    return terms.masked_fill_(candidates.valid.logical_not(), 0.0).sum(-1)


def full_row(logprobs: Tensor, candidates: Candidates, guided: Tensor, tilt: Tilt) -> Tensor:
    """Return the guided policy over the whole vocabulary as log-probabilities, shape [B, V]."""
    base = torch.full_like(logprobs, -math.inf) if tilt.others is Others.dropped else logprobs
    ids, own = candidates.ids, candidates.logprobs
    if candidates.pooled:
        base = base + (guided[:, -1:] - own[:, -1:]).masked_fill(own[:, -1:].isinf(), 0.0)
        ids, own, guided = ids[:, :-1], own[:, :-1], guided[:, :-1]
    return base.scatter(-1, ids, torch.where(own.isinf(), base.gather(-1, ids), guided))


_LEAST = 1e-300
"""Smallest probability to divide by."""

_DEAR = 1024
"""Vocabulary size from which on a CPU draws only for the rows that need it."""


@dataclass(frozen=True)
class Draw:
    """Part of the distribution that a draw selects, known before any value is.

    Attributes:
        uniform: The draw rescaled to the columns, shape [B], float64; undefined if it selects none.
        outside: Whether it selects a token that is no candidate, shape [B]; None if it never does.
        tokens: The tokens taken in that case, shape [B], undefined elsewhere; None likewise.
    """

    uniform: Tensor
    outside: Tensor | None = None
    tokens: Tensor | None = None

    def or_else(self, inside: Tensor) -> Tensor:
        """Return the tokens taken: `inside`, except where a draw selects no column; shape [B]."""
        if self.outside is None or self.tokens is None:
            return inside
        return torch.where(self.outside, self.tokens, inside)


def split_draw(logprobs: Tensor, candidates: Candidates, uniform: Tensor, tilt: Tilt) -> Draw:
    """Decide which draws select no column.

    If other tokens keep the reference's probability, this does not depend on the values, so the value model can
    read the selected token together with the candidates. Otherwise every draw selects a column.

    Args:
        logprobs: Log-probabilities under the reference, shape [B, V].
        candidates: Candidates of the step.
        uniform: Shape [B], float64, in (0, 1).
        tilt: Settings of guidance.
    """
    if tilt.others is not Others.kept or not tilt.leaves_others(logprobs.shape[-1]):
        return Draw(uniform)
    weights = _without(logprobs, candidates).double().exp_()
    mass = weights.sum(-1)
    within = _inside((uniform - mass).div_((1 - mass).clamp_min_(_LEAST)))
    outside = uniform < mass
    asks = may_ask(outside)
    if asks and not has_any(outside):
        return Draw(within)
    if logprobs.shape[-1] < _DEAR or not asks:
        return Draw(within, outside, _drawn_by(weights, uniform, mass))
    rows = outside.nonzero().squeeze(-1)
    tokens = _drawn_by(*(part.index_select(0, rows) for part in (weights, uniform, mass)))
    return Draw(within, outside, torch.zeros_like(outside, dtype=torch.long).index_copy_(0, rows, tokens))


def _drawn_by(weights: Tensor, uniform: Tensor, mass: Tensor) -> Tensor:
    """Draw tokens by their weights, which are overwritten, where a draw is below the total mass."""
    shares = _inside(uniform / mass.clamp_min(_LEAST))
    return draw_by_weight(weights, shares).clamp_max_(weights.shape[-1] - 1)


def _inside(uniform: Tensor) -> Tensor:
    return uniform.clamp_(2.0**-53, 1 - 2.0**-53)


def draw_columns(weights: Tensor, draw: Draw) -> Tensor:
    """Return the drawn column, shape [B]; undefined if the draw selects no candidate.

    Args:
        weights: Probabilities of the columns under the guided policy, float64, and overwritten; shape [B, K].
        draw: Draw of the step.
    """
    return draw_by_weight(weights, draw.uniform).clamp_max_(weights.shape[-1] - 1)


def likeliest_columns(logprobs: Tensor, candidates: Candidates, guided: Tensor) -> Tensor:
    """Return the column of the likeliest token, shape [B].

    Args:
        logprobs: Log-probabilities under the reference, shape [B, V].
        candidates: Candidates of the step; the token of a pooled column is the likeliest of its tokens.
        guided: Log-probabilities under the guided policy, shape [B, K].
    """
    if not candidates.pooled:
        return guided.argmax(-1)
    share = logprobs.gather(-1, candidates.ids[:, -1:]) - candidates.logprobs[:, -1:]
    share = share.masked_fill(candidates.logprobs[:, -1:].isinf(), 0.0)
    return torch.cat([guided[:, :-1], guided[:, -1:] + share], -1).argmax(-1)
