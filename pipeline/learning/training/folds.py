"""Folds of prompts, so that none is scored by a model that was fitted to it.

Shapes: P pairs; N completions; K folds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def prompt_folds(
    pairs: NDArray[np.int64], completions: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Deal prompts into folds of equal size, one more or less; all that is of a prompt is in one fold.

    Args:
        pairs: Prompt of each pair that models are fitted to, by the id of its row, shape [P].
        completions: Prompt of each completion that they score, shape [N].
        count: Folds, K.

    Returns:
        The fold of each pair, shape [P], and of each completion, shape [N]: 0 up to K - 1.
    """
    # Pairs alone are fitted to, so they are what is dealt out evenly; prompts without any may go anywhere.
    paired = np.unique(pairs)
    ids = np.concatenate([paired, np.setdiff1d(completions, paired)])
    places = np.argsort(ids, kind="stable")
    ordered = ids[places]

    def fold_of(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return (places[np.searchsorted(ordered, rows)] % count).astype(np.int64)

    return fold_of(pairs), fold_of(completions)
