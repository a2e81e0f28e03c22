"""KV cache of fixed slots in which every row has its own length, and attention over it.

A row's keys begin at slot 0 and end at its own length, so rows of any age share the batch, and a new row can
replace a finished one. Live rows always come first: when one leaves, the last one takes its place. Beyond a row's
length there are zeros, hidden by a mask.

Shapes: P prompts of T tokens, n rows that are alive, R rows in all, G heads of keys and values, W slots of a row,
L slots of the longest row alive, N candidates in all, D size of a head.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicLayer
from transformers.integrations import sdpa_attention

from pipeline.errors import JobError

ALIGNED = 16
"""Alignment of mask rows in slots: otherwise kernels copy the mask to aligned memory in every layer."""


def attended_in(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type in which attention reads keys: autocast rounds them, so they are stored rounded."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype


class RowLayer(CacheLayerMixin):
    """Keys and values of one attention layer; `keys` and `values` are views of the live rows."""

    is_sliding = False
    keys: Tensor
    values: Tensor
    used: int

    def __init__(self, cache: RowCache, keys: Tensor, values: Tensor) -> None:
        """Make the buffers, shape [R, G, W, D].

        Args:
            cache: The cache of this layer.
            keys: Example with the heads, size and type of this model's layer.
            values: Likewise; under autocast their type differs if a norm is applied only to keys.
        """
        super().__init__()
        # A weak reference: a cache without users must free its memory at once.
        self._cache = weakref.proxy(cache)
        dtype = attended_in(keys.dtype, keys.device)
        self._buffers = [
            old.new_zeros(cache.slots, old.shape[1], cache.width, old.shape[3], dtype=dtype)
            for old in (keys, values)
        ]
        self._width: int = cache.width
        self.holding = False
        self._held_states: tuple[Tensor, Tensor]
        self.is_initialized = True
        self.show()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: buffers exist from the beginning."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of slots that a query of that length sees, and the first of them."""
        return self.used + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of slots that the longest row uses."""
        return self.used

    def get_max_length(self) -> int:
        """Return the number of slots of a row."""
        return self._width

    # Name of the same method in earlier releases of transformers 5.
    get_max_cache_shape = get_max_length

    def show(self) -> None:
        """Update the views to the live rows of the cache."""
        self.keys, self.values = (buffer[: self._cache.rows] for buffer in self._buffers)
        self.used = self._cache.longest

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: object, **_options: object
    ) -> tuple[Tensor, Tensor]:
        """Append one token to every row; returns views of all slots in use, and one.

        While holding, store the states and return only them.
        """
        if self.holding:
            self._held_states = (key_states, value_states)
            return self._held_states
        self._append(key_states, value_states)
        end = self.used + 1
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def append_held(self, chosen: Tensor) -> None:
        """Append one token of the held states, shape [1, G, N, D], to every row; shape of `chosen`: [n]."""
        some = [new[0].transpose(0, 1).index_select(0, chosen).unsqueeze(2) for new in self._held_states]
        self._append(some[0], some[1])
        del self._held_states

    def put(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows behind the live ones, from their first slot on; shape of both: [rows, G, T, D].

        Returns:
            Views of the written states.
        """
        start, (rows, _, used, _) = self._cache.rows, keys.shape
        places = [buffer[start : start + rows, :, :used] for buffer in self._buffers]
        return places[0].copy_(keys), places[1].copy_(values)

    def clear(self, end: int, used: int, beyond: Tensor | None) -> None:
        """Zero the rows behind the live ones, up to row `end`, outside of their texts.

        A mask hides these slots, but their values are multiplied by a weight of zero, so they must be finite.

        Args:
            end: First row to leave unchanged.
            used: Slots of the longest of these rows.
            beyond: Which of these slots are unused, shape [rows, 1, used, 1]; None for all.
        """
        start, written = self._cache.rows, self._cache.written
        for buffer in self._buffers:
            rows = buffer[start:end]
            if beyond is not None:
                rows[:, :, :used].masked_fill_(beyond, 0)
            if used < written:
                rows[:, :, used:written] = 0

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy rows to other rows."""
        for buffer in self._buffers:
            buffer[target, :, : self.used] = buffer[source, :, : self.used]

    def _append(self, keys: Tensor, values: Tensor) -> None:
        if self._cache.even:
            for rows, new in ((self.keys, keys), (self.values, values)):
                rows.narrow(2, self.used, 1).copy_(new)
            return
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            heads, size = buffer.shape[1], buffer.shape[3]
            ends = self._cache.ends(heads)
            rows = new.reshape(-1, size).to(buffer.dtype)
            buffer.view(-1, size).index_copy_(0, ends, rows)


class Entering(Cache):
    """Cache for prompts that are read directly into the rows behind the live ones."""

    layers: list[DynamicLayer]  # type: ignore[assignment]

    def __init__(self, rows: RowCache) -> None:
        """Start.

        Args:
            rows: Cache whose rows they become.
        """
        super().__init__(layers=[])
        self._rows = rows

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: object, **_options: object
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's states of all prompts, and return them for attention."""
        layer = DynamicLayer()
        layer.keys, layer.values = self._rows.take_in(layer_idx, key_states, value_states)
        layer.is_initialized = True
        self.layers.append(layer)
        return key_states, value_states


class RowCache(Cache):
    """Layers of `RowLayer`s, and the lengths of their rows.

    Attributes:
        rows: Number of live rows, n.
        lengths: Length of each row's text as far as read, shape [n].
        longest: Largest of these lengths, L.
        even: Whether all lengths are equal, which is cheaper.
        written: Number of first slots to which any text may have been written.
    """

    layers: list[RowLayer]  # type: ignore[assignment]

    def __init__(self, slots: int, width: int, device: str) -> None:
        """Make an empty cache.

        Args:
            slots: Number of rows, R.
            width: Tokens of the longest text plus one, W.
            device: ``cpu`` or ``cuda``.
        """
        super().__init__(layers=[])
        self.slots, self.width = slots, width
        self.rows = self.longest = self.written = 0
        self.even = True
        # Slots without a row see one position: attention to nothing would be NaN.
        self._lengths = torch.ones(slots, dtype=torch.long, device=device)
        self.lengths = self._lengths[:0]
        self._own_lengths = np.zeros(0, np.int64)
        self._alive: Tensor | None = None
        self._ends: dict[int, Tensor] = {}
        self._begins: dict[int, Tensor] = {}
        self._slots = torch.arange(width, device=device)
        self._nothing_hidden: Tensor | None = None

    def take_in(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write prompts into a layer behind the live rows, which `enter` adds next; see `RowLayer.put`."""
        if layer == len(self.layers):
            self.layers.append(RowLayer(self, keys, values))
        return self.layers[layer].put(keys, values)

    def enter(self, staged: Cache, places: Tensor | None, lengths: NDArray[np.int64]) -> None:
        """Add rows behind the live ones.

        Args:
            staged: Prompts that were read together, padded on the right.
            places: Index of the prompt of each new row, shape [new rows]; None if all were written by `take_in`.
            lengths: Their lengths.
        """
        if self.rows + len(lengths) > self.slots:
            raise JobError(f"a cache of {self.slots} rows cannot hold {self.rows + len(lengths)}")
        if places is not None:
            states: list[Any] = staged.layers
            for layer, new in enumerate(states):
                self.take_in(layer, new.keys.index_select(0, places), new.values.index_select(0, places))
        all_lengths = np.concatenate([self._own_lengths, lengths])
        added = self._lengths[self.rows : len(all_lengths)]
        added.copy_(torch.from_numpy(lengths))
        width, beyond = staged.get_seq_length(), None
        if (lengths != width).any():
            beyond = (self._slots[:width] >= added[:, None])[:, None, :, None]
        for row_layer in self.layers:
            row_layer.clear(len(all_lengths), width, beyond)
        self._set(all_lengths)

    def keep(self, order: NDArray[np.int64]) -> None:
        """Keep only some rows; row i becomes what was row `order[i]`, which is i or a later one."""
        target = np.flatnonzero(order != np.arange(len(order)))
        if len(target):
            places = torch.from_numpy(np.stack([order[target], target])).to(self.lengths.device)
            for layer in self.layers:
                layer.move(places[0], places[1])
            self._lengths[places[1]] = self._lengths[places[0]]
        self._set(self._own_lengths[order])

    @contextmanager
    def all_slots(self, reach: int, alive: Tensor) -> Iterator[None]:
        """Use static shapes (all slots, padded to `reach`), so that steps can be captured as CUDA graphs.

        Operations inside depend only on memory with fixed addresses. Call `grown` afterwards to update the lengths
        in Python.

        Args:
            reach: Most tokens of the longest row inside.
            alive: 1 for slots with a live row, else 0; shape [R].
        """
        self._alive = alive
        self._show(self.slots, reach, even=False)
        try:
            yield
        finally:
            self._alive = None
            self._set(self._own_lengths)

    def grown(self, count: int) -> None:
        """Record that every row has grown by `count` tokens while shapes were static."""
        self._set(self._own_lengths + count)

    def grow(self) -> None:
        """Record that every row has grown by one token."""
        if self._alive is not None:
            self._lengths.add_(self._alive)
            self._ends.clear()
            return
        self._own_lengths += 1
        self.longest += 1
        self.lengths.add_(1)
        self._ends.clear()
        self._check()
        for layer in self.layers:
            layer.used = self.longest

    def append_held(self, chosen: Tensor) -> None:
        """Append one of the held states to every row; shape of `chosen`: [n]."""
        for layer in self.layers:
            layer.append_held(chosen)
        self.grow()

    def hold(self, holding: bool) -> None:
        """Make layers hold new states instead of appending them, or append again."""
        for layer in self.layers:
            layer.holding = holding

    def ends(self, heads: int) -> Tensor:
        """Return where the next token of every row goes in a buffer viewed as [R * G * W, D].

        Shape [n * heads].
        """
        if heads not in self._ends:
            if heads not in self._begins:
                every = torch.arange(self.slots * heads, device=self.lengths.device)
                self._begins[heads] = every.view(-1, heads) * self.width
            self._ends[heads] = (self._begins[heads][: self.rows] + self.lengths[:, None]).view(-1)
        return self._ends[heads]

    def hidden(self, dtype: torch.dtype) -> Tensor:
        """Return the mask of next tokens: 0 or -inf, added to scores; shape [n or 1, 1, 1, L + 1]."""
        if self.even:
            if self._nothing_hidden is None:
                self._nothing_hidden = _minus_infinity(
                    torch.zeros(1, 1, 1, self.width, dtype=torch.bool, device=self.lengths.device), dtype
                )
            return self._nothing_hidden.narrow(3, 0, self.longest + 1)
        return _minus_infinity(self._slots[: self.longest + 1] > self.lengths[:, None, None, None], dtype)

    def hidden_prefix(self, dtype: torch.dtype) -> Tensor | None:
        """Return the mask of candidates that are not in the cache, and see themselves at slot L.

        Shape [n, 1, L + 1].

        Return None if nothing is hidden.
        """
        if self.even:
            return None
        hidden = self._slots[: self.longest + 1] >= self.lengths[:, None, None]
        hidden[..., -1].zero_()
        return _minus_infinity(hidden, dtype)

    def _set(self, lengths: NDArray[np.int64]) -> None:
        self._own_lengths = lengths
        longest = int(lengths.max(initial=0))
        self._show(len(lengths), longest, even=bool((lengths == longest).all()))

    def _show(self, rows: int, longest: int, *, even: bool) -> None:
        self.written = max(self.written, self.longest + 1)  # a slot without a row writes to an extra slot
        self.rows, self.longest, self.even = rows, longest, even
        self.lengths = self._lengths[:rows]
        self._ends.clear()
        self._check()
        for layer in self.layers:
            layer.show()

    def _check(self) -> None:
        if self.longest >= self.width:
            raise JobError(f"rows of {self.width} slots cannot hold {self.longest + 1}")


def _minus_infinity(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    slots = hidden.shape[-1]
    whole = torch.zeros(*hidden.shape[:-1], slots + -slots % ALIGNED, dtype=dtype, device=hidden.device)
    return whole[..., :slots].masked_fill_(hidden, -math.inf)


# -- grouped attention -------------------------------------------------------------------------------------------
# Attention of one query per row, grouped by key heads, as in transformers' `sdpa` since 5.23. Earlier versions
# repeat keys and values for every query head, in each layer of each step, if there is a mask. With four query
# heads per key head, the repeated cache is four times as large. Instead, the queries that share a key head can be
# treated as several queries of one head. Shapes: B rows, H heads of queries, G of keys, S slots, D size.


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention like `sdpa`, without repeating key heads if there is one query.

    Args:
        module: The attention module.
        query: Shape [B, H, queries, D].
        key: Shape [B, G, S, D].
        value: Shape [B, G, S, D of the values].
        attention_mask: Shape [B or 1, 1 or H, queries, S].
        dropout: Dropout of attention weights.
        scaling: Factor of the products of queries and keys.
        options: Further options of the interface.

    Returns:
        Shape [B, queries, H, D of the values].
    """
    heads, shared = query.shape[1], key.shape[1]
    by_itself = attention_mask is None or attention_mask.shape[1] != 1 or query.shape[2] != 1 or heads == shared
    if by_itself or any(options.get(name) is not None for name in CHANGES):
        result: tuple[Tensor, None] = sdpa_attention.sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return result
    query = query.reshape(len(query), shared, heads // shared, -1)
    seen = F.scaled_dot_product_attention(query, key, value, attention_mask, dropout, scale=scaling)
    return seen.reshape(len(seen), 1, heads, -1), None


if not hasattr(sdpa_attention, "pack_gqa"):
    AttentionInterface.register("sdpa", grouped_attention)


# -- prefix attention --------------------------------------------------------------------------------------------
# Attention to a prefix by one fused kernel, merged with attention to one own token, without materialising scores.
# A candidate sees the prefix of its row, computed by a kernel, and itself. The kernel also returns the log-sum-exp
# l of its scores. With s, the score of the candidate with itself, its weight is exp(s) / (exp(l) + exp(s)) =
# sigmoid(s - l), and the prefix has the rest. Only on GPUs. Shapes: B rows, G heads of keys and values, Q queries
# that share one of them, S slots, D size of a head.


_SIZES = 8
"""Head sizes must be a multiple of this for such kernels."""


def is_merged(query: Tensor, value: Tensor) -> bool:
    """Return whether attention of these is computed this way; both of shape [..., D]."""
    fits = not (query.shape[-1] % _SIZES or value.shape[-1] % _SIZES)
    return query.is_cuda and fits


def attend_prefix(query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attend to a prefix.

    Args:
        query: Scaled, shape [B, G, Q, D].
        keys: Shape [B, G, S, D].
        values: Likewise, with a size of their own.
        hidden: Mask added to scores, of shape [B, 1, 1, S], in the layout of the cache; None hides nothing.

    Returns:
        Result of attention, shape [B, G, Q, D of the values], and the log-sum-exp of scores, float32, shape [B, G,
        Q].
    """
    if hidden is not None:
        hidden = hidden.expand(*query.shape[:3], -1)
    if query.is_cuda:
        attended = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, keys, values, hidden, True, scale=1.0
        )
        return attended[0], attended[1][..., : query.shape[2]]  # which is padded
    seen, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, attn_mask=hidden, scale=1.0
    )
    return seen, total


def merge(seen: Tensor, total: Tensor, own: Tensor, value: Tensor) -> Tensor:
    """Merge attention to a prefix with attention to the own token.

    Args:
        seen: Result for the prefix, shape [..., D].
        total: Log-sum-exp of the prefix, shape [...].
        own: Score of the own token, shape [...].
        value: Value of the own token, shape [..., D].

    Returns:
        Shape [..., D].
    """
    weight = torch.sigmoid(own.float() - total)[..., None]
    return torch.lerp(seen.float(), value.float(), weight).to(value.dtype)


# -- packed ------------------------------------------------------------------------------------------------------
# One forward pass over the candidates of all rows as a single sequence, without padding between rows. Rows have
# one candidate or many; in a rectangle, every row would be padded to the widest. Packed, layers that work token by
# token see real candidates only. Only attention must know the row of a candidate. For this pass it is replaced by
# `PackedStep.attend`, through transformers' attention interface: each candidate sees the cached prefix of its row
# and itself. The cache is unchanged until a candidate is chosen. Shapes: B rows, W columns of the widest row, N
# candidates in all, H heads, G heads that share keys and values, S cached slots, D size of a head.


NAME = "pipeline_packed"
"""Name of the attention function in transformers."""

CHANGES = ("position_bias", "s_aux", "sliding_window", "softcap")
"""Arguments with which some models change what attention computes; `attend` computes plain attention."""


class CannotPack(Exception):  # noqa: N818 - not an error: the caller has another way
    """Raised when the model's attention is more than `attend` computes, or does not use it."""


class Packing:
    """Positions of a step's candidates, in the sequence and in the rectangle.

    Attributes:
        flat: Index in the flattened rectangle of each candidate, shape [N], ascending.
        rows: Row of each candidate, shape [N].
        nearest: For each position of the rectangle its candidate, or an earlier one of its row, shape [B * W].
    """

    def __init__(self, valid: Tensor, count: int | None = None) -> None:
        """Pack.

        Args:
            valid: Which positions of the rectangle hold a candidate, shape [B, W]; the whole first column does.
            count: Number of candidates, if known.
        """
        self.shape = valid.shape
        places = valid.reshape(-1)
        if count == places.numel():
            self.flat = torch.arange(count, device=places.device)
        else:
            indices = places.nonzero() if count is None else torch.nonzero_static(places, size=count)
            self.flat = indices.squeeze(-1)
        self.rows = self.flat.div(valid.shape[1], rounding_mode="floor")
        self.nearest = places.cumsum(0) - 1
        self._spread: Tensor | None = None
        self._gather: Tensor

    def pack(self, rectangle: Tensor) -> Tensor:
        """Pack the candidates of a rectangle, shape [B, W], to a sequence, shape [1, N]."""
        return rectangle.reshape(-1).index_select(0, self.flat)[None]

    def unpack(self, sequence: Tensor) -> Tensor:
        """Unpack a sequence, shape [1, N, ...], to a rectangle, shape [B, W, ...].

        Positions without a candidate repeat another one of their row.
        """
        rectangle: Tensor = sequence[0].index_select(0, self.nearest).unflatten(0, self.shape)
        return rectangle

    def chosen(self, columns: Tensor) -> Tensor:
        """Return the index in the sequence of the candidate in a column of each row; both of shape [B]."""
        return self.nearest.view(self.shape).gather(1, columns[:, None]).squeeze(1)

    def by_head(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return indices that permute queries from N by H to B by H by W, and back; both flat."""
        if self._spread is None:
            rows, width = self.shape
            head = torch.arange(heads, device=self.flat.device)
            self._spread = torch.add(head[:, None], self.nearest.view(rows, 1, width), alpha=heads).view(-1)
            first = torch.add(self.flat, self.rows, alpha=width * (heads - 1))
            self._gather = torch.add(first[:, None], head, alpha=width).view(-1)
        return self._spread, self._gather


class PackedStep:
    """Attention of one step: the packing, the cache, and what is padding in it."""

    def __init__(self, packing: Packing, cache: RowCache, hidden: Tensor | None) -> None:
        """Prepare a step.

        Args:
            packing: Packing of the candidates.
            cache: Cache with the prefix of every row.
            hidden: -inf for padding in the prefix and 0 elsewhere, shape [B, 1, slots in all]; None without
                padding.
        """
        self.packing = packing
        self.cache = cache
        self.hidden = hidden
        self.attended: list[int] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Compute attention of one layer.

        Args:
            layer: Index of the layer.
            query: Shape [1, H, N, D].
            key: Shape [1, H / G, N, D].
            value: Shape [1, H / G, N, D].
            scaling: Factor of the products of queries and keys.

        Returns:
            Shape [1, N, H, D of the values].

        Raises:
            CannotPack: The cached states are not keys and values, as in latent attention.
        """
        slots = self.cache.layers[layer]
        if _sizes(slots.keys) != _sizes(key) or _sizes(slots.values) != _sizes(value):
            raise CannotPack("attention to something else than what is cached")
        used, shared = slots.used, key.shape[1]
        _, heads, count, size = query.shape
        spread, gather = self.packing.by_head(heads)
        queries = (query[0].transpose(0, 1) * scaling).view(count, shared, -1, size)
        # As kernels sum: rounding a product to bfloat16 changes the weight of a score of 10 by 1 %.
        own = (queries.float() * key[0].transpose(0, 1).unsqueeze(2)).sum(-1)
        blocks = queries.reshape(-1, size).index_select(0, spread).view(len(slots.keys) * shared, -1, size)
        wide = value.shape[-1]  # that of keys, except in latent attention
        self.attended.append(layer)
        if is_merged(query, value):
            hidden = None if self.hidden is None else self.hidden[:, None, :, :used]
            rows = blocks.view(len(slots.keys), shared, -1, size)
            seen, total = attend_prefix(rows, slots.keys[:, :, :used], slots.values[:, :, :used], hidden)
            seen = seen.reshape(-1, wide).index_select(0, gather).view(*own.shape, wide)
            total = total.reshape(-1).index_select(0, gather).view(own.shape)
            output = merge(seen, total, own, value[0].transpose(0, 1).unsqueeze(2))
            return output.view(1, count, heads, wide)
        keys, values = slots.keys.flatten(0, 1), slots.values.flatten(0, 1)
        # One extra slot, for the scores of the candidates with themselves.
        scores = torch.bmm(blocks, keys[:, : used + 1].transpose(1, 2)).view(-1, used + 1)
        torch.index_select(own.view(-1).to(scores.dtype), 0, spread, out=scores[:, used])
        if self.hidden is not None:
            scores.view(len(slots.keys), -1, 1, used + 1).add_(self.hidden[:, None, :, : used + 1])
        weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
        seen = torch.bmm(weights.view(len(blocks), -1, used + 1)[..., :used], values[:, :used])
        seen = seen.view(-1, wide).index_select(0, gather).view(count, shared, -1, wide)
        weight = weights[:, used].index_select(0, gather).view(*own.shape, 1)
        output = torch.addcmul(seen, weight, value[0].transpose(0, 1).unsqueeze(2))
        return output.view(1, count, heads, wide)


def _sizes(states: Tensor) -> tuple[int, int]:
    return states.shape[1], states.shape[3]


_current: ContextVar[PackedStep] = ContextVar("_current")


@contextmanager
def packed(model: PreTrainedModel, step: PackedStep) -> Iterator[None]:
    """Run a model's forward pass over packed candidates inside.

    Args:
        model: The model whose attention is replaced, and restored afterwards.
        step: The attention of the step.

    Raises:
        CannotPack: The model does not use this attention, so the result of the pass is invalid.
    """
    before = model.config._attn_implementation
    token = _current.set(step)
    step.cache.hold(True)
    model.config._attn_implementation = NAME
    try:
        yield
        # Layers that are applied several times have one layer of the cache per application.
        if sorted(step.attended) != list(range(len(step.cache.layers))):
            raise CannotPack(f"attention by layers {step.attended} where the cache has {len(step.cache.layers)}")
    finally:
        model.config._attn_implementation = before
        step.cache.hold(False)
        _current.reset(token)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - part of the interface
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001 - part of the interface
    **options: object,
) -> tuple[Tensor, None]:
    changed = [name for name in CHANGES if options.get(name) is not None]
    if changed:
        raise CannotPack(f"attention with {', '.join(changed)}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _current.get().attend(module.layer_idx, query, key, value, scaling), None  # type: ignore[arg-type]


AttentionInterface.register(NAME, _attention)
