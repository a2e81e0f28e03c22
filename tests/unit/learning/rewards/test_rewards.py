"""Rewards are called as TRL calls them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, JobError
from pipeline.learning.datasets.base import Row
from pipeline.learning.rewards.base import score
from pipeline.learning.rewards.matching import exact_match
from pipeline.learning.rewards.registry import load_reward

ROWS = [Row(i, f"p{i}", {"solution": f"s{i}", "level": i}) for i in range(5)]


def test_exact_match_in_the_signature_of_trl() -> None:
    given = exact_match(
        prompts=["a", "b", "c"],
        completions=["1", " 2\n", "30"],
        completion_ids=[[1], [2], [3, 0]],
        solution=["1", "2", "3"],
        level=[0, 0, 0],
        trainer_state=None,
        log_extra=print,
        log_metric=print,
    )
    assert given == [1.0, 1.0, 0.0]


def test_a_reward_is_given_every_column_and_the_hooks() -> None:
    seen: list[dict[str, Any]] = []

    def reward(**given: Any) -> list[float]:
        given["log_extra"]("text", given["completions"])
        given["log_metric"]("mean", 0.5)
        seen.append(given)
        return [float(level) for level in given["level"]]

    texts, ids = [f"c{i}" for i in range(5)], [[i] for i in range(5)]
    assert score(reward, ROWS, texts, ids, batch_size=2).tolist() == [0, 1, 2, 3, 4]
    assert [len(call["prompts"]) for call in seen] == [2, 2, 1]
    assert seen[1]["prompts"] == ["p2", "p3"]
    assert seen[1]["completions"] == ["c2", "c3"]
    assert seen[1]["completion_ids"] == [[2], [3]]
    assert seen[1]["solution"] == ["s2", "s3"]
    assert seen[1]["trainer_state"] is None


def test_none_means_that_the_reward_does_not_apply() -> None:
    def reward(completions: Sequence[str], **_: Any) -> list[float | None]:
        return [None if text == "c1" else 0.25 for text in completions]

    scores = score(reward, ROWS[:3], ["c0", "c1", "c2"], [[0]] * 3)
    assert np.isnan(scores).tolist() == [False, True, False]


def test_the_wrong_number_of_scores_is_refused() -> None:
    with pytest.raises(JobError, match="returned 1 scores for 5 completions"):
        score(lambda **_: [1.0], ROWS, ["x"] * 5, [[0]] * 5)


def test_nothing_to_score_is_nothing() -> None:
    assert len(score(exact_match, [], [], [])) == 0


def test_rewards_by_name_and_by_path() -> None:
    assert load_reward("exact_match") is exact_match
    assert load_reward("pipeline.learning.rewards.matching:exact_match") is exact_match
    with pytest.raises(ConfigError, match="Did you mean 'exact_match'"):
        load_reward("exact_mach")
    with pytest.raises(ConfigError, match="cannot be called"):
        load_reward("pipeline.learning.rewards.traits.CORRECT")
