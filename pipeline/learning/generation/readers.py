"""Rows that begin together: prompts first, then token by token, in the way that suits a model (`ways`).

Shapes: P prompts, L positions, B rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from pipeline.learning.models.value import ValueModel, cache_argument, inputs_of

# -- batching ----------------------------------------------------------------------------------------------------
# Batches of prompts of different lengths, padded to a rectangle.


@dataclass(frozen=True)
class PromptBatch:
    """Prompts as a rectangle. P prompts, L positions.

    Attributes:
        ids: Token ids, shape [P, L].
        mask: 1 for tokens and 0 for padding, shape [P, L]; None where nothing is padded.
        positions: Position of each token in its own prompt, shape [P, L].
        lengths: Tokens of each prompt, shape [P].
    """

    ids: Tensor
    mask: Tensor | None
    positions: Tensor
    lengths: Tensor


def pad_left(prompts: Sequence[Sequence[int]], pad_id: int, device: str) -> PromptBatch:
    """Make a rectangle of prompts."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max())
    ids = torch.full((len(prompts), width), pad_id)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.as_tensor(prompt)
    positions = (torch.arange(width)[None] - (width - lengths)[:, None]).clamp_min(0)
    padded = bool((lengths != width).any())
    mask = (torch.arange(width)[None] >= (width - lengths)[:, None]).long() if padded else None
    return PromptBatch(
        ids=ids.to(device),
        mask=None if mask is None else mask.to(device),
        positions=positions.to(device),
        lengths=lengths.to(device),
    )


def pad_right(prompts: Sequence[Sequence[int]], pad_id: int, device: str) -> PromptBatch:
    """Make a rectangle of prompts that begin at the same position.

    Causal attention hides what comes after a prompt by itself, so there is no mask.
    """
    lengths = [len(prompt) for prompt in prompts]
    width = max(lengths)
    if min(lengths) == width:
        ids = np.array(prompts, np.int64)
    else:
        ids = np.full((len(prompts), width), pad_id)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
    positions = torch.arange(width)[None].expand(len(prompts), -1)
    return PromptBatch(
        torch.from_numpy(ids).to(device), None, positions.to(device), torch.tensor(lengths).to(device)
    )


# -- ways --------------------------------------------------------------------------------------------------------
# In which way a model is read token by token, which its configuration alone tells.
#
#     slots   keys and values in fixed slots (`row_cache`), where every layer attends to all that precedes
#     own     the cache that transformers makes for the model: sliding windows, chunks, states
#     anew    no cache: the whole text is read again for each token, where what a model remembers is its own affair


class Way(Enum):
    """How a model reads what its rows grow by."""

    slots = "slots"
    own = "own"
    anew = "anew"


@dataclass(frozen=True)
class Reading:
    """The way of a model.

    Attributes:
        way: Which.
        reason: Why no simpler one, in a few words; "" of the simplest.
        has_state: Whether layers carry a state along, which padding before a text would change.
    """

    way: Way
    reason: str = ""
    has_state: bool = False


NO_CACHE = {
    "minimax": "its cache is of a class of its own",
    "openai-gpt": "it has no cache",
    "recurrent_gemma": "its state is kept inside of its layers",
    "rwkv": "its state is of a form of its own",
    "xlstm": "its state is of a form of its own",
}
"""Kinds of models whose memory of a text is not in a cache of transformers, and why."""

ALIBI = ("bloom", "mpt")
"""Kinds of models that always weigh attention by distance; others say so by `alibi`."""

_STATES = {
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
}
_LAYERS = {
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "DynamicIndexedLayer",
    "DummyLayer",
    *_STATES,
}
"""Layers of transformers' caches whose rows can be chosen."""


def reading_of(config: Any) -> Reading:
    """The way in which models of a configuration are read.

    Args:
        config: Of a language model, or of the backbone of a value model.
    """
    text = config.get_text_config(decoder=True)
    if (why := NO_CACHE.get(text.model_type)) is not None:
        return Reading(Way.anew, why)
    try:
        layers = {type(layer).__name__ for layer in DynamicCache(config=text).layers}
    except (AttributeError, KeyError, TypeError, ValueError):
        return Reading(Way.anew, "transformers' caches do not fit it")
    if strange := sorted(layers - _LAYERS):
        return Reading(Way.anew, f"its cache has layers of its own ({', '.join(strange)})")
    if layers & _STATES:
        return Reading(Way.own, "layers with a state", has_state=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or (getattr(text, "sliding_window", None) and not hasattr(text, "layer_types")):
        special = sorted(kinds - {"full_attention"}) or ["sliding_attention"]
        return Reading(Way.own, f"layers with {', '.join(special)}")
    if text.model_type == "gpt_neo" and _has_window(text):
        return Reading(Way.own, "layers with a window that counts candidates of a step as positions")
    if text.model_type == "xglm":
        return Reading(Way.own, "its attention takes no mask that all rows share")
    if text.model_type in ALIBI or getattr(text, "alibi", False):
        return Reading(Way.own, "attention is weighed by distance (ALiBi)")
    return Reading(Way.slots)


def _has_window(neo: Any) -> bool:
    """Whether texts of GPT-Neo can be longer than its local layers look back."""
    return "local" in neo.attention_layers and neo.window_size < neo.max_position_embeddings


Reader: TypeAlias = "CacheReader | TextReader"
"""Reads the tokens that rows grow by, which begin together.

What it gives is what the model makes of the last token of each row: logits of a language model, shape [B, V],
values of a value model, shape [B, ...]."""


_READINGS: WeakKeyDictionary[PreTrainedModel, Reading] = WeakKeyDictionary()


def reading(model: PreTrainedModel) -> Reading:
    """The way in which a model is read, found once: to see its layers takes a cache."""
    if model not in _READINGS:
        _READINGS[model] = reading_of(model.config.backbone if isinstance(model, ValueModel) else model.config)
    return _READINGS[model]


def reader_of(model: PreTrainedModel) -> Reader:
    """A reader in the way of a model."""
    found = reading(model)
    return TextReader(model) if found.way is Way.anew else CacheReader(model, found.has_state)


class _Pass:
    """A forward pass of a model with what it takes, which differs among families."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._is_value = isinstance(model, ValueModel)
        read_by: Any = model.backbone if isinstance(model, ValueModel) else model
        self.config = read_by.config
        self.names = inputs_of(type(read_by).forward)

    def __call__(self, ids: Tensor, cache: Cache | None = None, **inputs: Any) -> Tensor:
        """What the model makes of the last position of each row."""
        known = {name: value for name, value in inputs.items() if name in self.names}
        if cache is not None:
            known[cache_argument(type(self._model).forward)] = cache
        if self._is_value:
            values: Tensor = self._model(ids, **known)
            return values[:, -1]
        if "logits_to_keep" in self.names:
            known["logits_to_keep"] = 1
        logits: Tensor = self._model(input_ids=ids, **known).logits
        return logits[:, -1]


class _Rows:
    """What rows have in common while they grow: which positions are padding, and how long each row is."""

    def __init__(self, mask: Tensor | None, lengths: Tensor) -> None:
        self.mask = mask
        self.lengths = lengths

    def grow(self) -> Tensor:
        """One token further; returns its positions, shape [B, 1]."""
        positions = self.lengths[:, None]
        self.lengths = self.lengths + 1
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], -1)
        return positions

    def selected(self, rows: Tensor) -> _Rows:
        return _Rows(None if self.mask is None else self.mask[rows], self.lengths[rows])


class CacheReader:
    """Reads into the cache that transformers makes for a model."""

    def __init__(self, model: PreTrainedModel, has_state: bool) -> None:
        """Prepare.

        Args:
            model: The model.
            has_state: Whether padding before a text would change what is remembered of it.
        """
        self._forward = _Pass(model)
        self._has_state = has_state
        self._rows: _Rows
        self._cache: Cache

    def begin(self, batch: PromptBatch) -> Tensor:
        """Read the prompts."""
        if self._has_state and batch.mask is not None:
            return self._read_apart(batch)
        self._cache = self._empty()
        self._rows = _Rows(batch.mask, batch.lengths)
        return self._read(batch.ids, batch.positions)

    def append(self, tokens: Tensor) -> Tensor:
        """Read one further token of each row."""
        positions = self._rows.grow()
        return self._read(tokens[:, None], positions)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows."""
        _choose(self._cache, rows)
        self._rows = self._rows.selected(rows)

    def branched(self, rows: Tensor) -> CacheReader:
        """A reader of its own that goes on with these rows."""
        other = copy.copy(self)
        other._cache = _twin(self._cache)
        other.select(rows)
        return other

    def _read_apart(self, batch: PromptBatch) -> Tensor:
        """Read prompts of each length by themselves, without padding, and lay what is remembered together."""
        caches, found, order = [], [], []
        for length in batch.lengths.unique().tolist():
            rows = (batch.lengths == length).nonzero().squeeze(-1)
            self._cache = self._empty()
            self._rows = _Rows(None, batch.lengths[rows])
            found.append(self._read(batch.ids[rows, -length:], batch.positions[rows, -length:]))
            caches.append(self._cache)
            order.append(rows)
        self._cache = _joined(caches)
        # A state has no positions: what has no attention would take a mask for one of the tokens that are read.
        attends = any(isinstance(getattr(layer, "keys", None), Tensor) for layer in self._cache.layers)
        self._rows = _Rows(batch.mask if attends else None, batch.lengths)
        back = torch.cat(order).argsort()
        _choose(self._cache, back)
        return torch.cat(found)[back]

    def _empty(self) -> Cache:
        return DynamicCache(config=self._forward.config.get_text_config(decoder=True))

    def _read(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self._forward(
            ids, self._cache, attention_mask=self._rows.mask, position_ids=positions, use_cache=True
        )


class TextReader:
    """Reads the whole text again for each token. Its prompts must have one length."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._forward = _Pass(model)
        self._ids: Tensor

    def begin(self, batch: PromptBatch) -> Tensor:
        """Read the prompts."""
        assert batch.mask is None
        self._ids = batch.ids
        return self._forward(batch.ids, use_cache=False)

    def append(self, tokens: Tensor) -> Tensor:
        """Read all rows again."""
        self._ids = torch.cat([self._ids, tokens[:, None]], -1)
        return self._forward(self._ids, use_cache=False)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows."""
        self._ids = self._ids[rows]

    def branched(self, rows: Tensor) -> TextReader:
        """A reader of its own that goes on with these rows."""
        other = copy.copy(self)
        other.select(rows)
        return other


_BY_POSITION = ("keys", "values", "indexer_keys")
"""What layers keep of each position, in the last dimension but one."""
_READERS_STATES = ("conv_states", "recurrent_states")


def _choose(cache: Cache, rows: Tensor) -> None:
    cache.reorder_cache(rows)  # type: ignore[arg-type]


def _twin(cache: Cache) -> Cache:
    """A cache of the same tensors, whose rows can be chosen without changing the first."""
    twin = copy.copy(cache)
    twin.layers = []
    for layer in cache.layers:
        own = copy.copy(layer)
        for name, value in vars(layer).items():
            if isinstance(value, dict):
                setattr(own, name, dict(value))
        twin.layers.append(own)
    return twin


def _joined(caches: Sequence[Cache]) -> Cache:
    """One cache with the rows of several, all at the last position of the longest: the shorter ones are padded."""
    whole = _twin(caches[-1])
    for index, layer in enumerate(whole.layers):
        parts = [cache.layers[index] for cache in caches]
        for name in _BY_POSITION:
            found = [getattr(part, name, None) for part in parts]
            tensors = [tensor for tensor in found if isinstance(tensor, Tensor) and tensor.ndim > 1]
            if len(tensors) == len(parts):
                width = max(tensor.shape[-2] for tensor in tensors)
                padded = [F.pad(tensor, (0, 0, width - tensor.shape[-2], 0)) for tensor in tensors]
                setattr(layer, name, torch.cat(padded))
        for name in _READERS_STATES:
            for place in getattr(layer, name, {}):
                states = [getattr(part, name)[place] for part in parts]
                if all(state is not None for state in states):
                    getattr(layer, name)[place] = torch.cat(states)
    return whole
