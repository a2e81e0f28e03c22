"""A reward for coming near: the share of characters that are right, 1 for a text that is.

    python run_parallel.py experiment.name=x algos.QSharp.atoms=11 algos.QSharp.value_max=1.5 \
        'datasets.addition.rewards={examples.near_miss.near_miss: 1.0, exact_match: 0.5}'

TRL's signature, so that it works with `trl.GRPOTrainer` too. It is called in a process of its own with a deadline,
unless a trait says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def near_miss(
    completions: Sequence[Any], solution: Sequence[str], power: float = 1.0, **_: Any
) -> list[float | None]:
    """Score completions.

    Args:
        completions: Texts, or conversations whose last message counts.
        solution: The dataset's column of that name.
        power: Above 1 it takes more right characters for the same reward; set it with
            ``datasets.NAME.grading.options={examples.near_miss.near_miss: {power: 2}}``.
    """
    texts = [given if isinstance(given, str) else given[-1]["content"] for given in completions]
    return [_share(text, wanted) ** power for text, wanted in zip(texts, solution, strict=True)]


def _share(text: str, wanted: str) -> float:
    right = sum(one == other for one, other in zip(text, wanted, strict=False))
    return right / max(1, len(text), len(wanted))
