"""Models that read rows of texts: a policy, and value models that follow it (`guides`).

Prompts are staged first: read together. From there they enter, one row for each sample, whenever slots are free. A
model with full attention lets rows of any age stand side by side (`RowModel`); others are given rows that begin
together (`BatchModel`).

Shapes: P prompts, T positions, n rows that are alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel

from pipeline.learning.generation import grouped_attention  # noqa: F401 - registers itself
from pipeline.learning.generation.batching import pad_left, pad_right
from pipeline.learning.generation.packed import can_pack
from pipeline.learning.generation.readers import Reader, reader_of, reading
from pipeline.learning.generation.row_cache import Entering, RowCache, attended_in
from pipeline.learning.generation.ways import Way
from pipeline.learning.models.value import ValueModel, cache_argument

MASKED = ("sdpa", "eager")
"""Attention of transformers that takes a mask of its own for every row."""


def reads_rows(model: PreTrainedModel) -> bool:
    """Whether a model can read rows of different ages: full attention, and a mask and positions as they are given.

    Args:
        model: A language model or a value model.
    """
    read_by: PreTrainedModel = model.backbone if isinstance(model, ValueModel) else model
    if not can_pack(read_by) or read_by.config._attn_implementation not in MASKED:
        return False
    return reading(model).way is Way.slots


class ModelRows(Protocol):
    """A model that reads what rows grow by.

    Attributes:
        joins: Whether rows can join others that have begun before.
        needs_equal_lengths: Whether prompts of different lengths cannot be read side by side.
    """

    joins: bool
    needs_equal_lengths: bool

    def stage(self, prompts: Sequence[Sequence[int]], *, at_once: bool = False) -> None:
        """Read prompts; `at_once` if each of them becomes one row, in their order, before anything else."""

    def enter(self, places: Tensor | None, lengths: NDArray[np.int64]) -> Tensor:
        """Make rows of staged prompts, behind those alive; returns what was computed at their ends.

        Args:
            places: Which of them, shape [rows]; None where they enter at once.
            lengths: Of each row.
        """

    def unstage(self) -> None:
        """Let go of the staged prompts."""

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows; see `RowCache.keep`."""

    def read(self, tokens: Tensor) -> Tensor:
        """Read the next token of every row, shape [n]; returns what is computed there, shape [n, ...]."""


def model_rows(model: PreTrainedModel, slots: int, width: int, pad_id: int) -> ModelRows:
    """A model's rows, as it can read them.

    Args:
        model: A language model or a value model.
        slots: Rows at once.
        width: Tokens of the longest text.
        pad_id: Token that fills up short prompts.
    """
    return RowModel(model, slots, width, pad_id) if reads_rows(model) else BatchModel(model, pad_id)


class RowModel:
    """A model with a cache in which rows of any age stand side by side."""

    joins = True
    needs_equal_lengths = False

    def __init__(self, model: PreTrainedModel, slots: int, width: int, pad_id: int) -> None:
        """Prepare; see `model_rows`."""
        self.model = model
        self.device, self._pad_id = str(model.device), pad_id
        # Asked once: transformers looks for the type among the weights each time.
        self._dtype = attended_in(model.dtype, model.device)
        self.cache = RowCache(slots, width + 1, self.device)
        self._staged: Cache
        self._outputs: Tensor

    def stage(self, prompts: Sequence[Sequence[int]], *, at_once: bool = False) -> None:
        """Read prompts, padded on the right, where causal attention hides the padding by itself."""
        batch = pad_right(prompts, self._pad_id, self.device)
        self._staged = Entering(self.cache) if at_once else DynamicCache()
        with _last_alone(self.model, None if len(set(map(len, prompts))) == 1 else batch.lengths):
            # A mask of ones: without any, transformers looks for padding by itself and warns of it.
            self._outputs = self._forward(batch.ids, torch.ones_like(batch.ids), batch.positions, self._staged)

    def enter(self, places: Tensor | None, lengths: NDArray[np.int64]) -> Tensor:
        """Make rows of staged prompts."""
        self.cache.enter(self._staged, places, lengths)
        return self._outputs if places is None else self._outputs.index_select(0, places)

    def unstage(self) -> None:
        """Let go of the staged prompts."""
        del self._staged, self._outputs

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows."""
        self.cache.keep(order)

    def read(self, tokens: Tensor) -> Tensor:
        """Read the next token of every row."""
        cache = self.cache
        mask, positions = cache.hidden(self._dtype), cache.lengths.unsqueeze(1)
        outputs = self._forward(tokens.unsqueeze(1), mask, positions, cache)
        cache.grow()
        return outputs

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        named = {cache_argument(type(self.model).forward): cache}
        output: Any = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **named
        )
        outputs: Tensor = output if isinstance(output, Tensor) else output.logits
        return outputs[:, -1]


@contextmanager
def _last_alone(model: PreTrainedModel, lengths: Tensor | None) -> Iterator[None]:
    """Compute outputs at the last token of each text alone, at `lengths - 1`, shape [P]; None of equal ones."""
    head: nn.Module = model.head if isinstance(model, ValueModel) else model.get_output_embeddings()

    def pick(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = given[0]
        if lengths is None:
            return (hidden[:, -1:].contiguous(), *given[1:])
        return (hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1][:, None], *given[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


class BatchModel:
    """A model whose rows begin together."""

    joins = False

    def __init__(self, model: PreTrainedModel, pad_id: int) -> None:
        """Prepare; see `model_rows`."""
        self.model, self._pad_id = model, pad_id
        self.needs_equal_lengths = reading(model).way is Way.anew
        self.reader: Reader
        self._staged: Reader
        self._outputs: Tensor

    def stage(self, prompts: Sequence[Sequence[int]], *, at_once: bool = False) -> None:  # noqa: ARG002 - a batch
        """Read prompts, padded on the left."""
        self._staged = reader_of(self.model)
        self._outputs = self._staged.begin(pad_left(prompts, self._pad_id, str(self.model.device)))

    def enter(self, places: Tensor | None, lengths: NDArray[np.int64]) -> Tensor:  # noqa: ARG002 - the reader knows
        """Make rows of staged prompts, the only ones alive."""
        if places is None:
            self.reader = self._staged
            return self._outputs
        self.reader = self._staged.branched(places)
        return self._outputs.index_select(0, places)

    def unstage(self) -> None:
        """Let go of the staged prompts."""
        del self._staged, self._outputs

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows."""
        self.reader.select(torch.from_numpy(order).to(self.model.device))

    def read(self, tokens: Tensor) -> Tensor:
        """Read the next token of every row."""
        return self.reader.append(tokens)
