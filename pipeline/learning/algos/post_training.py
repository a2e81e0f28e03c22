"""The stages and settings that methods share which train the policy. A method adds its loss, and what it keeps.

generate    draw groups of completions by the current policy                               (per shard)
score       ask rewards about them, keep what training needs                               (per shard)
train       change the policy's weights
evaluate    sample from the policy, measure its divergence from the reference              (per shard)
metrics     numbers with intervals
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import AlgoConfig
from pipeline.files import json_text
from pipeline.learning.algos import base, toolbox
from pipeline.learning.algos.base import Algorithm, JobContext, Read, Section, Stage
from pipeline.learning.algos.policy_config import Anchor, PolicyAlgoConfig
from pipeline.outputs.formats import OPTIMIZER, TRAINING, Tally

TRAIN: tuple[Section, ...] = ("system", "training", "generation", "algo", "model")
"""What training a policy depends on; of `generation`, the temperature that samples were drawn at, and of
`model` where the reference is."""

Of = Callable[..., "toolbox.Tensor"]
"""From a model and a batch to one row for each of its sequences."""
_DRAWING = ("generate", "current_policy")
ONLINE_S = 12.0
"""What drawing adds to the time of a training that does it; as `Stage.seconds`."""
EVALUATE = Stage(
    "evaluate",
    shards="eval",
    reads=(base.REFERENCE_TRAIN, Read("train")),
    config=(*base.TEXT, "evaluation", "algo"),
    seconds=0.35,
)
TRAIN_POLICY = Stage(
    "train",
    reads=(base.REFERENCE_TRAIN, base.START_TRAIN, Read("train", "previous"), Read("score", "so_far")),
    config=TRAIN,
    scales=True,
    saves="policy",
    seconds=15.0,
)


class PostTrainingAlgorithms(Algorithm):
    """Methods that change the weights of the policy (DPO, GRPO, RAFT, ...)."""

    config_class: ClassVar[type[AlgoConfig]] = PolicyAlgoConfig
    stages: ClassVar[tuple[Stage, ...]] = (base.GENERATE, base.SCORE, TRAIN_POLICY, EVALUATE, base.METRICS)

    learns_reward: ClassVar[bool] = False
    """Whether its reward is learnt in each round, from completions that are drawn beforehand also where training
    itself draws."""

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[Stage, ...]:
        """Without those that draw and score beforehand, where training itself draws and nothing else is learnt."""
        return tuple(_online(cls.stages, cls.learns_reward)) if settings.draws_to_train else cls.stages

    @classmethod
    def drawn_with(cls, settings: AlgoConfig) -> Mapping[str, Any] | None:
        """How many completions, and whether log-probabilities are kept; None where a subclass draws otherwise."""
        own = any(getattr(cls, name) is not getattr(PostTrainingAlgorithms, name) for name in _DRAWING)
        if own or not isinstance(settings, PolicyAlgoConfig):
            return None
        by = {"adapters": bool(settings.lora.rank), "online": settings.draws_to_train}
        return groups_drawn(settings.num_generations, by if settings.wants_logprobs else None)

    @abstractmethod
    def training_set(
        self, ctx: JobContext, model: toolbox.PreTrainedModel, folders: Sequence[Path]
    ) -> toolbox.TrainingSet:
        """What the policy is trained on, and the loss.

        Args:
            ctx: Of the training.
            model: The policy, which the loss reads.
            folders: What `keep` has written: of all shards of a round, or of a batch that was drawn online.
        """

    def keep(self, ctx: JobContext, groups: toolbox.Groups) -> None:
        """Write what training needs of one shard's groups, for `training_set` to read.

        Whole groups with their rewards, and the log-probabilities of the policy that drew them: `Samples`.
        """
        samples_of(groups).save(ctx.out)

    def judge(self, ctx: JobContext) -> toolbox.Judge | None:
        """What scores completions that training draws; None for the rewards of the dataset."""
        return None

    def data(self, ctx: JobContext) -> tuple[Path, ...]:
        """The folders that are trained on: of this round, or of all so far where the settings say `aggregate`."""
        return base.rounds_to_train_on(ctx, aggregate=ctx.settings(PolicyAlgoConfig).aggregate)

    def generate(self, ctx: JobContext) -> None:
        """Draw; in the first round the current policy is the reference itself, or that of `start`."""
        algo, dataset = ctx.settings(PolicyAlgoConfig), toolbox.open_dataset(ctx)
        policy = self.current_policy(ctx, dataset)
        drawn = toolbox.draw_groups(ctx, dataset, policy, algo.num_generations)
        replace(drawn, logprobs=toolbox.exact_logprobs(ctx, algo, policy, drawn)).save(ctx.out)

    def score(self, ctx: JobContext) -> None:
        """Score what was drawn."""
        groups = toolbox.score_shard(ctx)
        self.keep(ctx, groups)
        groups.note(ctx.out, groups.tally())

    def train(self, ctx: JobContext) -> None:
        """Train, and save the policy or the adapters that make it of the reference, with its tokenizer."""
        algo = ctx.settings(PolicyAlgoConfig)
        model = toolbox.opening.to_train(ctx, algo)
        fitted = toolbox.fit_online if algo.draws_to_train else _fit_round
        about, tally = fitted(self, ctx, model, self._fitting(ctx))
        ctx.ranks.gather(model)
        if not ctx.ranks.is_first:
            return
        toolbox.opening.save_policy(ctx, algo, model)
        toolbox.load.save_tokenizer(toolbox.opening.reference_tokenizer(ctx), ctx.out)
        told = about.pop("note", None)
        note = base.noted(base.teaching(about, algo.num_generations), algo.batch_size, tally, told=told)
        (ctx.out / TRAINING).write_text(json_text({**about, **note}) + "\n")

    def evaluate(self, ctx: JobContext) -> None:
        """Sample from the trained policy, and compare it with the reference."""
        dataset = toolbox.open_dataset(ctx)
        policy = toolbox.opening.trained_policy(ctx, dataset, ctx.input("train"), compared=True)
        toolbox.evaluate(ctx, policy, dataset, ctx.out)

    def metrics(self, ctx: JobContext) -> None:
        """Metrics of all evaluated samples."""
        toolbox.write_metrics(ctx)

    def current_policy(self, ctx: JobContext, dataset: toolbox.Dataset) -> toolbox.TextPolicy:
        """The policy that this round's training starts from."""
        folder = base.started_from(ctx)
        if folder is None:
            return toolbox.opening.reference_policy(ctx, dataset)
        return toolbox.opening.trained_policy(ctx, dataset, folder)

    def anchor_model(self, ctx: JobContext, anchor: Anchor) -> toolbox.PreTrainedModel:
        """The frozen policy that training is held close to; the same each time where training draws."""
        algo, previous = ctx.settings(PolicyAlgoConfig), anchor is Anchor.previous
        if not algo.draws_to_train:
            return toolbox.opening.frozen_policy(ctx, algo, previous=previous)
        if anchor not in self._anchors:
            self._anchors[anchor] = toolbox.opening.frozen_policy(ctx, algo, previous=previous)
        return self._anchors[anchor]

    def of_anchor(
        self, ctx: JobContext, anchor: Anchor, data: toolbox.Sequences, of: Of, width: int | None = None
    ) -> NDArray[np.float64]:
        """What the anchor makes of sequences; see `values_of`."""
        model = self.anchor_model(ctx, anchor)
        toolbox.scoring.note_scored(data, model)
        with toolbox.scoring.without_padding(model, ctx.config.training.padding_free):
            return values_of(ctx, model, data, of, width=width)

    def __init__(self) -> None:
        self._anchors: dict[Anchor, toolbox.PreTrainedModel] = {}

    def _fitting(self, ctx: JobContext) -> toolbox.Fitting:
        algo = ctx.settings(PolicyAlgoConfig)
        return fitting_of(ctx, "policy", algo.batch_size, algo.epochs, algo.learning_rate)


def values_of(
    ctx: JobContext, model: toolbox.PreTrainedModel, data: toolbox.Sequences, of: Of, **how: Any
) -> NDArray[np.float64]:
    """What a model makes of sequences, by a function of it and a batch; all ranks call this together.

    Args:
        ctx: Of the training.
        model: On its device, or spread over those of all ranks.
        data: The sequences.
        of: As `score` of `score_sequences`, of which the rest are arguments.
        how: See there.
    """
    with toolbox.computing_in(ctx.config.system.dtype, ctx.device, ctx.ranks):
        return toolbox.scoring.score_sequences(
            data,
            partial(of, model),
            micro_batch_size=ctx.config.training.micro_batch_size,
            device=ctx.device,
            ranks=ctx.ranks,
            sizes=toolbox.BatchSizes(ctx.hints, ctx.device, model),
            **how,
        )


def groups_drawn(size: int, logprobs: Mapping[str, bool] | None = None) -> Mapping[str, Any]:
    """What groups follow from besides the policy: see `Algorithm.drawn_with`.

    Args:
        size: Completions of each prompt.
        logprobs: By which weights log-probabilities are computed (`exact_logprobs`); None where none are.
    """
    return {"num_generations": size, "logprobs": logprobs}


def _online(stages: Iterable[Stage], learns_reward: bool) -> Iterator[Stage]:
    """The same stages where training itself draws, and scores."""
    for stage in stages:
        if stage.name == TRAIN_POLICY.name:
            reads = tuple(read for read in stage.reads if learns_reward or read.stage != base.SCORE.name)
            sections = dict.fromkeys((*TRAIN, *base.TEXT, "data_collection"))
            weights, seconds = (*stage.weights, OPTIMIZER), stage.seconds + ONLINE_S
            yield replace(
                stage,
                reads=reads,
                config=tuple(sections),
                judges=not learns_reward,
                weights=weights,
                seconds=seconds,
            )
        elif learns_reward or stage.name not in (base.GENERATE.name, base.SCORE.name):
            yield stage


def samples_of(groups: toolbox.Groups) -> toolbox.Samples:
    """Whole groups with their rewards, and the log-probabilities of who drew them where they are kept."""
    sequences = groups.sequences(range(len(groups.tokens)), groups.scored.values.tolist())
    if groups.logprobs is None:
        return toolbox.Samples.without_logprobs(sequences)
    return toolbox.Samples(sequences, toolbox.grpo.padded(groups.logprobs))


def _fit_round(
    algorithm: PostTrainingAlgorithms, ctx: JobContext, model: toolbox.PreTrainedModel, fitting: toolbox.Fitting
) -> tuple[dict[str, Any], Tally | None]:
    """Train on what earlier stages have drawn: what ``training.json`` says of it, and what became of the draws."""
    spent = {"tokens_generated": base.tokens_generated(ctx)}
    made = algorithm.training_set(ctx, model, algorithm.data(ctx))
    losses = toolbox.fit(model, made, fitting)
    tally = base.tally_of(base.rounds_to_train_on(ctx, aggregate=ctx.settings(PolicyAlgoConfig).aggregate))
    about = {**spent, **made.about, **algorithm.told_before(ctx)}
    tokens = toolbox.trained_tokens(made.data, fitting.epochs) + algorithm.spent_before(ctx)
    return {**about, "tokens_trained": tokens, "loss": losses, **made.told}, tally


def fitting_of(
    ctx: JobContext, name: str, batch_size: int, epochs: int, learning_rate: float, *, more: bool = False
) -> toolbox.Fitting:
    """How to train in a stage.

    Args:
        ctx: Of the stage.
        name: Of this training among those of the stage.
        batch_size: Sequences per optimizer step.
        epochs: Passes over the data.
        learning_rate: At its highest.
        more: Whether the stage goes on with other work afterwards.
    """
    return toolbox.Fitting(
        batch_size=batch_size,
        epochs=epochs,
        learning_rate=learning_rate,
        training=ctx.config.training,
        seed=ctx.seed * 1000 + ctx.round,
        device=ctx.device,
        dtype=ctx.config.system.dtype,
        clear_cache_interval=ctx.config.system.clear_cache_interval,
        on_step=lambda done, total, tokens: ctx.progress(done, total=total, tokens=tokens),
        checkpoint=ctx.checkpoint(name, also_finished=more),
        hints=ctx.hints,
        ranks=ctx.ranks,
        curve=ctx.curve(name),
    )
