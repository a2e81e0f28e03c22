"""Reward 1 for the very text of the solution, else 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.learning.rewards.answers import compares, written
from pipeline.learning.rewards.traits import Text, judged, reward, stripped, text_of


def _right(columns: Mapping[str, Any]) -> Sequence[str]:
    text = written(columns["solution"], "exact_match")
    return [] if text is None else [text]


@reward(compares(isolated=False, answer=stripped, right=_right, gold=_right, version=2))
def exact_match(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare each completion with its solution, both without surrounding white space.

    Args:
        completions: Texts or conversations.
        solution: The dataset's column of that name, a number as it is written; a row without one gets None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    wanted = [written(each, "exact_match") for each in solution]
    return judged(completions, wanted, lambda given, right: float(text_of(given).strip() == right.strip()))
