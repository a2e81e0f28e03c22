"""Rows of metrics: what is measured, compared and counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from pipeline.config.schema import EvaluationConfig
from pipeline.learning.evaluation.metrics import evaluation_rows, read_samples, write_samples
from pipeline.outputs.check import check_output
from pipeline.outputs.formats import SAMPLES, Sample

SETTINGS = EvaluationConfig(bootstrap_samples=200)


def sample(row: int, index: int, correct: bool | None = True, **fields: Any) -> Sample:
    reward = None if correct is None else float(correct)
    given = {"tokens": 4, "reward": reward, "kl": 0.5, "truncated": False, "answer": str(correct), **fields}
    return Sample(row=row, sample=index, prompt="p", completion="c", correct=correct, **given)


def rows_of(*args: Any) -> dict[str, dict[str, Any]]:
    rows = evaluation_rows(*args)
    assert len({row["metric"] for row in rows}) == len(rows)
    return {row["metric"]: row for row in rows}


def policy(chance: float, seed: int, prompts: int = 60, n: int = 4) -> list[Sample]:
    generator = np.random.default_rng(seed)
    return [sample(row, i, bool(generator.random() < chance)) for row in range(prompts) for i in range(n)]


def test_pass_and_maj_for_every_k() -> None:
    outcomes = {1: [True, False, False], 2: [True, True, False], 3: [False, False, False]}
    found = rows_of(
        [sample(row, i, right) for row, all_ in outcomes.items() for i, right in enumerate(all_)], SETTINGS
    )
    assert found["pass@1"]["value"] == pytest.approx(1 / 3)
    assert found["pass@2"]["value"] == pytest.approx((2 / 3 + 1) / 3)
    assert found["pass@3"]["value"] == pytest.approx(2 / 3)
    assert found["maj@1"]["value"] == pytest.approx(1 / 3)
    assert found["maj@2"]["value"] == pytest.approx((1 / 3 + 2 / 3) / 3)
    assert found["maj@3"]["value"] == pytest.approx(1 / 3)
    assert all(found[f"{name}@{k}"]["n"] == 3 for name in ("pass", "maj") for k in (1, 2, 3))


def test_differences_to_other_policies() -> None:
    ours, reference, previous = policy(0.7, 1), policy(0.3, 2), policy(0.7, 1)
    found = rows_of(ours, SETTINGS, {"reference": reference, "previous": previous})
    better = found["pass@1/vs_reference"]
    assert better["value"] == pytest.approx(found["pass@1"]["value"] - np.mean([s.correct for s in reference]))
    assert 0 < better["ci_low"] < better["value"] < better["ci_high"]
    assert better["n"] == 60
    assert not [name for name in found if name.endswith("/p")]  # one trained policy is not its method
    assert found["pass@1/vs_previous"]["value"] == 0
    for metric in ("pass@4", "maj@3", "reward", "length", "truncated"):
        assert {f"{metric}/vs_reference", f"{metric}/vs_previous"} <= set(found)
    assert not [name for name in found if name.startswith("kl") and "vs" in name]


def test_a_policy_that_has_diverged_still_has_its_other_numbers(tmp_path: Path) -> None:
    write_samples(tmp_path / SAMPLES, [sample(row, 0, kl=float("nan") if row else 0.5) for row in range(4)])
    check_output(tmp_path)
    found = rows_of(read_samples([tmp_path]), SETTINGS)
    assert found["kl_per_sequence"]["value"] is None
    assert found["pass@1"]["value"] == 1


@pytest.mark.parametrize("wrong", [0, 1, 4])
def test_where_nearly_every_answer_is_right_the_interval_does_not_vanish(wrong: int) -> None:
    """A bootstrap draws no wrong answer where there is none, and promises 1.000 to 1.000."""
    samples = [sample(row, 0, row >= wrong) for row in range(200)]
    found = rows_of(samples, SETTINGS)["pass@1"]
    exact = binomtest(200 - wrong, 200).proportion_ci(0.95, "exact")
    assert found["ci_low"] == pytest.approx(exact.low, abs=5e-4)
    assert found["ci_high"] == pytest.approx(exact.high, abs=5e-4)
    assert rows_of(samples, SETTINGS)["reward"]["ci_low"] <= 1 - wrong / 200  # no share: percentiles
