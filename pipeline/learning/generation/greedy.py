"""A policy that takes the likeliest token at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.generation.decode import Decoded
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import Keys


class GreedyPolicy(TextPolicy):
    """A model at temperature 0.

    All of its probability is on one completion, so its KL divergence from the model as it is sampled is minus the
    log-probability that this one has there, at the temperature of sampling and over the whole vocabulary.
    """

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Keys | None,  # noqa: ARG002 - nothing is drawn
        *,
        samples: int = 1,
        budgets: NDArray[np.int64] | None = None,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> Decoded:
        """Complete prompts; see `TextPolicy.complete`."""
        decoded = super().complete(prompts, None, samples=samples, budgets=budgets, on_batch=on_batch)
        repeated = [prompt for prompt in prompts for _ in range(samples)]
        taken = self.logprobs(repeated, decoded.tokens) if decoded.tokens else []
        return replace(decoded, kl=-np.array([each.sum(dtype=np.float64) for each in taken], np.float64))
