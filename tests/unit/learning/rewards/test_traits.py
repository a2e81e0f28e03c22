"""What a reward of the user's own says of itself, and what becomes of it where that is wrong."""

import pytest

from pipeline.config.schema import DatasetConfig, GradingConfig
from pipeline.errors import JobError
from pipeline.learning.datasets.base import Row
from pipeline.learning.rewards.scoring import Scored, Scorer
from pipeline.learning.rewards.traits import RewardTraits, Text, WrongScores, read_scores, reward, text_of


def length(completion: Text) -> float:
    return float(len(text_of(completion)))


@pytest.mark.parametrize("given", [len, None, "verifies"])
def test_a_reward_without_its_traits_says_what_to_write(given: object) -> None:
    with pytest.raises(TypeError, match=r"write @reward\(RewardTraits\(verifies=True\)\)"):
        reward(given)  # type: ignore[arg-type]


@reward(RewardTraits(verifies=True, isolated=False, answer=len))
def counting(completions: list[str], **_: object) -> list[float]:
    return [1.0] * len(completions)


@reward(RewardTraits(verifies=True, isolated=False, answer=lambda text: text.split()[1]))  # type: ignore[union-attr]
def second_word(completions: list[str], **_: object) -> list[float]:
    return [1.0] * len(completions)


def score(name: str, *, isolated: bool) -> Scored:
    config = DatasetConfig(kind="x", reward=f"{__name__}.{name}", grading=GradingConfig(isolated=isolated))
    with Scorer(config) as scorer:
        return scorer.score([Row(0, "q")], ["four"], [[0]])


def test_an_answer_that_fails_is_told_with_the_reward_and_its_line() -> None:
    with pytest.raises(JobError, match=r"second_word' failed: IndexError"):
        score("second_word", isolated=False)


@pytest.mark.parametrize("given", [{1.0}, {"a": 1.0}, "1", b"1", ["1.0"], [1.0, 2.0], None, 1.0], ids=repr)
def test_what_is_no_list_of_numbers_is_no_scores(given: object) -> None:
    with pytest.raises(WrongScores):
        read_scores(given, 1)
