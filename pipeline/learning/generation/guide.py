"""A value model that follows decoding with a KV cache of its own.

    head "v"    all candidates in one forward pass, each seeing the prefix and itself alone; the chosen candidate's
                keys and values then stay in the cache, so no token is computed twice. Of a model that is read in
                another way than by slots each candidate is a row of its own, and the rows that are chosen go on
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
from pipeline.learning.generation.readers import Branching, Reader, needs_equal_lengths, reader_of, reading
from pipeline.learning.generation.slots import SlotCache
from pipeline.learning.generation.ways import Way
from pipeline.learning.models.flops import Pass, model_cost, whole_texts
from pipeline.learning.models.load import context_length
from pipeline.learning.models.value import ValueModel


class ValueReader(Protocol):
    """Gives values of candidates while rows of a batch grow token by token.

    Attributes:
        needs_equal_lengths: Whether prompts of different lengths cannot be read side by side.
    """

    needs_equal_lengths: bool

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
    if model.config.head != HeadType.v.name:
        return VocabularyReader(model)
    return CandidateReader(model) if reading(model).way is Way.slots else BranchReader(model)


def readable(model: ValueModel, candidates: int) -> int | None:
    """Tokens of prompt and completion that a guide can read, or None where nothing limits them.

    Args:
        model: The guide.
        candidates: At each step, at most.
    """
    context = context_length(model.backbone)
    side_by_side = model.config.head == HeadType.v.name and reading(model).way is Way.slots
    if context is None or not side_by_side or can_pack(model.backbone):
        return context
    # The candidates of a step stand side by side behind the text: a mask of the model's own, as GPT-Neo has one,
    # must be wide enough for all of them.
    own_mask = any(buffer.shape[-2:] == (context, context) for buffer in model.backbone.buffers())
    return context - candidates + 1 if own_mask else context


class _Spent:
    """What a guide has read since it began, for its FLOPs."""

    def __init__(self, model: ValueModel, batch: PromptBatch) -> None:
        self._model, self._prompts = model, batch.lengths
        # Added up where they are computed, as asking a device for a number at each step would make it wait.
        self._tokens = torch.zeros((), dtype=torch.int64, device=batch.ids.device)
        self._positions = torch.zeros_like(self._tokens)

    def note_read(self, tokens: Tensor, lengths: Tensor) -> None:
        """Count tokens that each row has read beside each other, next after it; both of shape [B]."""
        self._tokens += tokens.sum()
        self._positions += (tokens * (lengths + 1)).sum()

    def flops(self) -> int:
        prompts, read = whole_texts(self._prompts.cpu().numpy()), int(self._tokens)
        return model_cost(self._model).forward(prompts + Pass(read, int(self._positions), read))


class _Prefix:
    """What rows have in common while they grow: the cache, which positions are padding, how long each row is."""

    def __init__(self, model: ValueModel, batch: PromptBatch, room: int) -> None:
        self.model = model
        self.cache = SlotCache(batch.ids.shape[1] + room)
        self.mask = batch.mask
        self.lengths = batch.lengths
        self.spent = _Spent(model, batch)
        self._batch = batch

    def read(self, samples: int) -> None:
        batch = self._batch
        self.model(
            batch.ids,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            past_key_values=self.cache,
            use_cache=True,
        )
        if samples > 1:
            self.keep(torch.arange(len(batch.ids), device=batch.ids.device).repeat_interleave(samples))

    def grow(self) -> None:
        self.lengths = self.lengths + 1
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], -1)

    def keep(self, rows: Tensor) -> None:
        self.cache.select(rows)
        self.lengths = self.lengths[rows]
        self.mask = None if self.mask is None else self.mask[rows]


class CandidateReader:
    """For head "v" of models that are read by slots."""

    needs_equal_lengths = False

    def __init__(self, model: ValueModel) -> None:
        self._model = self.model = model
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
        self._prefix.spent.note_read(valid.sum(-1), self._prefix.lengths)
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
        return self._prefix.spent.flops()


class _Grown:
    """Rows as they are read by a `Reader`, with what has been spent."""

    def __init__(self, model: ValueModel) -> None:
        self._model = self.model = model
        self.needs_equal_lengths = needs_equal_lengths(model)
        self._reader: Reader
        self._lengths: Tensor
        self._spent: _Spent

    def _begin(self, batch: PromptBatch, samples: int, room: int) -> Tensor:
        self._reader, self._spent = reader_of(self._model), _Spent(self._model, batch)
        self._lengths = batch.lengths.repeat_interleave(samples, 0)
        return self._reader.begin(batch, samples, room)

    def flops(self) -> int:
        """Of prompts and of what was read after them."""
        return self._spent.flops()


class BranchReader(_Grown):
    """For head "v" of any model: what rows remember is branched for their candidates, each a row meanwhile."""

    _candidates: Branching
    _packing: Packing

    def begin(self, batch: PromptBatch, samples: int, room: int) -> None:
        """Read the prompts."""
        self._begin(batch, samples, room)

    def values(self, candidates: Tensor, valid: Tensor) -> Tensor:
        """Read each candidate that is asked for as the next token of its row."""
        self._spent.note_read(valid.sum(-1), self._lengths)
        self._packing = packing = Packing(valid)
        assert isinstance(self._reader, Branching)
        self._candidates = self._reader.branched(packing.rows)
        return packing.unpack(self._candidates.append(packing.pack(candidates)[0])[None])

    def advance(self, tokens: Tensor, columns: Tensor) -> None:  # noqa: ARG002 - they are read already
        """Go on with the chosen candidates."""
        self._candidates.select(self._packing.chosen(columns))
        self._reader = self._candidates
        del self._candidates
        self._lengths = self._lengths + 1

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self._reader.select(rows)
        self._lengths = self._lengths[rows]


class VocabularyReader(_Grown):
    """For head "q"."""

    _next: Tensor
    _unread: Tensor | None = None

    def begin(self, batch: PromptBatch, samples: int, room: int) -> None:
        """Read the prompts; the last position's output holds the values of the first token."""
        self._next = self._begin(batch, samples, room)
        self._unread = None

    def values(self, candidates: Tensor, valid: Tensor) -> Tensor:  # noqa: ARG002 - all are there
        """Read the token that was taken last, then look the candidates up."""
        if self._unread is not None:
            self._spent.note_read(torch.ones_like(self._lengths), self._lengths)
            self._lengths = self._lengths + 1
            self._next = self._reader.append(self._unread)
        return candidate_values(self._next, candidates)

    def advance(self, tokens: Tensor, columns: Tensor) -> None:  # noqa: ARG002 - columns matter to head "v" only
        """Remember the token that was taken; it is read when a value is asked for, so the last one never is."""
        self._unread = tokens

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self._reader.select(rows)
        self._lengths = self._lengths[rows]
        self._next = self._next[rows]
        self._unread = None if self._unread is None else self._unread[rows]


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
