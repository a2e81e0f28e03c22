"""Intervals and tests: of policies as they are, of means over several, and of two on the same prompts.

Intervals of one policy are by the bootstrap over prompts.

Samples of one prompt are not independent, so prompts are drawn, each with all of its samples (a cluster bootstrap;
Cameron, Gelbach and Miller 2008, section II.B). Every measure is a sum over prompts divided by another one, so
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
"""Weights in memory at once: 32 MB. The draws are the same whatever the blocks."""
SWAPS = 10_000
"""Swaps of a test, so that a p-value can be small enough to survive a correction for many tests."""
_BOOTSTRAP, _SWAPS = 4, 5
"""Second words of the keys of the two streams of draws."""


@dataclass(frozen=True)
class Estimate:
    """A number with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratios:
    """M measures of P prompts, each the sum of numerators over the sum of denominators.

    Attributes:
        numerators: Shape [P, M].
        denominators: For example samples or tokens, shape [P, M]; 0 where a prompt has nothing to say.
    """

    numerators: Floats
    denominators: Floats


def ratio_estimates(ratios: Ratios, *, samples: int, confidence: float, seed: int = 0) -> list[Estimate]:
    """Estimate every measure, with a percentile interval.

    Args:
        ratios: The measures.
        samples: Bootstrap samples, B.
        confidence: Level of the interval, for example 0.95.
        seed: Of the bootstrap; equal inputs give equal intervals.

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
    with warnings.catch_warnings():  # where no resample is a number its percentiles are none
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = np.nanquantile(replicates, [tail, 1 - tail], axis=0)
    return [Estimate(*map(float, row)) for row in zip(values, low, high, strict=True)]


def swap_tests(differences: Floats, *, samples: int = SWAPS, seed: int = 0) -> Floats:
    """Test whether the means of paired differences are 0, by swapping the two of a pair.

    Were there no difference, the two could be swapped within any prompt, which turns the sign of what they differ
    by. The share of random swaps with at least the observed difference is the p-value, the draw at hand counted
    among them, which keeps it above 0 (Phipson and Smyth 2010).

    Args:
        differences: Per prompt, of M comparisons, shape [P, M].
        samples: Swaps.
        seed: Of the swaps.

    Returns:
        Two-sided p-values, shape [M].
    """
    sums = np.abs(differences.sum(0))
    # Swaps that amount to the same difference must not count as smaller for a rounding error.
    reached = sums - 1e-9 * np.abs(differences).sum(0)
    extreme = np.zeros(len(sums))
    for flips in _flips(len(differences), samples, seed):
        extreme += (np.abs(flips @ differences) >= reached).sum(0)
    return (1 + extreme) / (1 + samples)


def _bootstrap_weights(prompts: int, samples: int, seed: int) -> Iterator[Floats]:
    """How often each prompt is drawn, in blocks of shape [<=B, P]."""
    generator = np.random.Generator(np.random.Philox(key=[seed, _BOOTSTRAP]))
    even = np.full(prompts, 1 / prompts)
    for size in _blocks(prompts, samples):
        # Drawing n prompts with replacement is drawing how often each occurs.
        yield generator.multinomial(prompts, even, size=size).astype(np.float64)


def _flips(prompts: int, samples: int, seed: int) -> Iterator[Floats]:
    """1 or -1, in blocks of shape [<=B, P]."""
    generator = np.random.Generator(np.random.Philox(key=[seed, _SWAPS]))
    for size in _blocks(prompts, samples):
        yield np.where(generator.random((size, prompts)) < 0.5, 1.0, -1.0)


def _blocks(prompts: int, samples: int) -> Iterator[int]:
    size = max(1, _AT_ONCE // prompts)
    for start in range(0, samples, size):
        yield min(size, samples - start)


def _divided(weights: Floats, ratios: Ratios) -> Floats:
    """Measures of resamples, shape [B, M]; NaN for one that drew no prompt with anything to say."""
    above, below = weights @ ratios.numerators, weights @ ratios.denominators
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


# -- crossed -----------------------------------------------------------------------------------------------------
# How far a mean over crossed references, seeds and prompts can be trusted: each meets all of the others.
# Every policy answers the same prompts, so the policies' errors are not independent, and every prompt is
# answered by the same policies, so neither are those of the prompts. The variance of the mean over all cells
# has a part that shrinks with the number of policies and one that shrinks with the number of prompts. Both
# follow, without bias, from the mean squares of an analysis of variance with random effects (Searle, Casella
# and McCulloch 1992, chapter 5). The two parts are known unequally well: three seeds leave two degrees of
# freedom, 500 prompts leave 499. So the critical value is the mean of the two quantiles of Student's t,
# weighted by the parts (Cochran and Cox 1957, section 4.14). One number of degrees of freedom for the sum
# (Satterthwaite 1946) must itself be estimated, and where three seeds and the prompts weigh alike it promises
# too much; docs/coverage.md has both, simulated. Legend: R references, S seeds, P prompts; leading axes
# ``...`` are problems of their own.


_LARGEST = 1e60
"""Of larger numbers the squares of variances are none."""
_ROUNDING = 1e-24
"""Share of the largest square of the values that rounding may leave of a variance where there is none.

Results have ten digits, in which so small a standard error could not be told."""
_HALVINGS = 60
_SMALLEST = -30.0
"""Power of 10 of the smallest p-value that is told from 0."""


@dataclass(frozen=True)
class Spread:
    """A mean over crossed cells, and the variance of it by what it comes from; arrays of shape [...].

    Attributes:
        value: The mean.
        policies: Its variance over seeds, and over references where they are a sample; 0 where neither is.
        policies_df: Degrees of freedom that this part is known by.
        prompts: Its variance over prompts that all policies share.
        prompts_df: Degrees of freedom of that.
    """

    value: Floats
    policies: Floats
    policies_df: Floats
    prompts: Floats
    prompts_df: int

    @property
    def variance(self) -> Floats:
        """Of the mean."""
        return self.policies + self.prompts

    def critical(self, level: Floats | float) -> Floats:
        """How many standard errors from the mean a two-sided test at this level begins to reject."""
        variance = self.variance
        share = np.divide(self.policies, variance, out=np.zeros_like(variance), where=variance > 0)
        tail = np.asarray(level, np.float64) / 2
        ours, theirs = special.stdtrit(self.policies_df, tail), special.stdtrit(self.prompts_df, tail)
        return np.asarray(-(share * ours + (1 - share) * theirs))

    def half_width(self, confidence: float) -> Floats:
        """Half of the width of a symmetric interval."""
        return self.critical(1 - confidence) * np.sqrt(self.variance)

    def p_value(self) -> Floats:
        """Two-sided, of the hypothesis that the mean is 0: the level at which a test begins to reject."""
        error = np.sqrt(self.variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(self.value == 0, 0.0, np.abs(self.value) / error)
        powers = np.full_like(distance, _SMALLEST), np.zeros_like(distance)
        _, high = _halved(*powers, lambda power: self.critical(10.0**power) > distance, _HALVINGS)
        return np.asarray(np.where(distance == 0, 1.0, 10.0**high))


def _halved(
    low: Floats, high: Floats, is_low: Callable[[Floats], NDArray[np.bool_]], times: int
) -> tuple[Floats, Floats]:
    """Bounds that are halved so often, the lower one where what is asked of the middle holds."""
    for _ in range(times):
        middle = (low + high) / 2
        below = is_low(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low, high


def crossed_spread(values: Floats) -> Spread:
    """The mean of all cells and its variance.

    Fewer than `ENOUGH` references stand for themselves: the variance is conditional on these models. Fewer than
    `ENOUGH` seeds do as well, and references with them: the variance is then the noise of evaluating these
    policies.

    Args:
        values: Per prompt, shape [..., R, S, P]; P is at least 2.

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
        # What seeds add to references; of their interaction, which is in both, the references have the whole.
        added = np.maximum(0, parts["s"] - parts["rs"])
        policies = parts["r"] + added
        known = parts["r"] ** 2 / (references - 1) + added**2 / (seeds - 1)
        freedom = np.divide(policies**2, known, out=np.full_like(shared, references - 1.0), where=known > 0)
    policies, shared = (np.where(part > rounding, part, 0.0) for part in (policies, shared))
    return Spread(values.mean((-3, -2, -1)), policies, freedom, shared, prompts - 1)


def known_spread(values: Floats) -> Spread | None:
    """The same of one problem, or None where nothing is known of a variance.

    That is so of fewer than two prompts, and where values are no numbers or too large to reckon with.

    Args:
        values: Shape [R, S, P]; as `per_prompt` gives them.
    """
    known = values.shape[-1] > 1 and bool((np.abs(values) <= _LARGEST).all())
    return crossed_spread(values) if known else None


def _mean_squares(values: Floats) -> dict[str, Floats]:
    """Mean squares over the number of cells, by the effects that differ; 0 for those that cannot be told apart."""
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
    """What each prompt says of a ratio of sums: values whose mean is the ratio, and whose variance is that of it.

    A prompt differs from the ratio by its residual over the mean denominator (linearisation; Cochran 1977, section
    6.8). Where all denominators are equal these are the quotients themselves.

    Args:
        ratios: Numerators and denominators, shape [..., P].

    Returns:
        Shape [..., P]; not finite where all denominators are 0, or a quotient is no number.
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


# -- paired ------------------------------------------------------------------------------------------------------
# The difference of two policies as they are, on the same prompts: its interval, and whether it is by chance.
# Few prompts may tell two good policies apart, and a variance is then known from these few alone: an interval
# of so many standard errors is too narrow. So every hypothetical difference is held against the variance that
# the data would have if it were true, which is a score interval. The distribution in question is the likeliest
# of those with that mean: the observed differences, reweighted, and an end of their range, where an unseen
# prompt may lie. Where each prompt has one answer, right or wrong, the interval is that of Tango (1998). That
# there is no difference is a special hypothesis: the answers of the two to a prompt could then be swapped,
# which gives an exact test. Where prompts differ by parts of what they could, the interval also allows for
# prompts that differ wholly, of which the swaps know nothing. So that a p-value and an interval never
# contradict each other, the test is both: its p-value is the larger of the swaps' and the interval's own, and
# the interval has 0 in it wherever that p-value does not reject.


Test = Literal["mcnemar", "swaps"]
Bounds = tuple[float, float]
_PAIRED_HALVINGS = 50
_EQUAL = 1e-12
"""Of their size, what two numbers may differ by for rounding alone."""
_SQUARE = 1e-20
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
    ends = np.zeros(1), np.full(1, 2.0)
    _, high = _halved(*ends, lambda push: _likeliest(values, times, push)[0] < 0, _PAIRED_HALVINGS)
    _, variance = _likeliest(values, times, high)
    return float(2 * special.ndtr(-np.sqrt(len(differences) * (mean / scale) ** 2 / variance))[0])


def _upper(values: Floats, times: Floats, certain: float) -> Floats:
    """The largest mean that is not contradicted, of values between -1 and 1, shape [M, K]."""
    count = times.sum(-1)
    mean = (times * values).sum(-1) / count

    def is_near(push: Floats) -> NDArray[np.bool_]:
        raised, variance = _likeliest(values, times, push)
        return np.asarray(~(count * (raised - mean) ** 2 > certain**2 * variance + _SQUARE))

    low, _ = _halved(np.zeros_like(mean), np.full_like(mean, 2.0), is_near, _PAIRED_HALVINGS)
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
