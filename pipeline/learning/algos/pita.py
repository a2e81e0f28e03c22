"""PITA (Bobbili et al., arXiv 2507.20067): guidance learnt from preferences, without a reward model.

Per prompt: a response by the current guided policy, a cut, and from the prefix before it two completions by the
reference, one greedy and one sampled. The tokens of the preferred one are labelled 1, those of the other 0; the
value's logit is then the log-odds of being preferred, which is what the tilt needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pipeline.config.schema import AlgoConfig, Pairing, PITAConfig, ValueAlgoConfig
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.value_guided import ValueGuidedAlgorithms

if TYPE_CHECKING:
    from pipeline.learning.datasets.base import Dataset
    from pipeline.learning.generation.policy import TextPolicy
    from pipeline.learning.generation.tilt import Offset
    from pipeline.learning.training.sequences import Sequences


class PITA(ValueGuidedAlgorithms):
    """PITA with both completions supervised; offset z / eta, never clamped."""

    name: ClassVar[str] = "PITA"
    config_class: ClassVar[type[AlgoConfig]] = PITAConfig

    def offset(self, algo: ValueAlgoConfig) -> Offset:
        """The log-odds of being preferred."""
        from pipeline.learning.generation.tilt import preference_offset

        return preference_offset(algo.eta)

    def collect(self, ctx: JobContext, dataset: Dataset, roll_in: TextPolicy, reference: TextPolicy) -> Sequences:
        """Two completions from every cut; pairs of which nothing can be said are left out."""
        from pipeline.learning.algos import toolbox
        from pipeline.learning.algos.rollouts import Rollouts, tally_of_pairs
        from pipeline.learning.rewards.preference import decide
        from pipeline.learning.training.sequences import Sequences

        algo = ctx.settings(PITAConfig)
        rollouts = Rollouts(ctx, dataset, roll_in, finishes=2)
        cuts = rollouts.cut()
        prefixes = [tokens[:cut] for tokens, cut in zip(rollouts.tokens, cuts, strict=True)]
        first_stream = None if algo.pairing is Pairing.greedy else "first"
        pair = [rollouts.finish(reference, prefixes, stream) for stream in (first_stream, "second")]
        size = ctx.config.data_collection.reward_batch_size
        scored = [toolbox.score(ctx, rollouts.rows, reference.text(side), side, size) for side in pair]
        preferred = decide(
            scored[0],
            scored[1],
            rollouts.draws("preference"),
            source=algo.source,
            preference=algo.preference,
            beta=algo.beta,
            ties=algo.ties,
        )
        rollouts.note_cost(tally_of_pairs(scored[0], scored[1], preferred))
        kept = [index for index in range(len(cuts)) if preferred[index] >= 0]
        sides = [(index, side) for index in kept for side in (0, 1)]
        return Sequences.of(
            [rollouts.prompts[index] + pair[side][index] for index, side in sides],
            [len(rollouts.prompts[index]) + int(cuts[index]) for index, _ in sides],
            [float((preferred[index] == 1) == (side == 0)) for index, side in sides],
            [rollouts.rows[index].id for index, _ in sides],
        )
