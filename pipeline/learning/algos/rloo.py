"""RLOO (Ahmadian et al., arXiv 2402.14740): REINFORCE on whole completions, each against the mean of the others.

All is GRPO's with other settings, but what advantages are and that the divergence from the anchor is part of the
reward: as `trl.RLOOTrainer` has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from pipeline.config.bases import AlgoConfig
from pipeline.config.fields import LARGEST_WEIGHT, number
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.grpo import GRPO, GRPOConfig
from pipeline.learning.choices import ImportanceSampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.learning.training.grpo import Objective, Samples


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

    def advantages(self, ctx: JobContext, samples: Samples) -> NDArray[np.float32]:
        """Each reward, less `beta` times its log-ratio to the anchor, minus the mean of the others."""
        import numpy as np

        from pipeline.learning.training.grpo import leave_one_out, log_ratios

        algo = ctx.settings(RLOOConfig)
        rewards = samples.rewards.astype(np.float64)
        if algo.beta:
            rewards = rewards - algo.beta * log_ratios(samples, self.anchor_logprobs(ctx, samples))
        return leave_one_out(rewards, algo.num_generations, normalizes=algo.normalize_advantages)

    def objective(self, ctx: JobContext) -> Objective:
        """GRPO's, without a divergence of its own."""
        return replace(super().objective(ctx), beta=0.0)
