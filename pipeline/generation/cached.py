"""A model together with the keys and values of the rows being decoded: prefill, step, branch, keep, drop.

Shapes: P prompts, B rows, L prompt tokens after padding, k candidates of a row, S slots in use.

Padding is on the left and every row has its own positions, so models with learnt and with rotary positions give
the same numbers as for that row alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from pipeline.errors import JobError


class _Slots(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer in buffers with room ahead, so that a step copies one slot and not all."""

    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.used = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make the buffers for a batch of this shape."""
        batch, heads, _, _ = key_states.shape
        self.keys = key_states.new_empty(batch, heads, self.capacity, key_states.shape[-1])
        self.values = value_states.new_empty(batch, heads, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append; returns views of all slots in use."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.used + key_states.shape[-2]
        if end > self.capacity:
            raise JobError(f"a cache of {self.capacity} positions cannot hold {end}")
        self.keys[:, :, self.used : end] = key_states
        self.values[:, :, self.used : end] = value_states
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what a query of that length sees."""
        return self.used + query_length, 0

    def get_seq_length(self) -> int:
        """Slots in use."""
        return self.used

    def get_max_length(self) -> int:
        """Slots in all."""
        return self.capacity

    def each(self, change: Callable[[Tensor], Tensor]) -> None:
        """Replace both buffers."""
        self.keys, self.values = change(self.keys), change(self.values)


class CachedModel:
    """Rows of text in one model, extended token by token."""

    def __init__(self, model: PreTrainedModel, capacity: int) -> None:
        """Start without rows.

        Args:
            model: A causal language model or a value model, in evaluation mode.
            capacity: Slots per row: padded prompt, new tokens and candidates.
        """
        self.model = model
        self.capacity = capacity
        self._wants_logits = hasattr(model, "lm_head") or model.get_output_embeddings() is not None
        self._masks_are_4d = model.config._attn_implementation != "flash_attention_2"
        self._reset()

    def _reset(self) -> None:
        self._slots = Cache(layer_class_to_replicate=lambda: _Slots(self.capacity))
        self._positions: Tensor | None = None
        self._padding: Tensor | None = None
        self._bias: Tensor | None = None

    @property
    def used(self) -> int:
        """Slots in use, S."""
        return int(self._slots.get_seq_length())

    def prefill(self, tokens: Tensor, lengths: Tensor, samples: int = 1) -> Tensor:
        """Read prompts.

        Args:
            tokens: Shape [P, L], padded on the left.
            lengths: Real tokens of each prompt, shape [P], on the same device.
            samples: Rows to make of each prompt; it is read once.

        Returns:
            Output at the last token, for P * samples rows; the rows of a prompt are adjacent.
        """
        self._reset()
        count, width = tokens.shape
        at = torch.arange(width, device=tokens.device)
        padding = width - lengths
        mask = None
        if bool((padding > 0).any()):
            self._padding = padding
            self._bias = self._padding_bias(padding)
            mask = self._prefill_mask(padding, at)
        positions = (at - padding[:, None]).clamp(min=0)
        out = self._forward(tokens, mask, positions, last_only=True)[:, -1]
        self._positions = lengths.clone()
        if samples > 1:
            self.select(torch.arange(count, device=tokens.device).repeat_interleave(samples))
            out = out.repeat_interleave(samples, 0)
        return out

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row.

        Args:
            tokens: Shape [B].

        Returns:
            Output at these tokens, shape [B, ...].
        """
        assert self._positions is not None
        mask = self._step_mask(self.used + 1)
        out = self._forward(tokens[:, None], mask, self._positions[:, None])[:, -1]
        self._positions += 1
        return out

    def branch(self, candidates: Tensor) -> Tensor:
        """Try several next tokens of every row in one forward pass, each seeing the row and itself alone.

        `keep` must follow, to say which of them stays.

        Args:
            candidates: Shape [B, k].

        Returns:
            Outputs at the candidates, shape [B, k, ...].
        """
        assert self._positions is not None
        count = candidates.shape[1]
        mask = self._branch_mask(count)
        return self._forward(candidates, mask, self._positions[:, None].expand(-1, count))

    def keep(self, choice: Tensor, count: int) -> None:
        """Keep one candidate of each row and forget the others.

        Args:
            choice: Column of `candidates`, shape [B].
            count: k of the `branch` before.
        """
        assert self._positions is not None
        start = self.used - count
        for layer in self._slots.layers:
            if count > 1:
                for buffer in (layer.keys, layer.values):
                    index = (choice + start)[:, None, None, None].expand(-1, buffer.shape[1], 1, buffer.shape[-1])
                    buffer[:, :, start : start + 1] = buffer.gather(2, index)
            layer.used = start + 1
        self._positions += 1

    def overwrite_last(self, rows: Tensor, tokens: Tensor) -> None:
        """Replace the last token of some rows.

        Args:
            rows: Which, shape [R].
            tokens: By what, shape [R].
        """
        assert self._positions is not None
        last = self.used - 1
        part = CachedModel(self.model, last + 1)
        part._positions = self._positions[rows] - 1
        if self._bias is not None and self._padding is not None:
            part._bias, part._padding = self._bias[rows], self._padding[rows]
        for number, layer in enumerate(self._slots.layers):
            part._slots.update(layer.keys[rows, :, :last], layer.values[rows, :, :last], number)
        part.step(tokens)
        for layer, fresh in zip(self._slots.layers, part._slots.layers, strict=True):
            layer.keys[rows, :, last] = fresh.keys[:, :, last]
            layer.values[rows, :, last] = fresh.values[:, :, last]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order; a row may be taken several times.

        Args:
            rows: Indices, shape [B].
        """
        assert self._positions is not None
        for layer in self._slots.layers:
            used = layer.used

            def picked(buffer: Tensor, used: int = used) -> Tensor:
                fresh = buffer.new_empty(len(rows), *buffer.shape[1:])
                fresh[:, :, :used] = buffer[:, :, :used].index_select(0, rows)
                return fresh

            layer.each(picked)
        self._positions = self._positions[rows]
        if self._padding is not None and self._bias is not None:
            self._padding, self._bias = self._padding[rows], self._bias[rows]

    def _forward(self, tokens: Tensor, mask: Tensor | None, positions: Tensor, last_only: bool = False) -> Tensor:
        options: dict[str, Any] = {"logits_to_keep": 1} if last_only and self._wants_logits else {}
        out = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._slots,
            use_cache=True,
            **options,
        )
        result: Tensor = out.logits if self._wants_logits else out.values
        return result

    # Masks are additive and use the lowest finite number: a padding position then sees something, and its
    # attention is not NaN.

    def _padding_bias(self, padding: Tensor) -> Tensor:
        """Shape [B, 1, 1, capacity]: lowest number at padding, else 0."""
        at = torch.arange(self.capacity, device=padding.device)
        hidden = at < padding[:, None]
        zeros = torch.zeros(hidden.shape, dtype=self.model.dtype, device=padding.device)
        return zeros.masked_fill(hidden, torch.finfo(self.model.dtype).min)[:, None, None, :]

    def _prefill_mask(self, padding: Tensor, at: Tensor) -> Tensor:
        visible = at >= padding[:, None]
        if not self._masks_are_4d:
            return visible.long()
        seen = visible[:, None, None, :] & (at[None, :] <= at[:, None])
        zeros = torch.zeros(seen.shape, dtype=self.model.dtype, device=at.device)
        return zeros.masked_fill(~seen, torch.finfo(self.model.dtype).min)

    def _step_mask(self, width: int) -> Tensor | None:
        if self._bias is None or self._padding is None:
            return None
        if not self._masks_are_4d:
            return (torch.arange(width, device=self._padding.device) >= self._padding[:, None]).long()
        return self._bias[..., :width]

    def _branch_mask(self, count: int) -> Tensor | None:
        if count == 1:
            return self._step_mask(self.used + 1)
        if not self._masks_are_4d:
            raise JobError(
                "flash_attention_2 takes no mask for several candidates at once: use system.attn_impl=sdpa"
            )
        dtype, device = self.model.dtype, self.model.device
        apart = torch.full((count, count), torch.finfo(dtype).min, dtype=dtype, device=device)
        apart.fill_diagonal_(0.0)
        if self._bias is None:
            prefix = torch.zeros(count, self.used, dtype=dtype, device=device)
            return torch.cat([prefix, apart], -1)[None, None]
        prefix = self._bias[..., : self.used].expand(-1, 1, count, -1)
        return torch.cat([prefix, apart.expand(len(prefix), 1, -1, -1)], -1)
