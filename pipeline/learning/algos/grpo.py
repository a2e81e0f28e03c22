"""GRPO (Shao et al., arXiv 2402.03300): each completion against the others of its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.config.schema import AlgoConfig, GRPOConfig
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.post_training import PostTrainingAlgorithms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from pipeline.learning.training.policy import Fitting
    from pipeline.learning.training.samples import Samples


class GRPO(PostTrainingAlgorithms):
    """GRPO on groups that are drawn, and kept whole, by the generate stage."""

    name: ClassVar[str] = "GRPO"
    config_class: ClassVar[type[AlgoConfig]] = GRPOConfig

    def advantages(self, ctx: JobContext, samples: Samples) -> NDArray[np.float32]:
        """How much better each completion is than the others of its prompt.

        Args:
            ctx: Of the training.
            samples: Whole groups of `num_generations`, members adjacent; a reward is NaN where there is none.

        Returns:
            Shape [N]; 0 for a completion that nothing is to be learnt from.
        """
        from pipeline.learning.training.grpo import group_advantages

        algo = ctx.settings(GRPOConfig)
        return group_advantages(samples.rewards, algo.num_generations, algo.scale_rewards)

    def fit(self, ctx: JobContext, model: PreTrainedModel, fitting: Fitting) -> dict[str, Any]:
        """Raise what is better than its group, within the clipped ratio."""
        with ctx.loading():
            from pipeline.learning.training.grpo import Objective, checked_advantages, fit_grpo
            from pipeline.learning.training.policy import trained_tokens
            from pipeline.learning.training.samples import Samples
        algo = ctx.settings(GRPOConfig)
        samples = Samples.load(self.data(ctx))
        advantages = checked_advantages(self.advantages(ctx, samples), len(samples))
        objective = Objective(
            loss_type=algo.loss_type,
            beta=algo.beta,
            epsilon_low=algo.epsilon,
            epsilon_high=algo.epsilon if algo.epsilon_high is None else algo.epsilon_high,
            longest=ctx.config.generation.max_new_tokens,
            temperature=ctx.config.generation.temperature,
        )
        anchor = self._anchor(ctx, samples) if algo.beta else None
        losses = fit_grpo(model, samples, advantages, anchor, objective, fitting, algo.num_generations)
        groups = advantages.reshape(-1, algo.num_generations)
        return {
            "groups": len(groups),
            "groups_without_signal": int((groups == 0).all(1).sum()),
            "tokens_trained": trained_tokens(samples.sequences, algo.epochs),
            "loss": losses,
        }

    def _anchor(self, ctx: JobContext, samples: Samples) -> NDArray[np.float32]:
        """Log-probabilities of the drawn tokens under the anchor, laid out as those of the sampling policy."""
        from pipeline.learning.training.policy import completion_logprobs, note_scored, score_sequences
        from pipeline.learning.training.precision import computing_in
        from pipeline.learning.training.samples import padded, supervised_columns

        model = self.anchor_model(ctx, ctx.settings(GRPOConfig).reference)
        temperature = ctx.config.generation.temperature
        note_scored(samples.sequences, model)
        with computing_in(ctx.config.system.dtype, ctx.device):
            found = score_sequences(
                samples.sequences,
                lambda batch: completion_logprobs(model, batch, temperature),
                micro_batch_size=ctx.config.training.micro_batch_size,
                device=ctx.device,
                ranks=ctx.ranks,
                width=samples.sequences.ids.shape[1],
            )
        return padded(supervised_columns(found, samples.sequences))
