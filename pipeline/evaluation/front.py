"""Reward against divergence: which points of a sweep no other point beats."""

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


def reward_kl_front(points: Iterable[FrontPoint]) -> list[FrontPoint]:
    """The points that no other one beats: none has at least their reward at no more divergence.

    Points that are equal in both are all kept. NaN is no measurement and is left out.

    Returns:
        By growing divergence, so also by growing reward.
    """
    known = (point for point in points if point.kl == point.kl and point.reward == point.reward)
    front: list[FrontPoint] = []
    for point in sorted(known, key=lambda point: (point.kl, -point.reward, point.label)):
        equal = bool(front) and (point.kl, point.reward) == (front[-1].kl, front[-1].reward)
        if not front or point.reward > front[-1].reward or equal:
            front.append(point)
    return front
