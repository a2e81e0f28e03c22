"""Curves of trainings, thinned until they can be drawn. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

MOST_POINTS = 60_000
"""Points of all curves together."""
FEWEST = 20
"""Points that a curve keeps, however many curves there are."""
_T = TypeVar("_T")


def points_each(curves: int, most: int = MOST_POINTS) -> int:
    """How many points each of so many curves may have."""
    return max(FEWEST, most // max(1, curves))


def thinned(steps: Sequence[_T], most: int) -> list[_T]:
    """Some of the steps, evenly spread, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(at * last / (most - 1))] for at in range(most)]
