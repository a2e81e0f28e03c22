"""Q# (Zhou et al., arXiv 2502.20548): a value of the reference's own future reward guides its decoding.

Per prompt: a response by the current guided policy, a cut drawn uniformly over its tokens, the rest by the
reference, the reward of the whole text. The tokens from the cut on are labelled with it; what the guided policy
wrote before is context only, since the value is that of the reference's continuations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pipeline.algos.base import JobContext
from pipeline.algos.value_guided import ValueGuidedAlgorithms
from pipeline.config.schema import AlgoConfig, QSharpConfig, ValueAlgoConfig

if TYPE_CHECKING:
    from pipeline.datasets.base import Dataset
    from pipeline.generation.policy import TextPolicy
    from pipeline.generation.tilt import Offset
    from pipeline.training.sequences import Sequences


class QSharp(ValueGuidedAlgorithms):
    """Q# with the Bernoulli head: rewards in {0, 1}, offset log(1 - p + p * exp(1/eta))."""

    name: ClassVar[str] = "QSharp"
    config_class: ClassVar[type[AlgoConfig]] = QSharpConfig

    def offset(self, algo: ValueAlgoConfig) -> Offset:
        """The Bernoulli offset."""
        from pipeline.generation.tilt import bernoulli_offset

        return bernoulli_offset(algo.eta)

    def collect(self, ctx: JobContext, dataset: Dataset, roll_in: TextPolicy, reference: TextPolicy) -> Sequences:
        """One roll-out per roll-in, labelled with its reward."""
        import numpy as np

        from pipeline.algos import text
        from pipeline.algos.rollouts import Rollouts
        from pipeline.training.sequences import Sequences

        rollouts = Rollouts(ctx, dataset, roll_in)
        # The cut is the last token of the prefix; it is labelled too, as its value was just sampled.
        cuts = rollouts.cut()
        prefixes = [tokens[: cut + 1] for tokens, cut in zip(rollouts.tokens, cuts, strict=True)]
        completions = rollouts.finish(reference, prefixes, "roll_out")
        size = ctx.config.data_collection.reward_batch_size
        rewards = text.score_completions(ctx, reference, rollouts.rows, completions, size)
        kept = [index for index in range(len(completions)) if not np.isnan(rewards[index])]
        return Sequences.of(
            [rollouts.prompts[index] + completions[index] for index in kept],
            [len(rollouts.prompts[index]) + int(cuts[index]) for index in kept],
            [float(rewards[index]) for index in kept],
        )
