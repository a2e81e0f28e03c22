"""Compute intervals and tests: for single policies, for means over several, and for two on the same prompts.

Intervals of one policy come from the bootstrap over prompts.

Samples of one prompt are not independent, so the bootstrap draws prompts, each with all of its samples (a cluster
bootstrap; Cameron, Gelbach and Miller 2008, section II.B). Every measure is a ratio of two sums over prompts, so
one set of draws serves all measures in a single matrix product.

Legend: P prompts, M measures or differences, B resamples.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from pipeline.config.schema import ENOUGH

Floats = NDArray[np.float64]

_AT_ONCE = 4_000_000
"""Largest number of weights in memory at once: 32 MB. The draws do not depend on the blocks."""
SWAPS = 10_000
"""Number of swaps in a test, so that a p-value can be small enough to survive a correction for many tests."""
_BOOTSTRAP, _SWAPS = 4, 5
"""Second words of the keys of the two streams of draws."""


@dataclass(frozen=True)
class Estimate:
    """An estimate with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratios:
    """M measures of P prompts, each the sum of numerators over the sum of denominators.

    Attributes:
        numerators: Shape [P, M].
        denominators: For example samples or tokens, shape [P, M]; 0 for a prompt without data.
    """

    numerators: Floats
    denominators: Floats


def ratio_estimates(ratios: Ratios, *, samples: int, confidence: float, seed: int = 0) -> list[Estimate]:
    """Estimate every measure, with a percentile interval.

    Args:
        ratios: The measures.
        samples: Bootstrap samples, B.
        confidence: Level of the interval, for example 0.95.
        seed: Seed of the bootstrap; equal inputs give equal intervals.

    Returns:
        M estimates.

    Raises:
        ValueError: There is no prompt, or the denominators of a measure sum to 0.
    """
    if len(ratios.numerators) == 0 or not (ratios.denominators.sum(0) > 0).all():
        raise ValueError("an estimate needs at least one sample")
    values = ratios.numerators.sum(0) / ratios.denominators.sum(0)
    replicates = np.concatenate(
        [_divided(weights, ratios) for weights in _bootstrap_weights(len(ratios.numerators), samples, seed)]
    )
    tail = (1 - confidence) / 2
    with warnings.catch_warnings():  # percentiles are NaN if no resample is a number
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = np.nanquantile(replicates, [tail, 1 - tail], axis=0)
    return [Estimate(*map(float, row)) for row in zip(values, low, high, strict=True)]


def swap_tests(differences: Floats, *, samples: int = SWAPS, seed: int = 0) -> Floats:
    """Test whether the means of paired differences are 0, by swapping the two of a pair.

    Under the null hypothesis the two values of any prompt can be swapped, which changes the sign of their
    difference. The p-value is the share of random swaps with at least the observed difference; the observed data
    count as one swap, which keeps the p-value above 0 (Phipson and Smyth 2010).

    Args:
        differences: Differences of M comparisons per prompt, shape [P, M].
        samples: Number of swaps.
        seed: Seed of the swaps.

    Returns:
        Two-sided p-values, shape [M].
    """
    sums = np.abs(differences.sum(0))
    # Swaps with an equal difference must not count as smaller because of a rounding error.
    reached = sums - 1e-9 * np.abs(differences).sum(0)
    extreme = np.zeros(len(sums))
    for flips in _flips(len(differences), samples, seed):
        extreme += (np.abs(flips @ differences) >= reached).sum(0)
    return (1 + extreme) / (1 + samples)


def _bootstrap_weights(prompts: int, samples: int, seed: int) -> Iterator[Floats]:
    """Yield how often each prompt is drawn, in blocks of shape [<=B, P]."""
    generator = np.random.Generator(np.random.Philox(key=[seed, _BOOTSTRAP]))
    even = np.full(prompts, 1 / prompts)
    for size in _blocks(prompts, samples):
        # Drawing n prompts with replacement is equivalent to drawing the count of each.
        yield generator.multinomial(prompts, even, size=size).astype(np.float64)


def _flips(prompts: int, samples: int, seed: int) -> Iterator[Floats]:
    """Yield random signs, 1 or -1, in blocks of shape [<=B, P]."""
    generator = np.random.Generator(np.random.Philox(key=[seed, _SWAPS]))
    for size in _blocks(prompts, samples):
        yield np.where(generator.random((size, prompts)) < 0.5, 1.0, -1.0)


def _blocks(prompts: int, samples: int) -> Iterator[int]:
    size = max(1, _AT_ONCE // prompts)
    for start in range(0, samples, size):
        yield min(size, samples - start)


def _divided(weights: Floats, ratios: Ratios) -> Floats:
    """Compute the measures of resamples, shape [B, M]; NaN for a resample without data."""
    above, below = weights @ ratios.numerators, weights @ ratios.denominators
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


# -- crossed -----------------------------------------------------------------------------------------------------
# The precision of a mean over crossed references, seeds and prompts: each occurs with all of the others. Every
# policy answers the same prompts, so the policies' errors are not independent, and every prompt is answered by the
# same policies, so neither are those of the prompts. The variance of the mean over all cells has a part that
# shrinks with the number of policies and one that shrinks with the number of prompts. Both follow, without bias,
# from the mean squares of an analysis of variance with random effects (Searle, Casella and McCulloch 1992, chapter
# 5). The two parts are known unequally well: three seeds leave two degrees of freedom, 500 prompts leave 499. So
# the critical value is the mean of the two quantiles of Student's t, weighted by the parts (Cochran and Cox 1957,
# section 4.14). A single number of degrees of freedom for the sum (Satterthwaite 1946) must itself be estimated,
# and its intervals are too narrow if three seeds and the prompts contribute equally; docs/coverage.md has both,
# simulated. Legend: R references, S seeds, P prompts; leading axes ``...`` are separate problems.


_LARGEST = 1e60
"""Largest values for which squares of variances are finite."""
_ROUNDING = 1e-24
"""Share of the largest square of the values that rounding may leave of a variance where there is none.

Results have ten digits, in which so small a standard error could not be told."""
_HALVINGS = 60
_SMALLEST = -30.0
"""Power of 10 of the smallest p-value that is told from 0."""


@dataclass(frozen=True)
class Spread:
    """A mean over crossed cells, and its variance by source; arrays of shape [...].

    Attributes:
        value: The mean.
        policies: Variance over seeds, and over references if they are a sample; 0 if neither is.
        policies_df: Degrees of freedom of this part.
        prompts: Variance over prompts that all policies share.
        prompts_df: Degrees of freedom of this part.
    """

    value: Floats
    policies: Floats
    policies_df: Floats
    prompts: Floats
    prompts_df: int

    @property
    def variance(self) -> Floats:
        """Variance of the mean."""
        return self.policies + self.prompts

    def critical(self, level: Floats | float) -> Floats:
        """Return the critical value of a two-sided test at this level, in standard errors."""
        variance = self.variance
        share = np.divide(self.policies, variance, out=np.zeros_like(variance), where=variance > 0)
        tail = np.asarray(level, np.float64) / 2
        ours, theirs = special.stdtrit(self.policies_df, tail), special.stdtrit(self.prompts_df, tail)
        return np.asarray(-(share * ours + (1 - share) * theirs))

    def half_width(self, confidence: float) -> Floats:
        """Return half of the width of a symmetric interval."""
        return self.critical(1 - confidence) * np.sqrt(self.variance)

    def p_value(self) -> Floats:
        """Return the two-sided p-value of the hypothesis that the mean is 0."""
        error = np.sqrt(self.variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(self.value == 0, 0.0, np.abs(self.value) / error)
        powers = np.full_like(distance, _SMALLEST), np.zeros_like(distance)
        _, high = _halved(*powers, lambda power: self.critical(10.0**power) > distance, _HALVINGS)
        return np.asarray(np.where(distance == 0, 1.0, 10.0**high))


def _halved(
    low: Floats, high: Floats, is_low: Callable[[Floats], NDArray[np.bool_]], times: int
) -> tuple[Floats, Floats]:
    """Bisect bounds `times` times; `is_low` says whether the middle becomes the lower bound."""
    for _ in range(times):
        middle = (low + high) / 2
        below = is_low(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low, high


def crossed_spread(values: Floats) -> Spread:
    """Return the mean of all cells and its variance.

    With fewer than `ENOUGH` references the variance is conditional on these models. With fewer than `ENOUGH` seeds
    it is also conditional on these policies, and only measures the noise of their evaluation.

    Args:
        values: Values per prompt, shape [..., R, S, P]; P is at least 2.

    Raises:
        ValueError: There are fewer than two prompts.
    """
    if values.shape[-1] < 2:
        raise ValueError("a variance needs at least two prompts")
    if values.shape[-2] < ENOUGH:
        values = values.mean((-3, -2), keepdims=True)
    elif values.shape[-3] < ENOUGH:
        values = values.mean(-3, keepdims=True)
    references, seeds, prompts = values.shape[-3:]
    parts = _mean_squares(values)
    rounding = _ROUNDING * np.abs(values).max((-3, -2, -1)) ** 2
    shared = parts["p"] - parts["rp"] - parts["sp"] + parts["rsp"]
    if seeds == 1:
        policies, freedom = np.zeros_like(shared), np.ones_like(shared)
    elif references == 1:
        policies, freedom = parts["s"], np.full_like(shared, seeds - 1)
    else:
        # Variance that seeds add to that of references; their interaction is in both, and is counted in that of
        # references.
        added = np.maximum(0, parts["s"] - parts["rs"])
        policies = parts["r"] + added
        known = parts["r"] ** 2 / (references - 1) + added**2 / (seeds - 1)
        freedom = np.divide(policies**2, known, out=np.full_like(shared, references - 1.0), where=known > 0)
    policies, shared = (np.where(part > rounding, part, 0.0) for part in (policies, shared))
    return Spread(values.mean((-3, -2, -1)), policies, freedom, shared, prompts - 1)


def known_spread(values: Floats) -> Spread | None:
    """Return `crossed_spread` of one problem, or None if the variance is unknown.

    The variance is unknown for fewer than two prompts, and if values are NaN or too large.

    Args:
        values: Values of `per_prompt`, shape [R, S, P].
    """
    known = values.shape[-1] > 1 and bool((np.abs(values) <= _LARGEST).all())
    return crossed_spread(values) if known else None


def _mean_squares(values: Floats) -> dict[str, Floats]:
    """Return mean squares by effect, divided by the number of cells; 0 for effects without degrees of freedom."""
    axes = {"r": -3, "s": -2, "p": -1}
    centred = values - values.mean((-3, -2, -1), keepdims=True)
    size = float(np.prod(values.shape[-3:]))
    sums: dict[str, Floats] = {}
    for effect in ("r", "s", "p", "rs", "rp", "sp", "rsp"):
        others = tuple(axis for name, axis in axes.items() if name not in effect)
        means = centred.mean(others) if others else centred
        within = tuple(range(-len(effect), 0))
        square = (means**2).sum(within) * (size / np.prod([values.shape[axes[name]] for name in effect]))
        lower = [name for name in sums if set(name) < set(effect)]
        sums[effect] = square - sum(sums[name] for name in lower)
    freedom = {effect: np.prod([values.shape[axes[name]] - 1 for name in effect]) for effect in sums}
    return {
        effect: np.maximum(0, total) / (freedom[effect] * size) if freedom[effect] else np.zeros_like(total)
        for effect, total in sums.items()
    }


def per_prompt(ratios: Ratios) -> Floats:
    """Return the contribution of each prompt to a ratio of sums: the mean is the ratio, with the same variance.

    A contribution is the ratio plus the prompt's residual over the mean denominator (linearisation; Cochran 1977,
    section 6.8). If all denominators are equal, the contributions are the quotients themselves.

    Args:
        ratios: Numerators and denominators, shape [..., P].

    Returns:
        Shape [..., P]; not finite if all denominators are 0, or a quotient is NaN.
    """
    above, below = ratios.numerators, ratios.denominators
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        total = above.sum(-1, keepdims=True) / below.sum(-1, keepdims=True)
        mean = below.sum(-1, keepdims=True) / np.float64(below.shape[-1])
        alike = (below == below[..., :1]).all(-1, keepdims=True)
        return np.where(alike, above / below, total + (above - total * below) / mean)


# -- shares ------------------------------------------------------------------------------------------------------
# Intervals of shares, which lie between 0 and 1 and are skewed near either end.


def share_interval(spread: Spread, confidence: float) -> tuple[Floats, Floats]:
    """Return an interval of a mean of shares, symmetric in the log-odds, so that it stays between 0 and 1.

    If the standard error is 0, for example if every answer is right, the interval is that of Clopper and Pearson
    with one answer per prompt: all policies may answer a prompt alike, so more answers cannot be assumed (Korn and
    Graubard 1998).

    Args:
        spread: Spread of the mean.
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
    """Return the interval of Clopper and Pearson (1934); the size may be fractional, such as an effective size.

    Args:
        value: Observed shares.
        size: Number of answers behind each share.
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
    """Return the number of independent answers with the same variance and precision (Korn and Graubard 1998).

    Args:
        spread: Spread of shares; for variance 0 the size is the number of prompts.
        confidence: Level of the intended interval.
    """
    certain = -special.ndtri((1 - confidence) / 2)
    spoken = spread.value * (1 - spread.value) * (certain / spread.critical(1 - confidence)) ** 2
    known = spread.variance > 0
    return np.asarray(
        np.divide(spoken, spread.variance, out=np.full_like(spoken, spread.prompts_df + 1), where=known)
    )


# -- significance ------------------------------------------------------------------------------------------------
# Tests of two policies on the same prompts, many tests at once, and what a test can find at all.


POWER = 0.8
"""Probability of finding the smallest detectable difference."""


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of a family of tests for multiple testing (Holm 1979).

    Args:
        p_values: P-value of each test.

    Returns:
        The adjusted p-values, in the same order.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for passed, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - passed) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def mcnemar(differences: Floats) -> float:
    """Return the p-value of the exact test of two policies that are right or wrong at each prompt (McNemar 1947).

    Only prompts count at which exactly one of them is right; under the null hypothesis either is equally likely to
    be the right one.

    Args:
        differences: 1 if only the first is right, -1 if only the second is, else 0; shape [P].

    Returns:
        The two-sided p-value.
    """
    wins, losses = int(np.sum(differences > 0)), int(np.sum(differences < 0))
    return float(min(1.0, 2 * special.bdtr(min(wins, losses), wins + losses, 0.5))) if wins + losses else 1.0


def least_detectable_share(prompts: int, tests: int, confidence: float) -> float:
    """Return the smallest difference of two shares that an exact test finds with probability `POWER` at best.

    At best all differing prompts favour the same policy. Even then the test needs enough differing prompts to
    reject fair coin tosses, and the number of differing prompts in a run is random.

    Args:
        prompts: Number of prompts in the run, with one answer each.
        tests: Number of tests in the family, as in `smallest_detectable`.
        confidence: 1 minus the level of the family.
    """
    needed = int(np.ceil(np.log2(2 * max(1, tests) / (1 - confidence))))
    return float(special.betaincinv(needed, prompts - needed + 1, POWER)) if needed <= prompts else 1.0


def least_detectable_mean(prompts: int, reach: float, tests: int, confidence: float) -> float:
    """Return roughly the smallest mean difference that a score interval finds with probability `POWER`.

    A single unseen prompt may change the mean by `reach` / `prompts`. If the true mean were 0, a share of about
    mean / `reach` of the prompts would have that difference, with a variance of about mean * `reach`.

    Args:
        prompts: Number of prompts in the run.
        reach: The largest possible difference of a prompt; see `paired_intervals`.
        tests: Number of tests in the family, as in `smallest_detectable`.
        confidence: 1 minus the level of the family.
    """
    certain = special.ndtri(POWER) - special.ndtri((1 - confidence) / max(1, tests) / 2)
    return float(certain**2 * reach / prompts)


def smallest_detectable(spread: Spread, tests: int, confidence: float) -> Floats:
    """Return the difference that is found with probability `POWER`, if it is the largest in a family of tests.

    Args:
        spread: Spread of a difference as the run has measured it.
        tests: Number of tests in the family; Holm's correction divides the level of the first test by it.
        confidence: 1 minus the level of the family.
    """
    level = (1 - confidence) / max(1, tests)
    return np.asarray((spread.critical(level) + spread.critical(2 * (1 - POWER))) * np.sqrt(spread.variance))


# -- paired ------------------------------------------------------------------------------------------------------
# The difference of two policies on the same prompts: its interval, and its significance. Only few prompts may
# separate two good policies; then an interval in standard errors is too narrow, since these few prompts determine
# the variance. So each hypothetical difference is compared with the variance that the data would have if it were
# true, which is a score interval. The distribution for this is the likeliest one with that mean: the observed
# differences, reweighted, and one end of their range, where an unseen prompt may lie. If each prompt has one
# answer, right or wrong, the interval is that of Tango (1998). The hypothesis of no difference is special: the two
# answers to a prompt could then be swapped, which gives an exact test. If prompts differ by less than the largest
# possible difference, the interval also allows for prompts with that difference, which the swaps do not include.
# So that p-value and interval never contradict each other, the test combines both: its p-value is the larger of
# the swaps' and the interval's own, and the interval includes 0 if that p-value does not reject.


Test = Literal["mcnemar", "swaps"]
Bounds = tuple[float, float]
_PAIRED_HALVINGS = 50
_EQUAL = 1e-12
"""Largest relative difference between two numbers that is attributed to rounding."""
_SQUARE = 1e-20
"""Largest square of a difference, relative to a range of 1, that is attributed to rounding."""


@dataclass(frozen=True)
class Paired:
    """Differences of two policies at the prompts for which both have data.

    Attributes:
        differences: Differences by policy and prompt, shape [C, P]; not finite where `per_prompt` is not.
        reach: The largest possible difference of a prompt: the range of all values of both policies.
    """

    differences: Floats
    reach: float


def paired_by_prompt(first: Ratios, second: Ratios) -> Paired:
    """Compare policies with others prompt by prompt.

    Args:
        first: Measures of C policies, shape [C, P].
        second: Measures of C other policies, in the same order.
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
    """Return whether each difference is 0, 1 or -1, as for one answer per policy, right or wrong."""
    return bool(np.isin(np.abs(differences), (0, 1)).all())


def paired_tests(differences: Sequence[Floats], reaches: Sequence[float]) -> list[tuple[float, Test]]:
    """Test whether mean differences are 0, by swapping the two policies at each prompt.

    Args:
        differences: Differences by prompt, each of shape [P]; the numbers of prompts may differ.
        reaches: The largest possible difference of a prompt; see `paired_intervals`.

    Returns:
        The two-sided p-value and the test of each: the exact test if all differences are 0, 1 or -1, otherwise the
        larger p-value of random swaps and of the score interval.
    """
    found: dict[int, tuple[float, Test]] = {}
    drawn: dict[int, list[int]] = {}
    for place, one in enumerate(differences):
        if says_all_or_nothing(one):
            found[place] = mcnemar(one), "mcnemar"
        else:
            drawn.setdefault(len(one), []).append(place)
    for places in drawn.values():  # comparisons with equally many prompts share their swaps
        values = swap_tests(np.stack([differences[place] for place in places], axis=1))
        for place, p in zip(places, values, strict=True):
            found[place] = max(float(p), _score_p(differences[place], reaches[place])), "swaps"
    return [found[place] for place in range(len(differences))]


def paired_intervals(differences: Sequence[Floats], reaches: Sequence[float], confidence: float) -> list[Bounds]:
    """Intervals of mean differences.

    Args:
        differences: Differences by prompt, each of shape [P]; the numbers of prompts may differ.
        reaches: The largest possible difference of a prompt, or 0 to use the observed range only.
        confidence: Level of the intervals.

    Returns:
        The ends of each interval. An interval includes 0 if `paired_tests` does not reject 0 at this level.
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
    """Bound the p-value of swaps from above by Hoeffding's inequality (1963), so that most tests need no swaps.

    The bound allows for random error of the drawn swaps: twice the expected number of extreme swaps, and 20 more.
    """
    scaled = differences / np.abs(differences).max()
    return 4 * float(np.exp(-(scaled.sum() ** 2) / (2 * (scaled**2).sum()))) + 20 / SWAPS


def score_intervals(differences: Sequence[Floats], reaches: Sequence[float], confidence: float) -> list[Bounds]:
    """Return score intervals: the mean differences that the data do not contradict; see `paired_intervals`."""
    counted = [np.unique(one, return_counts=True) for one in differences]
    values = np.zeros((len(counted), max((len(seen) for seen, _ in counted), default=1)))
    times = np.zeros_like(values)
    for place, (seen, often) in enumerate(counted):
        values[place, : len(seen)], times[place, : len(seen)] = seen, often
    low, high = score_limits(values, times, np.array(reaches, np.float64), confidence)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def score_limits(values: Floats, times: Floats, reaches: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Compute score intervals from distinct differences and their counts.

    Args:
        values: Distinct differences, shape [M, K].
        times: Count of each difference, shape [M, K].
        reaches: The largest possible differences of a prompt, shape [M].
        confidence: Level of the intervals.

    Returns:
        Lower and upper ends, each of shape [M].
    """
    scale = np.maximum(np.abs(values).max(-1), reaches)
    scaled = np.divide(values, scale[:, None], out=np.zeros_like(values), where=scale[:, None] > 0)
    certain = float(-special.ndtri((1 - confidence) / 2))
    return 0.0 - scale * _upper(-scaled, times, certain), scale * _upper(scaled, times, certain)


def _score_p(differences: Floats, reach: float) -> float:
    """Return the level at which the score interval of a mean begins to exclude 0."""
    scale = max(float(np.abs(differences).max(initial=0)), reach)
    mean = float(differences.mean())
    if scale == 0 or mean == 0:
        return 1.0
    # In the direction of `_upper`: from a mean below 0 up to 0.
    values, times = (-np.sign(mean) * differences / scale)[None], np.ones((1, len(differences)))
    ends = np.zeros(1), np.full(1, 2.0)
    _, high = _halved(*ends, lambda push: _likeliest(values, times, push)[0] < 0, _PAIRED_HALVINGS)
    _, variance = _likeliest(values, times, high)
    return float(2 * special.ndtr(-np.sqrt(len(differences) * (mean / scale) ** 2 / variance))[0])


def _upper(values: Floats, times: Floats, certain: float) -> Floats:
    """Return the largest mean that the data do not contradict, for values between -1 and 1, shape [M, K]."""
    count = times.sum(-1)
    mean = (times * values).sum(-1) / count

    def is_near(push: Floats) -> NDArray[np.bool_]:
        raised, variance = _likeliest(values, times, push)
        return np.asarray(~(count * (raised - mean) ** 2 > certain**2 * variance + _SQUARE))

    low, _ = _halved(np.zeros_like(mean), np.full_like(mean, 2.0), is_near, _PAIRED_HALVINGS)
    return _likeliest(values, times, low)[0]


def _likeliest(values: Floats, times: Floats, push: Floats) -> tuple[Floats, Floats]:
    """Return mean and variance of the likeliest distributions on [-1, 1], from the observed one to a mean of 1.

    Up to a push of 1 the weight of a value is proportional to 1 / (1 - push * value), the solution of the
    empirical likelihood (Owen 2001, section 2.9). Beyond 1, a share of push - 1 lies at 1, and the rest on the
    observed values.
    """
    weights = times / np.maximum(1 - np.minimum(push, 1)[..., None] * values, 1e-200)
    weights = weights / weights.sum(-1, keepdims=True)
    unseen = np.maximum(push - 1, 0)
    mean = (1 - unseen) * (weights * values).sum(-1) + unseen
    square = (1 - unseen) * (weights * values**2).sum(-1) + unseen
    return mean, np.maximum(square - mean**2, 0)
