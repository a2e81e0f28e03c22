"""DPO (Rafailov et al., arXiv 2305.18290), round by round on pairs of the current policy's own completions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from pipeline.config.schema import LARGEST_RATE, LARGEST_WEIGHT, AlgoConfig, Config, number
from pipeline.errors import DataError
from pipeline.learning.algos import base, toolbox
from pipeline.learning.algos.policy_config import Anchor, OnlineConfig
from pipeline.learning.algos.post_training import PostTrainingAlgorithms, values_of
from pipeline.learning.choices import DPOLoss
from pipeline.learning.rewards.preference import PreferenceConfig, halved_pairs
from pipeline.outputs.formats import Tally

_COIN = 0.5
"""Probability of a wrong label from which on labels say nothing, or the opposite."""


class PairSource(Enum):
    """Where pairs come from."""

    sampled = "sampled"  # from the current policy, decided by scores
    existing = "existing"  # the columns `chosen` and `rejected`, of KTO also `completion` and `label`


@dataclass(kw_only=True)
class FeedbackConfig(OnlineConfig):
    """What methods share that train on better and worse completions, drawn or of the dataset."""

    keeps_logprobs: ClassVar[bool] = False

    aggregate: bool = True
    """As for every algorithm. Fresh pairs alone let a round undo what the one before it has learnt: pairs of the
    current policy's new mistakes have by far the largest gradients."""
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    pairs: PairSource = PairSource.sampled

    @property
    def compares(self) -> bool:
        """Not where the pairs are there."""
        return self.pairs is PairSource.sampled

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also drawing online where nothing is drawn."""
        yield from super().problems(key, config)
        if self.draws_to_train and self.pairs is PairSource.existing:
            yield f"{key}.pairs=existing: nothing is drawn, so {key}.sampling must be round"

    def idle(self, setting: str) -> str:
        """Also how many are drawn, where none are."""
        if setting == "num_generations" and self.pairs is PairSource.existing:
            return "with pairs=existing the pairs come from the dataset, and nothing is sampled for them"
        return super().idle(setting)


@dataclass(kw_only=True)
class PairConfig(FeedbackConfig):
    """What those of them share that compare two completions of a prompt."""

    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Both completions of each pair."""
        return self.epochs * (self.preferences.compared(self.num_generations, decided) if self.compares else 2)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also batches that part pairs."""
        yield from super().problems(key, config)
        yield from halved_pairs(key, self.batch_size, config)


@dataclass(kw_only=True)
class DPOConfig(PairConfig):
    """Direct preference optimisation (arXiv 2305.18290), the losses of TRL."""

    learning_rate: float = number(6.6e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.52, above=0, at_most=LARGEST_WEIGHT)
    """Strength of the pull towards the anchor."""
    loss_type: DPOLoss = DPOLoss.sigmoid
    label_smoothing: float = number(0.0, at_least=0, below=1)
    """For `robust` the probability that a label is wrong; for `exo_pair` its epsilon."""
    sft_weight: float = number(0.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the chosen completions' negative log-likelihood per token: RPO (arXiv 2404.19733)."""
    reference: Anchor = Anchor.initial

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also smoothing that a loss does not take."""
        yield from super().problems(key, config)
        if self.loss_type is DPOLoss.exo_pair and self.label_smoothing == 0:
            yield f"{key}.label_smoothing=0: must be above 0 with loss_type=exo_pair, for example 0.001"
        if self.loss_type is not DPOLoss.exo_pair and self.label_smoothing >= _COIN:
            yield f"{key}.label_smoothing={self.label_smoothing}: must be at least 0 and below {_COIN}"


def _drawing_nothing(stage: base.Stage) -> base.Stage:
    return replace(stage, config=tuple(section for section in stage.config if section != "generation"))


class DPO(PostTrainingAlgorithms):
    """DPO with an explicit anchor, and the losses of TRL."""

    name: ClassVar[str] = "DPO"
    version: ClassVar[int] = 3
    config_class: ClassVar[type[AlgoConfig]] = DPOConfig
    stages: ClassVar[tuple[base.Stage, ...]] = base.timed(PostTrainingAlgorithms.stages, train=22.0)

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[base.Stage, ...]:
        """Without one that draws, where the dataset has the pairs."""
        stages = super().stages_with(settings)
        if not isinstance(settings, FeedbackConfig) or settings.pairs is PairSource.sampled:
            return stages
        taken = replace(base.SCORE, reads=(base.REFERENCE_TRAIN,), config=base.GENERATE.config, judges=False)
        others = [stage for stage in stages if stage.name not in (base.GENERATE.name, base.SCORE.name)]
        return tuple(stage if stage.shards == "eval" else _drawing_nothing(stage) for stage in (taken, *others))

    def score(self, ctx: base.JobContext) -> None:
        """Score and pair; or take the pairs that the dataset has."""
        if ctx.settings(FeedbackConfig).pairs is PairSource.sampled:
            super().score(ctx)
            return
        rows = toolbox.opening.round_rows(ctx, toolbox.open_dataset(ctx))
        model, tokenizer = toolbox.opening.reference_model(ctx)
        ends = toolbox.load.end_ids(model.generation_config, tokenizer)
        context = toolbox.load.length_beside_others(model.config)
        tally = self._existing(ctx.out, rows, tokenizer, context, ends)
        ctx.progress(len(rows), total=len(rows))
        base.write_generation(ctx.out, len(rows), 0, 0, tally)

    def _existing(self, out: Path, rows: Sequence[toolbox.Row], *how: Any) -> Tally:
        """Write what the dataset has, and count it."""
        pairs, parted, endless = existing_sequences(rows, *how)
        pairs.save(out, toolbox.PAIRS)
        same = len(rows) - len(pairs) // 2
        return Tally(base.PAIRS, len(rows), same=same, parted=parted, endless=endless)

    def keep(self, ctx: base.JobContext, groups: toolbox.Groups) -> None:
        """Write the pairs."""
        groups.pairs(ctx.settings(PairConfig).preferences).save(ctx.out, toolbox.PAIRS)

    def training_set(
        self, ctx: base.JobContext, model: toolbox.PreTrainedModel, folders: Sequence[Path]
    ) -> toolbox.TrainingSet:
        """Compare the policy with its anchor on every pair."""
        algo, pairs = ctx.settings(DPOConfig), toolbox.Sequences.load(folders, toolbox.PAIRS)
        held = self.of_anchor(ctx, algo.reference, pairs, _whole_logprobs)
        return toolbox.preferences.dpo_set(model, pairs, held, algo, ctx.device)


def _whole_logprobs(model: toolbox.PreTrainedModel, batch: toolbox.Batch) -> toolbox.Tensor:
    """Log-probability of every completion under a model, shape [B]."""
    return toolbox.scoring.completion_logprobs(model, batch).double().sum(-1)


def existing_sequences(
    rows: Sequence[toolbox.Row],
    tokenizer: toolbox.PreTrainedTokenizerBase,
    context: int | None = None,
    ends: Collection[int] = (),
) -> tuple[toolbox.Sequences, int, int]:
    """The pairs of a preference dataset as token ids; see `encode_answers`.

    Args:
        rows: Of the dataset.
        tokenizer: Of the policy.
        context: Tokens of the longest text that may stand beside others; None for no limit.
        ends: Tokens that end an answer, besides those of the tokenizer and of its template.

    Returns:
        The pairs; of how many the tokens do not begin with all that a model reads where the answer is due; and of
        how many an answer ends in nothing that ends a completion.

    Raises:
        JobError: A row has no pair.
        DataError: A text does not fit.
    """
    asked = [(pair.row, pair.prompt, (pair.chosen, pair.rejected)) for pair in pairs_of(rows)]
    pairs, found = _encoded(rows, asked, [1.0, 0.0] * len(asked), tokenizer, context, ends)
    endless = sum(not (one.ended and other.ended) for one, other in zip(found[::2], found[1::2], strict=True))
    return pairs, sum(not one.whole for one in found[::2]), endless


def _encoded(
    rows: Sequence[toolbox.Row],
    asked: Sequence[tuple[int, toolbox.Text, Sequence[toolbox.Text]]],
    labels: Sequence[float],
    tokenizer: toolbox.PreTrainedTokenizerBase,
    context: int | None,
    ends: Collection[int],
    *,
    told: bool = False,
) -> tuple[toolbox.Sequences, list[toolbox.chat.Answered]]:
    """Prompts with answers, and the ids of their rows, which the sequences have where they are to be told."""
    arguments = {row.id: toolbox.chat.template_arguments(row.columns) for row in rows}
    found: list[toolbox.chat.Answered] = []
    for row, prompt, answers in asked:
        found += toolbox.chat.encode_answers(tokenizer, prompt, answers, ends, arguments[row])
        longest = max(len(one.ids) for one in found[-len(answers) :])
        if context is not None and longest > context:
            raise DataError(
                f"the prompt {str(prompt)[:80]!r} and an answer to it are {longest} tokens, "
                f"and the model's context has room for {context}. Leave such rows out."
            )
    ids, marks = [one.ids for one in found], [one.supervised for one in found]
    prompts = [row for row, _, answers in asked for _ in answers] if told else None
    return toolbox.Sequences.supervised_at(ids, marks, labels, prompts), found


def pairs_of(rows: Sequence[toolbox.Row]) -> list[toolbox.ExistingPair]:
    """The pairs of rows; see `existing_pairs`."""
    return toolbox.existing_pairs([_with_columns(row) for row in rows])


def _with_columns(row: toolbox.Row) -> toolbox.Row:
    if row.chosen is None:
        return row
    return replace(row, columns={**row.columns, "chosen": row.chosen, "rejected": row.rejected})


# -- unanchored --------------------------------------------------------------------------------------------------
# ORPO (Hong et al., arXiv 2403.07691) and SimPO (Meng et al., arXiv 2405.14734): DPO's pairs, and no anchor.


@dataclass(kw_only=True)
class ORPOConfig(PairConfig):
    """Odds ratio preference optimisation (arXiv 2403.07691), as TRL has it."""

    learning_rate: float = number(6.6e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.1, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the odds ratio beside the likelihood of the chosen; the paper's lambda."""


@dataclass(kw_only=True)
class SimPOConfig(PairConfig):
    """Simple preference optimisation (arXiv 2405.14734), as TRL's CPO has it with loss_type=simpo."""

    learning_rate: float = number(2.1e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(5.4, above=0, at_most=LARGEST_WEIGHT)
    """Scale of the log-probability per token, which is the reward."""
    simpo_gamma: float = number(1.5, at_least=0, at_most=LARGEST_WEIGHT)
    """Margin by which the chosen one's reward is to be ahead; the paper's gamma."""
    cpo_alpha: float = number(0.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the chosen completions' negative log-likelihood, over the tokens of a batch: CPO-SimPO."""


class ORPO(DPO):
    """The likelihood of what is chosen, prompts included, and how much better its odds are."""

    name: ClassVar[str] = "ORPO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = ORPOConfig

    def training_set(
        self, ctx: base.JobContext, model: toolbox.PreTrainedModel, folders: Sequence[Path]
    ) -> toolbox.TrainingSet:
        """Imitate the chosen ones, and compare the odds per token."""
        return toolbox.preferences.orpo_set(
            model, toolbox.Sequences.load(folders, toolbox.PAIRS), ctx.settings(ORPOConfig).beta, ctx.device
        )


class SimPO(DPO):
    """By how much the log-probability per token of what is chosen is ahead, less a margin."""

    name: ClassVar[str] = "SimPO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = SimPOConfig

    def training_set(
        self, ctx: base.JobContext, model: toolbox.PreTrainedModel, folders: Sequence[Path]
    ) -> toolbox.TrainingSet:
        """Compare the log-probabilities per token."""
        algo, pairs = ctx.settings(SimPOConfig), toolbox.Sequences.load(folders, toolbox.PAIRS)
        return toolbox.preferences.simpo_set(model, pairs, algo.beta, algo.simpo_gamma, ctx.device, algo.cpo_alpha)


# -- kto ---------------------------------------------------------------------------------------------------------
# KTO (Ethayarajh et al., arXiv 2402.01306): completions that are desirable or not, each by itself.


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

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """All completions, or both of a pair."""
        return self.epochs * (self.num_generations if self.pairs is PairSource.sampled else 2)


class KTO(DPO):
    """How much likelier each completion has become, against how far the policy is from its anchor at all."""

    name: ClassVar[str] = "KTO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = KTOConfig

    def keep(self, ctx: base.JobContext, groups: toolbox.Groups) -> None:
        """Write the completions that are desirable, labelled 1, and those that are not, labelled 0."""
        labels = groups.labels()
        told = [place for place, label in enumerate(labels) if label is not None]
        groups.sequences(told, [float(label) for label in labels if label is not None]).save(ctx.out)

    def _existing(self, out: Path, rows: Sequence[toolbox.Row], *how: Any) -> Tally:
        data, parted, endless = labelled_sequences(rows, *how)
        data.save(out)
        return Tally(base.COMPLETIONS, len(data), parted=parted, endless=endless)

    def training_set(
        self, ctx: base.JobContext, model: toolbox.PreTrainedModel, folders: Sequence[Path]
    ) -> toolbox.TrainingSet:
        """Compare the policy with its anchor on every completion, and on completions of other prompts."""
        algo = ctx.settings(KTOConfig)
        return toolbox.preferences.kto_set(
            model,
            toolbox.Sequences.load(folders),
            algo.beta,
            (algo.desirable_weight, algo.undesirable_weight),
            ctx.device,
            context=toolbox.load.context_length(model),
            of_anchor=lambda data: self.of_anchor(ctx, algo.reference, data, _whole_logprobs),
            of_policy=lambda data: values_of(ctx, model, data, _whole_logprobs, work="score while training"),
        )


def labelled_sequences(
    rows: Sequence[toolbox.Row],
    tokenizer: toolbox.PreTrainedTokenizerBase,
    context: int | None = None,
    ends: Collection[int] = (),
) -> tuple[toolbox.Sequences, int, int]:
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
    # Each by itself, as TRL's KTOTrainer tokenizes them.
    asked: list[tuple[int, toolbox.Text, tuple[toolbox.Text]]] = []
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
                asked += [(row.id, pair.prompt, (each,)) for each in (pair.chosen, pair.rejected)]
                labels += [1.0, 0.0]
    data, found = _encoded(rows, asked, labels, tokenizer, context, ends, told=True)
    return data, sum(not one.whole for one in found), sum(not one.ended for one in found)
