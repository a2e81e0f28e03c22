"""The optimum of E[reward] - eta KL, held to enumerations of every completion and of every policy's lack of it."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.config.schema import EvaluationConfig
from pipeline.learning.evaluation.metrics import evaluation_rows, measure
from pipeline.learning.evaluation.optimum import (
    REGRET,
    FrontPoint,
    J,
    chosen_point,
    optimum,
    optimum_columns,
    read_log_right,
    reward_kl_front,
    write_log_right,
)
from pipeline.outputs.formats import PROMPTS, Sample

Floats = NDArray[np.float64]
ETAS = [0.03, 0.1, 1.0, 30.0]


def reference(seed: int, tokens: int = 4, length: int = 3) -> tuple[list[tuple[int, ...]], Floats]:
    """Every completion and its probability under a policy whose next token depends on all before."""
    generator = np.random.default_rng(seed)
    steps = {
        prefix: generator.dirichlet(np.full(tokens, 0.3))
        for at in range(length)
        for prefix in product(range(tokens), repeat=at)
    }
    every = list(product(range(tokens), repeat=length))
    chances = [math.prod(steps[text[:at]][text[at]] for at in range(length)) for text in every]
    return every, np.array(chances)


def value(policy: Floats, chances: Floats, rewards: Floats, eta: float) -> tuple[float, float, float]:
    """Expected reward, divergence and J of any policy over all completions."""
    used = policy > 0
    reward = float(policy @ rewards)
    kl = float(policy[used] @ np.log(policy[used] / chances[used]))
    return reward, kl, reward - eta * kl


@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("right", [1, 5, 63])
def test_it_is_the_tilted_reference_completion_by_completion(eta: float, right: int) -> None:
    every, chances = reference(seed=right)
    rewards = (np.random.default_rng(right).permutation(len(every)) < right).astype(np.float64)
    tilted = chances * np.exp(rewards / eta)
    enumerated = value(tilted / tilted.sum(), chances, rewards, eta)
    found = optimum(np.log([chances @ rewards]), eta)
    assert [float(each[0]) for each in (found.reward, found.kl, found.regularized)] == pytest.approx(
        enumerated, rel=1e-9, abs=1e-12
    )


@pytest.mark.properties
@given(st.integers(0, 2**32 - 1), st.sampled_from(ETAS), st.integers(1, 63))
def test_no_policy_does_better(seed: int, eta: float, right: int) -> None:
    every, chances = reference(seed)
    generator = np.random.default_rng([seed, 1])
    rewards = (generator.permutation(len(every)) < right).astype(np.float64)
    best = optimum(np.log([chances @ rewards]), eta).regularized[0]
    weights = chances * np.exp(generator.normal(0, generator.uniform(0.1, 5), len(every)) + rewards / eta)
    policies = [generator.dirichlet(np.full(len(every), 0.1)), chances, weights / weights.sum()]
    assert all(
        value(policy, chances, rewards, eta)[2] <= best + 1e-9 for policy in policies if policy.sum() > 0.99
    )


def test_it_is_what_draws_of_the_reference_estimate() -> None:
    """J is eta ln E[exp(reward / eta)] under the reference, and pass@1 the mean reward of draws so weighted."""
    every, chances = reference(seed=3)
    rewards = (np.random.default_rng(3).permutation(len(every)) < 4).astype(np.float64)
    draws = rewards[np.random.default_rng(4).choice(len(every), 200_000, p=chances / chances.sum())]
    found = optimum(np.log([chances @ rewards]), 0.5)
    weights = np.exp(draws / 0.5)
    assert found.regularized[0] == pytest.approx(0.5 * math.log(weights.mean()), abs=0.01)
    assert found.reward[0] == pytest.approx((weights @ draws) / weights.sum(), abs=0.01)


# -- what policies lack of it ----------------------------------------------------------------------------------


def sample(row: int, index: int, reward: float | None, kl: float | None = 0.5) -> Sample:
    return Sample(row, index, "p", "c", 4, reward, None if reward is None else reward == 1, kl, truncated=False)


SAMPLES = [
    *(sample(1, 0, 1.0, 0.2), sample(1, 1, 0.0, 1.0)),
    *(sample(2, 0, 1.0, 2.0), sample(2, 1, None)),
    *(sample(3, 0, 1.0, 3.0), sample(3, 1, 1.0, 5.0)),
]
KNOWN = {1: math.log(0.5), 2: -math.inf}


def test_j_and_regret_of_each_prompt() -> None:
    found = measure(SAMPLES, 0.1, KNOWN).by_metric().sums
    above, below = found[J]
    assert above.tolist() == pytest.approx([1 - 0.1 * 1.2, 1 - 0.1 * 2.0, 2 - 0.1 * 8.0])
    assert below.tolist() == [2, 1, 2]  # a completion without a reward has no say
    best = optimum(np.log([0.5]), 0.1).regularized[0]
    above, below = found[REGRET]
    assert above.tolist() == pytest.approx([2 * best - (1 - 0.1 * 1.2), 0 - (1 - 0.1 * 2.0), 0])
    assert below.tolist() == [2, 1, 0]  # nothing is known of the best at the third prompt


def test_the_optimum_stands_beside_the_measures_of_the_reference() -> None:
    beside = measure(SAMPLES, 0.1, KNOWN).beside("optimum", optimum_columns(KNOWN, 0.1, [1.0, math.inf]))
    rows = evaluation_rows(SAMPLES, EvaluationConfig(bootstrap_samples=50), measured=beside)
    found = {row["metric"]: row for row in rows}
    best = {eta: optimum(np.array([math.log(0.5), -math.inf]), eta) for eta in (0.1, 1.0)}
    assert found["optimum/pass@1"]["value"] == pytest.approx(best[0.1].reward.mean())
    assert found["optimum/kl_per_sequence/eta=1"]["value"] == pytest.approx(best[1.0].kl.mean())
    assert found[f"optimum/{J}/eta=1"]["value"] == pytest.approx(best[1.0].regularized.mean())
    assert found["optimum/pass@1/eta=inf"]["value"] == pytest.approx(0.25)
    assert f"optimum/{J}/eta=inf" not in found
    assert found["optimum/regret"]["value"] == 0
    assert found["optimum/pass@1"]["n"] == 2  # the third prompt's is not known
    assert 0 <= found["optimum/pass@1"]["ci_low"] <= found["optimum/pass@1"]["ci_high"] <= 1


# -- on the way from one stage to the next ---------------------------------------------------------------------


def test_shards_leave_it_and_all_of_them_must(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder, known in zip(folders, ({5: -0.5, 2: -math.inf}, {7: -1.5}, {}), strict=True):
        folder.mkdir()
        write_log_right(folder, known)
    assert read_log_right(folders) == {2: -math.inf, 5: -0.5, 7: -1.5}
    (folders[1] / PROMPTS).unlink()
    assert read_log_right(folders) == {}


# -- test front --------------------------------------------------------------------------------------------------
# Which points of a sweep no other point beats.


def test_rounding_decides_nothing() -> None:
    points = [FrontPoint(-1.7e-8, 0.4, "a"), FrontPoint(0.0, 0.4, "b"), FrontPoint(4e-9, 0.4, "c")]
    assert {point.label for point in reward_kl_front(points)} == {"a", "b", "c"}


def test_dominated_points_are_left_out() -> None:
    points = [
        FrontPoint(0.0, 0.4, "inf"),
        FrontPoint(3.0, 0.7, "0.3"),
        FrontPoint(2.0, 0.7, "0.5"),  # as good as the one above for less
        FrontPoint(1.0, 0.3, "1"),  # worse than the reference
        FrontPoint(5.0, 0.8, "0.1"),
        FrontPoint(float("nan"), 0.9, "failed"),
    ]
    assert [point.label for point in reward_kl_front(points)] == ["inf", "0.5", "0.1"]


def test_equal_points_stay_together() -> None:
    points = [FrontPoint(1.0, 0.5, name) for name in "ab"]
    assert [point.label for point in reward_kl_front(points)] == ["a", "b"]
    assert reward_kl_front([]) == []


def test_against_the_definition() -> None:
    generator = np.random.default_rng(0)
    points = [FrontPoint(float(a), float(b), str(i)) for i, (a, b) in enumerate(generator.integers(0, 9, (60, 2)))]
    expected = {
        p
        for p in points
        if not any(q.kl <= p.kl and q.reward >= p.reward and (q.kl, q.reward) != (p.kl, p.reward) for q in points)
    }
    assert set(reward_kl_front(points)) == expected


@pytest.mark.parametrize(
    ("kl_limit", "label"),
    [(None, "best"), (2.0, "middle"), (1.0, "middle"), (0.5, "none"), (0.0, "none")],
)
def test_the_highest_reward_within_the_limit_is_taken(kl_limit: float | None, label: str) -> None:
    points = [
        FrontPoint(0.0, 0.4, "none"),
        FrontPoint(1.0, 0.7, "middle"),
        FrontPoint(1.5, 0.7, "as good and further away"),
        FrontPoint(3.0, 0.9, "best"),
        FrontPoint(float("nan"), 1.0, "diverged"),
    ]
    found = chosen_point(points, kl_limit)
    assert found is not None
    assert found.label == label


def test_where_all_are_beyond_the_limit_the_nearest_is_taken() -> None:
    assert chosen_point([FrontPoint(2.0, 0.9, "b"), FrontPoint(1.0, 0.1, "a")], 0.5) == FrontPoint(1.0, 0.1, "a")
    assert chosen_point([], 1.0) is None
