"""Which of two completions is preferred, and why."""

import math
from typing import Any

import numpy as np
import pytest

from pipeline.errors import JobError
from pipeline.learning.datasets.base import Row
from pipeline.learning.rewards.preference import (
    Preference,
    PreferenceRule,
    PreferenceSource,
    Ties,
    decide,
    existing_pairs,
)
from pipeline.learning.rewards.scoring import Scored


def scored(
    values: list[float], correct: list[bool | None] | None = None, faults: list[Any] | None = None
) -> Scored:
    count = len(values)
    return Scored(np.array(values), {}, correct or [None] * count, [None] * count, faults or [None] * count)


def decisions(first: Scored, second: Scored, draw: float = 0.4, **how: Any) -> list[int]:
    rule = PreferenceRule(**{"preference": Preference.bradley_terry, **how})
    return [int(one) for one in decide(first, second, np.full(len(first.values), draw), rule)]


@pytest.mark.parametrize("source", [PreferenceSource.correctness, PreferenceSource.correctness_then_reward])
@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_correctness_is_a_difference_of_one_to_a_bradley_terry_draw(source: PreferenceSource, beta: float) -> None:
    """Who asks for noisy labels gets them of verified answers too."""
    draws = (np.arange(10_000) + 0.5) / 10_000
    right, wrong = scored([1.0] * 10_000, [True] * 10_000), scored([0.0] * 10_000, [False] * 10_000)
    rule = PreferenceRule(source=source, preference=Preference.bradley_terry, beta=beta)
    ahead = decide(right, wrong, draws, rule).mean()
    behind = decide(wrong, right, draws, rule).mean()
    assert ahead == pytest.approx(1 / (1 + math.exp(-beta)), abs=1e-3)
    assert behind == pytest.approx(1 - ahead, abs=1e-3)


def test_correctness_alone_leaves_the_rest_undecided() -> None:
    first, second = scored([3.0, 3.0, 3.0], [True, True, None]), scored([1.0, 1.0, 1.0], [False, True, False])
    for ties in Ties:
        assert decisions(first, second, source=PreferenceSource.correctness, ties=ties) == [1, -1, -1]


@pytest.mark.parametrize("preference", list(Preference))
def test_ties(preference: Preference) -> None:
    one, other = scored([0.5]), scored([0.5])
    assert decisions(one, other, preference=preference) == [-1]
    for draw, expected in ((0.4, 1), (0.6, 0)):
        assert decisions(one, other, draw, preference=preference, ties=Ties.coin) == [expected]


def test_where_there_is_no_score_nothing_can_be_said() -> None:
    first, second = scored([math.nan, 1.0, math.nan]), scored([1.0, math.nan, math.nan])
    for ties in Ties:
        assert decisions(first, second, ties=ties) == [-1, -1, -1]


def test_a_completion_at_which_the_reward_failed_loses_to_nobody() -> None:
    failed = scored([math.nan], [False], ["timeout"])
    assert decisions(failed, scored([1.0], [True])) == [-1]
    assert decisions(scored([1.0], [True]), failed) == [-1]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"chosen": "a"}, "row 7 has no column 'rejected'"),
        ({"chosen": 1, "rejected": "b"}, "column 'chosen' must hold text"),
        (
            {"chosen": "a", "rejected": [{"role": "assistant", "content": "b"}]},
            "one is text and the other a conversation",
        ),
    ],
    ids=["missing", "number", "mixed"],
)
def test_rows_without_a_pair_are_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        existing_pairs([Row(7, "p", columns)])
