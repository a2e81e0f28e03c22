"""Calling a reward the way TRL does, so that a function written for TRL works unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.base import Row
from pipeline.errors import JobError

CORRECT = 1.0
"""A completion counts as correct when its reward is at least this, as TRL's accuracy rewards have it."""


class RewardFunction(Protocol):
    """A reward, as `trl.GRPOTrainer` takes it.

    It is called with keywords: ``prompts``, ``completions``, ``completion_ids``, every further column of the
    dataset, ``trainer_state=None`` and the hooks ``log_extra(name, values)`` and ``log_metric(name, value)``.
    Lists have one entry per completion. It returns a number per completion, or None where it does not apply.
    """

    def __call__(self, **kwargs: Any) -> Sequence[float | None]:
        """Score completions."""


def score(
    reward: RewardFunction,
    rows: Sequence[Row],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    batch_size: int = 256,
) -> NDArray[np.float64]:
    """Score completions in batches.

    Args:
        reward: The reward.
        rows: The row of each completion, repeated where it has several.
        completions: Texts, without special tokens.
        completion_ids: The sampled token ids.
        batch_size: Completions per call.

    Returns:
        Shape [N]; NaN where the reward gave None.

    Raises:
        JobError: The reward returned the wrong number of scores.
    """
    scores: list[float] = []
    for start in range(0, len(rows), batch_size):
        part = slice(start, start + batch_size)
        names = rows[start].columns if rows else {}
        given = reward(
            prompts=[row.prompt for row in rows[part]],
            completions=list(completions[part]),
            completion_ids=[list(ids) for ids in completion_ids[part]],
            **{name: [row.columns[name] for row in rows[part]] for name in names},
            trainer_state=None,
            log_extra=_ignore,
            log_metric=_ignore,
        )
        if len(given) != len(rows[part]):
            raise JobError(f"the reward returned {len(given)} scores for {len(rows[part])} completions")
        scores += [float("nan") if value is None else float(value) for value in given]
    return np.array(scores, np.float64)


def _ignore(name: str, value: object) -> None:
    """A log hook for rewards that report something of their own; nothing records it yet."""
