"""Compute log-probabilities, divergences and scores of given sequences, without training.

Shapes: B sequences of a micro-batch, T positions.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from pipeline.learning.generation.sampling import cut, policy_logprobs
from pipeline.learning.memory.fit import LOGITS_AT_ONCE
from pipeline.learning.models import batch_size, flops
from pipeline.learning.models.value import TEXT_LENGTHS, ValueModel
from pipeline.learning.training.distributed import ALONE, Ranks
from pipeline.learning.training.sequences import Batch, Sequences, batch_of
from pipeline.outputs.formats import Sampling

# -- unpadded ----------------------------------------------------------------------------------------------------
# Forward passes over the tokens of a micro-batch alone: its sequences stand behind each other, without padding.
# Layers that work token by token are not affected. Only attention must know where sequences begin; for these
# passes it is replaced, through transformers' attention interface, by attention within each sequence. Two short
# texts test whether this is right for a model; other models read padded rows. Shapes: B sequences, T positions of
# the longest, N tokens in all, H heads, D size of a head.


NAME = "pipeline_unpadded"
"""Name of the attention function in transformers."""
_CHANGES = ("position_bias", "s_aux", "softcap")
"""Arguments with which some models change what attention computes."""
_TRIED = ((5, 7, 11, 13, 17), (3, 5, 7))
"""Two test texts, as token ids."""
_CLOSE = 1e-3
"""Largest relative difference of hidden states: it is far larger if one text attends to another."""


def inner_model(model: nn.Module) -> Any:
    """Return a model without the adapters around it."""
    peft: Any = sys.modules.get("peft")  # slow to import, and already imported if a model has adapters
    return model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model


class _CannotStand(Exception):  # noqa: N818 - not an error: the caller has another way
    """Raised when a model's attention is more than is computed here."""


@contextmanager
def without_padding(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Run a model's passes without padding inside, if requested and right for the model.

    Backward passes must be inside as well: with gradient checkpointing they repeat forward passes.

    Args:
        model: A causal language model, with adapters or without, or the backbone of a value model.
        wanted: The setting `training.padding_free`.
    """
    if not wanted:
        yield
        return
    if not _is_right_for(model):
        with suppress(OSError):
            print("training.padding_free: this model needs padded rows, and is read in them", flush=True)  # noqa: T201 - the job's log
        yield
        return
    with _replaced(model):
        yield


def is_unpadded(model: nn.Module) -> bool:
    """Return whether passes of a model are without padding now."""
    config = getattr(inner_model(model), "config", None)
    return getattr(config, "_attn_implementation", None) == NAME


def inputs_of(batch: Batch) -> dict[str, Any]:
    """Return the model inputs of a batch without padding; outputs are for N tokens, shape [1, N, ...]."""
    ids = batch.ids.view(-1).index_select(0, on_device(batch, places_of_tokens(batch)))
    return _inputs(ids[None], batch.lengths)


def places_of_tokens(batch: Batch) -> NDArray[np.int64]:
    """Return the indices of tokens in the flattened rows of a batch, shape [N]."""
    width = batch.ids.shape[1]
    indices: NDArray[np.int64] = np.concatenate(
        [row * width + np.arange(length) for row, length in enumerate(batch.lengths)]
    )
    return indices


def in_rows(values: Tensor, batch: Batch, places: NDArray[np.int64]) -> Tensor:
    """Return values of some positions, shape [M, ...], in the layout of the batch, shape [B, T, ...].

    0 elsewhere.
    """
    rows, width = batch.ids.shape
    empty = values.new_zeros(rows * width, *values.shape[1:])
    laid: Tensor = empty.index_copy(0, on_device(batch, places), values).unflatten(0, (rows, width))
    return laid


def on_device(batch: Batch, places: NDArray[np.int64]) -> Tensor:
    """Move positions to the device of the batch."""
    return torch.from_numpy(places).to(batch.ids.device)


def _inputs(ids: Tensor, lengths: Sequence[int]) -> dict[str, Any]:
    positions = torch.cat([torch.arange(length) for length in lengths]).to(ids.device)
    return {"input_ids": ids, "position_ids": positions[None], "use_cache": False, TEXT_LENGTHS: tuple(lengths)}


@contextmanager
def _replaced(model: nn.Module) -> Iterator[None]:
    configs = {
        id(config): config for config in (inner_model(model).config, inner_model(model).config.get_text_config())
    }.values()
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = NAME
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


@torch.no_grad()
def _is_right_for(model: nn.Module) -> bool:
    """Return whether concatenated texts give a model the same results as separate ones."""
    inner = inner_model(model)
    config = inner.config.get_text_config()
    first = next(inner.parameters())
    if not inner._supports_attention_backend or getattr(config, "attention_chunk_size", None):
        return False
    texts = [torch.tensor([text], device=first.device) % config.vocab_size for text in _TRIED]
    apart = torch.cat([_outputs(model, {"input_ids": text, "use_cache": False}) for text in texts], 1)
    windows: list[object] = []
    token = _windows.set(windows)
    try:
        with _replaced(model):
            beside = _outputs(model, _inputs(torch.cat(texts, 1), [len(text) for text in _TRIED]))
    except torch.OutOfMemoryError:
        raise  # which says nothing about the model
    except (_CannotStand, AttributeError, TypeError, ValueError, RuntimeError):
        return False
    finally:
        _windows.reset(token)
    whole = len(windows) == getattr(config, "num_hidden_layers", None)
    # A model that expresses its window only by a mask would lose it.
    keeps_window = not getattr(config, "sliding_window", None) or any(windows)
    return whole and keeps_window and bool((beside - apart).abs().max() <= _CLOSE * apart.abs().max())


def _outputs(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Return logits of a policy, or hidden states of a backbone."""
    output = model(**inputs)
    outputs: Tensor = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return outputs


_windows: ContextVar[list[object] | None] = ContextVar("windows", default=None)
"""Records the window sizes of attention calls while a model is tested."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - part of the interface
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001 - part of the interface
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention within each text.

    Args:
        module: The layer.
        query: Shape [1, H, N, D].
        key: Shape [1, H or fewer that are shared, N, D].
        value: As `key`.
        attention_mask: None: transformers makes no mask for an attention that it does not know.
        scaling: Factor of the products of queries and keys.
        dropout: Disabled in training.
        sliding_window: How many tokens back a token attends.
        options: Further arguments of a model's attention, among them the lengths of texts.

    Returns:
        Shape [1, N, H, D], and no attention weights.
    """
    changed = [name for name in _CHANGES if options.get(name) is not None]
    if changed or not getattr(module, "is_causal", True):
        raise _CannotStand(f"attention with {', '.join(changed)}")
    if (windows := _windows.get()) is not None:
        windows.append(sliding_window)
    lengths = options.get(TEXT_LENGTHS) or (query.shape[2],)
    shared = key.shape[1] != query.shape[1]
    outputs = []
    for q, k, v in zip(*(states.split(lengths, 2) for states in (query, key, value)), strict=True):
        band = _band(q, sliding_window)
        within = F.scaled_dot_product_attention(
            q, k, v, band, is_causal=band is None, scale=scaling, enable_gqa=shared
        )
        outputs.append(within)
    return torch.cat([output.transpose(1, 2) for output in outputs], 1), None


def _band(query: Tensor, window: int | None) -> Tensor | None:
    """Return which tokens each token of a text attends to, if not all before it."""
    if window is None or query.shape[2] <= window:
        return None
    places = torch.arange(query.shape[2], device=query.device)
    back = places[:, None] - places[None]
    return (back >= 0) & (back < window)


AttentionInterface.register(NAME, _attention)

# -- logits ------------------------------------------------------------------------------------------------------
# Log-probabilities of given tokens without materialising all logits. A token has as many logits as the vocabulary
# has entries, and each takes about 12 bytes in training: 25 GB for 8 texts of 2,048 tokens and 128,000 entries.
# Here the output layer runs over a part of the positions at a time, and again in the backward pass; so it is used
# only on GPUs. Shapes: B sequences, T positions, V tokens of the vocabulary, H the width of the model.


_CACHED = 1 << 18
_LOWEST = torch.finfo(torch.float32).min
_plain: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Tested models -> whether their logits are the output layer applied to the last hidden states."""


def is_cut(model: nn.Module, ids: Tensor) -> bool:
    """Return whether a batch has too many logits to hold at once, and the model allows computing them in parts.

    Args:
        model: A causal language model, with adapters or without.
        ids: Shape [B, T].
    """
    return ids.is_cuda and is_too_much(model, ids.numel()) and is_plain(model, ids)


def is_too_much(model: nn.Module, tokens: int) -> bool:
    """Return whether the logits of `tokens` tokens are too many to hold at once."""
    return tokens * _vocabulary(model) > LOGITS_AT_ONCE


@torch.no_grad()
def is_plain(model: nn.Module, ids: Tensor) -> bool:
    """Return whether a model's logits are its plain output layer: some families cap or scale them."""
    if isinstance(model, FSDPModule):
        return False  # the output layer is whole only while the whole model runs
    if model not in _plain:
        few = ids[:1, :2]
        try:
            whole = inner_model(model)(input_ids=few, use_cache=False).logits
            hidden = _hidden(model, {"input_ids": few, "use_cache": False})
            _plain[model] = torch.equal(_head(model)(hidden), whole)
        except torch.OutOfMemoryError:
            raise  # which says nothing about the model
        except (AttributeError, TypeError, RuntimeError):  # built differently from most models
            _plain[model] = False
    return _plain[model]


def read_off(logprobs: Tensor, targets: Tensor, *, entropy: bool) -> Tensor:
    """Return log-probabilities of tokens, and the entropies of their distributions in nats if requested.

    Args:
        logprobs: Shape [..., V].
        targets: Shape [...].
        entropy: Whether to return both.

    Returns:
        Shape [...], or [..., 2].
    """
    taken = logprobs.gather(-1, targets[..., None]).squeeze(-1)
    if not entropy:
        return taken
    # Tokens without probability are -inf, and 0 times that is NaN.
    return torch.stack([taken, -(logprobs.exp() * logprobs.clamp(min=_LOWEST)).sum(-1)], -1)


def logprobs_in_parts(
    model: nn.Module, hidden: Tensor, targets: Tensor, temperature: float, *, entropy: bool = False
) -> Tensor:
    """Return log-probabilities of tokens given what precedes them, computing some tokens at a time.

    Args:
        model: A model for which `is_plain` holds.
        hidden: Last hidden states before the tokens, shape [M, H].
        targets: The tokens, shape [M].
        temperature: Temperature of the policy.
        entropy: Whether to return entropies too.

    Returns:
        Shape [M], float32; with entropies [M, 2].
    """
    head, count = _head(model), max(1, LOGITS_AT_ONCE // _vocabulary(model))

    def part(hidden: Tensor, targets: Tensor) -> Tensor:
        return taken_of(head(hidden), targets, temperature, entropy=entropy)

    parts = zip(hidden.split(count), targets.split(count), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([part(*both) for both in parts])
    return torch.cat([checkpoint(part, *both, use_reentrant=False) for both in parts])


def taken_of(logits: Tensor, targets: Tensor, temperature: float = 1.0, *, entropy: bool = False) -> Tensor:
    """Return log-probabilities of tokens, reusing the memory of their logits, which are overwritten.

    Log-probabilities overwrite logits, and gradients overwrite log-probabilities; torch would keep each
    separately.

    Args:
        logits: Shape [M, V], any floating type.
        targets: Shape [M].
        temperature: Temperature of the policy.
        entropy: As for `logprobs_in_parts`; then nothing is overwritten here either.

    Returns:
        Shape [M], float32; with entropies [M, 2].
    """
    if entropy:
        return read_off(policy_logprobs(logits, temperature), targets, entropy=True)
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    taken: Tensor = _Taken.apply(logits, targets)
    return taken


class _Taken(torch.autograd.Function):
    """Autograd function; a second backward pass fails in torch, as its inputs were changed in place."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        for part in logits.split(_rows_at_once(logits)):
            part.copy_(part.log_softmax(-1))
        ctx.save_for_backward(logits, targets)
        return logits.gather(1, targets[:, None]).squeeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logprobs, targets = ctx.saved_tensors
        of_each, chosen = gradients[0][:, None], targets[:, None]
        rows = _rows_at_once(logprobs)
        for part, gradient in zip(logprobs.split(rows), of_each.split(rows), strict=True):
            part.exp_().mul_(-gradient)
        return logprobs.scatter_(1, chosen, logprobs.gather(1, chosen) + of_each), None


def _rows_at_once(logits: Tensor) -> int:
    """Return the number of rows that stay in a processor's cache from one operation to the next."""
    return max(1, _CACHED // logits.shape[1]) if not logits.is_cuda else max(1, len(logits))


def _vocabulary(model: nn.Module) -> int:
    return int(inner_model(model).config.get_text_config().vocab_size)


def _head(model: nn.Module) -> Any:
    return inner_model(model).get_output_embeddings()


def _hidden(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Return the last hidden states, shape [B, T, H]."""
    hidden: Tensor = inner_model(model).base_model(**inputs).last_hidden_state
    return hidden


def _of_supervised(model: nn.Module, batch: Batch, temperature: float, *, entropy: bool) -> Tensor:
    """Return log-probabilities of supervised tokens only, without padding or in parts.

    With entropies [B, T, 2].
    """
    width, begins = batch.ids.shape[1], np.cumsum([0, *batch.lengths])
    firsts = np.maximum(batch.starts, 1)  # nothing precedes the first token of a text
    places = [np.arange(first, end) for first, end in zip(firsts, batch.lengths, strict=True)]
    supervised = np.concatenate([row * width + at for row, at in enumerate(places)])
    targets = batch.ids.view(-1).index_select(0, on_device(batch, supervised))
    if is_unpadded(model):
        inputs, by_parts = inputs_of(batch), is_too_much(model, len(supervised))
        before = np.concatenate([begins[row] + at - 1 for row, at in enumerate(places)])
    else:
        inputs, by_parts, before = {"input_ids": batch.ids, "use_cache": False}, True, supervised - 1
    read = on_device(batch, before)
    if by_parts and is_plain(model, inputs["input_ids"]):
        hidden = _hidden(model, inputs).flatten(0, 1).index_select(0, read)
        taken = logprobs_in_parts(model, hidden, targets, temperature, entropy=entropy)
    else:
        logits = model(**inputs, logits_to_keep=read).logits
        # Some families do not support `logits_to_keep`, and return all.
        logits = logits[0] if logits.shape[1] == len(read) else logits[0].index_select(0, read)
        taken = taken_of(logits, targets, temperature, entropy=entropy)
    return in_rows(taken, batch, supervised)


def supervised_outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return what a model computes before the supervised tokens of a batch, and the rest of the way to logits.

    Args:
        model: A causal language model.
        batch: Padded on the right, with M supervised tokens in the order of `places_of_supervised`.

    Returns:
        Hidden states or logits, shape [M, ...], and a function from any rows of them to logits, shape [..., V]:
        where there are too many logits to hold at once, it applies the output layer.
    """
    places, width = places_of_supervised(batch), batch.ids.shape[1]
    rows = places // width
    if is_unpadded(model):
        inputs = inputs_of(batch)
        before = np.cumsum([0, *batch.lengths])[rows] + places % width - 1
    else:
        inputs, before = {"input_ids": batch.ids, "use_cache": False}, places - 1
    if is_too_much(model, len(places)) and is_plain(model, inputs["input_ids"]):
        return _hidden(model, inputs).flatten(0, 1).index_select(0, on_device(batch, before)), _head(model)
    kept = inputs["input_ids"].shape[1] - (0 if is_unpadded(model) else batch.first)
    logits = model(**inputs, logits_to_keep=kept).logits[:, -kept:]
    left_out = 0 if is_unpadded(model) else (rows + 1) * batch.first
    return logits.flatten(0, 1).index_select(0, on_device(batch, before - left_out)), lambda logits: logits


def places_of_supervised(batch: Batch) -> NDArray[np.int64]:
    """Return the indices of supervised tokens in the flattened rows of a batch, except first tokens, shape [M]."""
    width, ends = batch.ids.shape[1], zip(batch.starts, batch.lengths, strict=True)
    return np.concatenate([row * width + np.arange(max(start, 1), end) for row, (start, end) in enumerate(ends)])


def completion_logprobs(model: nn.Module, batch: Batch, temperature: float = 1.0) -> Tensor:
    """Return log-probabilities of the supervised tokens of whole sequences.

    Args:
        model: A causal language model.
        batch: Padded on the right.
        temperature: Temperature of the policy.

    Returns:
        Shape [B, T], float32: position t has token t given what precedes it; 0 where nothing is supervised.
    """
    return _completion_values(model, batch, temperature, entropy=False)


def logprobs_and_entropies(model: nn.Module, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return log-probabilities as `completion_logprobs`, and the entropies of the tokens' distributions.

    Returns:
        Both of shape [B, T], with gradients; entropies in nats, over the whole vocabulary.
    """
    logprobs, entropies = _completion_values(model, batch, temperature, entropy=True).unbind(-1)
    return logprobs, entropies


def _completion_values(model: nn.Module, batch: Batch, temperature: float, *, entropy: bool) -> Tensor:
    if batch.is_supervised and (is_unpadded(model) or is_cut(model, batch.ids)):
        taken = _of_supervised(model, batch, temperature, entropy=entropy)
    else:
        logprobs, first = _next_token_logprobs(model, batch, temperature)
        taken = read_off(logprobs, batch.ids[:, first + 1 :], entropy=entropy)
        taken = nn.functional.pad(taken, (0, 0, first + 1, 0) if entropy else (first + 1, 0))
    return torch.where(batch.mask[..., None] if entropy else batch.mask, taken, torch.zeros_like(taken))


def sequence_divergence(model: nn.Module, reference: nn.Module, batch: Batch, sampling: Sampling) -> Tensor:
    """Return the KL divergence of a policy from the reference at every supervised position, summed per sequence.

    It is exact: over the whole vocabulary at each step of the given sequences.

    Args:
        model: The policy.
        reference: The model to compare with.
        batch: Sequences that the policy has drawn.
        sampling: How the policy has drawn them. The reference has its temperature, and is whole.

    Returns:
        In nats, shape [B], float64.
    """
    logprobs, first = _next_token_logprobs(model, batch, sampling.temperature)
    logprobs = cut(logprobs, sampling)
    others, _ = _next_token_logprobs(reference, batch, sampling.temperature)
    terms = logprobs.double().exp() * (logprobs.double() - others.double())
    steps = terms.masked_fill_(logprobs.isinf(), 0.0).sum(-1)
    return torch.where(batch.mask[:, first + 1 :], steps, torch.zeros_like(steps)).sum(-1)


def _next_token_logprobs(model: nn.Module, batch: Batch, temperature: float) -> tuple[Tensor, int]:
    """Return distributions from position `first` to the last but one: those of the supervised tokens."""
    # Padding on the right needs no mask: causal attention never sees it, and it has no loss.
    first, width = batch.first, batch.ids.shape[1]
    logits = model(input_ids=batch.ids, use_cache=False, logits_to_keep=width - first).logits
    # Some families do not support `logits_to_keep`, and return all.
    return policy_logprobs(logits[:, first - width : -1], temperature), first


# Not `inference_mode`: sharded weights are gathered into tensors that are used again.
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
    sizes: batch_size.BatchSizes | None = None,
    work: str = "score",
) -> NDArray[np.float64]:
    """Evaluate a function of sequences without gradients, in batches of similar length.

    Args:
        data: The sequences.
        score: Function from a batch to one row per sequence, shape [B] or [B, T].
        micro_batch_size: Sequences at once.
        device: ``cpu`` or ``cuda``.
        width: Columns of the result if `score` gives shape [B, T]; None if it gives [B].
        ranks: Ranks that share the work. All must call this together, and all get the whole result.
        together: Whether ranks compute each score together, so that running out of memory ends the attempt.
        sizes: Remembers how many sequences fit after running out of memory; None remembers nothing.
        work: Name under which sizes are remembered.

    Returns:
        Shape [N], or [N, width] padded with 0.
    """
    scores = np.zeros((len(data),) if width is None else (len(data), width))
    order = np.argsort(data.lengths, kind="stable")

    def scored(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        values: NDArray[np.float64] = score(batch_of(data, rows, device)).double().cpu().numpy()
        return values

    def of_ranks() -> _Parts:
        for rows, weight in ranks.share(order, micro_batch_size):
            values = scored(rows)
            if weight:
                yield rows, values

    def in_parts() -> _Parts:
        """Score in parts; a single process reduces the batch when memory runs out."""
        batch = (sizes or batch_size.BatchSizes(None, device)).begin(
            work,
            micro_batch_size,
            length=int(data.lengths.max(initial=1)),
            remedy="Try shorter texts, or a device with more memory.",
            together=together,
        )
        done = 0
        while done < len(order):
            values = batch.run(
                lambda: scored(order[done : done + batch.size]),  # noqa: B023
                used=lambda: len(order) - done,  # noqa: B023
                together=together,
            )
            yield order[done : done + len(values)], values
            done += len(values)

    for rows, values in of_ranks() if ranks.size > 1 else in_parts():
        if width is None:
            scores[rows] = values
        else:
            scores[rows, : values.shape[1]] = values
    return ranks.sum_array(scores)


_Parts = Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]
"""Rows, and their results."""


def note_scored(data: Sequences, *models: nn.Module, trained: bool = True) -> None:
    """Count the FLOPs of models that read sequences for their log-probabilities.

    Args:
        data: The sequences.
        models: The models.
        trained: Whether weights that require gradients, such as adapters, are used.
    """
    costs = [flops.model_cost(model) for model in models]
    costs = costs if trained else [cost.frozen() for cost in costs]
    of_models = zip(costs, models, strict=True)
    flops.spend("scoring", sum(cost.forward(passes_of(model, data)) for cost, model in of_models))


def passes_of(model: nn.Module, data: Sequences) -> flops.Pass:
    """Return the pass of a model over sequences: outputs are needed from the first supervised token on."""
    whole = isinstance(model, ValueModel)
    return flops.whole_texts(data.lengths, None if whole else int((data.lengths - data.starts).sum()) + len(data))
