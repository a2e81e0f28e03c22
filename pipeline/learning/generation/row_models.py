"""Models that read rows of texts: a policy, and value models that follow it.

Prompts are staged first: read together. From there they enter, one row for each sample, whenever slots are free. A
model with full attention lets rows of any age stand side by side (`RowModel`); others are given rows that begin
together (`BatchModel`).

Shapes: P prompts, T positions, n rows that are alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedModel
from transformers.integrations import sdpa_attention

from pipeline.learning.choices import HeadType
from pipeline.learning.generation import row_cache, sampling
from pipeline.learning.generation.readers import Reader, Way, pad_left, pad_right, reader_of, reading
from pipeline.learning.generation.row_cache import Entering, RowCache, RowLayer, attended_in
from pipeline.learning.generation.stops import Outputs
from pipeline.learning.models.value import ValueModel, cache_argument

# -- packed ------------------------------------------------------------------------------------------------------
# One forward pass over the candidates of all rows as a single sequence, without padding between rows. Rows of a
# batch have one candidate or many. Side by side in a rectangle, every row would pay for the widest. Packed,
# everything that works token by token sees real candidates only. Attention alone has to know which row a
# candidate is of. For this pass it is replaced by `PackedStep.attend`, through the interface that transformers
# has for that: each candidate sees the cached prefix of its row and itself. Candidates leave no trace in the
# cache until one is chosen. Tokens that a row has taken since it was read last may go before them, and stay in
# the cache. Shapes: B rows, W columns of the widest row, N candidates in all, H heads, G heads that share keys
# and values, S cached slots, D size of a head.


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

    def __init__(self, packing: Packing, cache: RowCache, hidden: Tensor | None, pending: int = 0) -> None:
        """Prepare a step.

        Args:
            packing: Of the candidates.
            cache: With the prefix of every row.
            hidden: -inf where the prefix is padding and 0 elsewhere, shape [B, 1, slots in all]; None where
                nothing is. Of a column each where tokens are pending, shape [B, W, slots in all].
            pending: Columns before the candidates that hold tokens of the prefix which are not in the cache yet.
        """
        self.packing = packing
        self.cache = cache
        self.hidden = hidden
        self.attended: list[int] = []
        first = packing.flat.new_zeros(packing.shape[0]) if pending else packing.flat
        self._pending = [packing.chosen(first + column) for column in range(pending)]

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
        for further, chosen in enumerate(self._pending):
            slots.append_of(key, value, chosen, further)
        used, shared = slots.used + len(self._pending), key.shape[1]
        _, heads, count, size = query.shape
        spread, gather = self.packing.by_head(heads)
        queries = (query[0].transpose(0, 1) * scaling).view(count, shared, -1, size)
        # As kernels sum: a product rounded to bfloat16 is off by 1 % of the weight of a score of 10.
        own = (queries.float() * key[0].transpose(0, 1).unsqueeze(2)).sum(-1)
        blocks = queries.reshape(-1, size).index_select(0, spread).view(len(slots.keys) * shared, -1, size)
        wide = value.shape[-1]  # that of keys, but in latent attention
        self.attended.append(layer)
        if row_cache.is_merged(query, value):
            seen, total = self._prefix(slots, blocks, used)
            seen = seen.reshape(-1, wide).index_select(0, gather).view(*own.shape, wide)
            total = total.reshape(-1).index_select(0, gather).view(own.shape)
            output = row_cache.merge(seen, total, own, value[0].transpose(0, 1).unsqueeze(2))
            return output.view(1, count, heads, wide)
        keys, values = slots.keys.flatten(0, 1), slots.values.flatten(0, 1)
        # One slot more than there are: its scores make room for those of the candidates with themselves.
        scores = torch.bmm(blocks, keys[:, : used + 1].transpose(1, 2)).view(-1, used + 1)
        torch.index_select(own.view(-1).to(scores.dtype), 0, spread, out=scores[:, used])
        if self.hidden is not None:
            columns = self.hidden.shape[1]
            scores.view(len(slots.keys), -1, columns, used + 1).add_(self.hidden[:, None, :, : used + 1])
        weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
        seen = torch.bmm(weights.view(len(blocks), -1, used + 1)[..., :used], values[:, :used])
        seen = seen.view(-1, wide).index_select(0, gather).view(count, shared, -1, wide)
        weight = weights[:, used].index_select(0, gather).view(*own.shape, 1)
        output = torch.addcmul(seen, weight, value[0].transpose(0, 1).unsqueeze(2))
        return output.view(1, count, heads, wide)

    def _prefix(self, slots: RowLayer, blocks: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """What the queries see of the prefixes alone, and its log-sum-exp; see `attend_prefix`."""
        rows, shared = slots.keys.shape[:2]
        hidden = self.hidden
        if hidden is not None:
            # Queries that share a head of keys lie head by head, column by column.
            hidden = hidden[:, None, :, :used]
            if hidden.shape[2] > 1:
                hidden = hidden.repeat(1, 1, blocks.shape[1] // hidden.shape[2], 1)
        return row_cache.attend_prefix(
            blocks.view(rows, shared, *blocks.shape[1:]),
            slots.keys[:, :, :used],
            slots.values[:, :, :used],
            hidden,
        )


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


def can_pack(model: PreTrainedModel) -> bool:
    """Whether a model says that its attention can be replaced."""
    return bool(model._supports_attention_backend)


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


# -- grouped attention -------------------------------------------------------------------------------------------
# Attention of one query a row by heads of keys, as transformers' `sdpa` has it since 5.23. Before, a mask made
# it repeat keys and values for every head of queries, in each layer of each step of decoding: for a model with
# four heads of queries to one of keys that is four times the cache, written and read again. The queries that
# share a head of keys can as well be that many queries of one head. Shapes: B rows, H heads of queries, G heads
# of keys and values, S slots, D size of a head.


GROUPED_CHANGES = ("cache", "position_bias", "softcap")
"""Arguments of it that change what is attended to, and are left to it."""


def attention(
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
    if by_itself or any(options.get(name) is not None for name in GROUPED_CHANGES):
        found: tuple[Tensor, None] = sdpa_attention.sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return found
    seen = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(len(query), shared, heads // shared, -1),
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
    )
    return seen.reshape(len(seen), 1, heads, -1), None


if not hasattr(sdpa_attention, "pack_gqa"):
    AttentionInterface.register("sdpa", attention)

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


ModelRows: TypeAlias = "RowModel | BatchModel"
"""A model that reads what rows grow by. Prompts are staged, and enter as rows, a prompt by several places for its
samples. `joins` says whether rows can join others that have begun before, `needs_equal_lengths` whether prompts of
different lengths cannot be read side by side."""


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

    def stage(self, prompts: Sequence[Sequence[int]], *, at_once: bool = False) -> None:
        """Read prompts, padded on the left."""
        self._staged = reader_of(self.model)
        self._outputs = self._staged.begin(pad_left(prompts, self._pad_id, str(self.model.device)))

    def enter(self, places: Tensor | None, lengths: NDArray[np.int64]) -> Tensor:
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


# -- guides ------------------------------------------------------------------------------------------------------
# Value models that follow the rows of a policy and value what could come next.
#
#     values      value logits of tokens that could come next, shape [n, K], or [n, K, a] with a atoms; finite but
#                 of no meaning where nothing is asked for. Given are ids and which of them are asked for, both of
#                 shape [n, K], where the first of a row always is, and how many are, where that is known
#     advance     the rows took these tokens, which stood in these columns of the last call of `values`; shape [n]
#     defer       the rows took these tokens, of a step for which no value was asked
#     read        those that are left go on after these tokens
#     asked       how many candidates of each row were read for the values given last, shape [n]; None where every
#                 token is read once
#     looks_up    whether all values are known before candidates are; then no others need to be asked for
#
#     head "v"    all candidates in one forward pass, each seeing the prefix and itself alone; the chosen one's
#                 keys and values then stay in the cache, so no token is computed twice. In a `BatchModel` each
#                 candidate is a row of its own meanwhile, and the rows that are chosen go on
#     head "q"    one token per step: its output already holds the value of every next token
#
# Shapes: n rows that are alive, K candidates, V tokens of the vocabulary.


_PACKS: WeakKeyDictionary[ValueModel, bool] = WeakKeyDictionary()


Guide: TypeAlias = "CandidateRows | BranchRows | VocabularyRows"
"""A value model that follows rows and gives values of what could come next."""


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

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
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

    def values(self, candidates: Tensor, valid: Tensor, count: int | None = None) -> Tensor:
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
