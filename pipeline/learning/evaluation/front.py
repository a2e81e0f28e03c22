"""Reward against divergence: which points of a sweep no other point beats, and which one is taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FrontPoint:
    """One policy of a sweep.

    Attributes:
        kl: Its divergence from the reference, in nats.
        reward: Its mean reward, or pass@1.
        label: What it is, for example its eta.
    """

    kl: float
    reward: float
    label: str = ""


def chosen_point(points: Iterable[FrontPoint], kl_limit: float | None) -> FrontPoint | None:
    """The point to take: the highest reward within a limit of divergence, of equals the least divergent.

    Args:
        points: Of a sweep. NaN is no measurement and is left out.
        kl_limit: Largest divergence in nats; None for none. Where all are beyond it the least divergence is taken.

    Returns:
        None where nothing was measured.
    """
    known = [point for point in points if point.kl == point.kl and point.reward == point.reward]
    within = [point for point in known if kl_limit is None or point.kl <= kl_limit]
    if not within:
        return min(known, key=lambda point: (point.kl, -point.reward, point.label), default=None)
    return min(within, key=lambda point: (-point.reward, point.kl, point.label))


def reward_kl_front(points: Iterable[FrontPoint]) -> list[FrontPoint]:
    """The points that no other one beats: none has at least their reward at no more divergence.

    Points that are equal in both are all kept, and divergences that differ by less than a millionth of a nat are
    equal, since sums of rounded numbers do. NaN is no measurement and is left out.

    Returns:
        By growing divergence, so also by growing reward.
    """
    known = (point for point in points if point.kl == point.kl and point.reward == point.reward)
    front: list[FrontPoint] = []
    for point in sorted(known, key=lambda point: (_nats(point), -point.reward, point.label)):
        equal = bool(front) and (_nats(point), point.reward) == (_nats(front[-1]), front[-1].reward)
        if not front or point.reward > front[-1].reward or equal:
            front.append(point)
    return front


def _nats(point: FrontPoint) -> float:
    return max(0.0, round(point.kl, 6))
