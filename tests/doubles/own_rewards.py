"""Rewards as users write them, most with a mistake. Modules of tests cannot be imported by a grading process."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from pipeline.rewards.traits import RewardTraits, reward


def right(completions: Sequence[str], **_: Any) -> list[float]:
    return [1.0] * len(completions)


def needs_level(completions: Sequence[str], level: Sequence[int], **_: Any) -> list[float]:
    return [float(one) for one in level]


def looks_up_level(completions: Sequence[str], **columns: Any) -> list[float]:
    return [float(one) for one in columns["level"]]


def returns_nothing(completions: Sequence[str], **_: Any) -> None:
    """The return was forgotten."""


def one_number(completions: Sequence[str], **_: Any) -> float:
    return 1.0


def too_many(completions: Sequence[str], **_: Any) -> list[float]:
    return [1.0, 2.0]


def words(completions: Sequence[str], **_: Any) -> list[str]:
    return ["good" for _ in completions]


def not_a_number(completions: Sequence[str], **_: Any) -> list[float]:
    return [float("nan")] * len(completions)


def undefined(completions: Sequence[str], **_: Any) -> list[float]:
    return [_score(text) for text in completions]


def _score(text: str) -> float:
    return misspelt(text)  # type: ignore[name-defined]  # noqa: F821


def expects_json(completions: Sequence[str], **_: Any) -> list[float]:
    return [float(json.loads(text)["score"]) for text in completions]


def ends_the_process(completions: Sequence[str], **_: Any) -> list[float]:
    sys.stdout.flush()
    import os

    os._exit(3)


@reward(RewardTraits(isolated=False))
def in_the_worker(completions: Sequence[str], **_: Any) -> list[float]:
    return [misspelt] * len(completions)  # type: ignore[name-defined]  # noqa: F821
