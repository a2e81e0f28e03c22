"""Intervals of shares, which lie between 0 and 1 and are skewed near either end."""

from __future__ import annotations

import numpy as np
from scipy import special

from pipeline.learning.evaluation.crossed import Floats, Spread


def share_interval(spread: Spread, confidence: float) -> tuple[Floats, Floats]:
    """An interval of a mean of shares, symmetric in the log-odds, so that it stays between 0 and 1.

    Where the standard error is 0, as where every prompt is right, it is that of Clopper and Pearson for as many
    answers as there are prompts: the policies may answer them all alike, so more cannot be taken for granted (Korn
    and Graubard 1998).

    Args:
        spread: Of the mean.
        confidence: Level of the interval.

    Returns:
        Lower and upper ends, each of shape [...].
    """
    value = np.clip(spread.value, 0, 1)
    inside = (value > 0) & (value < 1) & (spread.variance > 0)
    odds = special.logit(np.where(inside, value, 0.5))
    half = spread.half_width(confidence) / np.where(inside, value * (1 - value), 1)
    exact = exact_interval(value, np.full_like(value, spread.prompts_df + 1), confidence)
    return tuple(  # type: ignore[return-value]
        np.where(inside, special.expit(odds + sign * half), bound)
        for sign, bound in zip((-1, 1), exact, strict=True)
    )


def exact_interval(value: Floats, size: Floats, confidence: float) -> tuple[Floats, Floats]:
    """The interval of Clopper and Pearson (1934); the size need not be whole, as an effective one is not.

    Args:
        value: Observed shares.
        size: Answers that they rest on.
        confidence: Level of the interval.
    """
    tail = (1 - confidence) / 2
    right = value * size
    wrong = size - right
    with np.errstate(invalid="ignore"):
        low = np.where(right > 0, special.betaincinv(np.maximum(right, 1e-9), wrong + 1, tail), 0.0)
        high = np.where(wrong > 0, special.betaincinv(right + 1, np.maximum(wrong, 1e-9), 1 - tail), 1.0)
    return np.asarray(low), np.asarray(high)


def effective_size(spread: Spread, confidence: float) -> Floats:
    """As many independent answers would leave this variance, and know it as well (Korn and Graubard 1998).

    Args:
        spread: Of shares; where its variance is 0, they count for as many answers as there are prompts.
        confidence: Level of the interval that is wanted.
    """
    certain = -special.ndtri((1 - confidence) / 2)
    spoken = spread.value * (1 - spread.value) * (certain / spread.critical(1 - confidence)) ** 2
    known = spread.variance > 0
    return np.asarray(
        np.divide(spoken, spread.variance, out=np.full_like(spoken, spread.prompts_df + 1), where=known)
    )
