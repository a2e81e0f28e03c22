"""GRPO-HF: GRPO on a reward that is learnt from preferences within each group.

All samples of a group are kept: Bradley-Terry reward models are fitted to preferences among them, each scores
those of prompts that it has not seen, and GRPO goes by these scores. Where training itself draws, they score what
it draws, as in RLHF (Ouyang et al., arXiv 2203.02155). After the stage `score` no other reward is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.config.bases import AlgoConfig
from pipeline.config.fields import LARGEST_RATE, LARGEST_WEIGHT, number
from pipeline.config.schema import Config
from pipeline.learning.algos.base import GENERATE, METRICS, SCORE, JobContext, Read, Stage, timed
from pipeline.learning.algos.grpo import GRPO, GRPOConfig
from pipeline.learning.algos.post_training import EVALUATE, TRAIN_POLICY
from pipeline.learning.algos.reward_stage import REWARD, RewardModelConfig
from pipeline.learning.choices import ScaleRewards
from pipeline.learning.rewards.preference import PreferenceConfig

if TYPE_CHECKING:
    from pipeline.learning.algos.groups import Groups, Judge


@dataclass(kw_only=True)
class GRPOHFConfig(GRPOConfig):
    """GRPO on a reward that is learnt from preferences among the samples of each group."""

    learning_rate: float = number(2e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.4, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of the KL divergence from the anchor; 0 leaves it out and loads no anchor. With a small one a policy
    that draws while it trains goes to where its reward model is wrong."""
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also a mean to divide by that is about 0."""
        yield from super().problems(key, config)
        if self.scale_rewards is ScaleRewards.mean:
            yield f"{key}.scale_rewards=mean: learnt rewards are 0 on average. Use group, batch or none"

    def idle(self, setting: str) -> str:
        """What reward models are fitted to is aggregated also where training itself draws."""
        return "" if setting == "aggregate" else super().idle(setting)

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Of the reward model the pairs in groups."""
        if stage == REWARD.name:
            return self.reward_model.trained(self.preferences.compared(self.num_generations, decided))
        return super().trained(stage, samples, decided)


class GRPOHF(GRPO):
    """GRPO with one more stage, which scores whole groups by a learnt reward."""

    name: ClassVar[str] = "GRPO-HF"
    version: ClassVar[int] = 3
    learns_reward: ClassVar[bool] = True
    config_class: ClassVar[type[AlgoConfig]] = GRPOHFConfig
    stages: ClassVar[tuple[Stage, ...]] = (
        *timed([GENERATE, SCORE, REWARD], generate=0.75),
        replace(TRAIN_POLICY, reads=(*TRAIN_POLICY.reads, Read("reward"))),
        EVALUATE,
        METRICS,
    )

    def keep(self, ctx: JobContext, groups: Groups) -> None:
        """Write whole groups, and pairs among them for reward models to be fitted to."""
        from pipeline.learning.algos.groups import PAIRS

        super().keep(ctx, groups)
        if not ctx.inputs.get(REWARD.name):
            groups.pairs(ctx.settings(GRPOHFConfig).preferences).save(ctx.out, PAIRS)

    def reward(self, ctx: JobContext) -> None:
        """Fit the reward models and score every completion by the one that has not seen its prompt."""
        with ctx.loading():
            from pipeline.learning.algos.reward_stage import cross_fitted
            from pipeline.learning.training.grpo import Samples
        folders = super().data(ctx)
        samples = Samples.load(folders)
        whole = replace(samples.sequences, left_out=None)  # what is left out of the loss is scored too
        scores = cross_fitted(ctx, folders, whole, ctx.settings(GRPOHFConfig).reward_model)
        samples.with_rewards(scores).save(ctx.out)

    def data(self, ctx: JobContext) -> tuple[Path, ...]:
        """The samples as the reward stage has scored them."""
        return ctx.inputs["reward"]

    def judge(self, ctx: JobContext) -> Judge:
        """The reward models of this round, each of the prompts that it has not seen."""
        from pipeline.learning.algos.reward_stage import FittedRewards

        return FittedRewards(ctx, super().data(ctx))

    def spent_before(self, ctx: JobContext) -> int:
        """The reward models' tokens."""
        from pipeline.learning.algos.reward_stage import reward_tokens_trained

        return reward_tokens_trained(ctx)

    def told_before(self, ctx: JobContext) -> dict[str, Any]:
        """How good the reward models are on pairs that they have not seen."""
        from pipeline.learning.algos.reward_stage import reward_fit_in_short

        return reward_fit_in_short(ctx)
