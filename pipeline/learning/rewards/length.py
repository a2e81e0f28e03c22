"""Minus the length of a completion, to be mixed with another reward so that short answers win ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.learning.rewards.traits import RewardTraits, reward


@reward(RewardTraits(pointwise=True, verifies=False, graded=True, judges="length", isolated=False, version=2))
def length(completion_ids: Sequence[Sequence[int]], per: float = 100.0, **_: Any) -> list[float | None]:
    """-1 for every `per` tokens.

    Args:
        completion_ids: Sampled token ids, an end-of-text token included.
        per: Tokens that cost 1.
    """
    return [-len(ids) / per for ids in completion_ids]
