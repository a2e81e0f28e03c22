"""REINFORCE leave-one-out (Ahmadian et al., arXiv 2402.14740): each completion against the mean of the others.

    python run_parallel.py experiment.name=x algos.RLOO.class_path=examples.rloo.RLOO

GRPO divides what a completion is better by its group's deviation; here its own reward has no part in what it is
measured against, and nothing is divided. Training is one pass over completions of the policy that the round begins
with: at its first step the ratio that GRPO clips is 1, and the gradient that of REINFORCE; later steps are
off-policy, as those of GRPO are. The KL term is GRPO's, times `beta`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipeline import GRPO, AlgoConfig, GRPOConfig, GRPOLoss, JobContext

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline import Samples


@dataclass(kw_only=True)
class RLOOConfig(GRPOConfig):
    """Settings of GRPO; `scale_rewards` has no effect."""

    loss_type: GRPOLoss = GRPOLoss.dr_grpo
    """Adds up over tokens, as the log-probability of a whole completion does."""


class RLOO(GRPO):
    """Says how much better each completion is; all else is GRPO's."""

    name: ClassVar[str] = "RLOO"
    config_class: ClassVar[type[AlgoConfig]] = RLOOConfig

    def advantages(self, ctx: JobContext, samples: Samples) -> NDArray[np.float32]:
        """Each reward minus the mean of the others of its prompt; 0 without a reward, or without others."""
        import numpy as np

        rewards = samples.rewards.reshape(-1, ctx.settings(RLOOConfig).num_generations)
        others = (~np.isnan(rewards)).sum(1, keepdims=True) - 1
        mean = (np.nansum(rewards, 1, keepdims=True) - rewards) / np.maximum(1, others)
        better: NDArray[np.float32] = np.where(others > 0, rewards - mean, 0.0)
        return np.nan_to_num(better).reshape(-1)
