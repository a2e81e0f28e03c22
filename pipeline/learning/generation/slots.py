"""A KV cache in buffers with room ahead, so that a step copies one slot instead of all.

Shapes: B rows, H heads, S slots in use, C slots in all, D size of a head.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from pipeline.errors import JobError


class SlotLayer(CacheLayerMixin):
    """Keys and values of one attention layer."""

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.used = 0
        self.holding = False
        self.held: tuple[Tensor, Tensor]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make the buffers, shape [B, H, C, D]."""
        self.keys = _buffer(key_states, len(key_states), self.capacity)
        self.values = _buffer(value_states, len(value_states), self.capacity)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: object, **_options: object
    ) -> tuple[Tensor, Tensor]:
        """Append; returns views of all slots in use. While holding, note what is given and return it alone."""
        if self.holding:
            self.held = (key_states, value_states)
            return self.held
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.used + key_states.shape[-2]
        if end > self.capacity:
            raise JobError(f"a cache of {self.capacity} slots cannot hold {end}")
        self.keys[:, :, self.used : end] = key_states
        self.values[:, :, self.used : end] = value_states
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many slots a query of that length sees, and from which on."""
        return self.used + query_length, 0

    def get_seq_length(self) -> int:
        """Slots in use."""
        return self.used

    def get_max_length(self) -> int:
        """Slots in all."""
        return self.capacity

    # The name of the same method in earlier releases of transformers 5.
    get_max_cache_shape = get_max_length

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order; a row may be taken several times."""
        for name in ("keys", "values"):
            old = getattr(self, name)
            fresh = _buffer(old, len(rows), self.capacity)
            fresh[:, :, : self.used] = old[:, :, : self.used].index_select(0, rows)
            setattr(self, name, fresh)

    def keep_slot(self, start: int, columns: Tensor) -> None:
        """Of the slots from `start` on keep one per row, at `start`; shape of `columns`: [B]."""
        if self.used > start + 1:
            rows = torch.arange(len(columns), device=columns.device)
            for buffer in (self.keys, self.values):
                buffer[:, :, start] = buffer[rows, :, start + columns]
        self.used = start + 1

    def append_held(self, chosen: Tensor) -> None:
        """Append of what was noted, shape [1, H, N, D], one slot per row; shape of `chosen`: [B]."""
        if self.used == self.capacity:
            raise JobError(f"a cache of {self.capacity} slots cannot hold {self.used + 1}")
        for buffer, noted in zip((self.keys, self.values), self.held, strict=True):
            buffer[:, :, self.used] = noted[0].transpose(0, 1).index_select(0, chosen)
        self.used += 1
        del self.held


class SlotCache(Cache):
    """A cache of `SlotLayer`s for any decoder whose layers all attend to everything before; `ways` knows which."""

    layers: list[SlotLayer]  # type: ignore[assignment]

    def __init__(self, capacity: int) -> None:
        """Make an empty cache.

        Args:
            capacity: Slots per row: padded prompt, new tokens, and candidates beside each other.
        """
        super().__init__(layer_class_to_replicate=partial(SlotLayer, capacity))  # type: ignore[arg-type]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order; a row may be taken several times. Shape [rows]."""
        for layer in self.layers:
            layer.select(rows)

    def keep_slot(self, start: int, columns: Tensor) -> None:
        """Of the slots from `start` on keep one per row, at `start`; shape of `columns`: [B]."""
        for layer in self.layers:
            layer.keep_slot(start, columns)

    def hold(self, holding: bool) -> None:
        """Whether layers only note what they are given, instead of appending it."""
        for layer in self.layers:
            layer.holding = holding

    def append_held(self, chosen: Tensor) -> None:
        """Of the states that were noted last, append one per row; shape of `chosen`: [B]."""
        for layer in self.layers:
            layer.append_held(chosen)


def _buffer(like: Tensor, rows: int, capacity: int) -> Tensor:
    return like.new_empty(rows, like.shape[1], capacity, like.shape[3])
