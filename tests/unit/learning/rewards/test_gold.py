"""Rewards are tried on a dataset's own solutions when it is prepared."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.rewards.answers import first_number, gold_texts
from pipeline.learning.rewards.registry import load_functions
from tests.doubles import own_rewards
from tests.doubles.prepared import checked


def warned(folder: Path, reward: str, solutions: Sequence[str | None]) -> list[str]:
    """The warnings that are kept of a dataset with these solutions."""
    rows = [{"prompt": f"Question {at}?", "solution": each} for at, each in enumerate(solutions)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings: dict[str, Any] = {"path": str(folder / "a.jsonl"), "test_size": 1, "validation_size": 1}
    checked(FilesConfig(kind="jsonl", reward=reward, **settings), folder)
    found: list[str] = json.loads((folder / "out" / "dataset.json").read_bytes())["warnings"]
    return found


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        *((each, None) for each in ("17", "1,250", "8{,}000", "12 000", "-3.5", "$18", "12\\%", "9 dollars", "B")),
        *((each, None) for each in ("x=4", r"6\text{ cm}^2", r"30^\circ", r"\text{Tuesday}")),
        (r"7\sqrt{5}", "7"),
        ("1/3", "1"),
        ("(2, 3)", "2"),
        (r"2\pi", "2"),
        (r"-1.5\times 10^3", "-1.5"),
    ],
)
def test_the_first_number_of_what_is_more_than_a_number(answer: str, number: str | None) -> None:
    assert first_number(answer) == number


def test_solutions_as_completions_write_them() -> None:
    assert gold_texts("She has\n#### 1,000", "<{}>") == ["<1,000>"]
    assert gold_texts(r"so $\boxed{\frac{1}{2}}$.", "<{}>") == [r"<\frac{1}{2}>", "<1>"]
    assert gold_texts("it is 4 and that is all", "<{}>") == ["it is 4 and that is all"]
    assert gold_texts(42.0, "<{}>") == ["<42>"]
    assert [gold_texts(each, "<{}>") for each in (None, " ", [1])] == [[], [], []]


@pytest.mark.parametrize(
    ("reward", "solutions"),
    [
        ("gsm8k", ["1,000", "so\n#### 7", r"\boxed{12}", "$5", None]),
        ("boxed", ["three blind mice that run", r"7\sqrt{5}", r"hence $\boxed{[0, 4)}$", "so\n\\boxed{B}"]),
        ("math_verify", [r"7\sqrt{5}", "1/3", "[0, 4)", r"14{,}000", r"12\%", "$x=9$", "A", "so\n#### 2.5"]),
        ("exact_match", ["a fig", "1/2", " 7 "]),
        ("vader", ["a fig", "1/2", " 7 "]),
    ],
)
def test_rewards_that_read_solutions_are_silent(tmp_path: Path, reward: str, solutions: list[str | None]) -> None:
    assert [each for each in warned(tmp_path, reward, solutions) if "solutions" in each] == []


def test_solutions_that_a_reward_does_not_read_are_counted_and_kept(tmp_path: Path) -> None:
    (said,) = [each for each in warned(tmp_path, "gsm8k", ["12", "ten", "1/2", "3.5"]) if "solutions" in each]
    assert all(each in said for each in ("2 rows", "of 4 tried", "a.jsonl:2: '#### ten'", "a.jsonl:3: "))
    assert "a.jsonl:1:" not in said


def test_solutions_of_which_none_is_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"datasets\.mine: the reward 'boxed'.* 3 rows.* of 3.*columns.*reward"):
        warned(tmp_path, "boxed", ["She has 7.\n#### 7", "He has 8.\n#### 8", "Both.\n#### 15"])


def test_the_first_number_alone_is_told(tmp_path: Path) -> None:
    said = warned(tmp_path, "accuracy_reward", ["3", r"2\pi", "1.2e5", "8"])
    (told,) = [each for each in said if "first number alone" in each]
    assert r"'\\boxed{2}' gets 1" in told


def test_own_rewards_are_not_tried() -> None:
    path = f"{own_rewards.__name__}.{next(n for n, v in vars(own_rewards).items() if callable(v) and n[0] != '_')}"
    (own,) = load_functions(FilesConfig(kind="jsonl", path="a.jsonl", reward=path))
    assert own.traits.gold is None
