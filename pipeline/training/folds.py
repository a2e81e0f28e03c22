"""Which prompt each pair and each completion belongs to, so that none is scored by a model that was fitted to it.

Shapes: P pairs; N completions; K folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from pipeline.results.outputs import read_input
from pipeline.training.sequences import read_arrays

FILE = "prompts.safetensors"


@dataclass(frozen=True)
class Prompts:
    """The prompts of what a reward model is fitted to, and of what it scores, by the ids of the dataset's rows.

    Attributes:
        pairs: Of each pair, shape [P], int64.
        completions: Of each completion, shape [N], int64.
    """

    pairs: NDArray[np.int64]
    completions: NDArray[np.int64]

    @staticmethod
    def of(pairs: Sequence[int], completions: Sequence[int]) -> Prompts:
        """From lists of ids."""
        return Prompts(np.array(pairs, np.int64), np.array(completions, np.int64))

    def save(self, folder: Path) -> None:
        """Write them to a folder."""
        save_file({"pairs": self.pairs, "completions": self.completions}, folder / FILE)

    @staticmethod
    def load(folders: Sequence[Path]) -> Prompts:
        """Read and join those of several folders, in their order.

        Raises:
            JobError: A file is missing or holds something else; says which job wrote it.
        """
        parts = [read_input(folder, FILE, _read) for folder in folders]
        return Prompts(
            np.concatenate([part.pairs for part in parts]), np.concatenate([part.completions for part in parts])
        )

    def folds(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Deal the prompts into folds of equal size, one more or less; all that is of a prompt is in one fold.

        Returns:
            The fold of each pair, shape [P], and of each completion, shape [N]: 0 up to `count` - 1.
        """
        # Pairs alone are fitted to, so they are what is dealt out evenly; prompts without any may go anywhere.
        paired = np.unique(self.pairs)
        others = np.setdiff1d(self.completions, paired)
        ids = np.concatenate([paired, others])
        places = np.argsort(ids, kind="stable")
        ordered = ids[places]

        def fold_of(rows: NDArray[np.int64]) -> NDArray[np.int64]:
            return (places[np.searchsorted(ordered, rows)] % count).astype(np.int64)

        return fold_of(self.pairs), fold_of(self.completions)


def _read(path: Path) -> Prompts:
    found = read_arrays(path, {"pairs": "iP", "completions": "iN"})
    return Prompts(found["pairs"].astype(np.int64), found["completions"].astype(np.int64))
