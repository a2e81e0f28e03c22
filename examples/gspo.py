"""GSPO (Zheng et al., arXiv 2507.18071): completions are taken, or clipped away, as a whole.

    python run_parallel.py experiment.name=x 'algos=[GRPO]' algos.GSPO.class_path=examples.gspo.GSPO

GRPO weighs and clips each token by its own ratio. Here all tokens of a completion have the same one: that of the
whole, to the power of one over its length. Advantages, the clip and the averages are GRPO's, of which
`importance_sampling_level=sequence` is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipeline import GRPO, AlgoConfig, GRPOConfig, JobContext
from pipeline.toolbox import GRPOLoss

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.toolbox import TokenBatch


@dataclass(kw_only=True)
class GSPOConfig(GRPOConfig):
    """Settings of GRPO, the paper's by default; `importance_sampling_level` has no effect."""

    loss_type: GRPOLoss = GRPOLoss.grpo
    steps_per_generation: int = 4  # with one step on each batch every ratio is 1
    epsilon: float = 3e-4
    epsilon_high: float | None = 4e-4
    beta: float = 0.0


class GSPO(GRPO):
    """Says how much likelier each completion has become; all else is GRPO's."""

    name: ClassVar[str] = "GSPO"
    config_class: ClassVar[type[AlgoConfig]] = GSPOConfig

    def ratio(self, ctx: JobContext, tokens: TokenBatch) -> Tensor:
        """Equation 7 of the paper, shape [B, 1]."""
        log_ratio = ((tokens.logprobs - tokens.old) * tokens.mask).sum(-1, keepdim=True)
        return (log_ratio / tokens.mask.sum(-1, keepdim=True).clamp(min=1)).exp()
