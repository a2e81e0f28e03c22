"""Metrics and their intervals, against analytic results."""

import pytest

from pipeline.config.schema import EvaluationConfig
from pipeline.learning.evaluation.metrics import evaluation_rows
from pipeline.outputs.formats import Sample


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
