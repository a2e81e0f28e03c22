"""What a reward of the user's own says of itself, and what becomes of it where that is wrong."""

from pathlib import Path

import pytest

from pipeline.config.schema import DatasetConfig, GradingConfig
from pipeline.config.user_code import import_object
from pipeline.errors import ConfigError, JobError
from pipeline.learning.datasets.base import Row
from pipeline.learning.rewards.scoring import Scored, Scorer
from pipeline.learning.rewards.traits import RewardTraits, Text, reward, text_of

MINE = """
from pipeline import RewardTraits, reward

@reward(RewardTraits(verifies=True, answer="last word"))
def right(completions, **_):
    return [1.0] * len(completions)
"""


def test_an_answer_that_is_no_function_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_wrong_traits.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        import_object("own_wrong_traits.right")
    assert str(caught.value) == (
        f"cannot import 'own_wrong_traits.right': {tmp_path}/own_wrong_traits.py:4 (@reward(RewardTraits("
        "verifies=True, answer=\"last word\"))): TypeError: RewardTraits(answer='last word'): must be a function, "
        "or None"
    )


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
