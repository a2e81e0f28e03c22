"""Intervals by the bootstrap over prompts, and a test of paired differences, for policies as they are.

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

    numerators: NDArray[np.float64]
    denominators: NDArray[np.float64]

    def column(self, place: int) -> Ratios:
        """One of the measures, shape [1, P]."""
        return Ratios(self.numerators[None, :, place], self.denominators[None, :, place])


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
    low, high = _interval(replicates, confidence)
    return [Estimate(*map(float, row)) for row in zip(values, low, high, strict=True)]


def swap_tests(differences: NDArray[np.float64], *, samples: int = SWAPS, seed: int = 0) -> NDArray[np.float64]:
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
