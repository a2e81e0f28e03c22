"""A KV cache of fixed slots in which every row is as long as its own text, and attention over it.

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
        some = [new[0].transpose(0, 1).index_select(0, chosen).unsqueeze(2) for new in self._held]
        self._append(some[0], some[1])
        del self._held

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

    def grow(self) -> None:
        """Every row has got one token more."""
        if self._alive is not None:
            self._lengths.add_(self._alive)
            self._ends.clear()
            return
        self._known += 1
        self.longest += 1
        self.lengths.add_(1)
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


# -- grouped attention -------------------------------------------------------------------------------------------
# Attention of one query a row by heads of keys, as transformers' `sdpa` has it since 5.23. Before, as machines
# with cards have it, a mask made it repeat keys and values for every head of queries in each layer of each step:
# with four heads of queries to one of keys that is four times the cache, written and read again. The queries
# that share a head of keys can as well be that many queries of one head. Shapes: B rows, H heads of queries, G
# of keys, S slots, D size.


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
    """Attend as `sdpa` does, without repeating heads where there is one query.

    Args:
        module: Whose attention it is.
        query: Shape [B, H, queries, D].
        key: Shape [B, G, S, D].
        value: Shape [B, G, S, D of the values].
        attention_mask: Shape [B or 1, 1 or H, queries, S].
        dropout: Of weights.
        scaling: Of the products of queries and keys.
        options: Others of the interface.

    Returns:
        Shape [B, queries, H, D of the values].
    """
    heads, shared = query.shape[1], key.shape[1]
    by_itself = attention_mask is None or attention_mask.shape[1] != 1 or query.shape[2] != 1 or heads == shared
    if by_itself or any(options.get(name) is not None for name in CHANGES):
        found: tuple[Tensor, None] = sdpa_attention.sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return found
    query = query.reshape(len(query), shared, heads // shared, -1)
    seen = F.scaled_dot_product_attention(query, key, value, attention_mask, dropout, scale=scaling)
    return seen.reshape(len(seen), 1, heads, -1), None


if not hasattr(sdpa_attention, "pack_gqa"):
    AttentionInterface.register("sdpa", grouped_attention)


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
        hidden: To be added to scores, of shape [B, 1, 1, S], laid out as the cache does; None hides nothing.

    Returns:
        What is seen, shape [B, G, Q, D of the values], and the log-sum-exp of scores, float32, shape [B, G, Q].
    """
    if hidden is not None:
        hidden = hidden.expand(*query.shape[:3], -1)
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


# -- packed ------------------------------------------------------------------------------------------------------
# One forward pass over the candidates of all rows as a single sequence, without padding between rows. Rows of a
# batch have one candidate or many. Side by side in a rectangle, every row would pay for the widest. Packed,
# everything that works token by token sees real candidates only. Attention alone has to know which row a
# candidate is of. For this pass it is replaced by `PackedStep.attend`, through the interface that transformers
# has for that: each candidate sees the cached prefix of its row and itself. Candidates leave no trace in the
# cache until one is chosen. Shapes: B rows, W columns of the widest row, N candidates in all, H heads, G heads
# that share keys and values, S cached slots, D size of a head.


NAME = "pipeline_packed"
"""Of the attention function, as transformers knows it."""

CHANGES = ("position_bias", "s_aux", "sliding_window", "softcap")
"""Arguments by which some models change what attention computes; `attend` computes plain attention."""


class CannotPack(Exception):  # noqa: N818 - not an error: the caller has another way
    """The model's attention is more than `attend` computes, or does not go through it."""


class Packing:
    """Where the candidates of a step are, in the sequence and in the rectangle.

    Attributes:
        flat: Place in the rectangle of each candidate, shape [N], ascending.
        rows: Row of each candidate, shape [N].
        nearest: For each place of the rectangle its candidate, or an earlier one of its row, shape [B * W].
    """

    def __init__(self, valid: Tensor, count: int | None = None) -> None:
        """Pack.

        Args:
            valid: Which places of the rectangle hold a candidate, shape [B, W]; all of the first column do.
            count: How many do, where that is known.
        """
        self.shape = valid.shape
        places = valid.reshape(-1)
        if count == places.numel():
            self.flat = torch.arange(count, device=places.device)
        else:
            found = places.nonzero() if count is None else torch.nonzero_static(places, size=count)
            self.flat = found.squeeze(-1)
        self.rows = self.flat.div(valid.shape[1], rounding_mode="floor")
        self.nearest = places.cumsum(0) - 1
        self._spread: Tensor | None = None
        self._gather: Tensor

    def pack(self, rectangle: Tensor) -> Tensor:
        """Take the candidates of a rectangle, shape [B, W], as a sequence, shape [1, N]."""
        return rectangle.reshape(-1).index_select(0, self.flat)[None]

    def unpack(self, sequence: Tensor) -> Tensor:
        """Lay a sequence, shape [1, N, ...], out as a rectangle, shape [B, W, ...].

        Places without a candidate hold what another one of their row has.
        """
        rectangle: Tensor = sequence[0].index_select(0, self.nearest).unflatten(0, self.shape)
        return rectangle

    def chosen(self, columns: Tensor) -> Tensor:
        """Index in the sequence of the candidate in a column of each row; both of shape [B]."""
        return self.nearest.view(self.shape).gather(1, columns[:, None]).squeeze(1)

    def by_head(self, heads: int) -> tuple[Tensor, Tensor]:
        """Indices that bring queries of the sequence, N by H, into the order B by H by W, and back; both flat."""
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
            packing: Of the candidates.
            cache: With the prefix of every row.
            hidden: -inf where the prefix is padding and 0 elsewhere, shape [B, 1, slots in all]; None where
                nothing is.
        """
        self.packing = packing
        self.cache = cache
        self.hidden = hidden
        self.attended: list[int] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention of one layer.

        Args:
            layer: Index of the layer.
            query: Shape [1, H, N, D].
            key: Shape [1, H / G, N, D].
            value: Shape [1, H / G, N, D].
            scaling: Of the products of queries and keys.

        Returns:
            Shape [1, N, H, D of the values].

        Raises:
            CannotPack: What is cached is not what is attended to, as in latent attention.
        """
        slots = self.cache.layers[layer]
        if _sizes(slots.keys) != _sizes(key) or _sizes(slots.values) != _sizes(value):
            raise CannotPack("attention to something else than what is cached")
        used, shared = slots.used, key.shape[1]
        _, heads, count, size = query.shape
        spread, gather = self.packing.by_head(heads)
        queries = (query[0].transpose(0, 1) * scaling).view(count, shared, -1, size)
        # As kernels sum: a product rounded to bfloat16 is off by 1 % of the weight of a score of 10.
        own = (queries.float() * key[0].transpose(0, 1).unsqueeze(2)).sum(-1)
        blocks = queries.reshape(-1, size).index_select(0, spread).view(len(slots.keys) * shared, -1, size)
        wide = value.shape[-1]  # that of keys, but in latent attention
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
        # One slot more than there are: its scores make room for those of the candidates with themselves.
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
    """Let a model's forward pass be one over candidates.

    Args:
        model: Whose attention is replaced; it is as before afterwards.
        step: What attention has to know.

    Raises:
        CannotPack: The model's attention is not `attend`'s, so that what the pass gave is of no use.
    """
    before = model.config._attn_implementation
    token = _current.set(step)
    step.cache.hold(True)
    model.config._attn_implementation = NAME
    try:
        yield
        # Layers that are gone through several times have a layer of the cache for each time.
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
