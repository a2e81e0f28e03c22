"""Supervised fine-tuning: imitate the completions of a dataset, as TRL's `SFTTrainer` does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from pipeline.config.schema import LARGEST_RATE, AlgoConfig, number
from pipeline.errors import DataError
from pipeline.learning.algos import base, parts, policy_config, post_training


@dataclass(kw_only=True)
class SFTConfig(policy_config.PolicyAlgoConfig):
    """Supervised fine-tuning on the completions of a dataset."""

    keeps_logprobs: ClassVar[bool] = False

    learning_rate: float = number(2e-5, above=0, at_most=LARGEST_RATE)
    completion_only_loss: bool | None = None
    """Train on the completion and not on the prompt; false trains on both. Null trains on the completion if rows
    have `prompt` and `completion`, and on the whole conversation if they have `messages`, as TRL does."""
    assistant_only_loss: bool = False
    """Train only on the turns of the assistant, each with its end token. They are located in the output of the
    chat template, which needs no special markers."""
    max_length: int | None = number(
        None, at_least=2, at_most=100_000_000, hint=", or null for the model's context"
    )
    """Most tokens of a prompt with its completion. Longer rows are truncated, and a note counts them."""

    @property
    def compares(self) -> bool:
        """False: nothing is drawn."""
        return False

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Return one completion per row."""
        return self.epochs

    def idle(self, setting: str) -> str:
        """Report the number of completions to draw as unused."""
        return "nothing is sampled" if setting == "num_generations" else super().idle(setting)


class SFT(post_training.PostTrainingAlgorithms):
    """Next-token prediction on the completions of a dataset's rows; each round uses its share of the rows."""

    name: ClassVar[str] = "SFT"
    config_class: ClassVar[type[AlgoConfig]] = SFTConfig
    stages: ClassVar[tuple[base.Stage, ...]] = (
        replace(
            post_training.TRAIN_POLICY,
            reads=(base.REFERENCE_TRAIN, base.START_TRAIN, base.Read("train", "previous")),
            config=("system", "training", "algo", "model", "dataset", "data_collection"),  # nothing is drawn
            judges=False,
            seconds=4.5,
        ),
        post_training.EVALUATE,
        base.METRICS,
    )

    def data(self, ctx: base.JobContext) -> tuple[Path, ...]:
        """Return no folders: rows are read from the dataset."""
        return ()

    def training_set(
        self, ctx: base.JobContext, model: parts.PreTrainedModel, folders: Sequence[Path]
    ) -> parts.TrainingSet:
        """Return the completions of this round's rows, or of all so far, and the likelihood loss."""
        algo, dataset = ctx.settings(SFTConfig), parts.open_dataset(ctx)
        count, first = ctx.config.data_collection.prompts_per_round, 1 if algo.aggregate else ctx.round
        rows = [
            dataset.row(int(row))
            for number in range(first, ctx.round + 1)
            for row in dataset.round_ids(ctx.seed, number, count)
        ]
        tokenizer = parts.opening.reference_tokenizer(ctx)
        limits = (
            algo.max_length,
            parts.load.context_length(model),
            parts.load.length_beside_others(model.config),
        )
        longest = min((limit for limit in limits if limit is not None), default=None)
        data, note = demonstrations(
            rows, tokenizer, algo, longest, parts.load.end_ids(model.generation_config, tokenizer)
        )
        made = parts.sft_set(model, data)
        return replace(made, about={**made.about, **({"note": note} if note else {})})


def demonstrations(
    rows: Sequence[parts.Row],
    tokenizer: parts.PreTrainedTokenizerBase,
    algo: SFTConfig,
    longest: int | None = None,
    ends: Collection[int] = (),
) -> tuple[parts.Sequences, str]:
    """Return completions or preferred answers of rows as token ids; see `encode_demonstration`.

    Args:
        rows: Rows of the dataset.
        tokenizer: Tokenizer of the policy.
        algo: Settings that say which tokens are trained on.
        longest: Most tokens per row; None for no limit.
        ends: Tokens that end a completion, besides those of the tokenizer and its template.

    Returns:
        The sequences, and a note on the rows, or "".

    Raises:
        DataError: A row has no completion, or no row has a token to train on.
    """
    if without := [row.id for row in rows if row.answer is None and not row.whole]:
        raise DataError(
            f"{len(without):,} of {len(rows):,} rows have no completion to imitate (first row {without[0]}). "
            "Leave them out of the dataset"
        )
    wanted = [row for row in rows if row.columns.get("label") is not False]  # KTO's completions with labels
    found = [
        parts.chat.encode_demonstration(
            tokenizer,
            row.prompt,
            [] if row.answer is None else row.answer,
            ends,
            parts.chat.template_arguments(row.columns),
            completion_only=not row.whole if algo.completion_only_loss is None else algo.completion_only_loss,
            assistant_only=algo.assistant_only_loss,
        )
        for row in wanted
    ]
    kept = [one for one in found if any(one.supervised[:longest])]
    whole = [one for one in kept if len(one.ids) == len(one.ids[:longest])]
    within = "" if longest is None else f" within {longest} tokens"
    if not kept:
        raise DataError(
            f"none of {len(rows):,} rows can be learnt: nothing of them is to be learnt{within}. Shorten prompts, "
            "or set max_length higher as far as the model's context allows"
        )
    of = f"of {len(rows):,} rows"
    counted = (
        (len(kept) - len(whole), f"are cut after {longest} tokens, so without their ends"),
        (len(rows) - len(wanted), "are left out: their `label` is false"),
        (len(found) - len(kept), f"are left out: nothing of them is to be learnt{within}"),
        (sum(not one.whole for one in kept), f"are trained on {base.PARTED}"),
        (sum(not one.ended for one in whole), f"are trained on {base.ENDLESS}"),
    )
    ids, marks = [one.ids[:longest] for one in kept], [one.supervised[:longest] for one in kept]
    data = parts.Sequences.supervised_at(ids, marks, [1.0] * len(kept))
    return data, "; ".join(f"{number:,} {of} {what}" for number, what in counted if number)


# -- raft --------------------------------------------------------------------------------------------------------
# Rejection sampling: imitate the best of n completions (best-of-n distillation, RAFT of arXiv 2304.06767).


@dataclass(kw_only=True)
class RAFTConfig(policy_config.PolicyAlgoConfig):
    """Rejection sampling: imitate the best of n."""

    keeps_logprobs: ClassVar[bool] = False

    learning_rate: float = number(8.4e-4, above=0, at_most=LARGEST_RATE)
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    only_correct: bool = True
    """Leave out prompts whose best completion is known to be wrong."""

    @property
    def compares(self) -> bool:
        """False: the only completion of a prompt is its best."""
        return False

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Return the best completion of each group."""
        return self.epochs


class RAFT(post_training.PostTrainingAlgorithms):
    """Next-token prediction on the completion with the highest reward of each prompt."""

    name: ClassVar[str] = "RAFT"
    config_class: ClassVar[type[AlgoConfig]] = RAFTConfig
    stages: ClassVar[tuple[base.Stage, ...]] = base.timed(post_training.PostTrainingAlgorithms.stages, train=4.5)

    def keep(self, ctx: base.JobContext, groups: parts.Groups) -> None:
        """Write the best completion of each prompt, the first of equals."""
        best, correct = groups.best(), groups.scored.correct
        if ctx.settings(RAFTConfig).only_correct:
            best = [place for place in best if correct[place] is not False]
        groups.sequences(best, [float(groups.scored.values[place]) for place in best]).save(ctx.out)

    def training_set(
        self, ctx: base.JobContext, model: parts.PreTrainedModel, folders: Sequence[Path]
    ) -> parts.TrainingSet:
        """Return the best completions, and the likelihood loss."""
        return parts.sft_set(model, parts.Sequences.load(folders))
