"""GRPO (Shao et al., arXiv 2402.03300): each completion against the others of its prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.config.schema import AlgoConfig, GRPOConfig
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.post_training import PostTrainingAlgorithms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from pipeline.learning.algos.groups import Groups
    from pipeline.learning.generation.policy import TextPolicy
    from pipeline.learning.training.policy import Fitting
    from pipeline.learning.training.samples import Samples


class GRPO(PostTrainingAlgorithms):
    """GRPO on groups that are drawn, and kept whole, by the generate stage."""

    name: ClassVar[str] = "GRPO"
    config_class: ClassVar[type[AlgoConfig]] = GRPOConfig

    def keep(self, ctx: JobContext, policy: TextPolicy, groups: Groups) -> None:
        """Write whole groups with rewards, and the log-probabilities of the policy that drew them."""
        from pipeline.learning.training.samples import Samples

        logprobs = policy.logprobs(groups.prompts, groups.tokens)
        Samples.of(
            groups.prompts,
            groups.tokens,
            groups.scored.values,
            logprobs,
            groups.rows_of(range(len(groups.tokens))),
        ).save(ctx.out)

    def data(self, ctx: JobContext) -> tuple[Path, ...]:
        """The folders of samples to train on."""
        from pipeline.learning.algos.rounds import rounds_to_train_on

        return rounds_to_train_on(ctx, aggregate=ctx.settings(GRPOConfig).aggregate)

    def fit(self, ctx: JobContext, model: PreTrainedModel, fitting: Fitting) -> dict[str, Any]:
        """Raise what is better than its group, within the clipped ratio."""
        with ctx.loading():
            from pipeline.learning.training.grpo import Objective, fit_grpo, group_advantages
            from pipeline.learning.training.policy import trained_tokens
            from pipeline.learning.training.samples import Samples
        algo = ctx.settings(GRPOConfig)
        samples = Samples.load(self.data(ctx))
        advantages = group_advantages(samples.rewards, algo.num_generations, algo.scale_rewards)
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
