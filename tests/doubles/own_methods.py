"""A method of a user's own that adds its loss to a family and nothing else; docs/extending.md shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pipeline import JobContext, PostTrainingAlgorithms

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline import Fitting


class RewardWeighted(PostTrainingAlgorithms):
    name: ClassVar[str] = "RewardWeighted"

    def fit(self, ctx: JobContext, model: PreTrainedModel, fitting: Fitting) -> dict[str, Any]:
        from pipeline import Samples, completion_logprobs, fit, trained_tokens

        data = Samples.load(self.data(ctx)).sequences  # whole groups; their labels are the rewards

        def loss_of(batch: Any, part: Any, whole: Any) -> Any:  # a micro-batch's share of the batch's loss
            return -(completion_logprobs(model, batch).sum(1) * batch.labels.nan_to_num()).sum() / len(whole)

        losses = fit(model, data, fitting, loss_of)
        return {"sequences": len(data), "tokens_trained": trained_tokens(data, fitting.epochs), "loss": losses}
