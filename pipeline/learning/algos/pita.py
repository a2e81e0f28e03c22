"""PITA (Bobbili et al., arXiv 2507.20067): guidance learnt from preferences, without a reward model.

Per prompt: a response by the current guided policy, a cut, and from the prefix before it two completions by the
reference, one greedy and one sampled. The tokens of the preferred one are labelled 1, those of the other 0; the
value's logit is then the log-odds of being preferred, which is what the tilt needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from pipeline.config.bases import AlgoConfig
from pipeline.config.fields import LARGEST_WEIGHT, SMALLEST_DIVISOR, number
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.value_guided import STRENGTH, ValueAlgoConfig, ValueGuidedAlgorithms
from pipeline.learning.rewards.preference import Preference, PreferenceSource, Ties

if TYPE_CHECKING:
    from pipeline.learning.datasets.base import Dataset
    from pipeline.learning.generation.policy import TextPolicy
    from pipeline.learning.generation.tilt import Offset
    from pipeline.learning.training.sequences import Sequences


class Pairing(Enum):
    """How PITA draws the two completions that it compares."""

    greedy = "greedy"  # one greedy, one sampled
    sampled = "sampled"  # two sampled


@dataclass(kw_only=True)
class PITAConfig(ValueAlgoConfig):
    """PITA (arXiv 2507.20067)."""

    eta: float = number(1.0, at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, hint=STRENGTH)
    batch_size: int = number(64, at_least=1, at_most=1_000_000)
    pairing: Pairing = Pairing.greedy
    source: PreferenceSource = PreferenceSource.correctness_then_reward
    preference: Preference = Preference.hard
    """How a difference of scores decides."""
    beta: float = number(1.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Slope of the Bradley-Terry draw."""
    ties: Ties = Ties.drop

    def idle(self, setting: str) -> str:
        """Also the slope where nothing is drawn."""
        if setting == "beta" and self.preference is Preference.hard:
            return "with preference=hard the higher score wins, whatever the difference"
        return super().idle(setting)


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
