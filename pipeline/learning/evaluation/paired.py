"""The difference of two policies as they are, on the same prompts: its interval, and whether it is by chance.

Few prompts may tell two good policies apart, and a variance is then known from these few alone: an interval of so
many standard errors is too narrow. So every hypothetical difference is held against the variance that the data
would have if it were true, which is a score interval. The distribution in question is the likeliest of those with
that mean: the observed differences, reweighted, and an end of their range, where an unseen prompt may lie. Where
each prompt has one answer, right or wrong, the interval is that of Tango (1998).

That there is no difference is a special hypothesis: the answers of the two to a prompt could then be swapped,
which gives an exact test. Where prompts differ by parts of what they could, the interval also allows for prompts
that differ wholly, of which the swaps know nothing. So that a p-value and an interval never contradict each other,
the test is both: its p-value is the larger of the swaps' and the interval's own, and the interval has 0 in it
wherever that p-value does not reject.

Legend: P prompts, M differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from pipeline.learning.evaluation.statistics import SWAPS, Floats, Ratios, Spread, per_prompt, swap_tests

# -- significance ------------------------------------------------------------------------------------------------
# Tests of two policies on the same prompts, many tests at once, and what a test can find at all.


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


Test = Literal["mcnemar", "swaps"]
Bounds = tuple[float, float]
_HALVINGS = 50
_EQUAL = 1e-12
"""Of their size, what two numbers may differ by for rounding alone."""
_ROUNDING = 1e-20
"""A square of a difference, of a range of 1, that is none but for rounding."""


@dataclass(frozen=True)
class Paired:
    """What prompts say of a difference, of those of which both policies have something to say.

    Attributes:
        differences: By policy and prompt, shape [C, P]; not finite where what `per_prompt` gives is not.
        reach: The largest difference that such a prompt could show: how far apart all that is seen of both lies.
    """

    differences: Floats
    reach: float


def paired_by_prompt(first: Ratios, second: Ratios) -> Paired:
    """Hold policies against others prompt by prompt.

    Args:
        first: Measures of C policies, shape [C, P].
        second: The same of C others, in the same order.
    """
    both = (first.denominators > 0) & (second.denominators > 0)
    told = both.any(0)
    ours, theirs = (
        per_prompt(Ratios((one.numerators * both)[:, told], (one.denominators * both)[:, told]))
        for one in (first, second)
    )
    if not told.any():
        return Paired(ours, 0.0)
    with np.errstate(invalid="ignore"):
        found = ours - theirs
        reach = np.maximum(ours, theirs).max() - np.minimum(ours, theirs).min()
    alike = np.abs(found) <= _EQUAL * (np.abs(ours) + np.abs(theirs))
    return Paired(np.where(alike, 0.0, found), float(reach))


def says_all_or_nothing(differences: Floats) -> bool:
    """Whether each prompt says nothing, or all that it can: one answer of each policy, right or wrong."""
    return bool(np.isin(np.abs(differences), (0, 1)).all())


def paired_tests(differences: Sequence[Floats], reaches: Sequence[float]) -> list[tuple[float, Test]]:
    """Test whether differences are 0, by what the swap of the two policies at any prompt would give.

    Args:
        differences: By prompt, each of shape [P]; the numbers of prompts may differ.
        reaches: The largest difference that a prompt could show; see `paired_intervals`.

    Returns:
        Of each the two-sided p-value and the test: the exact one where a prompt says nothing, or all that it can,
        else that of random swaps, where the level from which the interval excludes 0 is no larger.
    """
    found: dict[int, tuple[float, Test]] = {}
    drawn: dict[int, list[int]] = {}
    for place, one in enumerate(differences):
        if says_all_or_nothing(one):
            found[place] = mcnemar(one), "mcnemar"
        else:
            drawn.setdefault(len(one), []).append(place)
    for places in drawn.values():  # those of as many prompts have their swaps drawn once
        values = swap_tests(np.stack([differences[place] for place in places], axis=1))
        for place, p in zip(places, values, strict=True):
            found[place] = max(float(p), _score_p(differences[place], reaches[place])), "swaps"
    return [found[place] for place in range(len(differences))]


def paired_intervals(differences: Sequence[Floats], reaches: Sequence[float], confidence: float) -> list[Bounds]:
    """Intervals of mean differences.

    Args:
        differences: By prompt, each of shape [P]; the numbers of prompts may differ.
        reaches: The largest difference that a prompt could show, or 0 where no more is known than is seen.
        confidence: Level of the intervals.

    Returns:
        The ends of each. One has 0 in it wherever `paired_tests` does not reject it at this level.
    """
    found = score_intervals(differences, reaches, confidence)
    level = 1 - confidence
    doubtful = [
        place
        for place, (low, high) in enumerate(found)
        if (low > 0 or high < 0) and _most_p(differences[place]) >= level
    ]
    tested = paired_tests([differences[place] for place in doubtful], [reaches[place] for place in doubtful])
    for place, (p, _) in zip(doubtful, tested, strict=True):
        if p >= level:
            found[place] = min(found[place][0], 0.0), max(found[place][1], 0.0)
    return found


def _most_p(differences: Floats) -> float:
    """What a p-value of swaps is at most, by Hoeffding's inequality (1963), so that most need not be drawn.

    Draws that are few beside those that are made, or twice as many as are expected, are as good as impossible.
    """
    scaled = differences / np.abs(differences).max()
    return 4 * float(np.exp(-(scaled.sum() ** 2) / (2 * (scaled**2).sum()))) + 20 / SWAPS


def score_intervals(differences: Sequence[Floats], reaches: Sequence[float], confidence: float) -> list[Bounds]:
    """The mean differences that the data do not contradict, each by its own variance; see `paired_intervals`."""
    counted = [np.unique(one, return_counts=True) for one in differences]
    values = np.zeros((len(counted), max((len(seen) for seen, _ in counted), default=1)))
    times = np.zeros_like(values)
    for place, (seen, often) in enumerate(counted):
        values[place, : len(seen)], times[place, : len(seen)] = seen, often
    low, high = score_limits(values, times, np.array(reaches, np.float64), confidence)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def score_limits(values: Floats, times: Floats, reaches: Floats, confidence: float) -> tuple[Floats, Floats]:
    """The same of differences as often as they occur.

    Args:
        values: Differences, shape [M, K].
        times: How often each occurs, shape [M, K].
        reaches: The largest that a prompt could show, shape [M].
        confidence: Level of the intervals.

    Returns:
        Lower and upper ends, each of shape [M].
    """
    scale = np.maximum(np.abs(values).max(-1), reaches)
    scaled = np.divide(values, scale[:, None], out=np.zeros_like(values), where=scale[:, None] > 0)
    certain = float(-special.ndtri((1 - confidence) / 2))
    return 0.0 - scale * _upper(-scaled, times, certain), scale * _upper(scaled, times, certain)


def _score_p(differences: Floats, reach: float) -> float:
    """The level at which the score interval of a mean begins to exclude 0."""
    scale = max(float(np.abs(differences).max(initial=0)), reach)
    mean = float(differences.mean())
    if scale == 0 or mean == 0:
        return 1.0
    # As `_upper` goes, from a mean below 0 up to 0.
    values, times = (-np.sign(mean) * differences / scale)[None], np.ones((1, len(differences)))
    low, high = np.zeros(1), np.full(1, 2.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        raised, _ = _likeliest(values, times, middle)
        low, high = np.where(raised < 0, middle, low), np.where(raised < 0, high, middle)
    _, variance = _likeliest(values, times, high)
    return float(2 * special.ndtr(-np.sqrt(len(differences) * (mean / scale) ** 2 / variance))[0])


def _upper(values: Floats, times: Floats, certain: float) -> Floats:
    """The largest mean that is not contradicted, of values between -1 and 1, shape [M, K]."""
    count = times.sum(-1)
    mean = (times * values).sum(-1) / count
    low, high = np.zeros_like(mean), np.full_like(mean, 2.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        raised, variance = _likeliest(values, times, middle)
        beyond = count * (raised - mean) ** 2 > certain**2 * variance + _ROUNDING
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return _likeliest(values, times, low)[0]


def _likeliest(values: Floats, times: Floats, push: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the likeliest distributions on [-1, 1], which go from the observed one to a mean of 1.

    Up to a push of 1 values gain weight as 1 / (1 - push * value), the solution of the empirical likelihood (Owen
    2001, section 2.9). From there on what is left of a push of 2 is their share, and the rest lies at 1.
    """
    weights = times / np.maximum(1 - np.minimum(push, 1)[..., None] * values, 1e-200)
    weights = weights / weights.sum(-1, keepdims=True)
    unseen = np.maximum(push - 1, 0)
    mean = (1 - unseen) * (weights * values).sum(-1) + unseen
    square = (1 - unseen) * (weights * values**2).sum(-1) + unseen
    return mean, np.maximum(square - mean**2, 0)
