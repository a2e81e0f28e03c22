"""Models that read rows of texts token by token: a policy, and value models that follow it.

Prompts are first staged, which means read together. From there they enter, one row per sample, whenever slots are
free. A model with full attention supports rows of any age in one batch (`RowModel`); other models get rows that
begin together (`BatchModel`).

Shapes: P prompts, T positions, n rows that are alive.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache, DynamicCache, PreTrainedModel

from pipeline.learning.choices import HeadType
from pipeline.learning.generation import row_cache, sampling
from pipeline.learning.models.value import ValueModel, cache_argument, inputs_of

# -- ways --------------------------------------------------------------------------------------------------------
# Cache types: how a model is read token by token, which its configuration determines.


class Way(Enum):
    """Cache type of a model."""

    slots = "slots"  # keys and values in fixed slots (`row_cache`), if every layer has full attention
    own = "own"  # transformers' own cache of the model: sliding windows, chunks, ALiBi
    states = "states"  # the same, with recurrent layers, whose state padding before a text would change
    anew = "anew"  # no cache: the whole text is read again for each token


NO_CACHE = ("minimax", "openai-gpt", "recurrent_gemma", "rwkv", "xlstm")
"""Kinds of models whose state is in no cache of transformers."""

ALIBI = ("bloom", "mpt")
"""Kinds of models that always use ALiBi; others say so by `alibi`."""

_STATES = {
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
}
_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "DummyLayer", *_STATES}
"""Layers of transformers' caches whose rows can be selected."""


def reading_of(config: Any) -> Way:
    """Return the cache type of models with a configuration.

    Args:
        config: Configuration of a language model, or of the backbone of a value model.
    """
    text = config.get_text_config(decoder=True)
    kind = text.model_type
    if kind in NO_CACHE:
        return Way.anew
    try:
        layers = {type(layer).__name__ for layer in DynamicCache(config=text).layers}
    except (AttributeError, KeyError, TypeError, ValueError):
        return Way.anew
    if layers - _LAYERS:
        return Way.anew
    if layers & _STATES:
        return Way.states
    looks_back = set(getattr(text, "layer_types", None) or ["full_attention"]) != {"full_attention"}
    looks_back |= bool(getattr(text, "sliding_window", None)) and not hasattr(text, "layer_types")
    if kind == "gpt_neo" and "local" in text.attention_layers:
        # Its window counts candidates of a step as positions.
        looks_back |= text.window_size < text.max_position_embeddings
    is_weighed = kind in ALIBI or getattr(text, "alibi", False)
    takes_no_mask_for_all = kind == "xglm"
    return Way.own if looks_back or is_weighed or takes_no_mask_for_all else Way.slots


_READINGS: WeakKeyDictionary[PreTrainedModel, Way] = WeakKeyDictionary()


def reading(model: PreTrainedModel) -> Way:
    """Return the cache type of a model, determined once: looking at its layers needs a cache."""
    if model not in _READINGS:
        _READINGS[model] = reading_of(model.config.backbone if isinstance(model, ValueModel) else model.config)
    return _READINGS[model]


MASKED = ("sdpa", "eager")
"""Attention implementations of transformers that accept a mask per row."""


def reads_rows(model: PreTrainedModel) -> bool:
    """Return whether a model supports rows of different ages: full attention, with given masks and positions.

    Args:
        model: A language model or a value model.
    """
    read_by: PreTrainedModel = model.backbone if isinstance(model, ValueModel) else model
    if not read_by._supports_attention_backend or read_by.config._attn_implementation not in MASKED:
        return False
    return reading(model) is Way.slots


ModelRows: TypeAlias = "RowModel | BatchModel"
"""A model with rows. Prompts are staged, and enter as rows, a prompt several times for its samples. `joins` says
whether rows can join others that began before, `needs_equal_lengths` whether prompts of different lengths cannot
be batched."""


def model_rows(model: PreTrainedModel, slots: int, width: int, pad_id: int) -> ModelRows:
    """Return the rows of a model, by its cache type.

    Args:
        model: A language model or a value model.
        slots: Number of rows at once.
        width: Tokens of the longest text.
        pad_id: Padding token for short prompts.
    """
    return RowModel(model, slots, width, pad_id) if reads_rows(model) else BatchModel(model, pad_id)


class RowModel:
    """A model with a cache for rows of any age."""

    joins = True
    needs_equal_lengths = False

    def __init__(self, model: PreTrainedModel, slots: int, width: int, pad_id: int) -> None:
        """Prepare; see `model_rows`."""
        self.model = model
        self.device, self._pad_id = str(model.device), pad_id
        # Asked once: transformers searches the weights for the type on every call.
        self._dtype = row_cache.attended_in(model.dtype, model.device)
        self.cache = row_cache.RowCache(slots, width + 1, self.device)
        self._staged: Cache
        self._outputs: Tensor

    def stage(self, prompts: Sequence[Sequence[int]], *, at_once: bool = False) -> None:
        """Read prompts, padded on the right: causal attention never sees the padding."""
        batch = padded(prompts, self._pad_id, self.device, "right")
        self._staged = row_cache.Entering(self.cache) if at_once else DynamicCache()
        with _last_alone(self.model, None if len(set(map(len, prompts))) == 1 else batch.lengths):
            # A mask of ones: without any, transformers searches for padding and warns about it.
            self._outputs = self._forward(batch.ids, torch.ones_like(batch.ids), batch.positions, self._staged)

    def enter(self, places: Tensor | None, lengths: NDArray[np.int64]) -> Tensor:
        """Make rows of staged prompts."""
        self.cache.enter(self._staged, places, lengths)
        return self._outputs if places is None else self._outputs.index_select(0, places)

    def unstage(self) -> None:
        """Drop the staged prompts."""
        del self._staged, self._outputs

    def keep(self, order: NDArray[np.int64]) -> None:
        """Reorder and drop rows."""
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
        return _outputs(
            self.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **named)
        )


@contextmanager
def _last_alone(model: PreTrainedModel, lengths: Tensor | None) -> Iterator[None]:
    """Compute outputs only at the last token of each text, at `lengths - 1`, shape [P]; None for equal lengths."""
    head: nn.Module = model.head if isinstance(model, ValueModel) else model.get_output_embeddings()

    def pick(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = arguments[0]
        if lengths is None:
            return (hidden[:, -1:].contiguous(), *arguments[1:])
        return (hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1][:, None], *arguments[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class PromptBatch:
    """Prompts as a rectangle. Shapes: P prompts, L positions.

    Attributes:
        ids: Token ids, shape [P, L].
        mask: 1 for tokens and 0 for padding before them, shape [P, L]; None without padding.
        positions: Position of each token in its own prompt, shape [P, L].
        lengths: Tokens of each prompt, shape [P].
    """

    ids: Tensor
    mask: Tensor | None
    positions: Tensor
    lengths: Tensor


def padded(
    prompts: Sequence[Sequence[int]], pad_id: int, device: str, side: Literal["left", "right"]
) -> PromptBatch:
    """Make a rectangle of prompts. Padding on the right needs no mask with causal attention."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids = pad_sequence([torch.as_tensor(prompt) for prompt in prompts], True, pad_id, side)
    before = (ids.shape[1] - lengths if side == "left" else torch.zeros_like(lengths))[:, None]
    places = torch.arange(ids.shape[1])[None]
    mask = (places >= before).long().to(device) if before.any() else None
    return PromptBatch(ids.to(device), mask, (places - before).clamp_min(0).to(device), lengths.to(device))


class Reader:
    """Reads the tokens of rows that begin together.

    They are read into transformers' own cache of the model; without a cache, the whole text is read again for each
    token. Results are the model's outputs at the last token of each row: logits of a language model, shape [B, V],
    or values of a value model, shape [B, ...].
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._way = model, reading(model)
        read_by: Any = model.backbone if isinstance(model, ValueModel) else model
        self._config, self._takes = read_by.config, inputs_of(type(read_by).forward)
        self._cache: Any = None
        self._ids: Tensor
        self._mask: Tensor | None
        self._lengths: Tensor

    def begin(self, batch: PromptBatch) -> Tensor:
        """Read the prompts, which must have equal lengths for a model without a cache."""
        self._ids, self._mask, self._lengths = batch.ids, batch.mask, batch.lengths
        if self._way is Way.states and batch.mask is not None:
            return self._read_apart(batch)
        self._cache = self._empty()
        return self._read(batch.ids, batch.positions)

    def append(self, tokens: Tensor) -> Tensor:
        """Read one more token of each row."""
        ids, positions = tokens[:, None], self._lengths[:, None]
        self._lengths = self._lengths + 1
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], -1)
        if self._cache is None:
            self._ids = ids = torch.cat([self._ids, ids], -1)
        return self._read(ids, positions)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self._lengths = self._lengths[rows]
        self._mask = None if self._mask is None else self._mask[rows]
        if self._cache is None:
            self._ids = self._ids[rows]
        else:
            self._cache.reorder_cache(rows)

    def branched(self, rows: Tensor) -> Reader:
        """Return an independent reader that continues with these rows."""
        other = copy.copy(self)
        other._cache = None if self._cache is None else _twin(self._cache)
        other.select(rows)
        return other

    def _read_apart(self, batch: PromptBatch) -> Tensor:
        """Read prompts of each length separately, without padding, and join their caches."""
        caches, outputs, order = [], [], []
        self._mask = None
        for length in batch.lengths.unique().tolist():
            rows = (batch.lengths == length).nonzero().squeeze(-1)
            caches.append(self._empty())
            self._cache = caches[-1]
            outputs.append(self._read(batch.ids[rows, -length:], batch.positions[rows, -length:]))
            order.append(rows)
        self._cache = _joined(caches)
        # A recurrent state has no positions: a model without attention would take a mask for one of new tokens.
        attends = any(isinstance(getattr(layer, "keys", None), Tensor) for layer in self._cache.layers)
        self._mask = batch.mask if attends else None
        back = torch.cat(order).argsort()
        self._cache.reorder_cache(back)
        return torch.cat(outputs)[back]

    def _empty(self) -> Any:
        if self._way is Way.anew:
            return None
        return DynamicCache(config=self._config.get_text_config(decoder=True))

    def _read(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the model's output at the last position of each row; model families take different arguments."""
        arguments: dict[str, Any] = {"use_cache": self._cache is not None}
        if self._cache is not None:
            arguments |= {"attention_mask": self._mask, "position_ids": positions}
        if not isinstance(self._model, ValueModel):
            arguments["logits_to_keep"] = 1
        arguments = {name: value for name, value in arguments.items() if name in self._takes}
        if self._cache is not None:
            arguments[cache_argument(type(self._model).forward)] = self._cache
        return _outputs(self._model(input_ids=ids, **arguments))


def _outputs(output: Any) -> Tensor:
    """Return values, or the logits of a language model, at the last position of each row."""
    outputs: Tensor = output if isinstance(output, Tensor) else output.logits
    return outputs[:, -1]


_BY_POSITION = ("keys", "values", "indexer_keys")
"""Tensors of layers with one entry per position, in the last dimension but one."""
_BY_PLACE = ("conv_states", "recurrent_states")


def _twin(cache: Cache) -> Cache:
    """Return a cache with the same tensors, whose rows can be selected without changing the original."""
    twin = copy.copy(cache)
    twin.layers = []
    for layer in cache.layers:
        own = copy.copy(layer)
        for name, value in vars(layer).items():
            if isinstance(value, dict):
                setattr(own, name, dict(value))
        twin.layers.append(own)
    return twin


def _joined(caches: Sequence[Cache]) -> Cache:
    """Return one cache with the rows of several, aligned at the last position; shorter ones are padded."""
    whole = _twin(caches[-1])
    for index, layer in enumerate(whole.layers):
        parts = [cache.layers[index] for cache in caches]
        for name in _BY_POSITION:
            entries = [getattr(part, name, None) for part in parts]
            tensors = [tensor for tensor in entries if isinstance(tensor, Tensor) and tensor.ndim > 1]
            if len(tensors) == len(parts):
                width = max(tensor.shape[-2] for tensor in tensors)
                padded = [F.pad(tensor, (0, 0, width - tensor.shape[-2], 0)) for tensor in tensors]
                setattr(layer, name, torch.cat(padded))
        for name in _BY_PLACE:
            for key in getattr(layer, name, {}):
                states = [getattr(part, name)[key] for part in parts]
                if all(state is not None for state in states):
                    getattr(layer, name)[key] = torch.cat(states)
    return whole


class BatchModel:
    """A model whose rows begin together."""

    joins = False

    def __init__(self, model: PreTrainedModel, pad_id: int) -> None:
        """Prepare; see `model_rows`."""
        self.model, self._pad_id = model, pad_id
        self.needs_equal_lengths = reading(model) is Way.anew
        self.reader: Reader
        self._staged: Reader
        self._outputs: Tensor

    def stage(self, prompts: Sequence[Sequence[int]], *, at_once: bool = False) -> None:
        """Read prompts, padded on the left."""
        self._staged = Reader(self.model)
        self._outputs = self._staged.begin(padded(prompts, self._pad_id, str(self.model.device), "left"))

    def enter(self, places: Tensor | None, lengths: NDArray[np.int64]) -> Tensor:
        """Make rows of staged prompts; there are no other live rows."""
        if places is None:
            self.reader = self._staged
            return self._outputs
        self.reader = self._staged.branched(places)
        return self._outputs.index_select(0, places)

    def unstage(self) -> None:
        """Drop the staged prompts."""
        del self._staged, self._outputs

    def keep(self, order: NDArray[np.int64]) -> None:
        """Reorder and drop rows."""
        self.reader.select(torch.from_numpy(order).to(self.model.device))

    def read(self, tokens: Tensor) -> Tensor:
        """Read the next token of every row."""
        return self.reader.append(tokens)


# -- ends of rows ------------------------------------------------------------------------------------------------
# Model outputs at the ends of rows, from which next tokens are drawn. Shapes: n rows that are alive, R slots.


class Outputs:
    """Model outputs at the ends of the live rows, shape [n, ...].

    They are the model's own tensors, or with static shapes copies at a fixed address.
    """

    def __init__(self) -> None:
        self.now: Tensor | None = None
        self._slots: int | None = None
        self._whole: Tensor | None = None

    @property
    def known(self) -> Tensor:
        """Outputs of the live rows, or of all slots with static shapes."""
        if self._whole is not None and sampling.is_silent():
            return self._whole
        assert self.now is not None
        return self.now

    def hold(self, slots: int) -> None:
        """Use memory at a fixed address from now on."""
        self._slots = slots

    def enter(self, new: Tensor) -> None:
        """Add the outputs of rows behind the live ones."""
        if self._slots is None:
            self.now = new if self.now is None else torch.cat([self.now, new])
            return
        begin = 0 if self.now is None else len(self.now)
        if self._whole is None:
            self._whole = new.new_zeros(self._slots, *new.shape[1:])
        self.now = self._whole[: begin + len(new)]
        self.now[begin:] = new

    def keep(self, order: NDArray[np.int64]) -> None:
        """Reorder and drop rows (see `RowCache.keep`); outputs without a fixed address will be computed again."""
        if self._whole is None:
            self.now = None
            return
        target = np.flatnonzero(order != np.arange(len(order)))
        if len(target):
            places = torch.from_numpy(np.stack([order[target], target])).to(self._whole.device)
            self._whole[places[1]] = self._whole[places[0]]
        self.now = self._whole[: len(order)]

    def read(self, new: Tensor) -> None:
        """Replace the outputs by those of next tokens: of the live rows, or of all slots with static shapes."""
        if self._whole is None:
            self.now = new
        else:
            self._whole.copy_(new)


# -- guides ------------------------------------------------------------------------------------------------------
# Value models that follow the rows of a policy and give values of possible next tokens.
#
#     values      value logits of tokens that could come next, shape [n, K], or [n, K, a] with a atoms; finite but
#                 of no meaning where nothing is asked for. Given are ids and which of them are asked for, both of
#                 shape [n, K], where the first of a row always is, and how many are, where that is known
#     advance     the rows took these tokens, which stood in these columns of the last call of `values`; shape [n]
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
"""A value model that follows rows and gives values of possible next tokens."""


def guide_of(model: ValueModel, slots: int, width: int, pad_id: int) -> Guide:
    """Return the guide for a model's type of head; see `model_rows`.

    A head "v" with rows of any age needs replaceable attention, which a trial run checks.
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
    """Return whether candidates can be packed as one sequence, by trying one after a prompt of one token."""
    guide = CandidateRows(RowModel(model, 1, 2, pad_id=0))
    guide.stage([[0]])
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    guide.enter(token[0], np.ones(1, np.int64))
    try:
        guide.values(token, torch.ones_like(token, dtype=torch.bool))
    except row_cache.CannotPack:
        return False
    return True


class CandidateRows:
    """For head "v": reads all candidates in one forward pass, and keeps the chosen one in the cache."""

    joins = True
    needs_equal_lengths = False
    looks_up = False

    def __init__(self, rows: RowModel) -> None:
        assert isinstance(rows.model, ValueModel)
        self._model, self.rows = rows.model, rows
        self._packing: row_cache.Packing
        # Ignored by attention; without any mask, some models search for padding, and wait for the device.
        self._mask = torch.zeros(1, 1, 1, 1, dtype=self._model.dtype, device=self._model.device)
        self.asked: Tensor | None = None
        self.stage, self.enter, self.unstage, self.keep = rows.stage, rows.enter, rows.unstage, rows.keep

    def values(self, candidates: Tensor, valid: Tensor, count: int | None = None) -> Tensor:
        """Read all candidates in one forward pass; `advance` keeps the states of the chosen one."""
        cache = self.rows.cache
        self.asked = valid.sum(-1)
        if sampling.is_silent():  # all are read: counting the useful ones would wait for the device
            valid, count = torch.ones_like(valid), valid.numel()
        self._packing = packing = row_cache.Packing(valid, count)
        positions = cache.lengths.index_select(0, packing.rows)
        hidden = cache.hidden_prefix(self._model.dtype)
        with row_cache.packed(self._model.backbone, row_cache.PackedStep(packing, cache, hidden)):
            values: Tensor = self._model(
                packing.pack(candidates),
                attention_mask=None if sampling.may_ask(candidates) else self._mask,
                position_ids=positions[None],
                cache=cache,
                use_cache=True,
            )
        return packing.unpack(values)

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        """Keep the states of the chosen candidates."""
        self.rows.cache.append_held(self._packing.chosen(columns))

    def read(self, tokens: Tensor) -> None:
        """Do nothing: the tokens were read as candidates."""


class BranchRows:
    """For head "v" of any model: copies the state of rows for their candidates, each a temporary row.

    There are up to `BRANCHES` times as many temporary rows as rows, but at least `FEW`. More candidates are read
    in parts that are not kept, so the chosen one is read again.
    """

    BRANCHES = 2
    FEW = 64
    joins = False
    looks_up = False

    def __init__(self, rows: BatchModel) -> None:
        self._rows = rows
        self._candidates: Reader | None = None
        self._packing: row_cache.Packing
        self.needs_equal_lengths = rows.needs_equal_lengths
        self.asked: Tensor | None = None
        self.stage, self.enter, self.unstage, self.keep = rows.stage, rows.enter, rows.unstage, rows.keep

    def values(self, candidates: Tensor, valid: Tensor, count: int | None = None) -> Tensor:
        """Read each requested candidate as the next token of its row."""
        self._packing = packing = row_cache.Packing(valid, count)
        self.asked = valid.sum(-1)
        at_once = max(self.FEW, self.BRANCHES * len(candidates))
        parts_read = zip(packing.rows.split(at_once), packing.pack(candidates)[0].split(at_once), strict=True)
        parts: list[Tensor] = []
        for rows, tokens in parts_read:
            self._candidates = None  # its state is freed before more is allocated
            self._candidates = self._rows.reader.branched(rows)
            parts.append(self._candidates.append(tokens))
        if len(parts) > 1:
            self._candidates = None
        return packing.unpack(torch.cat(parts)[None])

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        """Continue with the chosen candidates."""
        if self._candidates is None:
            self._rows.reader.append(tokens)
        else:
            self._candidates.select(self._packing.chosen(columns))
            self._rows.reader = self._candidates
        self._candidates = None

    def read(self, tokens: Tensor) -> None:
        """Do nothing: the tokens were read as candidates."""


class VocabularyRows:
    """For head "q": reads one token per step, whose output has the value of every next token."""

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
        """Reorder and drop rows."""
        self.rows.keep(order)
        self.outputs.keep(order)

    def values(self, candidates: Tensor, valid: Tensor, count: int | None = None) -> Tensor:
        """Look the candidates up."""
        return candidate_values(self.outputs.known, candidates)

    def advance(self, tokens: Tensor, columns: Tensor) -> None:
        """Do nothing: values after these tokens are unknown until they are read."""

    def read(self, tokens: Tensor) -> None:
        """Read the tokens that were taken last."""
        self.outputs.read(self.rows.read(tokens))


def candidate_values(values: Tensor, candidates: Tensor) -> Tensor:
    """Look candidates up in the output of head "q".

    Args:
        values: Values of every next token, shape [B, V], or [B, V, n] with n atoms.
        candidates: Token ids, shape [B, K].

    Returns:
        Shape [B, K], or [B, K, n].
    """
    if values.ndim == 2:
        return values.gather(-1, candidates)
    return values.gather(1, candidates[..., None].expand(-1, -1, values.shape[-1]))
