"""The curves of trainings: which steps are kept, and what a line must hold, whoever wrote it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import JobError
from pipeline.foreign import ForeignDataError
from pipeline.outputs.check import check_output
from pipeline.outputs.formats import (
    CURVES,
    LARGEST,
    MAX_STEPS,
    TrainingStep,
    by_training,
    is_kept,
    kept_number,
    read_curve,
    write_curve,
)

LINE: dict[str, Any] = {
    "training": "policy",
    "step": 1,
    "steps": 9,
    "tokens": 40,
    "loss": 0.5,
    "grad_norm": 1.25,
    "learning_rate": 0.001,
}


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def step(number: int = 1, training: str = "policy", **extra: float | None) -> TrainingStep:
    return TrainingStep(**{**LINE, "step": number, "training": training}, extra=extra)


@pytest.mark.properties
@given(steps=st.integers(1, 10**9))
def test_a_training_has_its_first_and_last_step_and_about_500_between(steps: int) -> None:
    every = math.ceil(steps / MAX_STEPS)
    assert is_kept(1, steps)
    assert is_kept(steps, steps)
    assert steps // every <= MAX_STEPS
    assert is_kept(every, steps)
    assert every == 1 or not is_kept(every + 1, steps) or every + 1 == steps


def test_what_is_written_is_read_and_trainings_follow_one_another(tmp_path: Path) -> None:
    first, second = [step(1, kl=0.5), step(9, kl=None)], [step(1, "reward_model", accuracy=1.0)]
    write_curve(tmp_path, first)
    write_curve(tmp_path, second)
    assert read_curve(tmp_path) == first + second
    assert by_training(read_curve(tmp_path)) == {"policy": first, "reward_model": second}
    assert (tmp_path / CURVES).read_text().splitlines()[0] == json.dumps({**LINE, "kl": 0.5})
    check_output(tmp_path)


@pytest.mark.parametrize(
    ("value", "kept"),
    [(0.123456789, 0.123457), (-0.0, 0.0), (math.nan, None), (-math.inf, None), (2 * LARGEST, None)],
)
def test_a_number_is_kept_in_six_digits_and_what_is_none_is_null(value: float, kept: float | None) -> None:
    assert kept_number(value) == kept


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (lines(LINE, {**LINE, "step": 2, "loss": "low"}), "line 2: expected `float | null`, got `str`"),
        (lines({**LINE, "kl": True}), "line 1: expected `float | null`, got `bool`"),
        (lines({**LINE, "step": 10}), "line 1: expected `step` <= `steps`, got 10 and 9"),
        (lines(LINE, LINE), "line 2: expected a `step` of 'policy' after 1, got 1"),
        (lines({**LINE, "training": "a\x1b[2J"}), "line 1: expected a name that can be printed"),
        (lines(LINE).replace("0.5", "NaN"), "line 1: this is no JSON (NaN is no number there)"),
        (lines({**LINE, **{f"x{number}": 0.0 for number in range(51)}}), "line 1: expected `object` of length"),
        (lines({k: v for k, v in LINE.items() if k != "loss"}), "line 1: object missing required field `loss`"),
    ],
)  # fmt: skip
def test_a_stage_of_a_users_own_is_told_what_is_wrong_with_its_curve(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / CURVES).write_text(text)
    with pytest.raises(ForeignDataError) as raised:
        read_curve(tmp_path)
    assert str(raised.value).startswith(said)
    with pytest.raises(JobError, match=r"metrics\.jsonl is not as it must be: line "):
        check_output(tmp_path)
