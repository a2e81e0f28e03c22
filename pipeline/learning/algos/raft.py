"""Rejection sampling: imitate the best of n completions (best-of-n distillation, RAFT of arXiv 2304.06767)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipeline.config.bases import AlgoConfig
from pipeline.config.fields import LARGEST_RATE, number
from pipeline.learning.algos.base import JobContext, Stage, timed
from pipeline.learning.algos.policy_config import PolicyAlgoConfig
from pipeline.learning.algos.post_training import PostTrainingAlgorithms

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline.learning.algos.groups import Groups
    from pipeline.learning.training.policy import TrainingSet


@dataclass(kw_only=True)
class RAFTConfig(PolicyAlgoConfig):
    """Rejection sampling: imitate the best of n."""

    keeps_logprobs: ClassVar[bool] = False

    learning_rate: float = number(8.4e-4, above=0, at_most=LARGEST_RATE)
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    only_correct: bool = True
    """Leave out prompts whose best completion is known to be wrong."""

    @property
    def compares(self) -> bool:
        """The only completion of a prompt is its best."""
        return False

    def trained(self, stage: str, samples: int, decided: float) -> float:  # noqa: ARG002 - of the base
        """The best of each group."""
        return self.epochs


class RAFT(PostTrainingAlgorithms):
    """Next-token prediction on the completion with the highest reward of each prompt."""

    name: ClassVar[str] = "RAFT"
    config_class: ClassVar[type[AlgoConfig]] = RAFTConfig
    stages: ClassVar[tuple[Stage, ...]] = timed(PostTrainingAlgorithms.stages, train=4.5)

    def keep(self, ctx: JobContext, groups: Groups) -> None:
        """Write the best completion of each prompt, the first of equals."""
        best, correct = groups.best(), groups.scored.correct
        if ctx.settings(RAFTConfig).only_correct:
            best = [place for place in best if correct[place] is not False]
        groups.sequences(best, [float(groups.scored.values[place]) for place in best]).save(ctx.out)

    def training_set(self, ctx: JobContext, model: PreTrainedModel, folders: Sequence[Path]) -> TrainingSet:
        """Raise the likelihood of every token of the completions."""
        with ctx.loading():
            from pipeline.learning.training.policy import sft_set
            from pipeline.learning.training.sequences import Sequences
        return sft_set(model, Sequences.load(folders))
