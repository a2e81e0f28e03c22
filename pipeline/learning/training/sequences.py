"""Labelled sequences, the training data of models: as files of token ids, and as batches.

Shapes: N sequences, T tokens of the longest, B sequences of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from pipeline.files import json_text, open_plain
from pipeline.foreign import ForeignDataError
from pipeline.outputs.formats import read_input

FILE = "sequences.safetensors"
UNKNOWN = -1
"""Id of an unknown prompt."""
_KINDS = {"i": "whole numbers", "f": "floating numbers", "b": "true or false"}


@dataclass(frozen=True)
class Sequences:
    """Sequences of token ids, each with one label for its tail.

    Attributes:
        ids: Prompt and completion as drawn, padded on the right with 0, shape [N, T], int32.
        lengths: Length of each in tokens, shape [N], int32.
        starts: First supervised position, shape [N], int32.
        labels: Target for these positions, in [0, 1], shape [N], float32.
        prompts: Id of the prompt's row, or `UNKNOWN`, so that sequences of one prompt can be kept together,
            shape [N], int64.
        left_out: Later positions that are not supervised, such as turns of a user within an answer, shape [N, T],
            bool; None if all are.
    """

    ids: NDArray[np.int32]
    lengths: NDArray[np.int32]
    starts: NDArray[np.int32]
    labels: NDArray[np.float32]
    prompts: NDArray[np.int64]
    left_out: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @staticmethod
    def of(
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        labels: Sequence[float],
        prompts: Sequence[int] | None = None,
    ) -> Sequences:
        """Pad lists of tokens.

        Args:
            ids: Prompt and completion of each sequence.
            starts: Its first supervised position.
            labels: Target of each sequence.
            prompts: Row id of each prompt. None if not needed: then a value model has no calibration, since no
                prompts can be held out.
        """
        lengths = np.array([len(row) for row in ids], np.int32)
        padded = np.zeros((len(ids), int(lengths.max(initial=0))), np.int32)
        for row, tokens in enumerate(ids):
            padded[row, : len(tokens)] = tokens
        rows = np.full(len(ids), UNKNOWN, np.int64) if prompts is None else np.array(prompts, np.int64)
        return Sequences(padded, lengths, np.array(starts, np.int32), np.array(labels, np.float32), rows)

    @staticmethod
    def supervised_at(
        ids: Sequence[Sequence[int]],
        supervised: Sequence[Sequence[bool]],
        labels: Sequence[float],
        prompts: Sequence[int] | None = None,
    ) -> Sequences:
        """Pad lists of tokens with any supervised positions.

        Args:
            ids: Prompt and completion of each sequence.
            supervised: Whether each position is supervised, as long as `ids`.
            labels: Target of each sequence.
            prompts: As for `of`.
        """
        starts = [row.index(True) if True in row else len(row) for row in supervised]
        whole = Sequences.of(ids, starts, labels, prompts)
        left_out = whole.mask()
        for row, marks in enumerate(supervised):
            left_out[row, : len(marks)] &= ~np.array(marks, np.bool_)
        return replace(whole, left_out=left_out if left_out.any() else None)

    @property
    def supervised(self) -> NDArray[np.int64]:
        """Number of supervised positions of each sequence, shape [N]."""
        return (self.lengths - self.starts).astype(np.int64) - (
            0 if self.left_out is None else self.left_out.sum(1, dtype=np.int64)
        )

    def mask(self, rows: NDArray[np.int64] | slice = slice(None), width: int | None = None) -> NDArray[np.bool_]:
        """Return which positions are supervised.

        Args:
            rows: Indices of the sequences.
            width: Number of positions; None for all.

        Returns:
            Shape [rows, width].
        """
        places = np.arange(self.ids.shape[1] if width is None else width)
        supervised: NDArray[np.bool_] = (places >= self.starts[rows, None]) & (places < self.lengths[rows, None])
        return supervised if self.left_out is None else supervised & ~self.left_out[rows, :width]

    def some(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Sequences:
        """Return some of the sequences, with the same width.

        Args:
            rows: Their indices, or a mask of shape [N].
        """
        arrays: dict[str, Any] = {
            name: None if array is None else array[rows] for name, array in vars(self).items()
        }
        return Sequences(**arrays)

    def silenced(self, rows: NDArray[np.bool_]) -> Sequences:
        """Return the same sequences, with no supervised position in those of `rows`, a mask of shape [N]."""
        if not rows.any():
            return self
        left_out = np.zeros(self.ids.shape, np.bool_) if self.left_out is None else self.left_out.copy()
        left_out[rows] |= self.mask()[rows]
        return replace(self, left_out=left_out)

    def save(self, folder: Path, name: str = FILE) -> None:
        """Write the sequences to a folder; prompts only if known, and `left_out` only if used."""
        arrays = {name: array for name, array in vars(self).items() if array is not None}
        if (self.prompts == UNKNOWN).all():
            del arrays["prompts"]
        save_file(arrays, folder / name)

    @staticmethod
    def load(folders: Sequence[Path], name: str = FILE) -> Sequences:
        """Read and join the sequences of several folders, in their order.

        Raises:
            JobError: A file is missing or invalid; the message says which job wrote it.
        """
        parts = [read_input(folder, name, _read) for folder in folders]
        width = max(part["ids"].shape[1] for part in parts)
        wide = {
            name: np.concatenate(
                [np.pad(part[name], ((0, 0), (0, width - part[name].shape[1]))) for part in parts]
            )
            for name in ("ids", "left_out")
        }
        rest = {
            name: np.concatenate([part[name] for part in parts])
            for name in ("lengths", "starts", "labels", "prompts")
        }
        left_out = wide["left_out"] if wide["left_out"].any() else None
        return Sequences(wide["ids"], **rest, left_out=left_out)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    shapes = {"ids": "iN,T", "lengths": "iN", "starts": "iN", "labels": "fN", "prompts": "iN", "left_out": "bN,T"}
    part = read_arrays(path, shapes, optional=("prompts", "left_out"))
    part.setdefault("prompts", np.full(len(part["lengths"]), UNKNOWN, np.int64))
    part.setdefault("left_out", np.zeros(part["ids"].shape, np.bool_))
    lengths, starts = part["lengths"], part["starts"]
    if ((starts < 0) | (starts > lengths) | (lengths > part["ids"].shape[1])).any():
        raise ForeignDataError("expected 0 <= `starts` <= `lengths` <= T of every sequence")
    if (part["ids"] < 0).any():
        raise ForeignDataError("expected ids of tokens in `ids`, and found a negative number")
    return part


def read_arrays(
    path: Path, expected: Mapping[str, str], optional: Collection[str] = ()
) -> dict[str, NDArray[Any]]:
    """Read the arrays of a safetensors file.

    Args:
        path: The file.
        expected: Name -> kind of number (``i`` whole, ``f`` floating, ``b`` true or false) and the names of its
            dimensions: ``iN,T``. Dimensions of the same name have equal length.
        optional: Names that may be missing.

    Raises:
        ForeignDataError: The content differs from that.
        OSError: It cannot be read.
    """
    try:
        with open_plain(path):  # a named pipe in its place would block the reader below for ever
            arrays = load_file(path)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ForeignDataError(f"this is no safetensors file that numpy can read ({error})") from error
    sizes: dict[str, int] = {}
    for name, shape in expected.items():
        kind, dimensions = shape[0], shape[1:].split(",")
        if name not in arrays and name in optional:
            continue
        if name not in arrays:
            raise ForeignDataError(f"it lacks the array `{name}`; it has {', '.join(sorted(arrays)) or 'none'}")
        array = arrays[name]
        right = array.ndim == len(dimensions) and all(
            size == sizes.setdefault(dimension, size)
            for dimension, size in zip(dimensions, array.shape, strict=True)
        )
        if not right or array.dtype.kind != kind:
            seen = ", ".join(f"{dimension}={sizes[dimension]}" for dimension in dimensions if dimension in sizes)
            raise ForeignDataError(
                f"expected `{name}` of shape [{shape[1:]}]{f' with {seen}' if seen else ''} and "
                f"{_KINDS[kind]}, got {list(array.shape)} of {array.dtype}"
            )
    return {name: arrays[name] for name in expected if name in arrays}


@dataclass(frozen=True)
class Batch:
    """A micro-batch.

    Attributes:
        ids: Shape [B, T], int64.
        mask: True where a position is supervised, shape [B, T].
        labels: Shape [B], float32.
        lengths: Length of each sequence in tokens.
        starts: First supervised position of each.
    """

    ids: Tensor
    mask: Tensor
    labels: Tensor
    lengths: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def is_supervised(self) -> bool:
        """Whether any position after the first is supervised."""
        return any(max(start, 1) < end for start, end in zip(self.starts, self.lengths, strict=True))

    @property
    def first(self) -> int:
        """Position before the first supervised token of any sequence; 0 if one has none."""
        both = zip(self.starts, self.lengths, strict=True)
        return max(0, min(start if start < end else 0 for start, end in both) - 1)


def epoch_order(count: int, epochs: int, seed: int) -> NDArray[np.int64]:
    """Return indices of all epochs in turn, each in a random order of its own, shape [epochs * count]."""
    generator = np.random.Generator(np.random.Philox(key=[seed, 3]))
    return np.concatenate([generator.permutation(count) for _ in range(epochs)])


def batch_of(data: Sequences, rows: NDArray[np.int64], device: str) -> Batch:
    """Return some sequences as tensors, as wide as the longest of them."""
    width = int(data.lengths[rows].max())
    return Batch(
        ids=torch.from_numpy(data.ids[rows, :width].astype(np.int64)).to(device),
        mask=torch.from_numpy(data.mask(rows, width)).to(device),
        labels=torch.from_numpy(data.labels[rows]).to(device),
        lengths=tuple(data.lengths[rows].tolist()),
        starts=tuple(data.starts[rows].tolist()),
    )


# -- folds -------------------------------------------------------------------------------------------------------
# Folds of prompts, so that no prompt is scored by a model fitted to it. Shapes: P pairs; N completions; K folds.


def prompt_ids(data: Sequences) -> NDArray[np.int64]:
    """Return an id of each sequence's prompt, shape [N]: the same for equal tokens, whatever else there is."""
    begun = (row[:start].tobytes() for row, start in zip(data.ids, data.starts, strict=True))
    digests = (blake2b(one, digest_size=8).digest() for one in begun)
    return np.array([int.from_bytes(each, "little") >> 1 for each in digests], np.int64)


def text_id(prompt: str | Sequence[Mapping[str, Any]]) -> int:
    """Return an id of a prompt's text. Its tokens give none, as an answer may merge with the last of them."""
    return int.from_bytes(blake2b(json_text(prompt).encode(), digest_size=8).digest(), "little") >> 1


def prompt_folds(
    pairs: NDArray[np.int64], completions: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide prompts into folds of equal size, up to one; all data of a prompt are in one fold.

    Args:
        pairs: Prompt of each training pair, as row id, shape [P].
        completions: Prompt of each completion to score, shape [N].
        count: Number of folds, K.

    Returns:
        The fold of each pair, shape [P], and of each completion, shape [N]: 0 up to K - 1.
    """
    # Only pairs are training data, so they are divided evenly; prompts without pairs may be in any fold.
    paired = np.unique(pairs)
    ids = np.concatenate([paired, np.setdiff1d(completions, paired)])
    places = np.argsort(ids, kind="stable")
    ordered = ids[places]

    def fold_of(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return (places[np.searchsorted(ordered, rows)] % count).astype(np.int64)

    return fold_of(pairs), fold_of(completions)
