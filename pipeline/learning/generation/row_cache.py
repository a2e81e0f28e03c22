"""A KV cache of fixed slots in which every row is as long as its own text.

A row's keys begin at slot 0 and end at its own length, so rows of any age stand side by side and a row that is
finished makes room for a new one. Rows that are alive are always the first ones: where one leaves, the last one
takes its place. Beyond a row's length there are zeros, hidden by a mask.

Shapes: P prompts of T tokens, n rows that are alive, R rows in all, G heads of keys and values, W slots of a row,
L slots of the longest row alive, N candidates in all, D size of a head.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from pipeline.errors import JobError

ALIGNED = 16
"""Slots of a mask by which its rows are laid out: else kernels copy it to such a place, in every layer."""


def attended_in(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The type in which attention reads keys of some type: autocast rounds them, so they are kept as rounded."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype


class RowLayer(CacheLayerMixin):
    """Keys and values of one attention layer; `keys` and `values` are those of the rows alive."""

    is_sliding = False
    keys: Tensor
    values: Tensor
    used: int

    def __init__(self, cache: RowCache, keys: Tensor, values: Tensor) -> None:
        """Make the buffers, shape [R, G, W, D].

        Args:
            cache: Which this is a layer of.
            keys: Have the heads, sizes and type of this model's layer.
            values: Likewise; under autocast they are of another type where a norm is applied to keys alone.
        """
        super().__init__()
        # No circle: what nobody uses any more is to give its memory back at once.
        self._cache = weakref.proxy(cache)
        dtype = attended_in(keys.dtype, keys.device)
        self._buffers = [
            old.new_zeros(cache.slots, old.shape[1], cache.width, old.shape[3], dtype=dtype)
            for old in (keys, values)
        ]
        self._width: int = cache.width
        self.holding = False
        self._held: tuple[Tensor, Tensor]
        self.is_initialized = True
        self.show()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Buffers are there from the beginning."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many slots a query of that length sees, and from which on."""
        return self.used + query_length, 0

    def get_seq_length(self) -> int:
        """Slots that the longest row uses."""
        return self.used

    def get_max_length(self) -> int:
        """Slots of a row in all."""
        return self._width

    # The name of the same method in earlier releases of transformers 5.
    get_max_cache_shape = get_max_length

    def show(self) -> None:
        """Follow the rows of the cache."""
        self.keys, self.values = (buffer[: self._cache.rows] for buffer in self._buffers)
        self.used = self._cache.longest

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: object, **_options: object
    ) -> tuple[Tensor, Tensor]:
        """Append one token to every row; returns views of all slots in use, and one.

        While holding, note what is given and return it alone.
        """
        if self.holding:
            self._held = (key_states, value_states)
            return self._held
        self._append(key_states, value_states)
        end = self.used + 1
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def append_held(self, chosen: Tensor) -> None:
        """Append of what was noted, shape [1, G, N, D], one token to every row; shape of `chosen`: [n]."""
        self.append_of(*self._held, chosen)
        del self._held

    def append_of(self, keys: Tensor, values: Tensor, chosen: Tensor, further: int = 0) -> None:
        """Likewise of these, behind so many that were appended since the rows have grown."""
        some = [new[0].transpose(0, 1).index_select(0, chosen).unsqueeze(2) for new in (keys, values)]
        self._append(some[0], some[1], further)

    def put(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows behind those alive, from their first slot on; shape of both: [rows, G, T, D].

        Returns:
            What has been written, where it is.
        """
        start, (rows, _, used, _) = self._cache.rows, keys.shape
        places = [buffer[start : start + rows, :, :used] for buffer in self._buffers]
        return places[0].copy_(keys), places[1].copy_(values)

    def clear(self, end: int, used: int, beyond: Tensor | None) -> None:
        """Put zeros into rows behind those alive, up to row `end`, where no text of theirs is.

        A mask hides what is there, but it is multiplied by a weight of zero and must be a number, whatever an
        earlier text has left.

        Args:
            end: First row that stays as it is.
            used: Slots of the longest of these rows.
            beyond: Which of those are not in use, shape [rows, 1, used, 1]; None where all are.
        """
        start, written = self._cache.rows, self._cache.written
        for buffer in self._buffers:
            rows = buffer[start:end]
            if beyond is not None:
                rows[:, :, :used].masked_fill_(beyond, 0)
            if used < written:
                rows[:, :, used:written] = 0

    def move(self, source: Tensor, target: Tensor) -> None:
        """Put rows into the place of others."""
        for buffer in self._buffers:
            buffer[target, :, : self.used] = buffer[source, :, : self.used]

    def _append(self, keys: Tensor, values: Tensor, further: int = 0) -> None:
        if self._cache.even:
            place = self.used + further
            for rows, new in ((self.keys, keys), (self.values, values)):
                rows.narrow(2, place, 1).copy_(new)
            return
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            heads, size = buffer.shape[1], buffer.shape[3]
            ends = self._cache.ends(heads)
            rows = new.reshape(-1, size).to(buffer.dtype)
            buffer.view(-1, size).index_copy_(0, ends + further if further else ends, rows)


class Entering(Cache):
    """Prompts that are read into the rows behind those alive, where they will be."""

    layers: list[DynamicLayer]  # type: ignore[assignment]

    def __init__(self, rows: RowCache) -> None:
        """Begin.

        Args:
            rows: Which they will enter.
        """
        super().__init__(layers=[])
        self._rows = rows

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: object, **_options: object
    ) -> tuple[Tensor, Tensor]:
        """Write what a layer has computed of all of them, which they see as it is."""
        layer = DynamicLayer()
        layer.keys, layer.values = self._rows.take_in(layer_idx, key_states, value_states)
        layer.is_initialized = True
        self.layers.append(layer)
        return key_states, value_states


class RowCache(Cache):
    """Layers of `RowLayer`s, and how long their rows are.

    Attributes:
        rows: That are alive, n.
        lengths: Of their texts as far as they are read, shape [n].
        longest: Of these, L.
        even: Whether all are as long, which is cheaper.
        written: Slots that any text may have been written to, from the first one on.
    """

    layers: list[RowLayer]  # type: ignore[assignment]

    def __init__(self, slots: int, width: int, device: str) -> None:
        """Make an empty cache.

        Args:
            slots: Rows at once, R.
            width: Tokens of the longest text, and one slot more, W.
            device: ``cpu`` or ``cuda``.
        """
        super().__init__(layers=[])
        self.slots, self.width = slots, width
        self.rows = self.longest = self.written = 0
        self.even = True
        # Of slots without a row too, of which one is seen: attention to nothing is no number.
        self._lengths = torch.ones(slots, dtype=torch.long, device=device)
        self.lengths = self._lengths[:0]
        self._known = np.zeros(0, np.int64)
        self._alive: Tensor | None = None
        self._ends: dict[int, Tensor] = {}
        self._begins: dict[int, Tensor] = {}
        self._slots = torch.arange(width, device=device)
        self._nothing_hidden: Tensor | None = None

    def take_in(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write prompts into a layer behind the rows alive, which are to `enter` next; see `RowLayer.put`."""
        if layer == len(self.layers):
            self.layers.append(RowLayer(self, keys, values))
        return self.layers[layer].put(keys, values)

    def enter(self, staged: Cache, places: Tensor | None, lengths: NDArray[np.int64]) -> None:
        """Add rows behind those alive.

        Args:
            staged: Prompts that were read together, padded on the right.
            places: Which of them, shape [rows that are added]; None where all of them were taken in.
            lengths: Their lengths.
        """
        if self.rows + len(lengths) > self.slots:
            raise JobError(f"a cache of {self.slots} rows cannot hold {self.rows + len(lengths)}")
        if places is not None:
            states: list[Any] = staged.layers
            for layer, new in enumerate(states):
                self.take_in(layer, new.keys.index_select(0, places), new.values.index_select(0, places))
        known = np.concatenate([self._known, lengths])
        added = self._lengths[self.rows : len(known)]
        added.copy_(torch.from_numpy(lengths))
        width, beyond = staged.get_seq_length(), None
        if (lengths != width).any():
            beyond = (self._slots[:width] >= added[:, None])[:, None, :, None]
        for row_layer in self.layers:
            row_layer.clear(len(known), width, beyond)
        self._set(known)

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows; row i is to be the one that was `order[i]`, which is i or comes later."""
        target = np.flatnonzero(order != np.arange(len(order)))
        if len(target):
            places = torch.from_numpy(np.stack([order[target], target])).to(self.lengths.device)
            for layer in self.layers:
                layer.move(places[0], places[1])
            self._lengths[places[1]] = self._lengths[places[0]]
        self._set(self._known[order])

    @contextmanager
    def all_slots(self, reach: int, alive: Tensor) -> Iterator[None]:
        """Be of the same shapes whatever rows there are: each slot is one, of at most so many tokens.

        What is done meanwhile depends on nothing but what is in memory that stays where it is. Python is told of
        it afterwards, by `grown`.

        Args:
            reach: Tokens of the longest row at most, while this lasts.
            alive: 1 where a slot has a row, which grows, and else 0; shape [R].
        """
        self._alive = alive
        self._show(self.slots, reach, even=False)
        try:
            yield
        finally:
            self._alive = None
            self._set(self._known)

    def grown(self, count: int) -> None:
        """Every row has got so many tokens while all slots were rows."""
        self._set(self._known + count)

    def grow(self, count: int = 1) -> None:
        """Every row has got one token more, or several."""
        if self._alive is not None:
            self._lengths.add_(self._alive, alpha=count)
            self._ends.clear()
            return
        self._known += count
        self.longest += count
        self.lengths.add_(count)
        self._ends.clear()
        self._check()
        for layer in self.layers:
            layer.used = self.longest

    def append_held(self, chosen: Tensor) -> None:
        """Of the states that were noted last, append one to every row; shape of `chosen`: [n]."""
        for layer in self.layers:
            layer.append_held(chosen)
        self.grow()

    def hold(self, holding: bool) -> None:
        """Whether layers only note what they are given, instead of appending it."""
        for layer in self.layers:
            layer.holding = holding

    def ends(self, heads: int) -> Tensor:
        """Where the next token of every row goes in a buffer seen as [R * G * W, D]; shape [n * heads]."""
        if heads not in self._ends:
            if heads not in self._begins:
                every = torch.arange(self.slots * heads, device=self.lengths.device)
                self._begins[heads] = every.view(-1, heads) * self.width
            self._ends[heads] = (self._begins[heads][: self.rows] + self.lengths[:, None]).view(-1)
        return self._ends[heads]

    def hidden(self, dtype: torch.dtype) -> Tensor:
        """What next tokens must not see: 0 or -inf, to be added to scores; shape [n or 1, 1, 1, L + 1]."""
        if self.even:
            if self._nothing_hidden is None:
                self._nothing_hidden = _minus_infinity(
                    torch.zeros(1, 1, 1, self.width, dtype=torch.bool, device=self.lengths.device), dtype
                )
            return self._nothing_hidden.narrow(3, 0, self.longest + 1)
        return _minus_infinity(self._slots[: self.longest + 1] > self.lengths[:, None, None, None], dtype)

    def hidden_prefix(self, dtype: torch.dtype) -> Tensor | None:
        """Likewise for candidates that are not in the cache, and see themselves at slot L; shape [n, 1, L + 1].

        None where nothing is hidden.
        """
        if self.even:
            return None
        hidden = self._slots[: self.longest + 1] >= self.lengths[:, None, None]
        hidden[..., -1].zero_()
        return _minus_infinity(hidden, dtype)

    def hidden_from_columns(self, dtype: torch.dtype, pending: int, columns: int) -> Tensor:
        """Likewise for candidates behind tokens that are pending; shape [n, columns, L + pending + 1].

        The first columns are those tokens, which will be at the end of their row and see those before them.
        """
        slots = self._slots[: self.longest + pending + 1]
        before = torch.arange(columns, device=slots.device).clamp_max(pending)
        hidden = slots >= (self.lengths[:, None] + before)[:, :, None]
        hidden[:, :, -1].zero_()
        return _minus_infinity(hidden, dtype)

    def _set(self, known: NDArray[np.int64]) -> None:
        self._known = known
        longest = int(known.max(initial=0))
        self._show(len(known), longest, even=bool((known == longest).all()))

    def _show(self, rows: int, longest: int, *, even: bool) -> None:
        self.written = max(self.written, self.longest + 1)  # a slot without a row writes to one more
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


# -- prefix attention --------------------------------------------------------------------------------------------
# Attention to a prefix by one kernel, and to a token of its own merged with it: no scores lie in memory. A
# candidate sees the prefix of its row, which a kernel attends to as it would by itself, and itself. The
# kernel also tells the logarithm of what its softmax has divided by (its log-sum-exp, l). With s, the score
# of the candidate with itself, its weight is exp(s) / (exp(l) + exp(s)) = sigmoid(s - l), and the prefix has
# the rest. Only on GPUs. Shapes: B rows, G heads of keys and values, Q queries that share one of them, S
# slots, D size of a head.


_SIZES = 8
"""What sizes of heads are a multiple of for such kernels."""


def is_merged(query: Tensor, value: Tensor) -> bool:
    """Whether attention of these is computed so; both of shape [..., D]."""
    fits = not (query.shape[-1] % _SIZES or value.shape[-1] % _SIZES)
    return query.is_cuda and fits


def attend_prefix(query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attend to a prefix.

    Args:
        query: Scaled, shape [B, G, Q, D].
        keys: Shape [B, G, S, D].
        values: Likewise, with a size of their own.
        hidden: To be added to scores, of shape [B, 1, 1 or Q, S]; None hides nothing.

    Returns:
        What is seen, shape [B, G, Q, D of the values], and the log-sum-exp of scores, float32, shape [B, G, Q].
    """
    if hidden is not None:
        hidden = _aligned(hidden).expand(*query.shape[:3], -1)
    if query.is_cuda:
        found = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, keys, values, hidden, True, scale=1.0
        )
        return found[0], found[1][..., : query.shape[2]]  # which is padded
    seen, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, attn_mask=hidden, scale=1.0
    )
    return seen, total


def merge(seen: Tensor, total: Tensor, own: Tensor, value: Tensor) -> Tensor:
    """What is seen of a prefix and of a token of one's own.

    Args:
        seen: Of the prefix, shape [..., D].
        total: Its log-sum-exp, shape [...].
        own: Score of the token, shape [...].
        value: Of the token, shape [..., D].

    Returns:
        Shape [..., D].
    """
    weight = torch.sigmoid(own.float() - total)[..., None]
    return torch.lerp(seen.float(), value.float(), weight).to(value.dtype)


def _aligned(hidden: Tensor) -> Tensor:
    if not any(stride % ALIGNED for stride in hidden.stride()[:-1]):  # as the cache makes them
        return hidden
    slots = hidden.shape[-1]
    return F.pad(hidden, (0, -slots % ALIGNED))[..., :slots]
