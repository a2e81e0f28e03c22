"""What rewards say of rows as they are read: which none can judge, and where solutions are missing."""

import math
from typing import Any

import pytest

from pipeline.config.bases import DatasetConfig
from pipeline.learning.rewards.probe import RowCheck
from tests.doubles import own_rewards


def told(reward: str, *solutions: Any) -> list[str]:
    check = RowCheck("mine", DatasetConfig(kind="jsonl", reward=reward))
    assert [check({"solution": each}, f"/data/a.jsonl:{at}") for at, each in enumerate(solutions, 1)] == (
        [""] * len(solutions)
    )
    return check.told()


def test_missing_solutions_are_counted() -> None:
    (said,) = told("exact_match", "1", None, math.nan, "", " ")
    assert "`solution`" in said
    assert "null or empty in 4 rows (first a.jsonl:2)" in said
    assert told("exact_match", "1", 2) == []
    assert told("length", None) == []
    check = RowCheck("mine", DatasetConfig(kind="jsonl", reward="exact_match"))
    assert check({"other": 1}, "a.jsonl:1") == ""
    assert "1 row (first a.jsonl:1)" in check.told()[0]


def test_an_empty_text_is_a_text_to_rewards_of_ones_own() -> None:
    check = RowCheck("mine", DatasetConfig(kind="jsonl", reward=f"{own_rewards.__name__}.needs_level"))
    assert check({"level": ""}, "a.jsonl:1") == ""
    assert check.told() == []
    assert check({"level": None}, "a.jsonl:2") == ""
    assert "1 row (first a.jsonl:2)" in check.told()[0]


@pytest.mark.parametrize("odd", [True, ["7"], {"a": 7}])
@pytest.mark.parametrize("reward", ["exact_match", "gsm8k", "boxed", "math_verify"])
def test_what_is_neither_text_nor_number_is_refused(reward: str, odd: Any) -> None:
    if reward == "math_verify":
        pytest.importorskip("math_verify")
    said = RowCheck("mine", DatasetConfig(kind="jsonl", reward=reward))({"solution": odd}, "a.jsonl:1")
    assert f"'{reward}'" in said
    assert "datasets.mine.reward" in said


def test_whole_numbers_that_became_floats_before_they_became_text_are_told() -> None:
    missing, floats = told("exact_match", "2.0", "", "14.0")
    assert "(first a.jsonl:2)" in missing
    assert "as 2.0 (a.jsonl:1)" in floats
    assert told("exact_match", "2.0", "3.5") == []
    assert told("exact_match", 2.0) == []
    assert told("gsm8k", "2.0") == []  # compares numbers
