"""Metrics and their intervals, against analytic results."""

from pathlib import Path

import pytest

from pipeline.config.checks import check_config
from pipeline.config.load import load_config
from pipeline.config.schema import EvaluationConfig
from pipeline.errors import ConfigError
from pipeline.learning.evaluation.metrics import (
    FILE,
    Sample,
    evaluation_rows,
    read_samples,
    shown_samples,
    write_samples,
)


def sample(row: int, index: int = 0, **fields: object) -> Sample:
    given = {"tokens": 4, "reward": 1.0, "correct": True, "kl": 0.5, "truncated": False, **fields}
    return Sample(row=row, sample=index, prompt=f"p{row}", completion=f"c{index}", **given)  # type: ignore[arg-type]


def metrics(samples: list[Sample], **settings: object) -> dict[str, dict[str, float]]:
    rows = evaluation_rows(samples, EvaluationConfig(bootstrap_samples=200, **settings))  # type: ignore[arg-type]
    return {row["metric"]: row for row in rows}


def test_metrics_by_hand() -> None:
    found = metrics(
        [
            sample(7, 0, tokens=2, kl=1.0),
            sample(7, 1, tokens=4, kl=0.0, correct=False, reward=0.0, truncated=True),
            sample(8, 0, tokens=6, kl=2.0, reward=None, correct=False),
            sample(8, 1, tokens=8, kl=3.0),
        ]
    )
    faults = {name: row for name, row in found.items() if name.startswith("reward_")}
    assert {row["value"] for row in faults.values()} == {0}
    found = {name: row for name, row in found.items() if name not in faults and name != "pass@2"}
    assert {name: row["value"] for name, row in found.items()} == pytest.approx(
        {
            "pass@1": 0.5,
            "reward": 2 / 3,
            "kl_per_sequence": 1.5,
            "kl_per_token": 6 / 20,
            "regularized_reward": (0.9 + 0.0 + 0.7) / 3,
            "length": 5,
            "truncated": 0.25,
        }
    )
    assert all(row["n"] == 2 for row in found.values())
    assert all(row["ci_low"] <= row["value"] <= row["ci_high"] for row in found.values())


def test_a_reward_that_never_applies_has_no_value() -> None:
    row = metrics([sample(1, reward=None, correct=False)])["reward"]
    assert (row["value"], row["ci_low"], row["ci_high"], row["n"]) == (None, None, None, 0)


def test_too_few_draws_to_have_some_outside_of_an_interval_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.bootstrap_samples=19: must be at least 20"):
        check_config(load_config(["experiment.name=x", "evaluation.bootstrap_samples=19"]))


def test_samples_are_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    parts = [[sample(1), sample(2, reward=None, correct=False)], [sample(3, kl=0.123456789)]]
    for number, part in enumerate(parts):
        (tmp_path / str(number)).mkdir()
        write_samples(tmp_path / str(number) / FILE, part)
    assert read_samples([tmp_path / "0", tmp_path / "1"]) == parts[0] + parts[1]


def test_the_first_prompts_are_shown_with_all_of_their_completions() -> None:
    shown = shown_samples([sample(row, index) for row in (5, 3, 9) for index in (0, 1)], prompts=2)
    assert [(entry["row"], len(entry["completions"])) for entry in shown] == [(5, 2), (3, 2)]
