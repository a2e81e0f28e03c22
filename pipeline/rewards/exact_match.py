"""Reward 1 for the very text of the solution, else 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def exact_match(completions: Sequence[str], solution: Sequence[str], **_: Any) -> list[float | None]:
    """Compare each completion with its solution, both without surrounding white space.

    Args:
        completions: Texts.
        solution: The dataset's column of that name.
    """
    pairs = zip(completions, solution, strict=True)
    return [float(given.strip() == wanted.strip()) for given, wanted in pairs]
