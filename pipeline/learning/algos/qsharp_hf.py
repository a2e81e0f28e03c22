"""Q#-HF: Q# on a reward that is learnt from preferences.

From every cut the reference completes the response twice. Bradley-Terry reward models are fitted to the
preferences between the two, each scores the texts of prompts that it has not seen, and the standardised scores are
the labels that Q# learns from. After the stage `score` no other reward is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.config.bases import AlgoConfig
from pipeline.config.fields import LARGEST_RATE, LARGEST_WEIGHT, SMALLEST_DIVISOR, number
from pipeline.config.schema import Config
from pipeline.learning.algos.base import JobContext, Read, Stage, timed
from pipeline.learning.algos.qsharp import QSharp, QSharpConfig
from pipeline.learning.algos.reward_stage import REWARD, RewardModelConfig
from pipeline.learning.algos.value_guided import STRENGTH
from pipeline.learning.rewards.preference import UNDECIDED, PreferenceConfig
from pipeline.learning.training.atoms import LARGEST_ATOMS

if TYPE_CHECKING:
    from pipeline.learning.algos.groups import Drawn, Groups
    from pipeline.learning.datasets.base import Dataset
    from pipeline.learning.generation.policy import TextPolicy
    from pipeline.learning.training.sequences import Sequences
    from pipeline.outputs.formats import Tally


@dataclass(kw_only=True)
class QSharpHFConfig(QSharpConfig):
    """Q# on a reward that is learnt from preferences and standardised."""

    batch_size: int = number(256, at_least=1, at_most=1_000_000)
    learning_rate: float = number(1.2e-3, above=0, at_most=LARGEST_RATE)
    head_learning_rate: float | None = number(
        4.5e-2, above=0, at_most=LARGEST_RATE, hint=", or null for learning_rate"
    )
    epochs: int = number(3, at_least=1, at_most=1_000_000)
    eta: float = number(0.2, at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, advice=STRENGTH)
    atoms: int = number(11, at_least=1, at_most=LARGEST_ATOMS, hint=" (1 is a single probability)")
    value_min: float = number(-2.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """In standard deviations of the learnt reward; what lies outside is clipped."""
    value_max: float = number(2.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Likewise, in standard deviations of the learnt reward."""
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    reward_model: RewardModelConfig = field(default_factory=lambda: RewardModelConfig(learning_rate=3.3e-4))

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Two roll-outs of each roll-in, which are a pair for the reward model."""
        if stage == REWARD.name:
            return self.reward_model.trained(samples * self.preferences.compared(2, decided))
        return 2 * super().trained(stage, samples, decided)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also a single probability for a learnt reward."""
        yield from super().problems(key, config)
        if self.atoms == 1:
            yield (
                f"{key}.atoms=1: a learnt reward has any value, which a single probability cannot express; use 11"
            )


class QSharpHF(QSharp):
    """Q# with one more stage, which labels its data by a learnt reward."""

    name: ClassVar[str] = "QSharp-HF"
    config_class: ClassVar[type[AlgoConfig]] = QSharpHFConfig
    stages: ClassVar[tuple[Stage, ...]] = (
        *timed([*QSharp.stages[:2], REWARD], generate=0.5, reward=5.0),
        replace(QSharp.stages[2], reads=(*QSharp.stages[2].reads, Read("reward")), seconds=19.0),
        *QSharp.stages[3:],
    )

    def draw(self, ctx: JobContext, dataset: Dataset, roll_in: TextPolicy, reference: TextPolicy) -> Drawn:
        """Two roll-outs per roll-in."""
        from pipeline.learning.algos.rollouts import Rollouts

        return Rollouts(ctx, dataset, roll_in, finishes=2).pairs(reference)

    def label(self, ctx: JobContext, groups: Groups) -> Sequences:
        """All roll-outs, still without labels; and the pairs that can be decided."""
        from pipeline.learning.algos.groups import PAIRS

        told = enumerate(groups.decided(ctx.settings(QSharpHFConfig).preferences).tolist())
        places = [2 * index + side for index, one in told if one != UNDECIDED for side in (1 - one, one)]
        pairs = zip(places[::2], places[1::2], strict=True)
        kept = [place for pair in pairs if groups.tokens[pair[0]] != groups.tokens[pair[1]] for place in pair]
        groups.uncut().sequences(kept, [1.0, 0.0] * (len(kept) // 2)).save(ctx.out, PAIRS)
        return groups.sequences(range(len(groups.tokens)), [0.0] * len(groups.tokens))

    def tally(self, ctx: JobContext, groups: Groups, labelled: Sequences) -> Tally:  # noqa: ARG002 - of the base
        """Of pairs."""
        return groups.pair_tally(ctx.settings(QSharpHFConfig).preferences)

    def reward(self, ctx: JobContext) -> None:
        """Fit the reward models and label every roll-out by the one that has not seen its prompt."""
        from dataclasses import replace

        with ctx.loading():
            from pipeline.learning.algos.reward_stage import cross_fitted
            from pipeline.learning.training.sequences import Sequences
        algo = ctx.settings(QSharpHFConfig)
        folders = super().data(ctx)
        data = Sequences.load(folders)
        rewards = cross_fitted(ctx, folders, data, algo.reward_model).clip(algo.value_min, algo.value_max)
        replace(data, labels=self.labels(ctx, rewards).astype("float32")).save(ctx.out)

    def data(self, ctx: JobContext) -> tuple[Path, ...]:
        """The roll-outs as the reward stage has labelled them."""
        return ctx.inputs["reward"]

    def spent_before(self, ctx: JobContext) -> int:
        """The reward models' tokens."""
        from pipeline.learning.algos.reward_stage import reward_tokens_trained

        return reward_tokens_trained(ctx)

    def told_before(self, ctx: JobContext) -> dict[str, Any]:
        """How good the reward models are on pairs that they have not seen."""
        from pipeline.learning.algos.reward_stage import reward_fit_in_short

        return reward_fit_in_short(ctx)
