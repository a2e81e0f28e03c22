"""Guidance by the chance of success, as FUDGE has it (Yang and Klein, arXiv 2104.05218).

    python run_parallel.py experiment.name=x algos.Fudge.class_path=examples.fudge.Fudge algos.Fudge.eta=0.5

A value model learns from plain samples of the reference whether a prefix will end well. Decoding multiplies the
reference's probabilities with that chance, to the power of 1 / eta; eta=1 is Bayes' rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipeline import AlgoConfig, JobContext, ValueAlgoConfig, ValueGuidedAlgorithms, number

if TYPE_CHECKING:
    from pipeline import Dataset
    from pipeline.toolbox import Drawn, Groups, Offset, Sequences, TextPolicy


@dataclass(kw_only=True)
class FudgeConfig(ValueAlgoConfig):
    """Settings under ``algos.<NAME>``: those of value-guided algorithms, and what is added or changed here."""

    eta: float = 1.0
    success: float = number(1.0, above=0, at_most=1, hint=", the score that counts as success")
    """Rewards from here on count as success."""


class Fudge(ValueGuidedAlgorithms):
    """Says how data is collected and how values tilt; training and evaluation are those of the family."""

    name: ClassVar[str] = "Fudge"
    config_class: ClassVar[type[AlgoConfig]] = FudgeConfig

    def offset(self, algo: ValueAlgoConfig) -> Offset:
        """The log of the chance of success, over eta."""
        from torch.nn.functional import logsigmoid  # torch only inside methods: planning does without

        return lambda z: logsigmoid(z) / algo.eta

    def draw(self, ctx: JobContext, dataset: Dataset, roll_in: TextPolicy, reference: TextPolicy) -> Drawn:
        """Samples of the reference."""
        from pipeline.toolbox import Rollouts

        samples = Rollouts(ctx, dataset, reference)
        return samples.drawn(reference, [samples.tokens])

    def label(self, ctx: JobContext, groups: Groups) -> Sequences:
        """Every token labelled with how its sample ended."""
        ends_well = (groups.scored.values >= ctx.settings(FudgeConfig).success).astype(float)
        return groups.sequences(range(len(ends_well)), ends_well.tolist())
