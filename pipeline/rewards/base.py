"""Calling a reward the way TRL does, so that a function written for TRL works unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.base import Row
from pipeline.errors import JobError
from pipeline.rewards.traits import Text, WrongScores, read_scores

CORRECT = 1.0
"""A completion counts as correct when its reward is at least this, as TRL's accuracy rewards have it."""

_NO_COLUMNS = {"prompt", "completion", "completion_ids"}
"""Columns of a dataset that TRL keeps from rewards, since it passes its own."""
_RESERVED = {"prompts", "completions", "trainer_state", "log_extra", "log_metric"}


class RewardFunction(Protocol):
    """A reward, as `trl.GRPOTrainer` takes it.

    It is called with keywords: ``prompts``, ``completions``, ``completion_ids``, every further column of the
    dataset, ``trainer_state=None`` and the hooks ``log_extra(name, values)`` and ``log_metric(name, value)``.
    Lists have one entry per completion. It returns a number per completion, or None where it does not apply.
    It may be `async`.
    """

    def __call__(self, **kwargs: Any) -> Sequence[float | None]:
        """Score completions."""


def columns_of(row: Row) -> dict[str, Any]:
    """The columns of a row that rewards are given.

    Raises:
        JobError: A column has the name of something that rewards are given anyway.
    """
    if taken := _RESERVED & row.columns.keys():
        raise JobError(f"row {row.id}: rewards are given '{min(taken)}' already; give the column another name")
    return {name: value for name, value in row.columns.items() if name not in _NO_COLUMNS}


def as_completion(prompt: Text, text: str) -> Text:
    """A completion in the form of its prompt: text, or one message of a conversation."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]


def arguments(
    rows: Sequence[Row],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What TRL calls a reward with.

    Args:
        rows: The row of each completion.
        completions: Texts, without special tokens.
        completion_ids: The sampled token ids.
        options: Further arguments, from the configuration.
    """
    columns = [columns_of(row) for row in rows]
    return {
        "prompts": [row.prompt for row in rows],
        "completions": [as_completion(row.prompt, text) for row, text in zip(rows, completions, strict=True)],
        "completion_ids": [list(ids) for ids in completion_ids],
        **{name: [table.get(name) for table in columns] for name in (columns[0] if columns else {})},
        **(options or {}),
        "trainer_state": None,
        "log_extra": _ignore,
        "log_metric": _ignore,
    }


def score(
    reward: RewardFunction,
    rows: Sequence[Row],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    batch_size: int = 256,
) -> NDArray[np.float64]:
    """Score completions in batches, in this process and without a deadline.

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
        given = reward(**arguments(rows[part], completions[part], completion_ids[part]))
        scores += checked(given, len(rows[part]))
    return np.array(scores, np.float64)


def checked(given: object, expected: int) -> list[float]:
    """What a reward returned, None as NaN.

    Raises:
        JobError: It returned something else than a number, or None, for each completion.
    """
    try:
        scores = read_scores(given, expected)
    except WrongScores as error:
        raise JobError(str(error)) from error
    return [float("nan") if value is None else value for value in scores]


def _ignore(name: str, value: object) -> None:
    """A log hook for rewards that report something of their own; nothing records it."""
