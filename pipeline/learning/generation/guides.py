"""Guides: value models that follow the rows of a policy (`row_models`) and value what could come next.

    head "v"    all candidates in one forward pass, each seeing the prefix and itself alone; the chosen candidate's
                keys and values then stay in the cache, so no token is computed twice. In a `BatchModel` each
                candidate is a row of its own meanwhile, and the rows that are chosen go on
    head "q"    one token per step: its output already holds the value of every next token

Shapes: n rows that are alive, K candidates, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.learning.choices import HeadType
from pipeline.learning.generation import sampling
from pipeline.learning.generation.readers import Reader
from pipeline.learning.generation.row_models import (
    BatchModel,
    CannotPack,
    ModelRows,
    PackedStep,
    Packing,
    RowModel,
    model_rows,
    packed,
)
from pipeline.learning.generation.stops import Outputs
from pipeline.learning.models.value import ValueModel

_PACKS: WeakKeyDictionary[ValueModel, bool] = WeakKeyDictionary()


class Guide(Protocol):
    """A value model that follows rows and gives values of what could come next.

    Attributes:
        joins: See `ModelRows`.
        needs_equal_lengths: See `ModelRows`.
        asked: How many candidates of each row were read for the values given last, shape [n]; None where every
            token is read once.
        looks_up: Whether all values are known before candidates are; then no others need to be asked for.
    """

    joins: bool
    needs_equal_lengths: bool
    asked: Tensor | None
    looks_up: bool

    def stage(self, prompts: Sequence[Sequence[int]], *, at_once: bool = False) -> None:
        """Read prompts; see `ModelRows`."""

    def enter(self, places: Tensor | None, lengths: NDArray[np.int64]) -> object:
        """Make rows of staged prompts, behind those alive; see `ModelRows`."""

    def unstage(self) -> None:
        """Let go of the staged prompts."""

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows; see `RowCache.keep`."""

    def values(self, candidates: Tensor, valid: Tensor, count: int | None = None) -> Tensor:
        """Value logits of tokens that could come next.

        Args:
            candidates: Token ids, shape [n, K].
            valid: Which of them are asked for, shape [n, K]; the first of a row always is.
            count: How many are asked for, where that is known.

        Returns:
            Shape [n, K], or [n, K, a] with a atoms; finite but of no meaning where nothing is asked for.
        """

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        """The rows took these tokens, which stood in these columns of the last call of `values`; shape [n]."""

    def defer(self, tokens: Tensor) -> None:
        """The rows took these tokens, of a step for which no value was asked; shape [n]."""

    def read(self, tokens: Tensor) -> None:
        """Those that are left go on after these tokens; shape [n]."""


def guide_of(model: ValueModel, slots: int, width: int, pad_id: int) -> Guide:
    """The guide for a model's type of head; see `model_rows`.

    A head "v" whose rows come and go needs attention that can be replaced, which a trial tells.
    """
    rows = model_rows(model, slots, width, pad_id)
    if model.config.head != HeadType.v.name:
        return VocabularyRows(rows)
    if isinstance(rows, RowModel):
        if model not in _PACKS:
            _PACKS[model] = _packs(model)
        if _PACKS[model]:
            return CandidateRows(rows)
    return BranchRows(BatchModel(model, pad_id))


@torch.inference_mode()
def _packs(model: ValueModel) -> bool:
    """Whether candidates can be read as one sequence: one is, after a prompt of one token."""
    guide = CandidateRows(RowModel(model, 1, 2, pad_id=0))
    guide.stage([[0]])
    one = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    guide.enter(one[0], np.ones(1, np.int64))
    try:
        guide.values(one, torch.ones_like(one, dtype=torch.bool))
    except CannotPack:
        return False
    return True


class CandidateRows:
    """For head "v": all candidates in one forward pass, of which the chosen one stays in the cache.

    Tokens of steps at which no row had a choice are read once a value is asked for again, before the candidates of
    that step and in one pass with them.
    """

    joins = True
    needs_equal_lengths = False
    looks_up = False

    def __init__(self, rows: RowModel) -> None:
        assert isinstance(rows.model, ValueModel)
        self._model, self.rows = rows.model, rows
        self._packing: Packing
        # Which attention ignores; without any, some models look for padding by themselves, and wait for it.
        self._mask = torch.zeros(1, 1, 1, 1, dtype=self._model.dtype, device=self._model.device)
        self.asked: Tensor | None = None
        self._deferred: list[Tensor] = []
        self._pending = 0  # in the columns before those of the candidates, when values were given last
        self.stage, self.unstage = rows.stage, rows.unstage

    def enter(self, places: Tensor | None, lengths: NDArray[np.int64]) -> None:
        """Make rows of staged prompts."""
        self._read_deferred()  # newcomers have none
        self.rows.enter(places, lengths)

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows."""
        self.rows.keep(order)
        if self._deferred:
            kept = torch.from_numpy(order).to(self._deferred[0].device)
            self._deferred = [tokens.index_select(0, kept) for tokens in self._deferred]

    def values(self, candidates: Tensor, valid: Tensor, count: int | None = None) -> Tensor:
        """Forward all candidates at once; what attention needs of the chosen one is kept by `advance`."""
        cache, pending = self.rows.cache, len(self._deferred)
        self.asked = valid.sum(-1)
        if sampling.is_silent():  # all are read: how many are of use would have to be asked for
            valid, count = torch.ones_like(valid), valid.numel()
        if pending:
            candidates = torch.cat([torch.stack(self._deferred, 1), candidates], 1)
            count = None if count is None else count + pending * len(valid)
            valid = F.pad(valid, (pending, 0), value=True)
        self._packing = packing = Packing(valid, count)
        positions = cache.lengths.index_select(0, packing.rows)
        hidden = cache.hidden_prefix(self._model.dtype) if not pending else None
        if pending:
            positions = positions + packing.flat.remainder(valid.shape[1]).clamp_max_(pending)
            hidden = cache.hidden_from_columns(self._model.dtype, pending, valid.shape[1])
        with packed(self._model.backbone, PackedStep(packing, cache, hidden, pending)):
            values: Tensor = self._model(
                packing.pack(candidates),
                attention_mask=None if sampling.may_ask(candidates) else self._mask,
                position_ids=positions[None],
                cache=cache,
                use_cache=True,
            )
        if pending:
            cache.grow(pending)
            self._deferred = []
        self._pending = pending
        return packing.unpack(values)[:, pending:]

    def advance(self, tokens: Tensor, columns: Tensor) -> None:  # noqa: ARG002 - their keys are known already
        """Keep what attention needs of the chosen candidates."""
        columns = columns + self._pending if self._pending else columns
        self.rows.cache.append_held(self._packing.chosen(columns))

    def defer(self, tokens: Tensor) -> None:
        """Read them later, with those that follow."""
        self._deferred.append(tokens)
        self.asked = torch.ones_like(tokens)

    def read(self, tokens: Tensor) -> None:
        """They are read already, as candidates, or deferred."""

    def _read_deferred(self) -> None:
        if not self._deferred:
            return
        last = self._deferred.pop()
        if len(last):
            self.values(last[:, None], torch.ones_like(last, dtype=torch.bool)[:, None], len(last))
            self.advance(last, torch.zeros_like(last))
        self._deferred = []


class BranchRows:
    """For head "v" of any model: what rows remember is branched for their candidates, each a row meanwhile.

    Beside the rows themselves there are branches for `BRANCHES` times as many, or `FEW`, at once. More candidates
    are read in parts, of which nothing is kept: the one that is taken is read once more.
    """

    BRANCHES = 2
    FEW = 64
    joins = False
    looks_up = False

    def __init__(self, rows: BatchModel) -> None:
        self._rows = rows
        self._candidates: Reader | None = None
        self._packing: Packing
        self.needs_equal_lengths = rows.needs_equal_lengths
        self.asked: Tensor | None = None
        self.stage, self.enter, self.unstage, self.keep = rows.stage, rows.enter, rows.unstage, rows.keep

    def values(self, candidates: Tensor, valid: Tensor, count: int | None = None) -> Tensor:
        """Read each candidate that is asked for as the next token of its row."""
        self._packing = packing = Packing(valid, count)
        self.asked = valid.sum(-1)
        at_once = max(self.FEW, self.BRANCHES * len(candidates))
        asked = zip(packing.rows.split(at_once), packing.pack(candidates)[0].split(at_once), strict=True)
        parts: list[Tensor] = []
        for rows, tokens in asked:
            self._candidates = None  # what it remembers is let go of before more is
            self._candidates = self._rows.reader.branched(rows)
            parts.append(self._candidates.append(tokens))
        if len(parts) > 1:
            self._candidates = None
        return packing.unpack(torch.cat(parts)[None])

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        """Go on with the chosen candidates."""
        if self._candidates is None:
            self._rows.reader.append(tokens)
        else:
            self._candidates.select(self._packing.chosen(columns))
            self._rows.reader = self._candidates
        self._candidates = None

    def defer(self, tokens: Tensor) -> None:
        """Read them, as if their values were of use: what rows remember grows by one token at a time."""
        self.values(tokens[:, None], torch.ones_like(tokens, dtype=torch.bool)[:, None])
        self.advance(tokens, torch.zeros_like(tokens))

    def read(self, tokens: Tensor) -> None:
        """They are read already, as candidates."""


class VocabularyRows:
    """For head "q": one token per step, whose output holds the value of every next token."""

    asked: Tensor | None = None
    looks_up = True

    def __init__(self, rows: ModelRows) -> None:
        self.rows = rows
        self.outputs = Outputs()
        self.joins, self.needs_equal_lengths = rows.joins, rows.needs_equal_lengths
        self.stage, self.unstage = rows.stage, rows.unstage

    def enter(self, places: Tensor | None, lengths: NDArray[np.int64]) -> None:
        """Make rows of staged prompts; the last position's output holds the values of the first token."""
        self.outputs.enter(self.rows.enter(places, lengths))

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows."""
        self.rows.keep(order)
        self.outputs.keep(order)

    def values(self, candidates: Tensor, valid: Tensor, count: int | None = None) -> Tensor:  # noqa: ARG002 - all are there
        """Look the candidates up."""
        return candidate_values(self.outputs.known, candidates)

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        """Nothing is known of tokens until they are read."""

    def defer(self, tokens: Tensor) -> None:
        """Nothing is known of tokens until they are read."""

    def read(self, tokens: Tensor) -> None:
        """Read the tokens that were taken last."""
        self.outputs.read(self.rows.read(tokens))


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
