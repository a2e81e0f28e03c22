"""Reward 1 for the very text of the solution, else 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.learning.rewards.traits import RewardTraits, Text, judged, reward, stripped, text_of


def _right(columns: Mapping[str, Any]) -> Sequence[str]:
    return [] if columns["solution"] is None else [_written(columns["solution"])]


@reward(RewardTraits(verifies=True, judges="correctness", isolated=False, answer=stripped, right=_right))
def exact_match(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare each completion with its solution, both without surrounding white space.

    Args:
        completions: Texts or conversations.
        solution: The dataset's column of that name, a number as it is written; a row without one gets None.
    """
    wanted = [None if each is None else _written(each) for each in solution]
    return judged(completions, wanted, lambda given, right: float(text_of(given).strip() == right.strip()))


def _written(solution: Any) -> str:
    """A number as one writes it, and a text as it is; what is neither fails where it is compared."""
    text: str = str(solution) if isinstance(solution, int | float) else solution
    return text
