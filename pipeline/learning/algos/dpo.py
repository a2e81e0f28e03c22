"""DPO (Rafailov et al., arXiv 2305.18290), round by round on pairs of the current policy's own completions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import ClassVar

from pipeline.config.schema import LARGEST_RATE, LARGEST_WEIGHT, AlgoConfig, Config, number
from pipeline.errors import DataError
from pipeline.learning.algos import base, parts
from pipeline.learning.algos.policy_config import Anchor, OnlineConfig
from pipeline.learning.algos.post_training import PostTrainingAlgorithms, values_of
from pipeline.learning.choices import DPOLoss
from pipeline.learning.rewards.preference import PreferenceConfig, halved_pairs
from pipeline.outputs.formats import Tally

Name = Callable[[int, "parts.Text"], int]
"""Function from the row and the text of a prompt to its id."""
_COIN = 0.5
"""Probability of a wrong label from which on labels carry no information, or mislead."""


class PairSource(Enum):
    """Source of the preference pairs."""

    sampled = "sampled"  # from the current policy, ordered by scores
    existing = "existing"  # the columns `chosen` and `rejected`, of KTO also `completion` and `label`


@dataclass(kw_only=True)
class FeedbackConfig(OnlineConfig):
    """Settings shared by methods that train on better and worse completions, drawn or from the dataset."""

    keeps_logprobs: ClassVar[bool] = False

    aggregate: bool = True
    """As for every algorithm. If a round trains only on new pairs, it may undo what the previous round has learnt:
    pairs of the current policy's new mistakes have by far the largest gradients."""
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    pairs: PairSource = PairSource.sampled

    @property
    def compares(self) -> bool:
        """True, unless the dataset has the pairs."""
        return self.pairs is PairSource.sampled

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report drawing online if nothing is drawn."""
        yield from super().problems(key, config)
        if self.draws_to_train and self.pairs is PairSource.existing:
            yield f"{key}.pairs=existing: nothing is drawn, so {key}.sampling must be round"

    def idle(self, setting: str) -> str:
        """Also report the number of completions as unused if none are drawn."""
        if setting == "num_generations" and self.pairs is PairSource.existing:
            return "with pairs=existing the pairs come from the dataset, and nothing is sampled for them"
        return super().idle(setting)


@dataclass(kw_only=True)
class PairConfig(FeedbackConfig):
    """Settings shared by the methods among those that compare two completions of a prompt."""

    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Return both completions of each pair."""
        return self.epochs * (self.preferences.compared(self.num_generations, decided) if self.compares else 2)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report batch sizes that split pairs."""
        yield from super().problems(key, config)
        yield from halved_pairs(key, self.batch_size, config)


@dataclass(kw_only=True)
class DPOConfig(PairConfig):
    """Direct preference optimisation (arXiv 2305.18290) with TRL's losses."""

    learning_rate: float = number(6.6e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.52, above=0, at_most=LARGEST_WEIGHT)
    """Strength of the KL penalty towards the anchor."""
    loss_type: DPOLoss = DPOLoss.sigmoid
    label_smoothing: float = number(0.0, at_least=0, below=1)
    """With `robust` the probability that a label is wrong; with `exo_pair` the paper's epsilon."""
    sft_weight: float = number(0.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the negative log-likelihood per token of the chosen completions: RPO (arXiv 2404.19733)."""
    reference: Anchor = Anchor.initial

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report smoothing that the loss does not accept."""
        yield from super().problems(key, config)
        if self.loss_type is DPOLoss.exo_pair and self.label_smoothing == 0:
            yield f"{key}.label_smoothing=0: must be above 0 with loss_type=exo_pair, for example 0.001"
        if self.loss_type is not DPOLoss.exo_pair and self.label_smoothing >= _COIN:
            yield f"{key}.label_smoothing={self.label_smoothing}: must be at least 0 and below {_COIN}"


def _drawing_nothing(stage: base.Stage) -> base.Stage:
    return replace(stage, config=tuple(section for section in stage.config if section != "generation"))


def with_existing(stages: Iterable[base.Stage]) -> tuple[base.Stage, ...]:
    """Return stages for pairs that the dataset has: none generates, and `score` takes the pairs."""
    taken = replace(base.SCORE, reads=(base.REFERENCE_TRAIN,), config=base.GENERATE.config, judges=False)
    others = [stage for stage in stages if stage.name not in (base.GENERATE.name, base.SCORE.name)]
    return tuple(stage if stage.shards == "eval" else _drawing_nothing(stage) for stage in (taken, *others))


@dataclass(frozen=True)
class Encoding:
    """How answers that a dataset has become tokens.

    Attributes:
        tokenizer: Tokenizer of the policy.
        context: Most tokens of a text that is batched with others; None for no limit.
        ends: Tokens that end an answer, besides those of the tokenizer and its template.
    """

    tokenizer: parts.PreTrainedTokenizerBase
    context: int | None = None
    ends: Collection[int] = ()


class DPO(PostTrainingAlgorithms):
    """DPO with an explicit anchor, and TRL's losses."""

    name: ClassVar[str] = "DPO"
    version: ClassVar[int] = 3
    config_class: ClassVar[type[AlgoConfig]] = DPOConfig
    stages: ClassVar[tuple[base.Stage, ...]] = base.timed(PostTrainingAlgorithms.stages, train=22.0)

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[base.Stage, ...]:
        """Leave out the generate stage if the dataset has the pairs."""
        stages = super().stages_with(settings)
        if not isinstance(settings, FeedbackConfig) or settings.pairs is PairSource.sampled:
            return stages
        return with_existing(stages)

    def score(self, ctx: base.JobContext) -> None:
        """Score and pair completions, or take the dataset's pairs."""
        if ctx.settings(FeedbackConfig).pairs is PairSource.sampled:
            super().score(ctx)
        else:
            take_existing(ctx, self._existing)

    def _existing(self, out: Path, rows: Sequence[parts.Row], encoding: Encoding) -> Tally:
        """Write the dataset's pairs or completions, and count them."""
        return write_pairs(out, rows, encoding)

    def keep(self, ctx: base.JobContext, groups: parts.Groups) -> None:
        """Write the pairs."""
        groups.pairs(ctx.settings(PairConfig).preferences).save(ctx.out, parts.PAIRS)

    def training_set(
        self, ctx: base.JobContext, model: parts.PreTrainedModel, folders: Sequence[Path]
    ) -> parts.TrainingSet:
        """Return the pairs, and the loss that compares the policy with its anchor on each."""
        algo, pairs = ctx.settings(DPOConfig), parts.Sequences.load(folders, parts.PAIRS)
        held = self.of_anchor(ctx, algo.reference, pairs, _whole_logprobs)
        return parts.preferences.dpo_set(model, pairs, held, algo, ctx.device)


def _whole_logprobs(model: parts.PreTrainedModel, batch: parts.Batch) -> parts.Tensor:
    """Return the log-probability of every completion under a model, shape [B]."""
    return parts.scoring.completion_logprobs(model, batch).double().sum(-1)


def take_existing(ctx: base.JobContext, written: Callable[[Path, Sequence[parts.Row], Encoding], Tally]) -> None:
    """Take the pairs of a shard's rows.

    Args:
        ctx: Context of a stage `score` of `with_existing`.
        written: Writes and counts them, as `write_pairs`.
    """
    rows = parts.opening.round_rows(ctx, parts.open_dataset(ctx))
    model, tokenizer = parts.opening.reference_model(ctx)
    ends = parts.load.end_ids(model.generation_config, tokenizer)
    context = parts.load.length_beside_others(model.config)
    tally = written(ctx.out, rows, Encoding(tokenizer, context, ends))
    ctx.progress(len(rows), total=len(rows))
    base.write_generation(ctx.out, len(rows), 0, 0, tally)


def write_pairs(out: Path, rows: Sequence[parts.Row], encoding: Encoding, name: Name | None = None) -> Tally:
    """Write the pairs of rows to a folder, and count them; see `existing_sequences`."""
    pairs, parted, endless = existing_sequences(rows, encoding, name)
    pairs.save(out, parts.PAIRS)
    same = len(rows) - len(pairs) // 2
    return Tally(base.PAIRS, len(rows), same=same, parted=parted, endless=endless)


def existing_sequences(
    rows: Sequence[parts.Row], encoding: Encoding, name: Name | None = None
) -> tuple[parts.Sequences, int, int]:
    """Return the pairs of a preference dataset as token ids; see `encode_answers`.

    Args:
        rows: Rows of the dataset.
        encoding: How they become tokens.
        name: Gives the id of a prompt by its row and text; None leaves ids out.

    Returns:
        The pairs; the number of answers whose tokens do not begin with the whole prompt as a model reads it when
        it answers; and the number of answers without an end token.

    Raises:
        JobError: A row has no pair.
        DataError: A text is invalid.
    """
    asked = [(pair.row, pair.prompt, (pair.chosen, pair.rejected)) for pair in pairs_of(rows)]
    pairs, found = _encoded(rows, asked, [1.0, 0.0] * len(asked), encoding, name)
    endless = sum(not (one.ended and other.ended) for one, other in zip(found[::2], found[1::2], strict=True))
    return pairs, sum(not one.whole for one in found[::2]), endless


def _encoded(
    rows: Sequence[parts.Row],
    asked: Sequence[tuple[int, parts.Text, Sequence[parts.Text]]],
    labels: Sequence[float],
    encoding: Encoding,
    name: Name | None = None,
) -> tuple[parts.Sequences, list[parts.chat.Answered]]:
    """Return prompts with answers as sequences; `name` gives the id of a prompt by its row and text."""
    arguments = {row.id: parts.chat.template_arguments(row.columns) for row in rows}
    found: list[parts.chat.Answered] = []
    for row, prompt, answers in asked:
        found += parts.chat.encode_answers(encoding.tokenizer, prompt, answers, encoding.ends, arguments[row])
        longest = max(len(one.ids) for one in found[-len(answers) :])
        if encoding.context is not None and longest > encoding.context:
            raise DataError(
                f"the prompt {str(prompt)[:80]!r} and an answer to it are {longest} tokens, "
                f"and the model's context has room for {encoding.context}. Leave such rows out."
            )
    ids, marks = [one.ids for one in found], [one.supervised for one in found]
    prompts = [name(row, prompt) for row, prompt, answers in asked for _ in answers] if name else None
    return parts.Sequences.supervised_at(ids, marks, labels, prompts), found


def pairs_of(rows: Sequence[parts.Row]) -> list[parts.ExistingPair]:
    """Return the pairs of rows; see `existing_pairs`."""
    return parts.existing_pairs([_with_columns(row) for row in rows])


def _with_columns(row: parts.Row) -> parts.Row:
    if row.chosen is None:
        return row
    return replace(row, columns={**row.columns, "chosen": row.chosen, "rejected": row.rejected})


# -- unanchored --------------------------------------------------------------------------------------------------
# ORPO (Hong et al., arXiv 2403.07691) and SimPO (Meng et al., arXiv 2405.14734): DPO's pairs without an anchor.


@dataclass(kw_only=True)
class ORPOConfig(PairConfig):
    """Odds ratio preference optimisation (arXiv 2403.07691), as in TRL."""

    learning_rate: float = number(6.6e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.1, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the odds ratio relative to the likelihood of the chosen completion; the paper's lambda."""


@dataclass(kw_only=True)
class SimPOConfig(PairConfig):
    """Simple preference optimisation (arXiv 2405.14734), as in TRL's CPO with loss_type=simpo."""

    learning_rate: float = number(2.1e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(5.4, above=0, at_most=LARGEST_WEIGHT)
    """Scale of the reward, which is the log-probability per token."""
    simpo_gamma: float = number(1.5, at_least=0, at_most=LARGEST_WEIGHT)
    """Margin by which the chosen completion's reward should exceed the other's; the paper's gamma."""
    cpo_alpha: float = number(0.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the chosen completions' negative log-likelihood, averaged over the tokens of a batch: CPO-SimPO.
    """


class ORPO(DPO):
    """Maximises the likelihood of chosen completions, prompts included, and the ratio of their odds."""

    name: ClassVar[str] = "ORPO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = ORPOConfig

    def training_set(
        self, ctx: base.JobContext, model: parts.PreTrainedModel, folders: Sequence[Path]
    ) -> parts.TrainingSet:
        """Return the pairs, and the loss: likelihood of the chosen, and the odds ratio per token."""
        return parts.preferences.orpo_set(
            model, parts.Sequences.load(folders, parts.PAIRS), ctx.settings(ORPOConfig).beta, ctx.device
        )


class SimPO(DPO):
    """Maximises the lead of the chosen completion's log-probability per token, less a margin."""

    name: ClassVar[str] = "SimPO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = SimPOConfig

    def training_set(
        self, ctx: base.JobContext, model: parts.PreTrainedModel, folders: Sequence[Path]
    ) -> parts.TrainingSet:
        """Return the pairs, and the loss that compares log-probabilities per token."""
        algo, pairs = ctx.settings(SimPOConfig), parts.Sequences.load(folders, parts.PAIRS)
        return parts.preferences.simpo_set(model, pairs, algo.beta, algo.simpo_gamma, ctx.device, algo.cpo_alpha)


# -- kto ---------------------------------------------------------------------------------------------------------
# KTO (Ethayarajh et al., arXiv 2402.01306): single completions that are desirable or undesirable.


@dataclass(kw_only=True)
class KTOConfig(FeedbackConfig):
    """Kahneman-Tversky optimisation (arXiv 2402.01306), as in TRL."""

    learning_rate: float = number(4e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.5, above=0, at_most=LARGEST_WEIGHT)
    """Strength of the KL penalty towards the anchor."""
    desirable_weight: float = number(1.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the losses of desirable completions."""
    undesirable_weight: float = number(1.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the losses of undesirable completions. If the numbers differ, the paper sets weight times number
    of the desirable ones to between 1 and 4/3 times that of the undesirable ones."""
    reference: Anchor = Anchor.initial

    @property
    def compares(self) -> bool:
        """False: one completion that is right or wrong is enough."""
        return False

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Return all completions, or both of each pair."""
        return self.epochs * (self.num_generations if self.pairs is PairSource.sampled else 2)


class KTO(DPO):
    """Compares the log-ratio of each completion with the overall KL divergence from the anchor."""

    name: ClassVar[str] = "KTO"
    version: ClassVar[int] = 1
    config_class: ClassVar[type[AlgoConfig]] = KTOConfig

    def keep(self, ctx: base.JobContext, groups: parts.Groups) -> None:
        """Write the desirable completions with label 1, and the undesirable ones with label 0."""
        labels = groups.labels()
        told = [place for place, label in enumerate(labels) if label is not None]
        groups.sequences(told, [float(label) for label in labels if label is not None]).save(ctx.out)

    def _existing(self, out: Path, rows: Sequence[parts.Row], encoding: Encoding) -> Tally:
        return write_labelled(out, rows, encoding)

    def training_set(
        self, ctx: base.JobContext, model: parts.PreTrainedModel, folders: Sequence[Path]
    ) -> parts.TrainingSet:
        """Return the completions, each also paired with another prompt for the KL estimate, and the loss."""
        algo = ctx.settings(KTOConfig)
        return parts.preferences.kto_set(
            model,
            parts.Sequences.load(folders),
            algo.beta,
            (algo.desirable_weight, algo.undesirable_weight),
            ctx.device,
            context=parts.load.context_length(model),
            of_anchor=lambda data: self.of_anchor(ctx, algo.reference, data, _whole_logprobs),
            of_policy=lambda data: values_of(ctx, model, data, _whole_logprobs, work="score while training"),
        )


def write_labelled(out: Path, rows: Sequence[parts.Row], encoding: Encoding) -> Tally:
    """Write the labelled completions of rows to a folder, and count them; see `labelled_sequences`."""
    data, parted, endless = labelled_sequences(rows, encoding)
    data.save(out)
    return Tally(base.COMPLETIONS, len(data), parted=parted, endless=endless)


def labelled_sequences(rows: Sequence[parts.Row], encoding: Encoding) -> tuple[parts.Sequences, int, int]:
    """Return the completions of rows with a `label` (whether they are desirable), and those of pairs.

    Args:
        rows: Rows as for `existing_sequences`, or with labels.
        encoding: How they become tokens.

    Returns:
        The completions, labelled 1 or 0; the number whose tokens do not begin with the whole prompt as a model
        reads it when it answers; and the number without an end token.

    Raises:
        JobError: A row has neither a pair nor a label.
        DataError: A text is invalid, or a label is neither true nor false.
    """
    # Each one separately, as TRL's KTOTrainer tokenizes them.
    asked: list[tuple[int, parts.Text, tuple[parts.Text]]] = []
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
    data, found = _encoded(rows, asked, labels, encoding, lambda row, _: row)
    return data, sum(not one.whole for one in found), sum(not one.ended for one in found)
