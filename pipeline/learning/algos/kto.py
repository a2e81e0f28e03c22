"""KTO (Ethayarajh et al., arXiv 2402.01306): completions that are desirable or not, each by itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipeline.config.bases import AlgoConfig
from pipeline.config.fields import LARGEST_RATE, LARGEST_WEIGHT, number
from pipeline.errors import DataError
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.dpo import DPO, FeedbackConfig, PairSource, completion_scores, encoded, pairs_of
from pipeline.learning.algos.policy_config import Anchor

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipeline.learning.algos.groups import Groups
    from pipeline.learning.datasets.base import Row, Text
    from pipeline.learning.training.policy import TrainingSet
    from pipeline.learning.training.sequences import Sequences
    from pipeline.outputs.formats import Tally


@dataclass(kw_only=True)
class KTOConfig(FeedbackConfig):
    """Kahneman-Tversky optimisation (arXiv 2402.01306), as TRL has it."""

    learning_rate: float = number(4e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.5, above=0, at_most=LARGEST_WEIGHT)
    """Strength of the pull towards the anchor."""
    desirable_weight: float = number(1.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Of the losses of desirable completions."""
    undesirable_weight: float = number(1.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Of those of the others. Where there are not as many of both kinds, the paper has weight times number of the
    desirable ones at 1 to 4/3 times that of the others."""
    reference: Anchor = Anchor.initial

    @property
    def compares(self) -> bool:
        """One completion that is right or wrong is enough."""
        return False

    def trained(self, stage: str, samples: int, decided: float) -> float:  # noqa: ARG002 - of the base
        """All completions, or both of a pair."""
        return self.epochs * (self.num_generations if self.pairs is PairSource.sampled else 2)


class KTO(DPO):
    """How much likelier each completion has become, against how far the policy is from its anchor at all."""

    name: ClassVar[str] = "KTO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = KTOConfig

    def keep(self, ctx: JobContext, groups: Groups) -> None:
        """Write the completions that are desirable, labelled 1, and those that are not, labelled 0."""
        labels = groups.labels()
        told = [place for place, label in enumerate(labels) if label is not None]
        groups.sequences(told, [float(label) for label in labels if label is not None]).save(ctx.out)

    def _existing(
        self,
        out: Path,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        context: int | None,
        ends: Collection[int],
    ) -> Tally:
        from pipeline.learning.algos import rounds
        from pipeline.outputs.formats import Tally

        data, parted, endless = labelled_sequences(rows, tokenizer, context, ends)
        data.save(out)
        return Tally(rounds.COMPLETIONS, len(data), parted=parted, endless=endless)

    def training_set(self, ctx: JobContext, model: PreTrainedModel, folders: Sequence[Path]) -> TrainingSet:
        """Compare the policy with its anchor on every completion, and on completions of other prompts."""
        with ctx.loading():
            from pipeline.learning.models.load import context_length
            from pipeline.learning.training.preferences import KTOObjective, kto_set
            from pipeline.learning.training.sequences import Sequences
        algo = ctx.settings(KTOConfig)
        return kto_set(
            model,
            Sequences.load(folders),
            KTOObjective(
                beta=algo.beta,
                desirable_weight=algo.desirable_weight,
                undesirable_weight=algo.undesirable_weight,
            ),
            ctx.device,
            context=context_length(model),
            of_anchor=partial(self._anchor_scores, ctx, algo.reference),
            of_policy=partial(completion_scores, ctx, model, work="score while training"),
        )


def labelled_sequences(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    context: int | None = None,
    ends: Collection[int] = (),
) -> tuple[Sequences, int, int]:
    """The completions of rows that say whether they are desirable (`label`), and those of pairs, which do too.

    Args:
        rows: As `existing_sequences` takes them, and the others.
        tokenizer: Of the policy.
        context: Tokens of the longest text.
        ends: Tokens that end a completion.

    Returns:
        The completions, labelled 1 or 0; of how many the tokens do not begin with all that a model reads where
        they are due; and how many end in nothing that ends a completion.

    Raises:
        JobError: A row has neither.
        DataError: A text does not fit, or a label is neither true nor false.
    """
    from pipeline.learning.training.sequences import Sequences

    # Each by itself, as TRL's KTOTrainer tokenizes them.
    asked: list[tuple[int, Text, tuple[Text]]] = []
    labels: list[float] = []
    for row in rows:
        if row.completion is not None and row.chosen is None:
            label = row.columns.get("label")
            if label not in (0, 1):
                raise DataError(f"row {row.id}: its label is {label!r}; must be true or false")
            asked.append((row.id, row.prompt, (row.completion,)))
            labels.append(float(label))
        else:
            for pair in pairs_of([row]):
                asked += [(row.id, pair.prompt, (pair.chosen,)), (row.id, pair.prompt, (pair.rejected,))]
                labels += [1.0, 0.0]
    found = encoded(rows, asked, tokenizer, context, ends)
    ids, marks = [one.ids for one in found], [one.supervised for one in found]
    data = Sequences.supervised_at(ids, marks, labels, [row for row, _, _ in asked])
    return data, sum(not one.whole for one in found), sum(not one.ended for one in found)
