"""Reward 1 for the very text of the solution, else 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import DataError
from pipeline.learning.rewards.traits import RewardTraits, Text, judged, reward, stripped, text_of


def _right(columns: Mapping[str, Any]) -> Sequence[str]:
    return [] if columns["solution"] is None else [_written(columns["solution"])]


def _refused(columns: Mapping[str, Any]) -> str:
    solution = columns.get("solution")
    return "" if solution is None or _is_written(solution) else _said(solution)


@reward(
    RewardTraits(
        verifies=True, judges="correctness", isolated=False, answer=stripped, right=_right, refuses=_refused
    )
)
def exact_match(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare each completion with its solution, both without surrounding white space.

    Args:
        completions: Texts or conversations.
        solution: The dataset's column of that name, a number as it is written; a row without one gets None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    wanted = [None if each is None else _written(each) for each in solution]
    return judged(completions, wanted, lambda given, right: float(text_of(given).strip() == right.strip()))


def _written(solution: Any) -> str:
    """A text as it is, and a number as one writes it."""
    if not _is_written(solution):
        raise DataError(f"the reward 'exact_match' {_said(solution)}")
    return str(solution)


def _is_written(solution: object) -> bool:
    return isinstance(solution, str | int | float) and not isinstance(solution, bool)


def _said(solution: object) -> str:
    found = f"{solution}".lower() if isinstance(solution, bool) else f"a {type(solution).__name__}"
    return f"compares completions with 'solution', which must be text or a number, found {found}; write it as text"
