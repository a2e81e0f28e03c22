"""Pass@k training (Chen et al., arXiv 2508.10751): a group is worth what the best of any k of its completions is.

    python run_parallel.py experiment.name=x algos.PassAtK.class_path=examples.pass_at_k.PassAtK algos.PassAtK.k=2

GRPO raises the chance that one completion is right. Here a completion is rewarded with what the best of k is on
average, over all sets of k of its group that it is in, so that hard prompts count for more and a second way to be
right is worth nothing where there is one already. The loss, its clip and the KL term are GRPO's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar

from pipeline import GRPO, AlgoConfig, Config, GRPOConfig, JobContext

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.toolbox import Samples


@dataclass(kw_only=True)
class PassAtKConfig(GRPOConfig):
    """Settings of GRPO; `scale_rewards` has no effect."""

    k: int = 2
    """Completions of which the best counts."""

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also sets of one, or of the whole group."""
        yield from super().problems(key, config)
        if not 1 <= self.k < self.num_generations:
            yield f"{key}.k={self.k}: must be at least 1 and less than num_generations={self.num_generations}"


class PassAtK(GRPO):
    """Says how much better each completion is; all else is GRPO's."""

    name: ClassVar[str] = "PassAtK"
    config_class: ClassVar[type[AlgoConfig]] = PassAtKConfig

    def advantages(self, ctx: JobContext, samples: Samples) -> NDArray[np.float32]:
        """Mean of the best of the sets that a completion is in, minus that of all sets, in their deviations."""
        import numpy as np

        algo = ctx.settings(PassAtKConfig)
        rewards = np.nan_to_num(samples.rewards).reshape(-1, algo.num_generations)  # none is worth 0
        sets = np.array(list(combinations(range(algo.num_generations), algo.k)))
        best = rewards[:, sets].max(-1)  # [prompts, sets]
        member = np.array([(sets == place).any(-1) for place in range(algo.num_generations)])
        better = (best @ member.T) / member.sum(1) - best.mean(1, keepdims=True)
        better = better / (best.std(1, keepdims=True) + 1e-4)
        return np.where(np.isnan(samples.rewards), 0.0, better.reshape(-1)).astype(np.float32)
