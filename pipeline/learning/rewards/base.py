"""Calling a reward the way TRL does, so that a function written for TRL works unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import JobError
from pipeline.learning.datasets.base import Row
from pipeline.learning.rewards.calling import needed_columns, takes_messages
from pipeline.learning.rewards.grading import Item
from pipeline.learning.rewards.traits import Text, WrongScores, read_scores

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


def items_of(
    rows: Sequence[Row],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    needed: Iterable[str] = (),
    messages: Set[str] = frozenset(),
) -> list[Item]:
    """What a reward is given of each completion. It follows from the row alone, whatever is scored beside it.

    Args:
        rows: The row of each completion, repeated where it has several.
        completions: Texts, without special tokens.
        completion_ids: The sampled token ids.
        needed: Columns that the reward takes without a default, which are None where a row lacks them.
        messages: Which of "prompts" and "completions" it takes as conversations alone.

    Raises:
        JobError: A column has the name of something that rewards are given anyway.
    """
    wanted = dict.fromkeys(needed)
    return [
        Item(
            as_prompt(row.prompt) if "prompts" in messages else row.prompt,
            as_completion(row.prompt, text, in_messages="completions" in messages),
            ids,
            wanted | columns_of(row),
        )
        for row, text, ids in zip(rows, completions, completion_ids, strict=True)
    ]


def columns_of(row: Row) -> dict[str, Any]:
    """The columns of a row that rewards are given.

    Raises:
        JobError: A column has the name of something that rewards are given anyway.
    """
    if taken := _RESERVED & row.columns.keys():
        raise JobError(f"row {row.id}: rewards are given '{min(taken)}' already; give the column another name")
    return {name: value for name, value in row.columns.items() if name not in _NO_COLUMNS}


def as_prompt(prompt: Text) -> Text:
    """A prompt as a conversation: text is what the user says."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def as_completion(prompt: Text, text: str, *, in_messages: bool = False) -> Text:
    """A completion in the form of its prompt: text, or one message of a conversation, which can be asked for."""
    plain = isinstance(prompt, str) and not in_messages
    return text if plain else [{"role": "assistant", "content": text}]


def batches(rows: Sequence[Row], items: Sequence[Item], size: int) -> list[list[int]]:
    """Which items to score in one call: all those of a prompt together, and all of a call with the same columns.

    A reward may compare what it is given, as those of TRL's trainers do with the completions of a prompt.

    Args:
        rows: The row of each item; those of a prompt stand side by side.
        items: What to score.
        size: Items of a call at most, unless a prompt alone has more.

    Returns:
        Positions of the items of each call. They follow from these arguments alone.
    """
    columns = [frozenset(item.columns) for item in items]
    alike: dict[frozenset[str], list[list[int]]] = {}
    for (_, names), run in groupby(range(len(items)), key=lambda at: (rows[at].id, columns[at])):
        group, calls = list(run), alike.setdefault(names, [[]])
        if calls[-1] and len(calls[-1]) + len(group) > size:
            calls.append([])
        calls[-1] += group
    return [call for calls in alike.values() for call in calls]


def arguments(items: Sequence[Item], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What TRL calls a reward with.

    Args:
        items: What to score, all of them with the same columns.
        options: Further arguments, from the configuration.
    """
    return {
        "prompts": [item.prompt for item in items],
        "completions": [item.completion for item in items],
        "completion_ids": [list(item.ids) for item in items],
        **{name: [item.columns.get(name) for item in items] for name in (items[0].columns if items else {})},
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
        batch_size: Completions per call, as in `batches`.

    Returns:
        Shape [N]; NaN where the reward gave None.

    Raises:
        JobError: The reward returned the wrong number of scores.
    """
    items = items_of(rows, completions, completion_ids, needed_columns(reward), takes_messages(reward))
    scores = np.full(len(rows), np.nan)
    for part in batches(rows, items, batch_size):
        scores[part] = checked(reward(**arguments([items[at] for at in part])), len(part))
    return scores


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
