"""A method of a user's own that adds its loss to a family and nothing else; docs/extending.md shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline import JobContext, PostTrainingAlgorithms

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline.toolbox import TrainingSet


class RewardWeighted(PostTrainingAlgorithms):
    name: ClassVar[str] = "RewardWeighted"

    def training_set(self, ctx: JobContext, model: PreTrainedModel, folders: Sequence[Path]) -> TrainingSet:
        from pipeline.toolbox import Samples, TrainingSet, completion_logprobs

        data = Samples.load(folders).sequences  # whole groups; their labels are the rewards

        def loss_of(batch: Any, part: Any, whole: Any) -> Any:  # a micro-batch's share of the batch's loss
            return -(completion_logprobs(model, batch).sum(1) * batch.labels.nan_to_num()).sum() / len(whole)

        return TrainingSet(data, loss_of, about={"sequences": len(data)})
