"""Supervised fine-tuning: imitate the completions that a dataset has, as TRL's `SFTTrainer` does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from pipeline.config.schema import LARGEST_RATE, AlgoConfig, number
from pipeline.errors import DataError
from pipeline.learning.algos import base, policy_config, post_training, toolbox


@dataclass(kw_only=True)
class SFTConfig(policy_config.PolicyAlgoConfig):
    """Supervised fine-tuning on the completions that a dataset has."""

    keeps_logprobs: ClassVar[bool] = False

    learning_rate: float = number(2e-5, above=0, at_most=LARGEST_RATE)
    completion_only_loss: bool | None = None
    """Learn the completion and not the prompt; false learns both. Null learns the completion where rows have
    `prompt` and `completion`, and all of a conversation where they have `messages`; as TRL has it."""
    assistant_only_loss: bool = False
    """Learn the turns of the assistant alone, each with its end. They are found in what the chat template writes,
    and need no marks in it."""
    max_length: int | None = number(
        None, at_least=2, at_most=100_000_000, hint=", or null for the model's context"
    )
    """Tokens of a prompt with its completion. Longer rows are cut there, and counted in a note."""

    @property
    def compares(self) -> bool:
        """Nothing is drawn."""
        return False

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """One completion of each row."""
        return self.epochs

    def idle(self, setting: str) -> str:
        """How many are drawn."""
        return "nothing is sampled" if setting == "num_generations" else super().idle(setting)


class SFT(post_training.PostTrainingAlgorithms):
    """Next-token prediction on the completions of a dataset's rows; a round goes over its share of them."""

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
        """No folders: rows are read from the dataset."""
        return ()

    def training_set(
        self, ctx: base.JobContext, model: toolbox.PreTrainedModel, folders: Sequence[Path]
    ) -> toolbox.TrainingSet:
        """Raise the likelihood of every token that is to be learnt, of the rows of this round or of all so far."""
        algo, dataset = ctx.settings(SFTConfig), toolbox.open_dataset(ctx)
        count, first = ctx.config.data_collection.prompts_per_round, 1 if algo.aggregate else ctx.round
        rows = [
            dataset.row(int(row))
            for number in range(first, ctx.round + 1)
            for row in dataset.round_ids(ctx.seed, number, count)
        ]
        tokenizer = toolbox.opening.reference_tokenizer(ctx)
        limits = (
            algo.max_length,
            toolbox.load.context_length(model),
            toolbox.load.length_beside_others(model.config),
        )
        longest = min((limit for limit in limits if limit is not None), default=None)
        data, note = demonstrations(
            rows, tokenizer, algo, longest, toolbox.load.end_ids(model.generation_config, tokenizer)
        )
        made = toolbox.sft_set(model, data)
        return replace(made, about={**made.about, **({"note": note} if note else {})})


def demonstrations(
    rows: Sequence[toolbox.Row],
    tokenizer: toolbox.PreTrainedTokenizerBase,
    algo: SFTConfig,
    longest: int | None = None,
    ends: Collection[int] = (),
) -> tuple[toolbox.Sequences, str]:
    """The completions of rows as token ids, or their preferred answers; see `encode_demonstration`.

    Args:
        rows: Of the dataset.
        tokenizer: Of the policy.
        algo: What of them is learnt.
        longest: Tokens of a row that are learnt at most; None for no limit.
        ends: Tokens that end a completion, besides those of the tokenizer and of its template.

    Returns:
        The sequences, and what is to be said of the rows; "" for nothing.

    Raises:
        DataError: A row has no completion, or none has anything to learn.
    """
    if without := [row.id for row in rows if row.answer is None and not row.whole]:
        raise DataError(
            f"{len(without):,} of {len(rows):,} rows have no completion to imitate (first row {without[0]}). "
            "Leave them out of the dataset"
        )
    wanted = [row for row in rows if row.columns.get("label") is not False]  # of completions that KTO learns from
    found = [
        toolbox.chat.encode_demonstration(
            tokenizer,
            row.prompt,
            [] if row.answer is None else row.answer,
            ends,
            toolbox.chat.template_arguments(row.columns),
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
    data = toolbox.Sequences.supervised_at(ids, marks, [1.0] * len(kept))
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
        """The only completion of a prompt is its best."""
        return False

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """The best of each group."""
        return self.epochs


class RAFT(post_training.PostTrainingAlgorithms):
    """Next-token prediction on the completion with the highest reward of each prompt."""

    name: ClassVar[str] = "RAFT"
    config_class: ClassVar[type[AlgoConfig]] = RAFTConfig
    stages: ClassVar[tuple[base.Stage, ...]] = base.timed(post_training.PostTrainingAlgorithms.stages, train=4.5)

    def keep(self, ctx: base.JobContext, groups: toolbox.Groups) -> None:
        """Write the best completion of each prompt, the first of equals."""
        best, correct = groups.best(), groups.scored.correct
        if ctx.settings(RAFTConfig).only_correct:
            best = [place for place in best if correct[place] is not False]
        groups.sequences(best, [float(groups.scored.values[place]) for place in best]).save(ctx.out)

    def training_set(
        self, ctx: base.JobContext, model: toolbox.PreTrainedModel, folders: Sequence[Path]
    ) -> toolbox.TrainingSet:
        """Raise the likelihood of every token of the completions."""
        return toolbox.sft_set(model, toolbox.Sequences.load(folders))
