"""Guidance by the chance of success, as FUDGE has it (Yang and Klein, arXiv 2104.05218).

    python run_parallel.py experiment.name=x algos.Fudge.class_path=examples.fudge.Fudge algos.Fudge.eta=0.5

A value model learns from plain samples of the reference whether a prefix will end well. Decoding multiplies the
reference's probabilities with that chance, to the power of 1 / eta; eta=1 is Bayes' rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipeline import AlgoConfig, JobContext, ValueAlgoConfig, ValueGuidedAlgorithms

if TYPE_CHECKING:
    from pipeline import Dataset, Offset, Sequences, TextPolicy


@dataclass(kw_only=True)
class FudgeConfig(ValueAlgoConfig):
    """Settings under ``algos.<NAME>``: those of value-guided algorithms, and what is added or changed here."""

    eta: float = 1.0
    success: float = 1.0
    """Rewards from here on count as success."""


class Fudge(ValueGuidedAlgorithms):
    """Says how data is collected and how values tilt; training and evaluation are those of the family."""

    name: ClassVar[str] = "Fudge"
    config_class: ClassVar[type[AlgoConfig]] = FudgeConfig

    def offset(self, algo: ValueAlgoConfig) -> Offset:
        """The log of the chance of success, over eta."""
        from torch.nn.functional import logsigmoid  # torch only inside methods: planning does without

        return lambda z: logsigmoid(z) / algo.eta

    def collect(self, ctx: JobContext, dataset: Dataset, roll_in: TextPolicy, reference: TextPolicy) -> Sequences:
        """Samples of the reference, every token labelled with how they ended."""
        from pipeline import Rollouts, Sequences, toolbox

        drawn = Rollouts(ctx, dataset, reference)
        drawn.note_cost()
        rewards = toolbox.score_completions(
            ctx, reference, drawn.rows, drawn.tokens, ctx.config.data_collection.reward_batch_size
        )
        ends_well = (rewards >= ctx.settings(FudgeConfig).success).astype(float).tolist()
        whole = [prompt + tokens for prompt, tokens in zip(drawn.prompts, drawn.tokens, strict=True)]
        rows = [row.id for row in drawn.rows]
        return Sequences.of(whole, [len(prompt) for prompt in drawn.prompts], ends_well, rows)
