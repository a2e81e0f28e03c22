"""What models make of sequences that are given: log-probabilities, divergences, scores; without a training.

Shapes: B sequences of a micro-batch, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.learning.generation.sampling import nucleus, policy_logprobs
from pipeline.learning.models.batch_size import BatchSize, BatchSizes
from pipeline.learning.models.flops import Pass, model_cost, spend, whole_texts
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.distributed import ALONE, Ranks
from pipeline.learning.training.logits import is_cut, read_off, taken_logprobs
from pipeline.learning.training.sequences import Batch, Sequences, batch_of
from pipeline.learning.training.unpadded import is_unpadded, unpadded_logprobs


def completion_logprobs(model: nn.Module, batch: Batch, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of the supervised tokens of whole sequences.

    Args:
        model: A causal language model.
        batch: Padded on the right.
        temperature: Of the policy.

    Returns:
        Shape [B, T], float32: at position t that of token t given what precedes it; 0 where nothing is supervised.
    """
    return _completion_values(model, batch, temperature, entropy=False)


def logprobs_and_entropies(model: nn.Module, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities as `completion_logprobs` gives them, and entropies of what their tokens were drawn from.

    Returns:
        Both of shape [B, T], with their gradients; entropies in nats, over the whole vocabulary.
    """
    logprobs, entropies = _completion_values(model, batch, temperature, entropy=True).unbind(-1)
    return logprobs, entropies


def _completion_values(model: nn.Module, batch: Batch, temperature: float, *, entropy: bool) -> Tensor:
    if is_unpadded(model) and batch.is_supervised:
        taken = unpadded_logprobs(model, batch, temperature, entropy=entropy)
    else:
        if is_cut(model, batch.ids):
            first = batch.first
            taken = taken_logprobs(model, batch.ids, first, temperature, entropy=entropy)
        else:
            logprobs, first = _next_token_logprobs(model, batch, temperature)
            taken = read_off(logprobs, batch.ids[:, first + 1 :], entropy=entropy)
        taken = nn.functional.pad(taken, (0, 0, first + 1, 0) if entropy else (first + 1, 0))
    return torch.where(batch.mask[..., None] if entropy else batch.mask, taken, torch.zeros_like(taken))


def sequence_divergence(
    model: nn.Module, reference: nn.Module, batch: Batch, temperature: float, top_p: float = 1.0
) -> Tensor:
    """KL divergence of a policy from the reference at every supervised position, summed over each sequence.

    Exact: over the whole vocabulary at each step of the sequences that are given.

    Args:
        model: The policy.
        reference: What it is compared with.
        batch: Sequences that the policy has drawn.
        temperature: Of both.
        top_p: Nucleus that the policy is sampled from; the reference is whole.

    Returns:
        In nats, shape [B], float64.
    """
    logprobs, first = _next_token_logprobs(model, batch, temperature)
    logprobs = nucleus(logprobs, top_p)
    others, _ = _next_token_logprobs(reference, batch, temperature)
    terms = logprobs.double().exp() * (logprobs.double() - others.double())
    steps = terms.masked_fill_(logprobs.isinf(), 0.0).sum(-1)
    return torch.where(batch.mask[:, first + 1 :], steps, torch.zeros_like(steps)).sum(-1)


def _next_token_logprobs(model: nn.Module, batch: Batch, temperature: float) -> tuple[Tensor, int]:
    """Distributions from position `first` to the last but one: those that supervised tokens are drawn from."""
    # Padding on the right needs no mask: causal attention never looks at it, and no loss is taken there.
    first, width = batch.first, batch.ids.shape[1]
    logits = model(input_ids=batch.ids, use_cache=False, logits_to_keep=width - first).logits
    # Some families know no `logits_to_keep`, and give all.
    return policy_logprobs(logits[:, first - width : -1], temperature), first


# Not `inference_mode`: what is spread over ranks is gathered into tensors that are used again.
@torch.no_grad()
def score_sequences(
    data: Sequences,
    score: Callable[[Batch], Tensor],
    *,
    micro_batch_size: int,
    device: str,
    width: int | None = None,
    ranks: Ranks = ALONE,
    together: bool = False,
    sizes: BatchSizes | None = None,
    work: str = "score",
) -> NDArray[np.float64]:
    """Evaluate a function of sequences without gradients, longest ones apart from short ones.

    Args:
        data: The sequences.
        score: From a batch to one row per sequence, shape [B] or [B, T].
        micro_batch_size: Sequences at once.
        device: ``cpu`` or ``cuda``.
        width: Columns of the result where `score` gives shape [B, T]; None where it gives [B].
        ranks: Who shares the work. All must call this together, and all get the whole result.
        together: Whether ranks compute each score together, so that memory that runs out ends the attempt.
        sizes: Remembers how many sequences fitted where memory ran out; None remembers nothing.
        work: What they are remembered for.

    Returns:
        Shape [N], or [N, width] padded with 0.
    """
    found = np.zeros((len(data),) if width is None else (len(data), width))
    order = np.argsort(data.lengths, kind="stable")

    def scored(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        values: NDArray[np.float64] = score(batch_of(data, rows, device)).double().cpu().numpy()
        return values

    if ranks.size > 1:
        parts = _shared_out(order, micro_batch_size, scored, ranks)
    else:
        batch = (sizes or BatchSizes(None, device)).begin(
            work,
            micro_batch_size,
            length=int(data.lengths.max(initial=1)),
            remedy="Try shorter texts, or a device with more memory.",
            together=together,
        )
        parts = _in_parts(order, batch, scored, together)
    for rows, values in parts:
        if width is None:
            found[rows] = values
        else:
            found[rows, : values.shape[1]] = values
    return ranks.sum_array(found)


_Scored = Callable[[NDArray[np.int64]], NDArray[np.float64]]
_Parts = Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]
"""Rows, and what is found of them."""


def _shared_out(order: NDArray[np.int64], micro_batch_size: int, scored: _Scored, ranks: Ranks) -> _Parts:
    for rows, weight in ranks.share(order, micro_batch_size):
        values = scored(rows)
        if weight:
            yield rows, values


def _in_parts(order: NDArray[np.int64], batch: BatchSize, scored: _Scored, together: bool) -> _Parts:
    """By itself a process takes fewer at once when memory runs out."""
    done = 0
    while done < len(order):
        values = batch.run(
            lambda: scored(order[done : done + batch.size]),  # noqa: B023
            used=lambda: len(order) - done,  # noqa: B023
            together=together,
        )
        yield order[done : done + len(values)], values
        done += len(values)


def note_scored(data: Sequences, *models: nn.Module) -> None:
    """Count that these models have read sequences for their log-probabilities."""
    spend("scoring", sum(model_cost(model).forward(passes_of(model, data)) for model in models))


def passes_of(model: nn.Module, data: Sequences) -> Pass:
    """What a model reads of sequences: a policy's outputs matter from one before the first supervised token on."""
    whole = isinstance(model, ValueModel)
    return whole_texts(data.lengths, None if whole else int((data.lengths - data.starts).sum()) + len(data))
