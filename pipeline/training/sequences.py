"""Labelled sequences: what value models are trained on, as files of token ids and as batches.

Shapes: N sequences, T tokens of the longest, B sequences of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor

FILE = "sequences.safetensors"


@dataclass(frozen=True)
class Sequences:
    """Sequences of token ids, each with one label for its tail.

    Attributes:
        ids: Prompt and completion as sampled, padded on the right with 0, shape [N, T], int32.
        lengths: Tokens of each, shape [N], int32.
        starts: First position that is supervised; all from there to the end are, shape [N], int32.
        labels: Target for these positions, in [0, 1], shape [N], float32.
    """

    ids: NDArray[np.int32]
    lengths: NDArray[np.int32]
    starts: NDArray[np.int32]
    labels: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.lengths)

    @staticmethod
    def of(ids: Sequence[Sequence[int]], starts: Sequence[int], labels: Sequence[float]) -> Sequences:
        """Pad lists of tokens."""
        lengths = np.array([len(row) for row in ids], np.int32)
        padded = np.zeros((len(ids), int(lengths.max(initial=0))), np.int32)
        for row, tokens in enumerate(ids):
            padded[row, : len(tokens)] = tokens
        return Sequences(padded, lengths, np.array(starts, np.int32), np.array(labels, np.float32))

    def save(self, folder: Path, name: str = FILE) -> None:
        """Write them to a folder."""
        save_file(dict(vars(self)), folder / name)

    @staticmethod
    def load(folders: Sequence[Path], name: str = FILE) -> Sequences:
        """Read and join the sequences of several folders, in their order."""
        parts = [load_file(folder / name) for folder in folders]
        width = max(part["ids"].shape[1] for part in parts)
        ids = [np.pad(part["ids"], ((0, 0), (0, width - part["ids"].shape[1]))) for part in parts]
        rest = {name: np.concatenate([part[name] for part in parts]) for name in ("lengths", "starts", "labels")}
        return Sequences(np.concatenate(ids), **rest)


@dataclass(frozen=True)
class Batch:
    """A micro-batch.

    Attributes:
        ids: Shape [B, T], int64.
        mask: True where a position is supervised, shape [B, T].
        labels: Shape [B], float32.
    """

    ids: Tensor
    mask: Tensor
    labels: Tensor


def epoch_order(count: int, epochs: int, seed: int) -> NDArray[np.int64]:
    """Indices of all epochs one after the other, each epoch in an order of its own, shape [epochs * count]."""
    generator = np.random.Generator(np.random.Philox(key=[seed, 3]))
    return np.concatenate([generator.permutation(count) for _ in range(epochs)])


def batch_of(data: Sequences, rows: NDArray[np.int64], device: str) -> Batch:
    """Some sequences as tensors, as wide as the longest of them."""
    width = int(data.lengths[rows].max())
    places = np.arange(width)
    mask = (places >= data.starts[rows, None]) & (places < data.lengths[rows, None])
    return Batch(
        ids=torch.from_numpy(data.ids[rows, :width].astype(np.int64)).to(device),
        mask=torch.from_numpy(mask).to(device),
        labels=torch.from_numpy(data.labels[rows]).to(device),
    )
