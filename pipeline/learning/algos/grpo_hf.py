"""GRPO-HF: GRPO on a reward that is learnt from preferences within each group.

All samples of a group are kept: Bradley-Terry reward models are fitted to preferences among them, each scores
those of prompts that it has not seen, and GRPO goes by these scores. After the generate stage no other reward is
looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipeline.config.bases import AlgoConfig
from pipeline.config.fields import LARGEST_RATE, LARGEST_WEIGHT, number
from pipeline.config.schema import Config
from pipeline.learning.algos.base import GENERATE, METRICS, JobContext, Read, Stage, timed
from pipeline.learning.algos.grpo import GRPO, GRPOConfig
from pipeline.learning.algos.policy_config import Sampling, is_online
from pipeline.learning.algos.post_training import EVALUATE, TRAIN_POLICY
from pipeline.learning.algos.reward_stage import REWARD, RewardModelConfig
from pipeline.learning.rewards.preference import PreferenceConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline.learning.algos.groups import Groups
    from pipeline.learning.generation.policy import TextPolicy
    from pipeline.learning.training.policy import TrainingSet


@dataclass(kw_only=True)
class GRPOHFConfig(GRPOConfig):
    """GRPO on a reward that is learnt from preferences among the samples of each group."""

    sampling: Sampling = Sampling.round
    learning_rate: float = number(2e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.04, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of the KL divergence from the anchor; 0 leaves it out and loads no anchor."""
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also drawing online, for which its reward would have to be learnt anew at every step."""
        yield from super().problems(key, config)
        if is_online(self):
            yield f"{key}.sampling=online: its reward is learnt from all completions of a round. Use round"

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Of the reward model the pairs in groups."""
        if stage == REWARD.name:
            return self.reward_model.trained(self.preferences.compared(self.num_generations, decided))
        return super().trained(stage, samples, decided)


class GRPOHF(GRPO):
    """GRPO with one more stage, which scores whole groups by a learnt reward."""

    name: ClassVar[str] = "GRPO-HF"
    version: ClassVar[int] = 3
    config_class: ClassVar[type[AlgoConfig]] = GRPOHFConfig
    stages: ClassVar[tuple[Stage, ...]] = (
        *timed([GENERATE, REWARD], generate=0.75),
        replace(TRAIN_POLICY, reads=(*TRAIN_POLICY.reads, Read("reward"))),
        EVALUATE,
        METRICS,
    )

    def keep(self, ctx: JobContext, policy: TextPolicy, groups: Groups) -> None:
        """Write whole groups, and pairs among them."""
        from pipeline.learning.algos.groups import PAIRS

        super().keep(ctx, policy, groups)
        groups.pairs(ctx.settings(GRPOHFConfig).preferences).save(ctx.out, PAIRS)

    def reward(self, ctx: JobContext) -> None:
        """Fit the reward models and score every completion by the one that has not seen its prompt."""
        with ctx.loading():
            from pipeline.learning.algos.reward_stage import cross_fitted
            from pipeline.learning.training.samples import Samples
        folders = super().data(ctx)
        samples = Samples.load(folders)
        whole = replace(samples.sequences, left_out=None)  # what is left out of the loss is scored too
        scores = cross_fitted(ctx, folders, whole, ctx.settings(GRPOHFConfig).reward_model)
        samples.with_rewards(scores).save(ctx.out)

    def data(self, ctx: JobContext) -> tuple[Path, ...]:
        """The samples as the reward stage has scored them."""
        return ctx.inputs["reward"]

    def training_set(self, ctx: JobContext, model: PreTrainedModel, folders: Sequence[Path]) -> TrainingSet:
        """As GRPO; the reward models' tokens count too."""
        from pipeline.learning.algos.reward_stage import reward_fit_in_short, reward_tokens_trained
        from pipeline.learning.training.policy import trained_tokens

        made = super().training_set(ctx, model, folders)
        tokens = trained_tokens(made.data, ctx.settings(GRPOHFConfig).epochs) + reward_tokens_trained(ctx)
        return replace(made, about={**made.about, **reward_fit_in_short(ctx), "tokens_trained": tokens})
