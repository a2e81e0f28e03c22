"""Intervals by the bootstrap over prompts.

Samples of one prompt are not independent, so prompts are drawn, each with all of its samples (a cluster bootstrap;
Cameron, Gelbach and Miller 2008, section II.B).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    """A number with its interval."""

    value: float
    low: float
    high: float


def ratio_estimate(
    numerators: NDArray[np.float64],
    denominators: NDArray[np.float64],
    *,
    samples: int,
    confidence: float,
    seed: int = 0,
) -> Estimate:
    """Sum of numerators over sum of denominators, with a percentile interval.

    Args:
        numerators: One sum per prompt, shape [P].
        denominators: For example samples or tokens per prompt, shape [P].
        samples: Bootstrap samples.
        confidence: Level of the interval, for example 0.95.
        seed: Of the bootstrap; equal inputs give equal intervals.

    Raises:
        ValueError: There is no prompt, or the denominators sum to 0.
    """
    if len(numerators) == 0 or not denominators.sum() > 0:
        raise ValueError("an estimate needs at least one sample")
    generator = np.random.Generator(np.random.Philox(key=[seed, 4]))
    prompts = len(numerators)
    # Drawing n prompts with replacement is drawing how often each occurs.
    weights = generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=samples)
    below = weights @ denominators
    replicates = (weights @ numerators)[below > 0] / below[below > 0]
    tail = (1 - confidence) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return Estimate(float(numerators.sum() / denominators.sum()), float(low), float(high))
