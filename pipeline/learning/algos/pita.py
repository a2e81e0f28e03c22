"""PITA (Bobbili et al., arXiv 2507.20067): guidance learnt from preferences, without a reward model.

Per prompt: a response by the current guided policy, a cut, and from the prefix before it two completions by the
reference, one greedy and one sampled. The tokens of the preferred one are labelled 1, those of the other 0; the
value's logit is then the log-odds of being preferred, which is what the tilt needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from pipeline.config.schema import SMALLEST_DIVISOR, AlgoConfig, number
from pipeline.learning.algos import toolbox
from pipeline.learning.algos.base import JobContext, Stage, timed
from pipeline.learning.algos.value_guided import STRENGTH, ValueAlgoConfig, ValueGuidedAlgorithms
from pipeline.learning.rewards.preference import UNDECIDED, PreferenceRule
from pipeline.outputs.formats import Tally

if TYPE_CHECKING:
    from pipeline.learning.algos.parts import Dataset, Drawn, Groups, Offset, Sequences, TextPolicy


class Pairing(Enum):
    """How PITA draws the two completions that it compares."""

    greedy = "greedy"  # one greedy, one sampled
    sampled = "sampled"  # two sampled


@dataclass(kw_only=True)
class PITAConfig(PreferenceRule, ValueAlgoConfig):
    """Guidance by a value learnt from preferences, without a reward model (arXiv 2507.20067)."""

    eta: float = number(1.0, at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, advice=STRENGTH)
    batch_size: int = number(64, at_least=1, at_most=1_000_000)
    pairing: Pairing = Pairing.greedy

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Both completions of each pair that is decided."""
        return 2 * decided * super().trained(stage, samples, decided)


class PITA(ValueGuidedAlgorithms):
    """PITA with both completions supervised; offset z / eta, never clamped."""

    name: ClassVar[str] = "PITA"
    config_class: ClassVar[type[AlgoConfig]] = PITAConfig
    stages: ClassVar[tuple[Stage, ...]] = timed(ValueGuidedAlgorithms.stages, generate=0.5, train=4.5)

    def offset(self, algo: ValueAlgoConfig) -> Offset:
        """The log-odds of being preferred."""
        return toolbox.tilt.preference_offset(algo.eta)

    def draw(self, ctx: JobContext, dataset: Dataset, roll_in: TextPolicy, reference: TextPolicy) -> Drawn:
        """Two completions from every cut."""
        greedy_first = ctx.settings(PITAConfig).pairing is Pairing.greedy
        return toolbox.Rollouts(ctx, dataset, roll_in, finishes=2).pairs(reference, greedy_first=greedy_first)

    def label(self, ctx: JobContext, groups: Groups) -> Sequences:
        """The preferred one with 1, the other with 0; pairs of which nothing can be said are left out."""
        decided = groups.decided(ctx.settings(PITAConfig)).repeat(2)
        places = [place for place, one in enumerate(decided) if one != UNDECIDED]
        return groups.sequences(places, [float(decided[place] != place % 2) for place in places])

    def tally(self, ctx: JobContext, groups: Groups, labelled: Sequences) -> Tally:  # noqa: ARG002 - of the base
        """Of pairs."""
        return groups.pair_tally(ctx.settings(PITAConfig))
