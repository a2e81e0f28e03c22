"""Forward passes over the tokens of a micro-batch alone: its sequences stand behind each other, without padding.

What works token by token does not notice. Attention alone has to know where sequences begin; for these passes it
is replaced, through the interface that transformers has for that, by attention within each sequence. Which models
that is right for is tried out, with two short texts: others are read in padded rows, as if nothing was asked for.

Shapes: B sequences, T positions of the longest, N tokens in all, H heads, D size of a head.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface

from pipeline.learning.models.value import TEXT_LENGTHS
from pipeline.learning.training.sequences import Batch

NAME = "pipeline_unpadded"
"""Of the attention function, as transformers knows it."""
_CHANGES = ("position_bias", "s_aux", "softcap")
"""Arguments by which some models change what attention computes."""
_TRIED = ((5, 7, 11, 13, 17), (3, 5, 7))
"""Two texts, as ids."""
_CLOSE = 1e-3
"""By how much of their size hidden states may differ: of a text that sees another one they do by far more."""


def inner_model(model: nn.Module) -> Any:
    """A model without the adapters that are around it."""
    peft: Any = sys.modules.get("peft")  # which takes long to import, and has made what is around a model
    return model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model


class _CannotStand(Exception):  # noqa: N818 - not an error: the caller has another way
    """The attention of a model is more than is computed here."""


@contextmanager
def without_padding(model: nn.Module, asked: bool) -> Iterator[None]:
    """Have a model's passes over batches without padding meanwhile, where that is asked for and right for it.

    Backward passes belong in it as well: with gradient checkpointing they repeat forward passes.

    Args:
        model: A causal language model, with adapters or without, or the backbone of a value model.
        asked: `training.padding_free`.
    """
    if not asked:
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
    """Whether passes over a model are to be without padding now."""
    config = getattr(inner_model(model), "config", None)
    return getattr(config, "_attn_implementation", None) == NAME


def inputs_of(batch: Batch) -> dict[str, Any]:
    """What a model reads of a batch without padding; its outputs are those of N tokens, shape [1, N, ...]."""
    ids = batch.ids.view(-1).index_select(0, on_device(batch, places_of_tokens(batch)))
    return _inputs(ids[None], batch.lengths)


def places_of_tokens(batch: Batch) -> NDArray[np.int64]:
    """Where in the rows of a batch, one after the other, its tokens are: shape [N]."""
    width = batch.ids.shape[1]
    found: NDArray[np.int64] = np.concatenate(
        [row * width + np.arange(length) for row, length in enumerate(batch.lengths)]
    )
    return found


def in_rows(values: Tensor, batch: Batch, places: NDArray[np.int64]) -> Tensor:
    """Values of some places, shape [M, ...], laid out as the batch is, shape [B, T, ...]; 0 elsewhere."""
    rows, width = batch.ids.shape
    empty = values.new_zeros(rows * width, *values.shape[1:])
    laid: Tensor = empty.index_copy(0, on_device(batch, places), values).unflatten(0, (rows, width))
    return laid


def on_device(batch: Batch, places: NDArray[np.int64]) -> Tensor:
    """Places in the rows of a batch, where the batch is."""
    return torch.from_numpy(places).to(batch.ids.device)


def _inputs(ids: Tensor, lengths: Sequence[int]) -> dict[str, Any]:
    positions = torch.cat([torch.arange(length) for length in lengths]).to(ids.device)
    return {"input_ids": ids, "position_ids": positions[None], "use_cache": False, TEXT_LENGTHS: tuple(lengths)}


@contextmanager
def _replaced(model: nn.Module) -> Iterator[None]:
    configs = {
        id(one): one for one in (inner_model(model).config, inner_model(model).config.get_text_config())
    }.values()
    before = [one._attn_implementation for one in configs]
    for one in configs:
        one._attn_implementation = NAME
    try:
        yield
    finally:
        for one, name in zip(configs, before, strict=True):
            one._attn_implementation = name


@torch.no_grad()
def _is_right_for(model: nn.Module) -> bool:
    """Whether texts behind each other are to a model what they are apart."""
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
        raise  # which tells nothing of the model
    except (_CannotStand, AttributeError, TypeError, ValueError, RuntimeError):
        return False
    finally:
        _windows.reset(token)
    whole = len(windows) == getattr(config, "num_hidden_layers", None)
    # One that says its window by a mask alone would lose it.
    told = not getattr(config, "sliding_window", None) or any(windows)
    return whole and told and bool((beside - apart).abs().max() <= _CLOSE * apart.abs().max())


def _outputs(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Logits of a policy, hidden states of a backbone."""
    found = model(**inputs)
    outputs: Tensor = found.logits if hasattr(found, "logits") else found.last_hidden_state
    return outputs


_windows: ContextVar[list[object] | None] = ContextVar("windows", default=None)
"""Where calls of attention note how far back they see, while a model is tried out."""


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
    """Causal attention within each text.

    Args:
        module: The layer.
        query: Shape [1, H, N, D].
        key: Shape [1, H or fewer that are shared, N, D].
        value: Likewise.
        attention_mask: None: transformers makes none for an attention that it does not know.
        scaling: Of the products of queries and keys.
        dropout: Is switched off in training.
        sliding_window: How far back tokens see.
        options: What else a model gives its attention, the lengths of texts among it.

    Returns:
        Shape [1, N, H, D], and no weights.
    """
    changed = [name for name in _CHANGES if options.get(name) is not None]
    if changed or not getattr(module, "is_causal", True):
        raise _CannotStand(f"attention with {', '.join(changed)}")
    if (windows := _windows.get()) is not None:
        windows.append(sliding_window)
    lengths = options.get(TEXT_LENGTHS) or (query.shape[2],)
    shared = key.shape[1] != query.shape[1]
    found = []
    for q, k, v in zip(*(one.split(lengths, 2) for one in (query, key, value)), strict=True):
        band = _band(q, sliding_window)
        within = F.scaled_dot_product_attention(
            q, k, v, band, is_causal=band is None, scale=scaling, enable_gqa=shared
        )
        found.append(within)
    return torch.cat([one.transpose(1, 2) for one in found], 1), None


def _band(query: Tensor, window: int | None) -> Tensor | None:
    """What each token of a text sees, where that is less than all before it."""
    if window is None or query.shape[2] <= window:
        return None
    places = torch.arange(query.shape[2], device=query.device)
    back = places[:, None] - places[None]
    return (back >= 0) & (back < window)


AttentionInterface.register(NAME, _attention)
