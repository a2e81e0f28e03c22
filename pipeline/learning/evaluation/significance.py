"""Tests of two policies on the same prompts, many tests at once, and what a test can find at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import special

from pipeline.learning.evaluation.crossed import Floats, Spread

POWER = 0.8
"""Chance with which the smallest difference that counts as detectable is found."""


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of a family of tests, so that one below a level is that among all of them (Holm 1979).

    Args:
        p_values: Of each test.

    Returns:
        The adjusted ones, in the same order.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for passed, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - passed) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def mcnemar(differences: Floats) -> float:
    """The exact test of two policies that are right or wrong at each prompt (McNemar 1947).

    Only prompts at which one of them is right and the other wrong say anything; were there no difference, either
    would be as likely to be the right one.

    Args:
        differences: 1 where the first alone is right, -1 where the second is, else 0; shape [P].

    Returns:
        The two-sided p-value.
    """
    wins, losses = int(np.sum(differences > 0)), int(np.sum(differences < 0))
    return float(min(1.0, 2 * special.bdtr(min(wins, losses), wins + losses, 0.5))) if wins + losses else 1.0


def least_detectable_share(prompts: int, tests: int, confidence: float) -> float:
    """The difference of two shares that an exact test of prompts finds with a chance of `POWER` at best.

    At best all prompts that differ favour the same policy. Even then the test needs so many of them that tossing a
    coin for each would hardly give the same; in how many prompts of a run they differ is itself by chance.

    Args:
        prompts: Of the run, with one answer each.
        tests: Of the family, as `smallest_detectable` has it.
        confidence: 1 less the level of the family.
    """
    needed = int(np.ceil(np.log2(2 * max(1, tests) / (1 - confidence))))
    return float(special.betaincinv(needed, prompts - needed + 1, POWER)) if needed <= prompts else 1.0


def smallest_detectable(spread: Spread, tests: int, confidence: float) -> Floats:
    """The difference that is found with a chance of `POWER`, where the largest of several tests decides.

    Args:
        spread: Of a difference as the run has measured it.
        tests: Of the family, which Holm's correction divides the level by at first.
        confidence: 1 less the level of the family.
    """
    level = (1 - confidence) / max(1, tests)
    return np.asarray((spread.critical(level) + spread.critical(2 * (1 - POWER))) * np.sqrt(spread.variance))
