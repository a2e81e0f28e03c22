"""GRPO (Shao et al., arXiv 2402.03300): each completion against the others of its prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import LARGEST_RATE, LARGEST_WEIGHT, AlgoConfig, Config, number
from pipeline.learning.algos import base, policy_config, post_training, reward_stage, toolbox
from pipeline.learning.choices import GRPOLoss, ImportanceSampling, ScaleRewards
from pipeline.learning.rewards.preference import PreferenceConfig


@dataclass(kw_only=True)
class GRPOConfig(policy_config.OnlineConfig):
    """Group-relative policy optimisation (arXiv 2402.03300), the loss of TRL. `epochs` is TRL's num_iterations."""

    sampling: policy_config.Sampling = policy_config.Sampling.online
    learning_rate: float = number(6.5e-4, above=0, at_most=LARGEST_RATE)
    loss_type: GRPOLoss = GRPOLoss.dapo
    importance_sampling_level: ImportanceSampling = ImportanceSampling.token
    """What the probability ratio is of: `sequence` is GSPO (arXiv 2507.18071), with far smaller epsilons."""
    beta: float = number(0.01, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of the KL divergence from the anchor; 0 leaves it out and loads no anchor."""
    use_bias_correction_kl: bool = True
    """Multiply the KL term with the probability ratio, so that its gradient is that of the divergence (arXiv
    2512.02556)."""
    epsilon: float = number(0.2, above=0, below=1)
    """The probability ratio to the sampling policy is clipped to 1 - epsilon and 1 + epsilon_high."""
    delta: float | None = number(None, above=0, at_most=LARGEST_WEIGHT, hint=", or null for none")
    """Bound of the ratio where the advantage is negative (two-sided clipping, arXiv 2505.07291), above
    1 + epsilon_high; null for none."""
    epsilon_high: float | None = number(None, above=0, at_most=LARGEST_WEIGHT, hint=", or null to take epsilon")
    """Null takes epsilon. With loss_type=cispo the bound of the ratio itself, such as 5."""
    scale_rewards: ScaleRewards = ScaleRewards.group
    mask_truncated_completions: bool = False
    """Leave completions that were cut off at `generation.max_new_tokens` out of the loss, as TRL does. Others are
    measured against them all the same."""
    entropy_coef: float = number(0.0, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is none)")
    """Weight of the mean entropy over tokens and the whole vocabulary, which training raises: TRL's name, verl's
    `entropy_coeff`."""
    reference: policy_config.Anchor = policy_config.Anchor.initial

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also batches that would split a group, and bounds that contradict each other."""
        yield from super().problems(key, config)
        if self.loss_type is GRPOLoss.cispo and (self.epsilon_high is None or self.epsilon_high < 1):
            yield f"{key}.epsilon_high: must be at least 1 with {key}.loss_type=cispo, for example 5.0"
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        if self.delta is not None and self.delta <= 1 + high and self.loss_type is not GRPOLoss.cispo:
            yield f"{key}.delta={self.delta}: must be above 1 + {key}.epsilon_high, {1 + high:g}, or null"
        sizes = {"training.micro_batch_size": config.training.micro_batch_size}
        if not self.draws_to_train:
            sizes = {f"{key}.batch_size": self.batch_size, **sizes}
        for name, size in sizes.items():
            if self.num_generations >= 2 and size % self.num_generations:
                group = f"{key}.num_generations={self.num_generations}"
                yield f"{name}={size}: must be a multiple of {group}, as no group is split"

    def idle(self, setting: str) -> str:
        """Also bounds that a loss does not have."""
        if setting in ("epsilon", "delta") and self.loss_type is GRPOLoss.cispo:
            return "with loss_type=cispo the ratio is bounded by epsilon_high alone"
        return super().idle(setting)


class GRPO(post_training.PostTrainingAlgorithms):
    """GRPO on groups that are drawn, and kept whole, by the generate stage."""

    name: ClassVar[str] = "GRPO"
    version: ClassVar[int] = 2
    config_class: ClassVar[type[AlgoConfig]] = GRPOConfig
    stages: ClassVar[tuple[base.Stage, ...]] = base.timed(
        post_training.PostTrainingAlgorithms.stages, generate=0.75, train=16.0
    )

    def advantages(self, ctx: base.JobContext, samples: toolbox.Samples) -> NDArray[np.float32]:
        """How much better each completion is than the others of its prompt.

        Args:
            ctx: Of the training.
            samples: Whole groups of `num_generations`, members adjacent; a reward is NaN where there is none.

        Returns:
            Shape [N], or of tokens, laid out as `samples.logprobs` are; 0 where nothing is to be learnt.
        """
        algo = ctx.settings(GRPOConfig)
        return toolbox.grpo.group_advantages(samples.rewards, algo.num_generations, algo.scale_rewards)

    def ratio(self, ctx: base.JobContext, tokens: toolbox.TokenBatch) -> toolbox.Tensor:
        """How much likelier tokens, or completions, have become since they were drawn.

        Args:
            ctx: Of the training.
            tokens: Log-probabilities of a micro-batch under who is trained and who drew, shape [B, T].

        Returns:
            With its gradient, shape [B, T] or [B, 1].
        """
        return toolbox.grpo.importance_ratio(tokens, ctx.settings(GRPOConfig).importance_sampling_level)

    def surrogate(self, ctx: base.JobContext, tokens: toolbox.TokenBatch, ratio: toolbox.Tensor) -> toolbox.Tensor:
        """What training makes as large as it can, apart from the KL term: here the clipped ratio's gain.

        Args:
            ctx: Of the training.
            tokens: With their advantages, shape [B, T] or [B, 1].
            ratio: Shape [B, T].

        Returns:
            With its gradient, shape [B, T] or [B, 1]; `loss_type` says how it is averaged.
        """
        return toolbox.grpo.clipped_surrogate(tokens, ratio, ctx.settings(GRPOConfig))

    def keep(self, ctx: base.JobContext, groups: toolbox.Groups) -> None:
        """Whole groups, without what was cut off where the settings say so."""
        samples = post_training.samples_of(groups)
        if ctx.settings(GRPOConfig).mask_truncated_completions:
            samples = samples.silenced(groups.truncated)
        samples.save(ctx.out)

    def training_set(
        self, ctx: base.JobContext, model: toolbox.PreTrainedModel, folders: Sequence[Path]
    ) -> toolbox.TrainingSet:
        """Raise what is better than its group, within the clipped ratio."""
        samples, generation = toolbox.Samples.load(folders), ctx.config.generation
        advantages = toolbox.grpo.checked_advantages(self.advantages(ctx, samples), samples)
        return toolbox.grpo.grpo_set(
            model,
            samples,
            advantages,
            self.held_to(ctx, samples),
            ctx.settings(GRPOConfig),
            ctx.device,
            longest=generation.max_new_tokens,
            temperature=generation.temperature,
            ratio=lambda tokens: self.ratio(ctx, tokens),
            surrogate=lambda tokens, ratio: self.surrogate(ctx, tokens, ratio),
        )

    def held_to(self, ctx: base.JobContext, samples: toolbox.Samples) -> NDArray[np.float32] | None:
        """What the KL term of the loss is of, as `anchor_logprobs` gives it; None where the loss has none."""
        return self.anchor_logprobs(ctx, samples) if ctx.settings(GRPOConfig).beta else None

    def anchor_logprobs(self, ctx: base.JobContext, samples: toolbox.Samples) -> NDArray[np.float32]:
        """Log-probabilities of the drawn tokens under the anchor, laid out as those of the sampling policy."""
        data, temperature = samples.sequences, ctx.config.generation.temperature

        def of(model: toolbox.PreTrainedModel, batch: toolbox.Batch) -> toolbox.Tensor:
            return toolbox.scoring.completion_logprobs(model, batch, temperature)

        found = self.of_anchor(ctx, ctx.settings(GRPOConfig).reference, data, of, data.ids.shape[1])
        return toolbox.grpo.padded(toolbox.grpo.supervised_columns(found, data))


# -- rloo --------------------------------------------------------------------------------------------------------
# RLOO (Ahmadian et al., arXiv 2402.14740): REINFORCE on whole completions, each against the mean of the
# others. All is GRPO's with other settings, but what advantages are and that the divergence from the anchor
# is part of the reward: as `trl.RLOOTrainer` has it.


@dataclass(kw_only=True)
class RLOOConfig(GRPOConfig):
    """REINFORCE leave-one-out (arXiv 2402.14740), without `scale_rewards` and `use_bias_correction_kl` of GRPO."""

    importance_sampling_level: ImportanceSampling = ImportanceSampling.product
    """What the probability ratio is of: `product` of a whole completion, as the paper and TRL have it."""
    beta: float = number(0.05, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of the log-ratio to the anchor that is taken off each reward; 0 leaves it out and loads no anchor."""
    normalize_advantages: bool = False
    """Bring advantages to mean 0 and deviation 1 over all completions of a round, or of a batch drawn online."""

    @property
    def is_on_policy(self) -> bool:
        """Not where rewards need the log-probabilities of who drew."""
        return super().is_on_policy and not self.beta

    def idle(self, setting: str) -> str:
        """Also what GRPO alone does."""
        if setting == "scale_rewards":
            return "RLOO measures against the mean of the others; it has normalize_advantages"
        if setting == "use_bias_correction_kl":
            return "the divergence is part of RLOO's reward"
        return super().idle(setting)


class RLOO(GRPO):
    """Says how much better each completion is; all else is GRPO's."""

    name: ClassVar[str] = "RLOO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = RLOOConfig

    def advantages(self, ctx: base.JobContext, samples: toolbox.Samples) -> NDArray[np.float32]:
        """Each reward, less `beta` times its log-ratio to the anchor, minus the mean of the others."""
        algo = ctx.settings(RLOOConfig)
        rewards = samples.rewards.astype(np.float64)
        if algo.beta:
            rewards = rewards - algo.beta * toolbox.grpo.log_ratios(samples, self.anchor_logprobs(ctx, samples))
        return toolbox.grpo.leave_one_out(rewards, algo.num_generations, normalizes=algo.normalize_advantages)

    def held_to(self, ctx: base.JobContext, samples: toolbox.Samples) -> None:
        """Nothing: the divergence is part of the reward."""


# -- reinforce pp ------------------------------------------------------------------------------------------------
# REINFORCE++ (Hu et al., arXiv 2501.03262): no critic, and advantages brought to one scale over a whole
# batch. Its clip and averages are GRPO's. As with RLOO the divergence from the anchor is part of the reward:
# of each token.


@dataclass(kw_only=True)
class REINFORCEppConfig(RLOOConfig):
    """REINFORCE++ (arXiv 2501.03262), as OpenRLHF has it. Three settings of RLOO do nothing."""

    importance_sampling_level: ImportanceSampling = ImportanceSampling.token
    learning_rate: float = number(2e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.05, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of each token's log-ratio to the anchor that is taken off the reward; 0 loads no anchor."""
    baseline: bool = False
    """Measure each reward against the mean of its group first: REINFORCE++-baseline. Without it a group may be a
    single completion."""

    @property
    def compares(self) -> bool:
        """Only where groups have a mean."""
        return self.baseline

    def idle(self, setting: str) -> str:
        """Also what RLOO alone does."""
        if setting in ("scale_rewards", "normalize_advantages"):
            return "REINFORCE++ always divides by the deviation over all tokens of a batch"
        if setting == "dynamic_sampling" and self.num_generations == 1:
            return "a single completion has no others to score like"
        return super().idle(setting)


class REINFORCEpp(RLOO):
    """Says how much better each token's return is than that of all others; all else is GRPO's."""

    name: ClassVar[str] = "REINFORCEpp"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = REINFORCEppConfig

    def advantages(self, ctx: base.JobContext, samples: toolbox.Samples) -> NDArray[np.float32]:
        """What is still to come from each token on, less the mean of that, in its deviations; shape [N, C]."""
        algo, rewards = ctx.settings(REINFORCEppConfig), samples.rewards
        if algo.baseline:
            better = toolbox.grpo.group_advantages(rewards, algo.num_generations, ScaleRewards.none)
            rewards = np.where(np.isnan(rewards), np.nan, better)
        penalty = algo.beta * (samples.logprobs - self.anchor_logprobs(ctx, samples)) if algo.beta else None
        return toolbox.grpo.whitened_returns(rewards, penalty, samples)


# -- grpo hf -----------------------------------------------------------------------------------------------------
# GRPO-HF: GRPO on a reward that is learnt from preferences within each group. All samples of a group are
# kept: Bradley-Terry reward models are fitted to preferences among them, each scores those of prompts that it
# has not seen, and GRPO goes by these scores. Where training itself draws, they score what it draws, as in
# RLHF (Ouyang et al., arXiv 2203.02155). After the stage `score` no other reward is looked at.


@dataclass(kw_only=True)
class GRPOHFConfig(GRPOConfig):
    """GRPO on a reward that is learnt from preferences among the samples of each group."""

    learning_rate: float = number(1.7e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.4, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of the KL divergence from the anchor; 0 leaves it out and loads no anchor. With a small one a policy
    that draws while it trains goes to where its reward model is wrong."""
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    reward_model: reward_stage.RewardModelConfig = field(
        default_factory=lambda: reward_stage.RewardModelConfig(learning_rate=2.1e-4, epochs=1)
    )

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
        if stage == reward_stage.REWARD.name:
            return self.reward_model.trained(self.preferences.compared(self.num_generations, decided))
        return super().trained(stage, samples, decided)


class GRPOHF(reward_stage.LearnsReward, GRPO):
    """GRPO with one more stage, which scores whole groups by a learnt reward."""

    name: ClassVar[str] = "GRPO-HF"
    version: ClassVar[int] = 3
    learns_reward: ClassVar[bool] = True
    config_class: ClassVar[type[AlgoConfig]] = GRPOHFConfig
    stages: ClassVar[tuple[base.Stage, ...]] = (
        *base.timed([base.GENERATE, base.SCORE, reward_stage.REWARD], generate=0.75),
        replace(post_training.TRAIN_POLICY, reads=(*post_training.TRAIN_POLICY.reads, base.Read("reward"))),
        post_training.EVALUATE,
        base.METRICS,
    )

    def keep(self, ctx: base.JobContext, groups: toolbox.Groups) -> None:
        """Write whole groups, and pairs among them for reward models to be fitted to."""
        super().keep(ctx, groups)
        if not ctx.inputs.get(reward_stage.REWARD.name):
            groups.pairs(ctx.settings(GRPOHFConfig).preferences).save(ctx.out, toolbox.PAIRS)

    def reward(self, ctx: base.JobContext) -> None:
        """Fit the reward models and score every completion by the one that has not seen its prompt."""
        folders = super().data(ctx)
        samples = toolbox.Samples.load(folders)
        whole = replace(samples.sequences, left_out=None)  # what is left out of the loss is scored too
        scores = reward_stage.cross_fitted(ctx, folders, whole, ctx.settings(GRPOHFConfig).reward_model)
        samples.with_rewards(scores).save(ctx.out)

    def data(self, ctx: base.JobContext) -> tuple[Path, ...]:
        """The samples as the reward stage has scored them."""
        return ctx.inputs["reward"]

    def judge(self, ctx: base.JobContext) -> toolbox.Judge:
        """The reward models of this round, each of the prompts that it has not seen."""
        return reward_stage.fitted_rewards(ctx, super().data(ctx))
