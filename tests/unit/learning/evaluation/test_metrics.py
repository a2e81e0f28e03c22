"""Rows of metrics: what is measured, compared and counted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from pipeline.config.schema import EvaluationConfig
from pipeline.errors import JobError
from pipeline.learning.evaluation.metrics import (
    FILE,
    Sample,
    evaluation_rows,
    is_share,
    measure,
    metric_names,
    read_samples,
    reported_ks,
    write_samples,
)
from pipeline.outputs.check import check_output

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


@pytest.mark.parametrize("suffix", ["", "/eta=0.3", "/eta=inf"])
def test_shares_are_known_at_every_strength(suffix: str) -> None:
    assert is_share(f"pass@1{suffix}")
    assert is_share(f"optimum/pass@1{suffix}")
    assert not is_share(f"reward{suffix}")
    assert not is_share(f"pass@1{suffix}/vs_reference")


def test_ks_that_are_reported() -> None:
    assert reported_ks(1) == [1]
    assert reported_ks(5) == [1, 2, 3, 4, 5]
    assert reported_ks(50) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 50]
    assert reported_ks(64) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64]


def test_without_a_reward_that_judges_there_is_neither_pass_nor_maj() -> None:
    found = rows_of([sample(1, 0, None, reward=0.3), sample(2, 0, None, reward=0.5)], SETTINGS)
    assert not {name for name in found if "@" in name}
    assert found["reward"]["value"] == pytest.approx(0.4)


def test_prompts_that_are_not_judged_are_left_out() -> None:
    found = rows_of([sample(1, 0), sample(2, 0, None)], SETTINGS)
    assert (found["pass@1"]["value"], found["pass@1"]["n"]) == (1, 1)
    assert found["length"]["n"] == 2


def test_without_answers_there_is_no_maj() -> None:
    assert not [name for name in rows_of([sample(1, 0, answer=None)], SETTINGS) if name.startswith("maj")]


def test_each_of_several_rewards_has_a_row() -> None:
    samples = [sample(1, 0, parts={"a": 1.0, "b": None}), sample(2, 0, parts={"a": 0.0, "b": 0.5})]
    found = rows_of(samples, SETTINGS)
    assert (found["rewards/a"]["value"], found["rewards/a"]["n"]) == (0.5, 2)
    assert (found["rewards/b"]["value"], found["rewards/b"]["n"]) == (0.5, 1)


def test_failures_of_rewards_are_counted() -> None:
    faults = ["error", "timeout", "timeout", None]
    samples = [sample(row, 0, fault is None, reward=None, fault=fault) for row, fault in enumerate(faults)]
    found = rows_of(samples, SETTINGS)
    counts = {name: found[f"reward_{name}"]["value"] for name in ("errors", "timeouts", "crashes")}
    assert counts == {"errors": 1, "timeouts": 2, "crashes": 0}
    assert "skipped_tokens" not in found
    assert rows_of([*samples, sample(9, 0, skipped=3)], SETTINGS)["skipped_tokens"]["value"] == 3


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


def test_only_prompts_of_both_are_compared() -> None:
    ours = [sample(1, 0, True), sample(2, 0, True), sample(3, 0, False)]
    others = [sample(2, 0, False), sample(3, 0, False), sample(4, 0, True)]
    found = rows_of(ours, SETTINGS, {"reference": others})
    assert found["pass@1/vs_reference"]["value"] == pytest.approx(0.5)
    assert found["pass@1/vs_reference"]["n"] == 2
    apart = rows_of(ours, SETTINGS, {"reference": [sample(9, 0, True)]})
    assert not [name for name in apart if "vs" in name]


def test_the_order_of_shards_does_not_matter() -> None:
    ours, others = policy(0.6, 3, prompts=10), policy(0.4, 4, prompts=10)
    shuffled = [ours[i] for i in np.random.default_rng(0).permutation(10 * 4)]
    turned = [others[i] for i in np.random.default_rng(1).permutation(10 * 4)]
    one = evaluation_rows(ours, SETTINGS, {"reference": others})
    assert json.dumps(evaluation_rows(shuffled, SETTINGS, {"reference": turned})) == json.dumps(one)


def test_nothing_was_evaluated() -> None:
    found = rows_of([], SETTINGS, {"reference": []})
    assert found["reward"]["value"] is None
    assert found["reward"]["n"] == 0


def test_samples_written_before_there_were_answers_can_be_read(tmp_path: Path) -> None:
    old = {"row": 1, "sample": 0, "prompt": "p", "completion": "c", "tokens": 3, "reward": 1.0, "correct": True}
    (tmp_path / FILE).write_text(json.dumps({**old, "kl": 0.5, "truncated": False}) + "\n")
    (found,) = read_samples([tmp_path])
    assert (found.answer, found.parts, found.fault) == (None, {}, None)
    write_samples(tmp_path / FILE, [sample(1, 0, parts={"a": None}, fault="error")])
    assert read_samples([tmp_path]) == [sample(1, 0, parts={"a": None}, fault="error")]


def test_a_policy_that_has_diverged_still_has_its_other_numbers(tmp_path: Path) -> None:
    write_samples(tmp_path / FILE, [sample(row, 0, kl=float("nan") if row else 0.5) for row in range(4)])
    check_output(tmp_path)
    found = rows_of(read_samples([tmp_path]), SETTINGS)
    assert found["kl_per_sequence"]["value"] is None
    assert found["pass@1"]["value"] == 1


def test_a_sample_that_lacks_a_field_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    write_samples(tmp_path / FILE, [sample(0, 0)])
    with (tmp_path / FILE).open("a") as file:
        file.write('{"row": 1}\n')
    with pytest.raises(
        JobError, match=r"samples\.jsonl in the output of .*: line 2: object missing required field"
    ):
        read_samples([tmp_path])


@pytest.mark.parametrize("wrong", [0, 1, 4])
def test_where_nearly_every_answer_is_right_the_interval_does_not_vanish(wrong: int) -> None:
    """A bootstrap draws no wrong answer where there is none, and promises 1.000 to 1.000."""
    samples = [sample(row, 0, row >= wrong) for row in range(200)]
    found = rows_of(samples, SETTINGS)["pass@1"]
    exact = binomtest(200 - wrong, 200).proportion_ci(0.95, "exact")
    assert found["ci_low"] == pytest.approx(exact.low, abs=5e-4)
    assert found["ci_high"] == pytest.approx(exact.high, abs=5e-4)
    assert rows_of(samples, SETTINGS)["reward"]["ci_low"] <= 1 - wrong / 200  # no share: percentiles


@pytest.mark.parametrize("right", [True, False])
def test_of_a_single_prompt_a_share_has_a_wide_interval_and_nothing_else_has_one(right: bool) -> None:
    found = rows_of([sample(0, 0, right), sample(0, 1, right)], SETTINGS)
    exact = binomtest(int(right), 1).proportion_ci(0.95, "exact")
    ends = found["pass@1"]["ci_low"], found["pass@1"]["ci_high"]
    assert ends == pytest.approx((exact.low, exact.high))
    assert (found["length"]["ci_low"], found["length"]["ci_high"]) == (None, None)


def test_two_policies_that_are_always_right_may_still_differ() -> None:
    always = [sample(row, 0) for row in range(200)]
    found = rows_of(always, SETTINGS, {"reference": always})["pass@1/vs_reference"]
    assert found["value"] == 0
    assert (found["ci_low"], found["ci_high"]) == pytest.approx((-0.018845, 0.018845), abs=1e-5)


def test_what_is_measured_by_prompt_makes_the_metrics() -> None:
    samples = policy(0.6, 5, prompts=20)
    found, measures = rows_of(samples, SETTINGS), measure(samples).by_metric()
    for name, (above, below) in measures.sums.items():
        assert found[name]["value"] == pytest.approx(above.sum() / below.sum()), name
    assert measures.rows.tolist() == list(range(20))


def test_names_are_known_before_anything_is_measured() -> None:
    samples = [sample(row, index, index == 0) for row in range(3) for index in range(12)]
    measured = measure(samples, SETTINGS.common_eta, dict.fromkeys(range(3), -1.0))
    known = metric_names(EvaluationConfig(num_samples=12))
    assert sorted(rows_of(samples, SETTINGS, None, measured)) == sorted(known)
