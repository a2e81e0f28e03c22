"""Rewards of little chains: apart, as their code and all that it imports is in the key of who asks them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ASKED = "TESTS_TIMES_ASKED"
"""Variable with the file that counts how often `never_the_same` was asked."""


def digits_right(completions: Sequence[str], solution: Sequence[str], **_: Any) -> list[float | None]:
    """Share of right digits: a reference of 40 steps gets some digits right, but hardly ever all."""
    pairs = zip(completions, solution, strict=True)
    return [sum(a == b for a, b in zip(given, wanted, strict=False)) / len(wanted) for given, wanted in pairs]


def never(completions: Sequence[str], **_: Any) -> list[float]:
    """All are wrong."""
    return [0.0] * len(completions)


def never_the_same(completions: Sequence[str], **_: Any) -> list[float]:
    """Give what depends on how often it was asked before, as a judge does that samples."""
    if ASKED not in os.environ:
        return [float(len(set(text)) % 2) for text in completions]
    counter = Path(os.environ[ASKED])
    times = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(times + 1))
    return [float((len(set(text)) + times + place // 3) % 2) for place, text in enumerate(completions)]
