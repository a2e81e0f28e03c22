"""Rows of metrics, pass@k and maj@k, the optimum and what policies lack of it, against what they mean."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from pipeline.config.schema import EvaluationConfig
from pipeline.learning.evaluation import metrics
from pipeline.outputs import check, formats

SETTINGS = EvaluationConfig(bootstrap_samples=200)


def sample(row: int, index: int, correct: bool | None = True, **fields: Any) -> formats.Sample:
    reward = None if correct is None else float(correct)
    given = {"tokens": 4, "reward": reward, "kl": 0.5, "truncated": False, "answer": str(correct), "prompt": "p"}
    return formats.Sample(row=row, sample=index, completion="c", correct=correct, **(given | fields))


def rows_of(*args: Any) -> dict[str, dict[str, Any]]:
    rows = metrics.evaluation_rows(*args)
    assert len({row["metric"] for row in rows}) == len(rows)
    return {row["metric"]: row for row in rows}


def policy(chance: float, seed: int, prompts: int = 60, n: int = 4) -> list[formats.Sample]:
    generator = np.random.default_rng(seed)
    return [sample(row, i, bool(generator.random() < chance)) for row in range(prompts) for i in range(n)]


def test_prompts_of_two_sets_are_the_same_by_their_text() -> None:
    one, other = (
        metrics.measure([sample(row, index, prompt=text) for row, text in enumerate(texts) for index in range(2)])
        for texts in (("a", "b", "a"), ("\ud800", "a", "c"))
    )
    assert one.texts[0] == other.texts[1]
    assert len({*one.texts.tolist(), *other.texts.tolist()}) == 5


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
    metrics.write_samples(
        tmp_path / formats.SAMPLES, [sample(row, 0, kl=float("nan") if row else 0.5) for row in range(4)]
    )
    check.check_output(tmp_path)
    found = rows_of(metrics.read_samples([tmp_path]), SETTINGS)
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


@pytest.mark.parametrize("each", [1, 2])
def test_of_few_prompts_that_are_right_or_wrong_the_interval_is_exact(each: int) -> None:
    samples = [sample(row, at, row > 0) for row in range(5) for at in range(each)]
    found, exact = rows_of(samples, SETTINGS)["pass@1"], binomtest(4, 5).proportion_ci(0.95, "exact")
    assert (found["ci_low"], found["ci_high"]) == pytest.approx((exact.low, exact.high))


def test_metrics_by_hand() -> None:
    found = rows_of(
        [
            sample(7, 0, tokens=2, kl=1.0, answer=None),
            sample(7, 1, correct=False, kl=0.0, truncated=True, answer=None),
            sample(8, 0, correct=False, tokens=6, kl=2.0, reward=None, answer=None),
            sample(8, 1, tokens=8, kl=3.0, answer=None),
        ],
        SETTINGS,
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


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_mean_over_all_subsets(n: int) -> None:
    for c in range(n + 1):
        outcomes = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            expected = np.mean([any(subset) for subset in combinations(outcomes, k)])
            (found,) = metrics.pass_at_k(np.array([n]), np.array([c]), k)
            assert found == pytest.approx(expected, abs=1e-12)


def vote(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """One ballot: winners share; an answer is right to the share of its samples that are."""
    counts = Counter(answer for answer in answers if answer is not None)
    if not counts:
        return 0.0
    winners = [answer for answer, count in counts.items() if count == max(counts.values())]
    return sum(credit_of(winner, answers, correct) for winner in winners) / len(winners)


def credit_of(answer: str, answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    return float(np.mean([right for given, right in zip(answers, correct, strict=True) if given == answer]))


@pytest.mark.parametrize(
    "answers",
    [
        [None],
        ["a", "a", "b", None],
        ["a", "a", "b", "b", "c", None],
        [None, None, None, "a", "b"],
        ["a", "a", "a", "b", "b", "b", "c", "d"],
    ],
    ids=str,
)
def test_maj_at_k_is_the_mean_over_all_subsets(answers: list[str | None]) -> None:
    correct = [answer in ("a", "d") for answer in answers]
    ks = range(1, len(answers) + 1)
    found = metrics.majority_at_k([answers], [correct], list(ks))[0]
    expected = [
        np.mean(
            [
                vote([answers[i] for i in subset], [correct[i] for i in subset])
                for subset in combinations(range(len(answers)), k)
            ]
        )
        for k in ks
    ]
    assert found == pytest.approx(expected, abs=1e-12)


# -- what policies lack of it ----------------------------------------------------------------------------------


def worth(row: int, index: int, reward: float | None, kl: float = 0.5) -> formats.Sample:
    return sample(row, index, None if reward is None else reward == 1, reward=reward, kl=kl, answer=None)


EVALUATED = [
    *(worth(1, 0, 1.0, 0.2), worth(1, 1, 0.0, 1.0)),
    *(worth(2, 0, 1.0, 2.0), worth(2, 1, None)),
    *(worth(3, 0, 1.0, 3.0), worth(3, 1, 1.0, 5.0)),
]
KNOWN = {1: math.log(0.5), 2: -math.inf}


def test_j_and_regret_of_each_prompt() -> None:
    found = metrics.measure(EVALUATED, 0.1, KNOWN).sums
    above, below = found[metrics.J]
    assert above.tolist() == pytest.approx([1 - 0.1 * 1.2, 1 - 0.1 * 2.0, 2 - 0.1 * 8.0])
    assert below.tolist() == [2, 1, 2]  # a completion without a reward has no say
    best = metrics.optimum(np.log([0.5]), 0.1).regularized[0]
    above, below = found[metrics.REGRET]
    assert above.tolist() == pytest.approx([2 * best - (1 - 0.1 * 1.2), 0 - (1 - 0.1 * 2.0), 0])
    assert below.tolist() == [2, 1, 0]  # nothing is known of the best at the third prompt


def test_the_optimum_stands_beside_the_measures_of_the_reference() -> None:
    both = metrics.beside(
        metrics.measure(EVALUATED, 0.1, KNOWN), "optimum", metrics.optimum_columns(KNOWN, 0.1, [1.0, math.inf])
    )
    rows = metrics.evaluation_rows(EVALUATED, EvaluationConfig(bootstrap_samples=50), measured=both)
    found = {row["metric"]: row for row in rows}
    best = {eta: metrics.optimum(np.array([math.log(0.5), -math.inf]), eta) for eta in (0.1, 1.0)}
    assert found["optimum/pass@1"]["value"] == pytest.approx(best[0.1].reward.mean())
    assert found["optimum/kl_per_sequence/eta=1"]["value"] == pytest.approx(best[1.0].kl.mean())
    assert found[f"optimum/{metrics.J}/eta=1"]["value"] == pytest.approx(best[1.0].regularized.mean())
    assert found["optimum/pass@1/eta=inf"]["value"] == pytest.approx(0.25)
    assert f"optimum/{metrics.J}/eta=inf" not in found
    assert found["optimum/regret"]["value"] == 0
    assert found["optimum/pass@1"]["n"] == 2  # the third prompt's is not known
    assert 0 <= found["optimum/pass@1"]["ci_low"] <= found["optimum/pass@1"]["ci_high"] <= 1


# -- on the way from one stage to the next ---------------------------------------------------------------------


def test_shards_leave_it_and_all_of_them_must(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder, known in zip(folders, ({5: -0.5, 2: -math.inf}, {7: -1.5}, {}), strict=True):
        folder.mkdir()
        metrics.write_log_right(folder, known)
    assert metrics.read_log_right(folders) == {2: -math.inf, 5: -0.5, 7: -1.5}
    (folders[1] / formats.PROMPTS).unlink()
    assert metrics.read_log_right(folders) == {}


# -- test front --------------------------------------------------------------------------------------------------
# Which points of a sweep no other point beats.


def test_against_the_definition() -> None:
    generator = np.random.default_rng(0)
    points = [
        metrics.FrontPoint(float(a), float(b), str(i))
        for i, (a, b) in enumerate(generator.integers(0, 9, (60, 2)))
    ]
    nothing = metrics.FrontPoint(float("nan"), 9.0, "failed")
    expected = {
        p
        for p in points
        if not any(q.kl <= p.kl and q.reward >= p.reward and (q.kl, q.reward) != (p.kl, p.reward) for q in points)
    }
    assert set(metrics.reward_kl_front([nothing, *points])) == expected
    assert metrics.reward_kl_front([]) == []


@pytest.mark.parametrize(
    ("kl_limit", "label"),
    [(None, "best"), (2.0, "middle"), (1.0, "middle"), (0.0, "none"), (-1.0, "none")],
)
def test_the_highest_reward_within_the_limit_is_taken(kl_limit: float | None, label: str) -> None:
    points = [
        metrics.FrontPoint(0.0, 0.4, "none"),
        metrics.FrontPoint(1.0, 0.7, "middle"),
        metrics.FrontPoint(1.5, 0.7, "as good and further away"),
        metrics.FrontPoint(3.0, 0.9, "best"),
        metrics.FrontPoint(float("nan"), 1.0, "diverged"),
    ]
    found = metrics.chosen_point(points, kl_limit)
    assert found is not None
    assert found.label == label
