"""Metrics and their intervals, against analytic results."""

import math
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.schema import EvaluationConfig
from pipeline.evaluation.metrics import FILE, Sample, evaluation_rows, read_samples, shown_samples, write_samples
from pipeline.evaluation.statistics import ratio_estimate


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


def test_intervals_match_the_normal_approximation() -> None:
    generator = np.random.default_rng(0)
    scores = generator.random(2000)
    found = ratio_estimate(scores, np.ones(2000), samples=4000, confidence=0.95)
    half = 1.96 * scores.std() / math.sqrt(2000)
    assert found.value == pytest.approx(scores.mean())
    assert [found.low, found.high] == pytest.approx([scores.mean() - half, scores.mean() + half], abs=0.06 * half)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    generator = np.random.default_rng(1)
    inside = 0
    for seed in range(400):
        scores = generator.binomial(2, 0.3, 100).astype(float)
        found = ratio_estimate(scores, np.full(100, 2.0), samples=400, confidence=0.9, seed=seed)
        inside += found.low <= 0.3 <= found.high
    assert 0.85 <= inside / 400 <= 0.95


def test_samples_of_one_prompt_are_no_independent_evidence() -> None:
    """Four equal samples of a prompt say no more than one: the interval must not shrink."""
    scores = (np.random.default_rng(2).random(300) < 0.4).astype(float)
    once = ratio_estimate(scores, np.ones(300), samples=500, confidence=0.95)
    four = ratio_estimate(4 * scores, np.full(300, 4.0), samples=500, confidence=0.95)
    assert (four.low, four.high) == pytest.approx((once.low, once.high))


def test_intervals_are_the_same_every_time() -> None:
    scores = np.random.default_rng(3).random(50)
    one, other = (ratio_estimate(scores, np.ones(50), samples=100, confidence=0.95) for _ in range(2))
    assert one == other


def test_an_estimate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        ratio_estimate(np.array([]), np.array([]), samples=10, confidence=0.95)


def test_samples_are_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    parts = [[sample(1), sample(2, reward=None, correct=False)], [sample(3, kl=0.123456789)]]
    for number, part in enumerate(parts):
        (tmp_path / str(number)).mkdir()
        write_samples(tmp_path / str(number) / FILE, part)
    assert read_samples([tmp_path / "0", tmp_path / "1"]) == parts[0] + parts[1]


def test_the_first_prompts_are_shown_with_all_of_their_completions() -> None:
    shown = shown_samples([sample(row, index) for row in (5, 3, 9) for index in (0, 1)], prompts=2)
    assert [(entry["row"], len(entry["completions"])) for entry in shown] == [(5, 2), (3, 2)]
