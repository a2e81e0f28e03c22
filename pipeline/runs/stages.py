"""The order in which stages are drawn, so that each has the same colour in figures and on pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_ORDER = ("prepare", "tokenize", "generate", "score", "reward", "train", "sweep", "evaluate", "metrics")
"""Of a round's work."""


def in_order_of_work(stages: Iterable[str]) -> list[str]:
    """Each stage once: those that ship in the order of a round's work, then others as they come."""
    found = list(dict.fromkeys(stages))
    return sorted(found, key=lambda stage: _ORDER.index(stage) if stage in _ORDER else len(_ORDER))
