"""Random draws that belong to a sample, the policy's distribution they are drawn from, and how values tilt it.

A draw is a hash of (seed, stream, row, sample, step), never the next number of a shared generator. It therefore
does not depend on the order of samples, on batches, on shards or on the number of workers. The token that it falls
on does so no more than the distribution, which more or fewer rows beside it may round otherwise
(`benchmarks/flips.py`).

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
from pipeline.outputs.formats import OffsetRule, Rule

# -- host --------------------------------------------------------------------------------------------------------
# What the host asks a device for in the middle of a step, which makes it wait for all that was begun before.
# A step is hundreds of short operations. A GPU does them faster than the host can say them, unless the host
# has to wait for a number: then the GPU idles until the next ones are said. So on a GPU steps are of shapes
# that are known beforehand. On a CPU to ask costs nothing, and what is known saves work.


_SILENT: ContextVar[bool] = ContextVar("_SILENT", default=False)


def may_ask(tensor: Tensor) -> bool:
    """Whether a number may be asked for, to do less afterwards."""
    return not is_silent() and not tensor.is_cuda


def has_any(marks: Tensor) -> bool:
    """Whether one of some rows is marked, shape [B]; on a CPU a list of them is looked through sooner."""
    return bool(marks.any()) if marks.is_cuda else True in marks.tolist()


def is_silent() -> bool:
    """Whether nothing may be asked for, however much that would save: what is done is recorded as a graph."""
    return _SILENT.get()


@contextmanager
def silent() -> Iterator[None]:
    """Ask for nothing meanwhile."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


Keys = NDArray[np.uint64]
"""One key per sample: the name of its own stream of draws."""

LIKELIEST = np.uint64(2**64 - 1)
"""A key without draws, for a sample that takes the likeliest tokens beside others of its prompt that are drawn."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FEW = 1024
"""Tokens among which a nucleus is looked for first: sorting a large vocabulary takes longer than the draw."""
_BLOCK = 1024
"""Tokens whose weights a GPU adds up at a time: as many as one group of its threads has."""
_DRAW_BITS = 48
"""Few enough that a draw times a total never rounds up to the total, in float64."""


def _mix(x: Keys) -> Keys:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection that scrambles 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _absorb(key: Keys, value: Keys) -> Keys:
    return _mix((key ^ value) * _GOLDEN + _GOLDEN)


def _named(stream: str) -> Keys:
    return np.array([int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little")], np.uint64)


def stream_beside(keys: Keys, stream: str) -> Keys:
    """A further stream of each sample, for draws that are none of its tokens'.

    Args:
        keys: Any shape.
        stream: What the draws are for.

    Returns:
        The shape of `keys`.
    """
    return _absorb(keys, _named(stream))


def sample_keys(seed: int, stream: str, rows: NDArray[np.int64], samples: int) -> Keys:
    """Keys of `samples` samples for each row.

    Args:
        seed: Seed of the chain, 0 or more.
        stream: What the draws are for. Streams of different names are independent.
        rows: Stable ids of rows of a dataset, shape [R].
        samples: Samples of each row.

    Returns:
        Shape [R, samples].
    """
    name = _named(stream)
    chain = _absorb(_absorb(np.array([seed], np.uint64), name), name)
    per_row = _absorb(chain, rows.astype(np.uint64))
    return _absorb(per_row[:, None], np.arange(samples, dtype=np.uint64)[None, :])


def split_keys(keys: Keys, count: int) -> Keys:
    """Make several independent streams of each, the first of which is the stream itself.

    Args:
        keys: Any shape.
        count: Streams of each, at least 1.

    Returns:
        Shape [*keys.shape, count].
    """
    more = _absorb(keys[..., None], np.arange(1, count, dtype=np.uint64))
    return np.concatenate([keys[..., None], more], -1)


def uniforms(keys: Keys, steps: int) -> NDArray[np.float64]:
    """Draws in the open interval (0, 1), one per step of each key; step t of a key is always the same number.

    Args:
        keys: Any shape.
        steps: Number of steps.

    Returns:
        Shape [*keys.shape, steps]; NaN for `LIKELIEST`.
    """
    counters = np.arange(1, steps + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(keys[..., None] + counters) >> np.uint64(64 - _DRAW_BITS)
    drawn: NDArray[np.float64] = (bits.astype(np.float64) + 0.5) * 2.0**-_DRAW_BITS
    drawn[keys == LIKELIEST] = np.nan
    return drawn


def policy_logprobs(logits: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """Log-probabilities of the policy that is sampled from: the model's, at a temperature, cut to a nucleus.

    Guidance tilts this distribution, so `eta` means the same at every temperature. KL is measured against the same
    one without the nucleus.

    Args:
        logits: Shape [..., V], any floating type.
        temperature: Above 0.
        top_p: See `nucleus`.

    Returns:
        Shape [..., V], float32; -inf for tokens outside the nucleus.
    """
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    return nucleus(logits.log_softmax(-1), top_p)


def is_no_number(logprobs: Tensor) -> Tensor:
    """Which distributions are none: where one of the logits is no number or +inf, or all are -inf, shape [...].

    Args:
        logprobs: As `policy_logprobs` gives them without a nucleus, shape [..., V].
    """
    return logprobs[..., 0].isnan()  # all of a row are, or none is


def no_number(what: str) -> JobError:
    """What to raise of a model that is broken.

    Args:
        what: The model, or the value model.
    """
    return JobError(
        f"what the {what} computes is no number (NaN or inf), so nothing can be drawn. Its weights are broken: a "
        "training that has diverged wants a lower learning rate; a model that overflows wants system.dtype=float32"
    )


def nucleus(logprobs: Tensor, top_p: float) -> Tensor:
    """Cut distributions to their likeliest tokens, which then share all of the probability.

    Args:
        logprobs: Shape [..., V].
        top_p: Smallest set of likeliest tokens with at least this probability is kept; 1 keeps everything.

    Returns:
        Shape [..., V], -inf for tokens outside the nucleus.
    """
    if top_p >= 1.0:
        return logprobs
    few = logprobs.shape[-1] > 2 * _FEW and not is_silent()
    found = _nucleus_of_few(logprobs, top_p) if few else None
    if found is None:
        # Ties go to the lower token id, whatever kernel sorts.
        ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
        found = logprobs.scatter(-1, order, ordered.masked_fill(_outside(ordered, top_p), -math.inf))
    return found.log_softmax(-1)


def _outside(ordered: Tensor, top_p: float) -> Tensor:
    """Which of some tokens, the likeliest first, a nucleus does not need."""
    probabilities = ordered.double().exp()
    return (probabilities.cumsum(-1) - probabilities) >= top_p


def _nucleus_of_few(logprobs: Tensor, top_p: float) -> Tensor | None:
    """The same without sorting the whole vocabulary; None where a nucleus reaches further than its `_FEW` tokens.

    Returns:
        Shape [..., V]: -inf for tokens outside, and what was given for the others.
    """
    values, order = logprobs.topk(_FEW, dim=-1)
    # Those that are as likely as the last of them are not all there, so none of these may be needed.
    least = values[..., -1:]
    order = order.sort(dim=-1).values  # else ties would not go to the lower token id
    values, places = logprobs.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    outside = _outside(values, top_p)
    if bool(((values <= least) & ~outside).any()):
        return None
    kept = values.masked_fill(outside, -math.inf)
    return logprobs.new_full(logprobs.shape, -math.inf).scatter(-1, order.gather(-1, places), kept)


def nucleus_kl(logprobs: Tensor, cut: Tensor) -> Tensor:
    """KL divergence in nats of distributions that are cut to a nucleus from what they were before, exact.

    Every token of a nucleus has gained the same factor, and this is its logarithm. What tilts the nucleus is by as
    much farther from the whole than from the nucleus.

    Args:
        logprobs: Whole distributions, shape [..., V].
        cut: What `nucleus` made of them.

    Returns:
        Shape [...], float64.
    """
    return -logprobs.masked_fill(cut.isinf(), -math.inf).double().logsumexp(-1)


def draw_tokens(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """Draw by inversion of the distribution function, in the order of token ids.

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
    """Likewise, by weights; float64, and overwritten, as rows of a large vocabulary are long."""
    if weights.is_cuda and weights.shape[-1] > 2 * _BLOCK:
        return by_blocks(weights, uniform)
    cumulative = weights.cumsum_(-1)
    target = uniform.unsqueeze(-1) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1)


def by_blocks(weights: Tensor, uniform: Tensor) -> Tensor:
    """Likewise, by sums of blocks of tokens, and then of the tokens of one block; on a GPU a long sum takes long.

    The token is the same, but where the draw falls within rounding of the end of another one.
    """
    blocks = F.pad(weights, (0, -weights.shape[-1] % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    ends = blocks.sum(-1).cumsum_(-1)
    target = uniform.unsqueeze(-1) * ends[..., -1:]
    block = torch.searchsorted(ends, target, right=True).clamp_max_(ends.shape[-1] - 1)
    before = F.pad(ends, (1, 0)).gather(-1, block)
    inside = blocks.gather(-2, block.unsqueeze(-1).expand(-1, 1, _BLOCK)).squeeze(-2).cumsum_(-1)
    # Rounding leads no further than to the last token of the block that has a weight.
    rest = (target - before).minimum(inside[..., -1:] * (1 - 2.0**-52))
    return (block * _BLOCK + torch.searchsorted(inside, rest, right=True)).squeeze(-1)


def take_tokens(logprobs: Tensor, uniform: Tensor, some_likeliest: bool) -> Tensor:
    """Draw tokens as `draw_tokens` does, and take the likeliest where there is no draw.

    Args:
        logprobs: Shape [B, V].
        uniform: Shape [B], float64; NaN where there is none.
        some_likeliest: Whether there may be such rows, so that a device need not be asked.
    """
    # Of what is no number (`is_no_number`) a token is drawn that there is not, which a GPU must not read.
    drawn = draw_tokens(logprobs, uniform).clamp_max_(logprobs.shape[-1] - 1)
    return drawn.where(~uniform.isnan(), logprobs.argmax(-1)) if some_likeliest else drawn


# -- tilt --------------------------------------------------------------------------------------------------------
# How values tilt a reference distribution: pure functions of one decoding step. The guided policy is
# ``pi(a|s) ~ pi_ref(a|s) * exp(Q(s,a) / eta)`` over the candidates, the reference's likeliest tokens. What
# becomes of all other tokens is a setting (`Others`): they keep exactly the probability that the reference
# gives them, or have none, and then adding a constant to all values of a step changes nothing. Or they have
# an offset of 0 where candidates have theirs, as in the papers' maths code; then the constant counts. They
# share that offset, so they are tilted as one: a last column stands for all of them. Shapes: B rows, V tokens
# of the vocabulary, K columns; candidates are sorted by the reference, likeliest first.


Offset = Callable[[Tensor], Tensor]
"""From value logits z, any shape, to what is added to the reference's log-probabilities."""


@dataclass(frozen=True)
class KnownOffset:
    """An offset that can be written down, and made again at another strength.

    Attributes:
        rule: Which one, and the rewards of the head.
        eta: Strength: the smaller, the stronger.
    """

    rule: OffsetRule
    eta: float

    def __call__(self, z: Tensor) -> Tensor:
        """Offsets of value logits."""
        return _RULES[self.rule.rule](z, self.eta, self.rule.rewards)


def bernoulli_offset(eta: float, low: float = 0.0, high: float = 1.0) -> KnownOffset:
    """Q# for two rewards: ``log(1 - p + p * exp(1/eta))``, ``p = sigmoid(z)`` (arXiv 2502.20548, section 2).

    It is log E[exp(R/eta)] for a reward R that is 1 with probability p, else 0. Of rewards `low` and `high` it is
    how far the offset lies above that of the lowest. Written with softplus, it overflows for no z and eta. In
    float32 it is off by up to 1e-7 of ``(high - low) / eta``: 1e-3 nats where that is 1e4, 0.06 where it is 1e6.
    """
    return KnownOffset(OffsetRule(rule="bernoulli", rewards=(low, high)), eta)


def atoms_offset(atoms: Sequence[float], eta: float) -> KnownOffset:
    """Q# for rewards with a distribution: ``log E[exp(R/eta)]``, R one of n atoms (arXiv 2502.20548, section 2).

    Values have n logits each, in their last dimension. With the atoms 0 and 1 it is `bernoulli_offset` of the
    difference of the two logits.
    """
    return KnownOffset(OffsetRule(rule="atoms", rewards=tuple(atoms)), eta)


def expected_offset(eta: float, low: float = 0.0, high: float = 1.0) -> KnownOffset:
    """CD, the baseline of Q#: ``E[R] / eta``; R is `high` with chance sigmoid(z), else `low`."""
    return KnownOffset(OffsetRule(rule="expected", rewards=(low, high)), eta)


def expected_atoms_offset(atoms: Sequence[float], eta: float) -> KnownOffset:
    """CD with a distribution: ``E[R] / eta``, R one of n atoms."""
    return KnownOffset(OffsetRule(rule="expected_atoms", rewards=tuple(atoms)), eta)


def preference_offset(eta: float) -> KnownOffset:
    """PITA: ``Psi(sigmoid(z)) / eta = z / eta``, the log-odds of being preferred (arXiv 2507.20067)."""
    return KnownOffset(OffsetRule(rule="preference"), eta)


def _bernoulli(z: Tensor, eta: float, rewards: Sequence[float]) -> Tensor:
    scaled = eta / (rewards[1] - rewards[0])
    return F.softplus(z + 1 / scaled) - F.softplus(z)


def _expected(z: Tensor, eta: float, rewards: Sequence[float]) -> Tensor:
    low, high = rewards
    return (low + (high - low) * torch.sigmoid(z)) / eta


@cache
def _on_device(rewards: tuple[float, ...], device: torch.device) -> Tensor:
    """Sent once: a GPU is waited for until it has what it is sent."""
    with torch.inference_mode(mode=False):
        return torch.tensor(rewards, device=device)


_RULES: dict[Rule, Callable[[Tensor, float, Sequence[float]], Tensor]] = {
    "preference": lambda z, eta, _: z / eta,
    "bernoulli": _bernoulli,
    "atoms": lambda z, eta, atoms: (z.log_softmax(-1) + _on_device(tuple(atoms), z.device) / eta).logsumexp(-1),
    "expected": _expected,
    "expected_atoms": lambda z, eta, atoms: (z.softmax(-1) * _on_device(tuple(atoms), z.device)).sum(-1) / eta,
}


@dataclass(frozen=True)
class Tilt:
    """The settings of guidance.

    Attributes:
        offset: From values to offsets.
        top_k: Candidates per step at most.
        min_p: Tokens that the reference gives less are no candidates; the likeliest always is one.
        others: What becomes of tokens that are no candidates.
    """

    offset: Offset
    top_k: int
    min_p: float = 0.0
    others: Others = Others.kept

    def leaves_others(self, vocabulary: int) -> bool:
        """Whether a token may be taken that is no candidate.

        Args:
            vocabulary: Tokens that there are.
        """
        return self.others is not Others.dropped and (self.top_k < vocabulary or self.min_p > 0)


@dataclass(frozen=True)
class Candidates:
    """The candidates of a step.

    Attributes:
        ids: Token ids, shape [B, K].
        logprobs: The reference's, -inf where a column is no candidate of its row, shape [B, K].
        pooled: Whether the last column stands for all other tokens together: its probability is that of all of
            them, -inf where there are none, its id the one that is taken if the draw falls on them.
    """

    ids: Tensor
    logprobs: Tensor
    pooled: bool = False

    @cached_property
    def valid(self) -> Tensor:
        """Which columns are candidates of their row, shape [B, K]; the first always is."""
        return self.logprobs != -math.inf

    def first(self, width: int) -> Candidates:
        """The first columns alone. They are sorted, so those that no row has are the last ones."""
        return Candidates(self.ids[:, :width], self.logprobs[:, :width])


def find_candidates(logprobs: Tensor, tilt: Tilt, uniform: Tensor | None = None) -> Candidates:
    """The candidates of each row; as many columns as the row with most candidates has, or as it might have.

    Args:
        logprobs: The reference's, shape [B, V].
        tilt: Settings of guidance.
        uniform: With an offset of 0 for the other tokens: draws that say which of them would be taken, of no other
            use, shape [B], float64, in (0, 1); None takes the likeliest.
    """
    found = _likeliest(logprobs, tilt)
    pooled = tilt.others is Others.offset_zero and tilt.leaves_others(logprobs.shape[-1])
    return _with_others(logprobs, found, uniform) if pooled else found


def _likeliest(logprobs: Tensor, tilt: Tilt) -> Candidates:
    found = logprobs.topk(min(tilt.top_k, logprobs.shape[-1]), dim=-1)
    if tilt.min_p <= 0:
        return Candidates(found.indices, found.values)
    dropped = found.values < math.log(tilt.min_p)
    dropped[:, :1].zero_()
    whole = Candidates(found.indices, found.values.masked_fill_(dropped, -math.inf))
    if not may_ask(dropped):
        return whole
    return whole.first(dropped.shape[1] - dropped.all(0).tolist().count(True))


def _with_others(logprobs: Tensor, candidates: Candidates, uniform: Tensor | None) -> Candidates:
    rest = _without(logprobs, candidates)
    # A row that has no others draws what is no token; its column is never taken.
    taken = rest.argmax(-1) if uniform is None else draw_tokens(rest, uniform).clamp_max(rest.shape[-1] - 1)
    # float64: candidates may all be suppressed, and the little that the others have is then all there is.
    mass = rest.double().logsumexp(-1).to(logprobs.dtype)
    return Candidates(
        torch.cat([candidates.ids, taken[:, None]], -1),
        torch.cat([candidates.logprobs, mass[:, None]], -1),
        pooled=True,
    )


def _without(logprobs: Tensor, candidates: Candidates) -> Tensor:
    """The reference without the candidates, not normalised, shape [B, V]."""
    kept = logprobs.gather(-1, candidates.ids).masked_fill_(candidates.valid, -math.inf)
    return logprobs.scatter(-1, candidates.ids, kept)


def guided_logprobs(candidates: Candidates, values: Tensor, tilt: Tilt) -> Tensor:
    """Log-probabilities of the columns under the guided policy, shape [B, K].

    Args:
        candidates: Of the step.
        values: Their value logits z, shape [B, K], or [B, K, n] with n atoms; of no meaning in a pooled column.
            Of a row with an infinite one nothing is a number, whatever a rule would make of it.
        tilt: Settings of guidance.
    """
    values = values.float()
    offsets = tilt.offset(values)
    # 0 times what is infinite is no number. Behind the rule, whose kernels round by the layout of what they read.
    offsets = torch.add(offsets, values if values.ndim == offsets.ndim else values.sum(-1), alpha=0)
    if candidates.pooled:
        offsets = F.pad(offsets[:, :-1], (0, 1))
    tilted = (candidates.logprobs + offsets).log_softmax(-1)
    return tilted.add_(_of_all(candidates.logprobs)) if tilt.others is Others.kept else tilted


def _of_all(logprobs: Tensor) -> Tensor:
    """`logsumexp` of columns of which the first is the likeliest and has a probability, which asks for less."""
    most = logprobs[:, :1]
    return (logprobs - most).exp_().sum(-1, keepdim=True).log_().add_(most)


def step_kl(candidates: Candidates, guided: Tensor, weights: Tensor | None = None) -> Tensor:
    """KL divergence of the guided policy from the reference at one step, in nats, exact, shape [B].

    Only the columns contribute: other tokens have the reference's probability, or none, and those of a pooled
    column all have the same ratio to it.

    Args:
        candidates: Of the step.
        guided: The guided policy's log-probabilities, shape [B, K].
        weights: What these are the logarithms of, in float64, where that is known.
    """
    exact = guided.double()
    terms = (exact.exp() if weights is None else weights) * (exact - candidates.logprobs)
    return terms.masked_fill_(candidates.valid.logical_not(), 0.0).sum(-1)


def full_row(logprobs: Tensor, candidates: Candidates, guided: Tensor, tilt: Tilt) -> Tensor:
    """The guided policy over the whole vocabulary as log-probabilities, shape [B, V]."""
    base = torch.full_like(logprobs, -math.inf) if tilt.others is Others.dropped else logprobs
    ids, known = candidates.ids, candidates.logprobs
    if candidates.pooled:
        base = base + (guided[:, -1:] - known[:, -1:]).masked_fill(known[:, -1:].isinf(), 0.0)
        ids, known, guided = ids[:, :-1], known[:, :-1], guided[:, :-1]
    return base.scatter(-1, ids, torch.where(known.isinf(), base.gather(-1, ids), guided))


_LEAST = 1e-300
"""Of a probability that is divided by."""

_DEAR = 1024
"""Tokens of a vocabulary from which on a CPU draws of it for the rows alone that need it."""


@dataclass(frozen=True)
class Draw:
    """Which part of the distribution a draw falls into, known before any value is.

    Attributes:
        uniform: The draw among the columns, shape [B], float64; of no meaning where it falls on none.
        outside: Where it falls on a token that is no candidate, shape [B]; None where it does nowhere.
        tokens: The tokens that are taken there, shape [B], of no meaning elsewhere; None likewise.
    """

    uniform: Tensor
    outside: Tensor | None = None
    tokens: Tensor | None = None

    def or_else(self, inside: Tensor) -> Tensor:
        """The tokens that are taken: these, but where a draw falls on no column; shape [B]."""
        if self.outside is None or self.tokens is None:
            return inside
        return torch.where(self.outside, self.tokens, inside)


def split_draw(logprobs: Tensor, candidates: Candidates, uniform: Tensor, tilt: Tilt) -> Draw:
    """Decide which draws fall on no column.

    Where tokens that are no candidates keep the reference's probability, this does not depend on the values, and
    the token that will be taken can be put before the value model together with the candidates. Otherwise every
    draw falls on a column.

    Args:
        logprobs: The reference's, shape [B, V].
        candidates: Of the step.
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
    """Tokens that are drawn by their weights, which are overwritten, where a draw is less than the mass of all."""
    shares = _inside(uniform / mass.clamp_min(_LEAST))
    return draw_by_weight(weights, shares).clamp_max_(weights.shape[-1] - 1)


def _inside(uniform: Tensor) -> Tensor:
    return uniform.clamp_(2.0**-53, 1 - 2.0**-53)


def draw_columns(weights: Tensor, draw: Draw) -> Tensor:
    """The column that is drawn, shape [B]; of no meaning where the draw falls on no candidate.

    Args:
        weights: Probabilities of the columns under the guided policy, float64, and overwritten; shape [B, K].
        draw: Of the step.
    """
    return draw_by_weight(weights, draw.uniform).clamp_max_(weights.shape[-1] - 1)


def likeliest_columns(logprobs: Tensor, candidates: Candidates, guided: Tensor) -> Tensor:
    """The column of the likeliest token, shape [B].

    Args:
        logprobs: The reference's, shape [B, V].
        candidates: Of the step; the token of a pooled column is the likeliest of those that it stands for.
        guided: The guided policy's, shape [B, K].
    """
    if not candidates.pooled:
        return guided.argmax(-1)
    share = logprobs.gather(-1, candidates.ids[:, -1:]) - candidates.logprobs[:, -1:]
    share = share.masked_fill(candidates.logprobs[:, -1:].isinf(), 0.0)
    return torch.cat([guided[:, :-1], guided[:, -1:] + share], -1).argmax(-1)
