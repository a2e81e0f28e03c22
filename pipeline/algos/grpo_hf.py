"""GRPO-HF: GRPO on a reward that is learnt from preferences within each group.

All samples of a group are kept: a Bradley-Terry reward model is fitted to preferences among them, scores them all
anew, and GRPO goes by these scores. After the generate stage no other reward is looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.algos.base import METRICS, REFERENCE_TRAIN, JobContext, Read, Stage
from pipeline.algos.grpo import GRPO
from pipeline.algos.post_training import EVALUATE, GENERATE, TRAIN
from pipeline.algos.reward_stage import REWARD
from pipeline.config.schema import AlgoConfig, GRPOHFConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline.algos.groups import Groups
    from pipeline.generation.policy import TextPolicy
    from pipeline.training.policy import Fitting


class GRPOHF(GRPO):
    """GRPO with one more stage, which scores whole groups by a learnt reward."""

    name: ClassVar[str] = "GRPO-HF"
    config_class: ClassVar[type[AlgoConfig]] = GRPOHFConfig
    stages: ClassVar[tuple[Stage, ...]] = (
        GENERATE,
        REWARD,
        Stage(
            "train",
            reads=(REFERENCE_TRAIN, Read("train", "previous"), Read("generate", "so_far"), Read("reward")),
            config=TRAIN,
            scales=True,
            seconds=15.0,
        ),
        EVALUATE,
        METRICS,
    )

    def keep(self, ctx: JobContext, policy: TextPolicy, groups: Groups) -> None:
        """Write whole groups, and pairs among them."""
        from pipeline.algos.groups import PAIRS

        super().keep(ctx, policy, groups)
        groups.pairs(_settings(ctx).preferences).save(ctx.out, PAIRS)

    def reward(self, ctx: JobContext) -> None:
        """Fit the reward model and score every completion by it."""
        with ctx.loading():
            from pipeline.algos.reward_stage import LearntReward
            from pipeline.training.samples import Samples
        folders = super().data(ctx)
        learnt = LearntReward(ctx, folders, _settings(ctx).reward_model)
        samples = Samples.load(folders)
        samples.with_rewards(learnt.scores(samples.sequences)).save(ctx.out)
        learnt.save()

    def data(self, ctx: JobContext) -> tuple[Path, ...]:
        """The samples as the reward stage has scored them."""
        return ctx.inputs["reward"]

    def fit(self, ctx: JobContext, model: PreTrainedModel, fitting: Fitting) -> dict[str, Any]:
        """As GRPO; the reward model's tokens count too."""
        from pipeline.algos.reward_stage import reward_tokens_trained

        about = super().fit(ctx, model, fitting)
        return {**about, "tokens_trained": about["tokens_trained"] + reward_tokens_trained(ctx)}


def _settings(ctx: JobContext) -> GRPOHFConfig:
    assert isinstance(ctx.config.algo, GRPOHFConfig)
    return ctx.config.algo
