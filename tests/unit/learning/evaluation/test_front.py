"""Which points of a sweep no other point beats."""

import numpy as np
import pytest

from pipeline.learning.evaluation.optimum import FrontPoint, chosen_point, reward_kl_front


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
