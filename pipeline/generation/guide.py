"""A value model that follows decoding with a KV cache of its own.

    head "v"    all candidates in one forward pass, each seeing the prefix and itself alone (a 4-D mask); the
                chosen candidate's keys and values then stay in the cache, so no token is computed twice
    head "q"    one token per step: its output already holds the value of every next token

Shapes: B rows, L cached positions, K candidates, V tokens of the vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from pipeline.config.schema import HeadType
from pipeline.errors import JobError
from pipeline.generation.batching import PromptBatch
from pipeline.models.value import ValueModel


class ValueReader(Protocol):
    """Gives values of candidates while rows of a batch grow token by token."""

    def begin(self, batch: PromptBatch, samples: int) -> None:
        """Read the prompts; each becomes `samples` rows, adjacent."""

    def values(self, candidates: Tensor) -> Tensor:
        """Value logits of tokens that could come next, shape [B, K] as `candidates`."""

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        """The rows took these tokens, which stood in these columns of the last call of `values`; shape [B]."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only; shape [rows that are kept]."""


def value_reader(model: ValueModel) -> ValueReader:
    """The reader for a model's type of head."""
    return CandidateReader(model) if model.config.head == HeadType.v.name else VocabularyReader(model)


class _Prefix:
    """What rows have in common while they grow: the cache, which positions are padding, how long each row is."""

    def __init__(self, model: ValueModel) -> None:
        self.model = model
        self.cache = DynamicCache(config=model.config.backbone)  # type: ignore[arg-type]
        self.mask: Tensor | None = None
        self.lengths = torch.empty(0)

    def read(self, batch: PromptBatch, samples: int) -> Tensor:
        values: Tensor = self.model(
            batch.ids,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache.batch_repeat_interleave(samples)
        self.mask = None if batch.mask is None else batch.mask.repeat_interleave(samples, 0)
        self.lengths = batch.lengths.repeat_interleave(samples, 0)
        return values

    def grow(self) -> None:
        self.lengths = self.lengths + 1
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], -1)

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.lengths = self.lengths[rows]
        self.mask = None if self.mask is None else self.mask[rows]


class CandidateReader:
    """For head "v"."""

    def __init__(self, model: ValueModel) -> None:
        self._model = model
        self._prefix = _Prefix(model)
        self._length = 0

    def begin(self, batch: PromptBatch, samples: int) -> None:
        """Read the prompts."""
        self._prefix = _Prefix(self._model)
        self._prefix.read(batch, samples)
        if not all(type(layer) is DynamicLayer for layer in self._prefix.cache.layers):
            raise JobError(
                "the value model's backbone has sliding-window or other special attention layers, whose cache "
                "cannot drop single positions. Use head=q, or another backbone."
            )

    def values(self, candidates: Tensor) -> Tensor:
        """Forward all candidates at once; their slots stay in the cache until `advance`."""
        prefix = self._prefix
        self._length = prefix.cache.get_seq_length()
        mask = candidate_mask(prefix.mask, self._length, candidates.shape, self._model.dtype)
        values: Tensor = self._model(
            candidates,
            attention_mask=mask.to(candidates.device),
            position_ids=prefix.lengths[:, None].expand_as(candidates),
            past_key_values=prefix.cache,
            use_cache=True,
        )
        return values

    def advance(self, tokens: Tensor, columns: Tensor) -> None:  # noqa: ARG002 - their slots are in the cache
        """Keep the slot of the chosen candidate and drop the others."""
        prefix = self._prefix
        for layer in prefix.cache.layers:
            layer.keys = _keep_slot(layer.keys, self._length, columns)
            layer.values = _keep_slot(layer.values, self._length, columns)
        prefix.grow()

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self._prefix.keep(rows)


class VocabularyReader:
    """For head "q"."""

    def __init__(self, model: ValueModel) -> None:
        self._model = model
        self._prefix = _Prefix(model)
        self._next = torch.empty(0)

    def begin(self, batch: PromptBatch, samples: int) -> None:
        """Read the prompts; the last position's output holds the values of the first token."""
        self._prefix = _Prefix(self._model)
        self._next = self._prefix.read(batch, samples)[:, -1].repeat_interleave(samples, 0)

    def values(self, candidates: Tensor) -> Tensor:
        """Look the candidates up."""
        return self._next.gather(-1, candidates)

    def advance(self, tokens: Tensor, columns: Tensor) -> None:  # noqa: ARG002 - columns matter to head "v" only
        """Read the token that was taken."""
        prefix = self._prefix
        position = prefix.lengths[:, None]
        prefix.grow()
        self._next = self._model(
            tokens[:, None],
            attention_mask=prefix.mask,
            position_ids=position,
            past_key_values=prefix.cache,
            use_cache=True,
        )[:, -1]

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self._prefix.keep(rows)
        self._next = self._next[rows]


def candidate_mask(padding: Tensor | None, length: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Additive mask by which each candidate sees the prefix and itself, shape [B or 1, 1, K, L + K].

    Args:
        padding: 0 where the prefix is padding, shape [B, L]; None where nothing is.
        length: L.
        shape: Of the candidates, [B, K].
        dtype: Of the model.
    """
    count = shape[1]
    hidden = torch.finfo(dtype).min
    own = torch.full((count, count), hidden, dtype=dtype).fill_diagonal_(0.0)
    if padding is None:
        seen = torch.zeros(1, 1, count, length, dtype=dtype)
        # SDPA wants a mask of the batch's own size or one that broadcasts; one row serves all.
        return torch.cat([seen, own[None, None]], -1)
    seen = torch.zeros(padding.shape, dtype=dtype, device=padding.device).masked_fill_(padding == 0, hidden)
    block = own.to(padding.device)[None, None].expand(len(padding), 1, count, count)
    return torch.cat([seen[:, None, None, :].expand(-1, 1, count, -1), block], -1)


def _keep_slot(cached: Tensor, length: int, columns: Tensor) -> Tensor:
    """Move the slot of the chosen column to the end of the prefix and cut the rest off.

    Args:
        cached: Keys or values, shape [B, H, L + K, D].
        length: L.
        columns: Shape [B].
    """
    if cached.shape[2] > length + 1:
        rows = torch.arange(len(columns), device=columns.device)
        cached[:, :, length] = cached[rows, :, length + columns]
    return cached[:, :, : length + 1]
