"""REINFORCE++ (Hu et al., arXiv 2501.03262): no critic, and advantages brought to one scale over a whole batch.

Its clip and averages are GRPO's. As with RLOO the divergence from the anchor is part of the reward: of each token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipeline.config.bases import AlgoConfig
from pipeline.config.fields import LARGEST_WEIGHT, number
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.rloo import RLOO, RLOOConfig
from pipeline.learning.choices import ImportanceSampling, ScaleRewards

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.learning.training.grpo import Samples


@dataclass(kw_only=True)
class REINFORCEppConfig(RLOOConfig):
    """REINFORCE++ (arXiv 2501.03262), as OpenRLHF has it. Three settings of RLOO do nothing."""

    importance_sampling_level: ImportanceSampling = ImportanceSampling.token
    beta: float = number(0.01, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
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

    def advantages(self, ctx: JobContext, samples: Samples) -> NDArray[np.float32]:
        """What is still to come from each token on, less the mean of that, in its deviations; shape [N, C]."""
        import numpy as np

        from pipeline.learning.training.grpo import group_advantages, whitened_returns

        algo, rewards = ctx.settings(REINFORCEppConfig), samples.rewards
        if algo.baseline:
            better = group_advantages(rewards, algo.num_generations, ScaleRewards.none)
            rewards = np.where(np.isnan(rewards), np.nan, better)
        penalty = algo.beta * (samples.logprobs - self.anchor_logprobs(ctx, samples)) if algo.beta else None
        return whitened_returns(rewards, penalty, samples)
