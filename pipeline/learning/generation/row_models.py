"""Models that read rows of different ages side by side: a policy, and value models that follow it.

Prompts are staged first: read together, padded on the right, where causal attention hides the padding by itself.
From there they enter the slots, one row for each sample, whenever slots are free.

Shapes: P prompts, T positions, n rows that are alive, K candidates, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.learning.choices import HeadType
from pipeline.learning.generation.batching import PromptBatch, pad_right
from pipeline.learning.generation.guide import candidate_values
from pipeline.learning.generation.packed import CannotPack, PackedStep, Packing, can_pack, packed
from pipeline.learning.generation.readers import reading
from pipeline.learning.generation.row_cache import RowCache
from pipeline.learning.generation.slots import SlotCache
from pipeline.learning.generation.ways import Way
from pipeline.learning.models.value import ValueModel

MASKED = ("sdpa", "eager")
"""Attention of transformers that takes a mask of its own for every row."""


_PACKS: WeakKeyDictionary[ValueModel, bool] = WeakKeyDictionary()


def reads_rows(model: PreTrainedModel) -> bool:
    """Whether a model can read rows of different ages: full attention, and a mask and positions as they are given.

    A head "v" also needs attention that can be replaced, which a trial tells.

    Args:
        model: A language model or a value model.
    """
    read_by: PreTrainedModel = model.backbone if isinstance(model, ValueModel) else model
    if not can_pack(read_by) or read_by.config._attn_implementation not in MASKED:
        return False
    if reading(model).way is not Way.slots:
        return False
    if not isinstance(model, ValueModel) or model.config.head != HeadType.v.name:
        return True
    if model not in _PACKS:
        _PACKS[model] = _packs(model)
    return _PACKS[model]


@torch.inference_mode()
def _packs(model: ValueModel) -> bool:
    """Whether candidates can be read as one sequence: one is, after a prompt of one token."""
    device = str(model.device)
    reader = CandidateRows(RowModel(model, 1, 2, device))
    reader.stage(pad_right([[0]], 0, device))
    reader.enter(torch.zeros(1, dtype=torch.long, device=device), np.ones(1, np.int64))
    one = torch.zeros(1, 1, dtype=torch.long, device=device)
    try:
        reader.values(one, torch.ones_like(one, dtype=torch.bool))
    except CannotPack:
        return False
    return True


class RowModel:
    """A model with its cache."""

    def __init__(self, model: PreTrainedModel, slots: int, width: int, device: str) -> None:
        """Prepare.

        Args:
            model: A language model or a value model.
            slots: Rows at once.
            width: Tokens of the longest text.
            device: ``cpu`` or ``cuda``.
        """
        self.model = model
        self.cache = RowCache(slots, width + 1, device)
        self._staged: SlotCache
        self._outputs: Tensor

    def stage(self, batch: PromptBatch) -> None:
        """Read prompts, padded on the right."""
        self._staged = SlotCache(batch.ids.shape[1])
        with _last_alone(self.model, batch.lengths):
            # A mask of ones: without any, transformers looks for padding by itself and warns of it.
            self._outputs = self._forward(batch.ids, torch.ones_like(batch.ids), batch.positions, self._staged)

    def enter(self, places: Tensor, lengths: NDArray[np.int64]) -> Tensor:
        """Make rows of staged prompts, behind those alive; returns what was computed at their ends."""
        self.cache.enter(self._staged, places, lengths)
        return self._outputs.index_select(0, places)

    def unstage(self) -> None:
        """Let go of the staged prompts."""
        del self._staged, self._outputs

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows; see `RowCache.keep`."""
        self.cache.keep(order)

    def read(self, tokens: Tensor) -> Tensor:
        """Read the next token of every row, shape [n]; returns what is computed there, shape [n, ...]."""
        cache = self.cache
        outputs = self._forward(tokens[:, None], cache.hidden(self.model.dtype), cache.lengths[:, None], cache)
        cache.grow()
        return outputs

    def _forward(self, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: SlotCache) -> Tensor:
        output: Any = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        outputs: Tensor = output if isinstance(output, Tensor) else output.logits
        return outputs[:, -1]


@contextmanager
def _last_alone(model: PreTrainedModel, lengths: Tensor) -> Iterator[None]:
    """Compute outputs at the last token of each text alone, at the place `lengths - 1`; shape [P]."""
    head: nn.Module = model.head if isinstance(model, ValueModel) else model.get_output_embeddings()

    def pick(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = given[0]
        return (hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1][:, None], *given[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


class RowReader(Protocol):
    """Gives values of candidates, as `guide.ValueReader`, to rows that come and go.

    Attributes:
        asked: How many candidates of each row were read for the values given last, shape [n]; None where every
            token is read once.
    """

    asked: Tensor | None

    def stage(self, batch: PromptBatch) -> None:
        """Read prompts, padded on the right."""

    def enter(self, places: Tensor, lengths: NDArray[np.int64]) -> None:
        """Make rows of staged prompts, behind those alive."""

    def unstage(self) -> None:
        """Let go of the staged prompts."""

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows; see `RowCache.keep`."""

    def values(self, candidates: Tensor, valid: Tensor) -> Tensor:
        """Value logits of tokens that could come next; see `guide.ValueReader.values`."""

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        """The rows took these tokens, which stood in these columns; shape [n]."""

    def read(self, tokens: Tensor) -> None:
        """Those that are left go on after these tokens; shape [n]."""


def row_reader(model: ValueModel, slots: int, width: int, device: str) -> RowReader:
    """The reader for a model's type of head; see `RowModel`."""
    rows = RowModel(model, slots, width, device)
    return CandidateRows(rows) if model.config.head == HeadType.v.name else VocabularyRows(rows)


class CandidateRows:
    """For head "v": all candidates in one forward pass, of which the chosen one stays in the cache."""

    def __init__(self, rows: RowModel) -> None:
        assert isinstance(rows.model, ValueModel)
        self._model, self._rows = rows.model, rows
        self._packing: Packing
        self.asked: Tensor | None = None
        self.stage, self.unstage, self.keep = rows.stage, rows.unstage, rows.keep

    def enter(self, places: Tensor, lengths: NDArray[np.int64]) -> None:
        """Make rows of staged prompts."""
        self._rows.enter(places, lengths)

    def values(self, candidates: Tensor, valid: Tensor) -> Tensor:
        """Forward all candidates at once; what attention needs of the chosen one is kept by `advance`."""
        cache = self._rows.cache
        self._packing = packing = Packing(valid)
        with packed(self._model.backbone, PackedStep(packing, cache, cache.hidden_prefix(self._model.dtype))):
            values: Tensor = self._model(
                packing.pack(candidates),
                position_ids=cache.lengths.index_select(0, packing.rows)[None],
                past_key_values=cache,
                use_cache=True,
            )
        self.asked = valid.sum(-1)
        return packing.unpack(values)

    def advance(self, tokens: Tensor, columns: Tensor) -> None:  # noqa: ARG002 - their keys are known already
        """Keep what attention needs of the chosen candidates."""
        self._rows.cache.append_held(self._packing.chosen(columns))

    def read(self, tokens: Tensor) -> None:
        """They are read already, as candidates."""


class VocabularyRows:
    """For head "q": one token per step, whose output holds the value of every next token."""

    asked: Tensor | None = None

    def __init__(self, rows: RowModel) -> None:
        self._rows = rows
        self._next: Tensor | None = None
        self.stage, self.unstage = rows.stage, rows.unstage

    def enter(self, places: Tensor, lengths: NDArray[np.int64]) -> None:
        """Make rows of staged prompts; the last position's output holds the values of the first token."""
        new = self._rows.enter(places, lengths)
        self._next = new if self._next is None else torch.cat([self._next, new])

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows, whose next tokens will be read."""
        self._rows.keep(order)
        self._next = None

    def values(self, candidates: Tensor, valid: Tensor) -> Tensor:  # noqa: ARG002 - all are there
        """Look the candidates up."""
        assert self._next is not None
        return candidate_values(self._next, candidates)

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        """Nothing is known of tokens until they are read."""

    def read(self, tokens: Tensor) -> None:
        """Read the tokens that were taken last."""
        self._next = self._rows.read(tokens)
