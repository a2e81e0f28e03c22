"""GRPO (Shao et al., arXiv 2402.03300): compare each completion with the others of its prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import LARGEST_RATE, LARGEST_WEIGHT, AlgoConfig, Config, number, option
from pipeline.learning.algos import base, parts, policy_config, post_training, reward_stage
from pipeline.learning.choices import GRPOLoss, ImportanceSampling, ScaleRewards, VLLMCorrection
from pipeline.learning.rewards.preference import PreferenceConfig


@dataclass(kw_only=True)
class GRPOConfig(policy_config.OnlineConfig):
    """Group-relative policy optimisation (arXiv 2402.03300) with TRL's loss. `epochs` is TRL's num_iterations."""

    sampling: policy_config.Sampling = policy_config.Sampling.online
    learning_rate: float = number(6.5e-4, above=0, at_most=LARGEST_RATE)
    loss_type: GRPOLoss = GRPOLoss.dapo
    importance_sampling_level: ImportanceSampling = ImportanceSampling.token
    """Unit of the probability ratio; `sequence` is GSPO (arXiv 2507.18071), with far smaller epsilons."""
    beta: float = number(0.01, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of the KL divergence from the anchor; with 0 there is no KL term and no anchor is loaded."""
    use_bias_correction_kl: bool = True
    """Multiply the KL term by the probability ratio, so that its gradient is that of the divergence (arXiv
    2512.02556)."""
    epsilon: float = number(0.2, above=0, below=1)
    """The probability ratio to the sampling policy is clipped to 1 - epsilon and 1 + epsilon_high."""
    delta: float | None = number(None, above=0, at_most=LARGEST_WEIGHT, hint=", or null for none")
    """Upper bound of the ratio where the advantage is negative (two-sided clipping, arXiv 2505.07291), above 1 +
    epsilon_high; null for none."""
    epsilon_high: float | None = number(None, above=0, at_most=LARGEST_WEIGHT, hint=", or null to take epsilon")
    """Null uses epsilon. With loss_type=cispo the bound of the ratio itself, such as 5."""
    scale_rewards: ScaleRewards = ScaleRewards.group
    mask_truncated_completions: bool = False
    """Leave completions that were cut off at `generation.max_new_tokens` out of the loss, as TRL does. They still
    count in the mean of their group."""
    entropy_coef: float = number(0.0, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is none)")
    """Weight of an entropy bonus, averaged over tokens and over the whole vocabulary: TRL's name, verl's
    `entropy_coeff`."""
    vllm_importance_sampling_mode: VLLMCorrection = option(VLLMCorrection.sequence_mask)
    """Weights of the loss of what vLLM has drawn while training: probabilities under training over those under
    vLLM."""
    vllm_importance_sampling_clip_max: float | None = option(
        3.0, above=0, at_most=LARGEST_WEIGHT, hint=", or null for none"
    )
    """Upper bound of these weights."""
    vllm_importance_sampling_clip_min: float | None = option(
        None, above=0, at_most=LARGEST_WEIGHT, hint=", or null for none"
    )
    """Lower bound of these weights."""
    reference: policy_config.Anchor = policy_config.Anchor.initial

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report batch sizes that split a group, and bounds that contradict each other."""
        yield from super().problems(key, config)
        if self.loss_type is GRPOLoss.cispo and (self.epsilon_high is None or self.epsilon_high < 1):
            yield f"{key}.epsilon_high: must be at least 1 with {key}.loss_type=cispo, for example 5.0"
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        if self.delta is not None and self.delta <= 1 + high and self.loss_type is not GRPOLoss.cispo:
            yield f"{key}.delta={self.delta}: must be above 1 + {key}.epsilon_high, {1 + high:g}, or null"
        yield from self._unbounded(key)
        sizes = {"training.micro_batch_size": config.training.micro_batch_size}
        if not self.draws_to_train:
            sizes = {f"{key}.batch_size": self.batch_size, **sizes}
        for name, size in sizes.items():
            if self.num_generations >= 2 and size % self.num_generations:
                group = f"{key}.num_generations={self.num_generations}"
                yield f"{name}={size}: must be a multiple of {group}, as no group is split"

    def _unbounded(self, key: str) -> Iterator[str]:
        """Yield problems of the bounds of the weights for vLLM."""
        mode, typed = self.vllm_importance_sampling_mode, f"{key}.vllm_importance_sampling"
        least, most = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        if least is not None and most is not None and least >= most:
            yield f"{typed}_clip_min={least:g}: must be below {typed}_clip_max={most:g}, or null"
        if mode.name.endswith("_truncate") and least is most is None:
            yield f"{typed}_mode={mode.name}: needs {typed}_clip_max or {typed}_clip_min"

    def idle(self, setting: str) -> str:
        """Also report bounds that the loss does not have as unused."""
        if setting.startswith("vllm_"):
            if not self.draws_to_train:
                return "it is of sampling=online"
            if "clip" in setting and self.vllm_importance_sampling_mode is VLLMCorrection.none:
                return "vllm_importance_sampling_mode=none has no weights"
        if setting in ("epsilon", "delta") and self.loss_type is GRPOLoss.cispo:
            return "with loss_type=cispo the ratio is bounded by epsilon_high alone"
        return super().idle(setting)


class GRPO(post_training.PostTrainingAlgorithms):
    """GRPO on whole groups, which the generate stage draws."""

    name: ClassVar[str] = "GRPO"
    version: ClassVar[int] = 2
    config_class: ClassVar[type[AlgoConfig]] = GRPOConfig
    stages: ClassVar[tuple[base.Stage, ...]] = base.timed(
        post_training.PostTrainingAlgorithms.stages, generate=0.75, train=16.0
    )

    def advantages(self, ctx: base.JobContext, samples: parts.Samples) -> NDArray[np.float32]:
        """Return the advantage of each completion over the others of its prompt.

        Args:
            ctx: Context of the training.
            samples: Whole groups of `num_generations`, members adjacent; a missing reward is NaN.

        Returns:
            Shape [N], or per token, laid out as `samples.logprobs`; 0 where there is nothing to learn.
        """
        algo = ctx.settings(GRPOConfig)
        return parts.grpo.group_advantages(samples.rewards, algo.num_generations, algo.scale_rewards)

    def ratio(self, ctx: base.JobContext, tokens: parts.TokenBatch) -> parts.Tensor:
        """Return the probability ratio of tokens, or completions, to the policy that drew them.

        Args:
            ctx: Context of the training.
            tokens: Log-probabilities of a micro-batch under the trained policy and the one that drew, shape [B,
                T].

        Returns:
            The ratio with its gradient, shape [B, T] or [B, 1].
        """
        return parts.grpo.importance_ratio(tokens, ctx.settings(GRPOConfig).importance_sampling_level)

    def surrogate(self, ctx: base.JobContext, tokens: parts.TokenBatch, ratio: parts.Tensor) -> parts.Tensor:
        """Return the objective to maximise, without the KL term: here the clipped ratio times the advantage.

        Args:
            ctx: Context of the training.
            tokens: The micro-batch with advantages, shape [B, T] or [B, 1].
            ratio: Shape [B, T].

        Returns:
            The objective with its gradient, shape [B, T] or [B, 1]; `loss_type` says how it is averaged.
        """
        return parts.grpo.clipped_surrogate(tokens, ratio, ctx.settings(GRPOConfig))

    def keep(self, ctx: base.JobContext, groups: parts.Groups) -> None:
        """Write whole groups, without completions that were cut off if the settings say so."""
        samples = post_training.samples_of(groups)
        if ctx.settings(GRPOConfig).mask_truncated_completions:
            samples = samples.silenced(groups.truncated)
        samples.save(ctx.out)

    def training_set(
        self, ctx: base.JobContext, model: parts.PreTrainedModel, folders: Sequence[Path]
    ) -> parts.TrainingSet:
        """Return the samples with their advantages, and the clipped loss."""
        samples, generation = parts.Samples.load(folders), ctx.config.generation
        advantages = parts.grpo.checked_advantages(self.advantages(ctx, samples), samples)
        return parts.grpo.grpo_set(
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

    def held_to(self, ctx: base.JobContext, samples: parts.Samples) -> NDArray[np.float32] | None:
        """Return the anchor's log-probabilities for the KL term, from `anchor_logprobs`.

        None without a KL term.
        """
        return self.anchor_logprobs(ctx, samples) if ctx.settings(GRPOConfig).beta else None

    def anchor_logprobs(self, ctx: base.JobContext, samples: parts.Samples) -> NDArray[np.float32]:
        """Return log-probabilities of the drawn tokens under the anchor, laid out as `samples.logprobs`."""
        data, temperature = samples.sequences, ctx.config.generation.temperature

        def of(model: parts.PreTrainedModel, batch: parts.Batch) -> parts.Tensor:
            return parts.scoring.completion_logprobs(model, batch, temperature)

        found = self.of_anchor(ctx, ctx.settings(GRPOConfig).reference, data, of, data.ids.shape[1])
        return parts.grpo.padded(parts.grpo.supervised_columns(found, data))


# -- rloo --------------------------------------------------------------------------------------------------------
# RLOO (Ahmadian et al., arXiv 2402.14740): REINFORCE on whole completions, each compared with the mean of the
# others. Two things differ from GRPO besides its settings: the advantages, and that the KL penalty is part of the
# reward, as in `trl.RLOOTrainer`.


@dataclass(kw_only=True)
class RLOOConfig(GRPOConfig):
    """REINFORCE leave-one-out (arXiv 2402.14740), without `scale_rewards` and `use_bias_correction_kl` of GRPO."""

    importance_sampling_level: ImportanceSampling = ImportanceSampling.product
    """Unit of the probability ratio: `product` over a whole completion, as in the paper and in TRL."""
    beta: float = number(0.05, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of the log-ratio to the anchor that is subtracted from each reward; with 0 no anchor is loaded."""
    vllm_importance_sampling_mode: VLLMCorrection = option(VLLMCorrection.none)
    """As for GRPO; none, as in TRL's `RLOOTrainer`."""
    normalize_advantages: bool = False
    """Normalise advantages to mean 0 and standard deviation 1 over all completions of a round, or of a batch drawn
    online."""

    @property
    def is_on_policy(self) -> bool:
        """False if rewards need the log-probabilities of the policy that drew."""
        return super().is_on_policy and not self.beta

    def idle(self, setting: str) -> str:
        """Also report settings of GRPO alone as unused."""
        if setting == "scale_rewards":
            return "RLOO measures against the mean of the others; it has normalize_advantages"
        if setting == "use_bias_correction_kl":
            return "the divergence is part of RLOO's reward"
        return super().idle(setting)


class RLOO(GRPO):
    """GRPO with leave-one-out advantages."""

    name: ClassVar[str] = "RLOO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = RLOOConfig

    def advantages(self, ctx: base.JobContext, samples: parts.Samples) -> NDArray[np.float32]:
        """Return each reward, less `beta` times its log-ratio to the anchor, minus the mean of the others."""
        algo = ctx.settings(RLOOConfig)
        rewards = samples.rewards.astype(np.float64)
        if algo.beta:
            rewards = rewards - algo.beta * parts.grpo.log_ratios(samples, self.anchor_logprobs(ctx, samples))
        return parts.grpo.leave_one_out(rewards, algo.num_generations, normalizes=algo.normalize_advantages)

    def held_to(self, ctx: base.JobContext, samples: parts.Samples) -> None:
        """Return None: the KL penalty is part of the reward."""


# -- reinforce pp ------------------------------------------------------------------------------------------------
# REINFORCE++ (Hu et al., arXiv 2501.03262): no critic, and advantages normalised over a whole batch. Clipping and
# averaging are GRPO's. As in RLOO the KL penalty is part of the reward, here per token.


@dataclass(kw_only=True)
class REINFORCEppConfig(RLOOConfig):
    """REINFORCE++ (arXiv 2501.03262), as in OpenRLHF. Three settings of RLOO are unused."""

    importance_sampling_level: ImportanceSampling = ImportanceSampling.token
    learning_rate: float = number(2e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.05, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of each token's log-ratio to the anchor that is subtracted from the reward; with 0 no anchor is
    loaded."""
    baseline: bool = False
    """First subtract the mean of the group from each reward: REINFORCE++-baseline. Without it a group may be a
    single completion."""

    @property
    def compares(self) -> bool:
        """True only with the group baseline."""
        return self.baseline

    def idle(self, setting: str) -> str:
        """Also report settings of RLOO alone as unused."""
        if setting in ("scale_rewards", "normalize_advantages"):
            return "REINFORCE++ always divides by the deviation over all tokens of a batch"
        if setting == "dynamic_sampling" and self.num_generations == 1:
            return "a single completion has no others to score like"
        return super().idle(setting)


class REINFORCEpp(RLOO):
    """GRPO with each token's return, normalised over the batch, as its advantage."""

    name: ClassVar[str] = "REINFORCEpp"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = REINFORCEppConfig

    def advantages(self, ctx: base.JobContext, samples: parts.Samples) -> NDArray[np.float32]:
        """Return each token's return, normalised to mean 0 and standard deviation 1 over all tokens.

        Shape [N, C].
        """
        algo, rewards = ctx.settings(REINFORCEppConfig), samples.rewards
        if algo.baseline:
            better = parts.grpo.group_advantages(rewards, algo.num_generations, ScaleRewards.none)
            rewards = np.where(np.isnan(rewards), np.nan, better)
        penalty = algo.beta * (samples.logprobs - self.anchor_logprobs(ctx, samples)) if algo.beta else None
        return parts.grpo.whitened_returns(rewards, penalty, samples)


# -- grpo hf -----------------------------------------------------------------------------------------------------
# GRPO-HF: GRPO on a reward that is learnt from preferences within each group. All samples of a group are kept.
# Bradley-Terry reward models are fitted to preferences among them, each scores the prompts that it has not seen,
# and GRPO uses these scores. If training itself draws, the models score its draws, as in RLHF (Ouyang et al.,
# arXiv 2203.02155). No other reward is used after the stage `score`.


@dataclass(kw_only=True)
class GRPOHFConfig(GRPOConfig):
    """GRPO on a reward that is learnt from preferences among the samples of each group."""

    learning_rate: float = number(1.7e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.4, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of the KL divergence from the anchor; with 0 there is no KL term and no anchor is loaded. With a
    small weight, a policy that draws while it trains moves to where its reward model is wrong."""
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    reward_model: reward_stage.RewardModelConfig = field(
        default_factory=lambda: reward_stage.RewardModelConfig(learning_rate=2.1e-4, epochs=1)
    )

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report normalisation by a mean that is about 0."""
        yield from super().problems(key, config)
        if self.scale_rewards is ScaleRewards.mean:
            yield f"{key}.scale_rewards=mean: learnt rewards are 0 on average. Use group, batch or none"

    def idle(self, setting: str) -> str:
        """Say why a setting is unused; `aggregate` is used even online, as it selects data for reward models."""
        return "" if setting == "aggregate" else super().idle(setting)

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Count the pairs in groups that the reward model trains on."""
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

    def keep(self, ctx: base.JobContext, groups: parts.Groups) -> None:
        """Write whole groups, and pairs among them for the reward models."""
        super().keep(ctx, groups)
        if not ctx.inputs.get(reward_stage.REWARD.name):
            groups.pairs(ctx.settings(GRPOHFConfig).preferences).save(ctx.out, parts.PAIRS)

    def reward(self, ctx: base.JobContext) -> None:
        """Fit the reward models, and score every completion with the model that has not seen its prompt."""
        folders = super().data(ctx)
        samples = parts.Samples.load(folders)
        # completions that are left out of the loss are scored too
        whole = replace(samples.sequences, left_out=None)
        scores = reward_stage.cross_fitted(ctx, folders, whole, ctx.settings(GRPOHFConfig).reward_model)
        samples.with_rewards(scores).save(ctx.out)

    def data(self, ctx: base.JobContext) -> tuple[Path, ...]:
        """Return the folders of samples with the scores of the reward stage."""
        return ctx.inputs["reward"]

    def judge(self, ctx: base.JobContext) -> parts.Judge:
        """Return the reward models of this round as a judge; each scores the prompts that it has not seen."""
        return reward_stage.fitted_rewards(ctx, super().data(ctx))
