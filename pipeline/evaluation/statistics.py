"""Intervals by the bootstrap over prompts, and tests of paired differences.

Samples of one prompt are not independent, so prompts are drawn, each with all of its samples (a cluster bootstrap;
Cameron, Gelbach and Miller 2008, section II.B). Every measure is a sum over prompts divided by another one, so
one set of draws serves all measures in a single matrix product.

Legend: P prompts, M measures, B resamples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 4_000_000
"""Weights in memory at once: 32 MB. The draws are the same whatever the blocks."""
_BOOTSTRAP, _SWAPS = 4, 5
"""Second words of the keys of the two streams of draws."""


@dataclass(frozen=True)
class Estimate:
    """A number with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A paired difference with its interval and the p-value of the hypothesis that there is none.

    Attributes:
        value: Of the first minus of the second.
        low: Lower end of the interval.
        high: Upper end.
        p: Two-sided, by swapping the two at random within prompts.
        prompts: That both have.
    """

    value: float
    low: float
    high: float
    p: float
    prompts: int


@dataclass(frozen=True)
class Ratios:
    """M measures of P prompts, each the sum of numerators over the sum of denominators.

    Attributes:
        numerators: Shape [P, M].
        denominators: For example samples or tokens, shape [P, M]; 0 where a prompt has nothing to say.
    """

    numerators: NDArray[np.float64]
    denominators: NDArray[np.float64]


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
    _refuse_nothing(ratios)
    values = ratios.numerators.sum(0) / ratios.denominators.sum(0)
    replicates = np.concatenate(
        [_divided(weights, ratios) for weights in _bootstrap_weights(len(ratios.numerators), samples, seed)]
    )
    low, high = _interval(replicates, confidence)
    return [Estimate(*map(float, row)) for row in zip(values, low, high, strict=True)]


def ratio_estimate(
    numerators: NDArray[np.float64],
    denominators: NDArray[np.float64],
    *,
    samples: int,
    confidence: float,
    seed: int = 0,
) -> Estimate:
    """Estimate one measure; see `ratio_estimates`.

    Args:
        numerators: One sum per prompt, shape [P].
        denominators: For example samples or tokens per prompt, shape [P].
        samples: Bootstrap samples.
        confidence: Level of the interval.
        seed: Of the bootstrap.

    Raises:
        ValueError: There is no prompt, or the denominators sum to 0.
    """
    ratios = Ratios(np.reshape(numerators, (-1, 1)), np.reshape(denominators, (-1, 1)))
    return ratio_estimates(ratios, samples=samples, confidence=confidence, seed=seed)[0]


def paired_differences(
    first: Ratios, second: Ratios, *, samples: int, confidence: float, seed: int = 0
) -> list[Difference]:
    """Compare two policies on the same prompts.

    The interval comes from drawing prompts, each with its samples of both. The p-value comes from a permutation
    test: were there no difference, the two could be swapped within any prompt, so the share of random swaps with
    at least the observed difference is the p-value (the draw at hand counted among them, which keeps it above 0;
    Phipson and Smyth 2010).

    Args:
        first: Measures of one policy.
        second: The same measures of the other one; prompts in the same order.
        samples: Bootstrap samples, and swaps.
        confidence: Level of the interval.
        seed: Of both.

    Returns:
        M differences.

    Raises:
        ValueError: A measure has no prompt of which both have something to say.
    """
    both = (first.denominators > 0) & (second.denominators > 0)
    first, second = (Ratios(r.numerators * both, r.denominators * both) for r in (first, second))
    _refuse_nothing(first)
    prompts = len(first.numerators)
    everyone = np.ones((1, prompts))
    values = (_divided(everyone, first) - _divided(everyone, second))[0]
    replicates = np.concatenate(
        [_divided(w, first) - _divided(w, second) for w in _bootstrap_weights(prompts, samples, seed)]
    )
    low, high = _interval(replicates, confidence)
    p_values = _swap_test(first, second, values, samples, seed)
    columns = zip(values.tolist(), low.tolist(), high.tolist(), p_values.tolist(), strict=True)
    shared = both.sum(0).tolist()
    return [Difference(*row, prompts=count) for row, count in zip(columns, shared, strict=True)]


def _swap_test(
    first: Ratios, second: Ratios, values: NDArray[np.float64], samples: int, seed: int
) -> NDArray[np.float64]:
    """Two-sided p-values, shape [M]."""
    # With f = 1 for a prompt left as it is and -1 for one swapped, its first numerator is (sum + f * gap) / 2.
    sums = [(first.numerators + second.numerators).sum(0), (first.denominators + second.denominators).sum(0)]
    gaps = np.concatenate([first.numerators - second.numerators, first.denominators - second.denominators], axis=1)
    measures = len(values)
    # Swaps that amount to the same difference must not count as smaller for a rounding error.
    reached = np.abs(values) - 1e-9 * np.maximum(np.abs(values), np.abs(sums[0] / sums[1]))
    extreme = np.zeros(measures)
    for flips in _flips(len(first.numerators), samples, seed):
        swapped = flips @ gaps
        tops, bottoms = swapped[:, :measures], swapped[:, measures:]
        difference = (sums[0] + tops) / (sums[1] + bottoms) - (sums[0] - tops) / (sums[1] - bottoms)
        extreme += (np.abs(difference) >= reached).sum(0)
    return (1 + extreme) / (1 + samples)


def _bootstrap_weights(prompts: int, samples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each prompt is drawn, in blocks of shape [<=B, P]."""
    generator = np.random.Generator(np.random.Philox(key=[seed, _BOOTSTRAP]))
    even = np.full(prompts, 1 / prompts)
    for size in _blocks(prompts, samples):
        # Drawing n prompts with replacement is drawing how often each occurs.
        yield generator.multinomial(prompts, even, size=size).astype(np.float64)


def _flips(prompts: int, samples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """1 or -1, in blocks of shape [<=B, P]."""
    generator = np.random.Generator(np.random.Philox(key=[seed, _SWAPS]))
    for size in _blocks(prompts, samples):
        yield np.where(generator.random((size, prompts)) < 0.5, 1.0, -1.0)


def _blocks(prompts: int, samples: int) -> Iterator[int]:
    size = max(1, _AT_ONCE // prompts)
    for start in range(0, samples, size):
        yield min(size, samples - start)


def _divided(weights: NDArray[np.float64], ratios: Ratios) -> NDArray[np.float64]:
    """Measures of resamples, shape [B, M]; NaN for one that drew no prompt with anything to say."""
    above, below = weights @ ratios.numerators, weights @ ratios.denominators
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def _interval(replicates: NDArray[np.float64], confidence: float) -> tuple[NDArray[np.float64], ...]:
    """Percentiles of every measure, each of shape [M]."""
    tail = (1 - confidence) / 2
    bounds = np.full((2, replicates.shape[1]), np.nan)
    whole = ~np.isnan(replicates).any(0)
    bounds[:, whole] = np.quantile(replicates[:, whole], [tail, 1 - tail], axis=0)
    for column in np.flatnonzero(~whole):
        kept = replicates[~np.isnan(replicates[:, column]), column]
        if len(kept):
            bounds[:, column] = np.quantile(kept, [tail, 1 - tail])
    return bounds[0], bounds[1]


def _refuse_nothing(ratios: Ratios) -> None:
    if len(ratios.numerators) == 0 or not (ratios.denominators.sum(0) > 0).all():
        raise ValueError("an estimate needs at least one sample")
