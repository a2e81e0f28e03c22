"""ORPO (Hong et al., arXiv 2403.07691) and SimPO (Meng et al., arXiv 2405.14734): DPO's pairs, and no anchor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipeline.config.bases import AlgoConfig
from pipeline.config.fields import LARGEST_RATE, LARGEST_WEIGHT, number
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.dpo import DPO, PairConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline.learning.training.policy import TrainingSet


@dataclass(kw_only=True)
class ORPOConfig(PairConfig):
    """Odds ratio preference optimisation (arXiv 2403.07691), as TRL has it."""

    learning_rate: float = number(6.6e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.1, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the odds ratio beside the likelihood of the chosen; the paper's lambda."""


@dataclass(kw_only=True)
class SimPOConfig(PairConfig):
    """Simple preference optimisation (arXiv 2405.14734), as TRL's CPO has it with loss_type=simpo."""

    learning_rate: float = number(9.9e-5, above=0, at_most=LARGEST_RATE)
    beta: float = number(8.1, above=0, at_most=LARGEST_WEIGHT)
    """Scale of the log-probability per token, which is the reward."""
    simpo_gamma: float = number(1.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Margin by which the chosen one's reward is to be ahead; the paper's gamma."""
    cpo_alpha: float = number(0.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the chosen completions' negative log-likelihood, over the tokens of a batch: CPO-SimPO."""


class ORPO(DPO):
    """The likelihood of what is chosen, prompts included, and how much better its odds are."""

    name: ClassVar[str] = "ORPO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = ORPOConfig

    def training_set(self, ctx: JobContext, model: PreTrainedModel, folders: Sequence[Path]) -> TrainingSet:
        """Imitate the chosen ones, and compare the odds per token."""
        with ctx.loading():
            from pipeline.learning.algos.groups import PAIRS
            from pipeline.learning.training.preferences import orpo_set
            from pipeline.learning.training.sequences import Sequences
        return orpo_set(model, Sequences.load(folders, PAIRS), ctx.settings(ORPOConfig).beta, ctx.device)


class SimPO(DPO):
    """By how much the log-probability per token of what is chosen is ahead, less a margin."""

    name: ClassVar[str] = "SimPO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = SimPOConfig

    def training_set(self, ctx: JobContext, model: PreTrainedModel, folders: Sequence[Path]) -> TrainingSet:
        """Compare the log-probabilities per token."""
        with ctx.loading():
            from pipeline.learning.algos.groups import PAIRS
            from pipeline.learning.training.preferences import simpo_set
            from pipeline.learning.training.sequences import Sequences
        algo, pairs = ctx.settings(SimPOConfig), Sequences.load(folders, PAIRS)
        return simpo_set(model, pairs, algo.beta, algo.simpo_gamma, ctx.device, algo.cpo_alpha)
