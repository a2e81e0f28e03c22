"""A value model that follows decoding with a KV cache of its own.

    head "v"    all candidates in one forward pass, each seeing the prefix and itself alone; the chosen candidate's
                keys and values then stay in the cache, so no token is computed twice
    head "q"    one token per step: its output already holds the value of every next token

Shapes: B rows, L cached positions, K candidates, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.learning.choices import HeadType
from pipeline.learning.generation.batching import PromptBatch
from pipeline.learning.generation.packed import CannotPack, PackedStep, Packing, can_pack, packed
from pipeline.learning.generation.slots import SlotCache
from pipeline.learning.models.flops import Pass, model_cost, whole_texts
from pipeline.learning.models.load import context_length
from pipeline.learning.models.value import ValueModel


class ValueReader(Protocol):
    """Gives values of candidates while rows of a batch grow token by token."""

    def begin(self, batch: PromptBatch, samples: int, room: int) -> None:
        """Read the prompts; each becomes `samples` rows, adjacent, with room for so many further slots."""

    def values(self, candidates: Tensor, valid: Tensor) -> Tensor:
        """Value logits of tokens that could come next.

        Args:
            candidates: Token ids, shape [B, K].
            valid: Which of them are asked for, shape [B, K]; the first of a row always is.

        Returns:
            Shape [B, K], or [B, K, n] with n atoms; finite but of no meaning where nothing is asked for.
        """

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        """The rows took these tokens, which stood in these columns of the last call of `values`; shape [B]."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only; shape [rows that are kept]."""

    def flops(self) -> int:
        """What has been computed since `begin`; see `learning.models.flops`."""


def value_reader(model: ValueModel) -> ValueReader:
    """The reader for a model's type of head."""
    return CandidateReader(model) if model.config.head == HeadType.v.name else VocabularyReader(model)


def readable(model: ValueModel, candidates: int) -> int | None:
    """Tokens of prompt and completion that a guide can read, or None where nothing limits them.

    Args:
        model: The guide.
        candidates: At each step, at most.
    """
    context = context_length(model.backbone)
    if context is None or model.config.head != HeadType.v.name or can_pack(model.backbone):
        return context
    # The candidates of a step stand side by side behind the text: a mask of the model's own, as GPT-Neo has one,
    # must be wide enough for all of them.
    own_mask = any(buffer.shape[-2:] == (context, context) for buffer in model.backbone.buffers())
    return context - candidates + 1 if own_mask else context


class _Prefix:
    """What rows have in common while they grow: the cache, which positions are padding, how long each row is."""

    def __init__(self, model: ValueModel, batch: PromptBatch, room: int) -> None:
        self.model = model
        self.cache = SlotCache(model.config.backbone, batch.ids.shape[1] + room)
        self.mask = batch.mask
        self.lengths = batch.lengths
        self._batch = batch
        # Added up where they are computed, as asking a device for a number at each step would make it wait.
        self._tokens = torch.zeros((), dtype=torch.int64, device=batch.ids.device)
        self._positions = torch.zeros_like(self._tokens)

    def read(self, samples: int) -> Tensor:
        batch = self._batch
        values: Tensor = self.model(
            batch.ids,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            past_key_values=self.cache,
            use_cache=True,
        )
        if samples > 1:
            self.keep(torch.arange(len(batch.ids), device=batch.ids.device).repeat_interleave(samples))
        return values[:, -1].repeat_interleave(samples, 0)

    def note_read(self, tokens: Tensor) -> None:
        """Count tokens that each row has read beside each other, next after it; shape [B]."""
        self._tokens += tokens.sum()
        self._positions += (tokens * (self.lengths + 1)).sum()

    def flops(self) -> int:
        prompts, read = whole_texts(self._batch.lengths.cpu().numpy()), int(self._tokens)
        return model_cost(self.model).forward(prompts + Pass(read, int(self._positions), read))

    def grow(self) -> None:
        self.lengths = self.lengths + 1
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], -1)

    def keep(self, rows: Tensor) -> None:
        self.cache.select(rows)
        self.lengths = self.lengths[rows]
        self.mask = None if self.mask is None else self.mask[rows]


class CandidateReader:
    """For head "v"."""

    def __init__(self, model: ValueModel) -> None:
        self._model = model
        self._packs = can_pack(model.backbone)
        self._prefix: _Prefix
        self._hidden: Tensor | None
        self._packing: Packing | None
        self._length = 0

    def begin(self, batch: PromptBatch, samples: int, room: int) -> None:
        """Read the prompts."""
        self._prefix = prefix = _Prefix(self._model, batch, room)
        prefix.read(samples)
        self._hidden = None
        if prefix.mask is not None:
            padding = F.pad(prefix.mask == 0, (0, prefix.cache.get_max_length() - prefix.mask.shape[1]))
            hidden = torch.zeros(padding.shape, dtype=self._model.dtype, device=padding.device)
            self._hidden = hidden.masked_fill_(padding, -math.inf)[:, None]

    def values(self, candidates: Tensor, valid: Tensor) -> Tensor:
        """Forward all candidates at once; what attention needs of the chosen one is kept by `advance`."""
        self._prefix.note_read(valid.sum(-1))
        if self._packs:
            try:
                return self._packed(candidates, valid)
            except CannotPack:
                self._packs = False
        return self._padded(candidates)

    def _packed(self, candidates: Tensor, valid: Tensor) -> Tensor:
        prefix = self._prefix
        self._packing = packing = Packing(valid)
        with packed(self._model.backbone, PackedStep(packing, prefix.cache, self._hidden)):
            values: Tensor = self._model(
                packing.pack(candidates),
                position_ids=prefix.lengths.index_select(0, packing.rows)[None],
                past_key_values=prefix.cache,
                use_cache=True,
            )
        return packing.unpack(values)

    def _padded(self, candidates: Tensor) -> Tensor:
        """The way for any model: candidates of all rows side by side in the cache, until one is chosen."""
        prefix = self._prefix
        self._packing = None
        self._length = prefix.cache.get_seq_length()
        values: Tensor = self._model(
            candidates,
            attention_mask=candidate_mask(prefix.mask, self._length, candidates, self._model.dtype),
            position_ids=prefix.lengths[:, None].expand_as(candidates),
            past_key_values=prefix.cache,
            use_cache=True,
        )
        return values

    def advance(self, tokens: Tensor, columns: Tensor) -> None:  # noqa: ARG002 - their keys are known already
        """Keep what attention needs of the chosen candidate and drop the others."""
        prefix = self._prefix
        if self._packing is None:
            prefix.cache.keep_slot(self._length, columns)
        else:
            prefix.cache.append_held(self._packing.chosen(columns))
        prefix.grow()

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self._prefix.keep(rows)
        self._hidden = None if self._hidden is None else self._hidden[rows]

    def flops(self) -> int:
        """Of prompts and of all candidates that were asked for."""
        return self._prefix.flops()


class VocabularyReader:
    """For head "q"."""

    def __init__(self, model: ValueModel) -> None:
        self._model = model
        self._prefix: _Prefix
        self._next: Tensor
        self._unread: Tensor | None = None

    def begin(self, batch: PromptBatch, samples: int, room: int) -> None:
        """Read the prompts; the last position's output holds the values of the first token."""
        self._prefix = _Prefix(self._model, batch, room)
        self._next = self._prefix.read(samples)
        self._unread = None

    def values(self, candidates: Tensor, valid: Tensor) -> Tensor:  # noqa: ARG002 - all are there
        """Read the token that was taken last, then look the candidates up."""
        if self._unread is not None:
            self._next = self._read(self._unread)
        return candidate_values(self._next, candidates)

    def advance(self, tokens: Tensor, columns: Tensor) -> None:  # noqa: ARG002 - columns matter to head "v" only
        """Remember the token that was taken; it is read when a value is asked for, so the last one never is."""
        self._unread = tokens

    def _read(self, tokens: Tensor) -> Tensor:
        prefix = self._prefix
        position = prefix.lengths[:, None]
        prefix.note_read(torch.ones_like(prefix.lengths))
        prefix.grow()
        values: Tensor = self._model(
            tokens[:, None],
            attention_mask=prefix.mask,
            position_ids=position,
            past_key_values=prefix.cache,
            use_cache=True,
        )
        return values[:, -1]

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self._prefix.keep(rows)
        self._next = self._next[rows]
        self._unread = None if self._unread is None else self._unread[rows]

    def flops(self) -> int:
        """Of prompts and of the tokens that were taken."""
        return self._prefix.flops()


def candidate_values(values: Tensor, candidates: Tensor) -> Tensor:
    """Look candidates up in the output of head "q".

    Args:
        values: For every next token, shape [B, V], or [B, V, n] with n atoms.
        candidates: Token ids, shape [B, K].

    Returns:
        Shape [B, K], or [B, K, n].
    """
    if values.ndim == 2:
        return values.gather(-1, candidates)
    return values.gather(1, candidates[..., None].expand(-1, -1, values.shape[-1]))


def candidate_mask(padding: Tensor | None, length: int, candidates: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Additive mask by which each candidate sees the prefix and itself, shape [B or 1, 1, K, L + K].

    Args:
        padding: 0 where the prefix is padding, shape [B, L]; None where nothing is.
        length: L.
        candidates: Shape [B, K].
        dtype: Of the model.

    Returns:
        None where a single candidate sees everything, which needs no mask.
    """
    count, device = candidates.shape[1], candidates.device
    if padding is None and count == 1:
        return None
    hidden = torch.finfo(dtype).min
    own = torch.full((count, count), hidden, dtype=dtype, device=device).fill_diagonal_(0.0)
    if padding is None:
        seen = torch.zeros(count, length, dtype=dtype, device=device)
        return torch.cat([seen, own], -1)[None, None]
    prefix = torch.zeros(padding.shape, dtype=dtype, device=device).masked_fill_(padding == 0, hidden)
    block = own[None, None].expand(len(padding), 1, count, count)
    return torch.cat([prefix[:, None, None, :].expand(-1, 1, count, -1), block], -1)
