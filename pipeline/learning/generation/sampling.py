"""Random draws that belong to a sample, and the policy's distribution they are drawn from.

A draw is a hash of (seed, stream, row, sample, step), never the next number of a shared generator. It therefore
does not depend on the order of samples, on batches, on shards or on the number of workers. The token that it falls
on does so no more than the distribution, which more or fewer rows beside it may round otherwise
(`benchmarks/flips.py`).

Shapes: B rows being decoded, V tokens of the vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor


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


def stream_key(seed: int, stream: str) -> Keys:
    """The key of a named stream of a chain, from which the keys of samples are made.

    Args:
        seed: Seed of the chain, 0 or more.
        stream: What the draws are for. Streams of different names are independent.

    Returns:
        Shape [1].
    """
    name = _named(stream)
    return _absorb(_absorb(np.array([seed], np.uint64), name), name)


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
        stream: What the draws are for.
        rows: Stable ids of rows of a dataset, shape [R].
        samples: Samples of each row.

    Returns:
        Shape [R, samples].
    """
    per_row = _absorb(stream_key(seed, stream), rows.astype(np.uint64))
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
    return uniforms_at(keys[..., None], np.arange(steps))


def uniforms_at(keys: Keys, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """The draws of `uniforms` at some steps.

    Args:
        keys: Any shape.
        steps: Of each key, from 0; a shape that goes with it.

    Returns:
        Of the shape of both; NaN for `LIKELIEST`.
    """
    counters = (steps.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    bits = _mix(keys + counters) >> np.uint64(64 - _DRAW_BITS)
    drawn: NDArray[np.float64] = (bits.astype(np.float64) + 0.5) * 2.0**-_DRAW_BITS
    if (likeliest := keys == LIKELIEST).any():
        drawn[np.broadcast_to(likeliest, drawn.shape)] = np.nan
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
    import torch

    if weights.is_cuda and weights.shape[-1] > 2 * _BLOCK:
        return by_blocks(weights, uniform)
    cumulative = weights.cumsum_(-1)
    target = uniform.unsqueeze(-1) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1)


def by_blocks(weights: Tensor, uniform: Tensor) -> Tensor:
    """Likewise, by sums of blocks of tokens, and then of the tokens of one block; on a GPU a long sum takes long.

    The token is the same, but where the draw falls within rounding of the end of another one.
    """
    import torch
    import torch.nn.functional as F

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
