"""Stages and settings shared by methods that train the policy. A method adds its loss, and what it keeps.

generate    draw groups of completions by the current policy                               (per shard)
score       ask rewards about them, keep what training needs                               (per shard)
train       change the policy's weights
evaluate    sample from the policy, measure its divergence from the reference              (per shard)
metrics     numbers with intervals
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import AlgoConfig
from pipeline.files import json_text
from pipeline.learning.algos import base, parts
from pipeline.learning.algos.base import Algorithm, JobContext, Read, Section, Stage
from pipeline.learning.algos.policy_config import Anchor, PolicyAlgoConfig
from pipeline.outputs.formats import OPTIMIZER, TRAINING, Tally

TRAIN: tuple[Section, ...] = ("system", "training", "generation", "algo", "model")
"""Sections that training a policy depends on; from `generation` the sampling temperature, and from `model` the
place of the reference."""

Of = Callable[..., "parts.Tensor"]
"""Function from a model and a batch to one row per sequence."""
_DRAWING = ("generate", "current_policy")
ONLINE_S = 12.0
"""Seconds that drawing adds to a training that draws online, as in `Stage.seconds`."""
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
    """Whether its reward is learnt in each round from completions that are drawn before training, even if training
    draws online."""

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[Stage, ...]:
        """Leave out drawing and scoring before training if training draws online and no reward is learnt."""
        return tuple(_online(cls.stages, cls.learns_reward)) if settings.draws_to_train else cls.stages

    @classmethod
    def drawn_with(cls, settings: AlgoConfig) -> Mapping[str, Any] | None:
        """Return the number of completions, and whether log-probabilities are kept.

        None if a subclass draws differently.
        """
        own = any(getattr(cls, name) is not getattr(PostTrainingAlgorithms, name) for name in _DRAWING)
        if own or not isinstance(settings, PolicyAlgoConfig):
            return None
        by = {"adapters": bool(settings.lora.rank), "online": settings.draws_to_train}
        return groups_drawn(settings.num_generations, by if settings.wants_logprobs else None)

    @abstractmethod
    def training_set(
        self, ctx: JobContext, model: parts.PreTrainedModel, folders: Sequence[Path]
    ) -> parts.TrainingSet:
        """Return the data that the policy is trained on, and the loss.

        Args:
            ctx: Context of the training.
            model: The policy, which the loss uses.
            folders: Folders written by `keep`: of all shards of a round, or of one batch drawn online.
        """

    def keep(self, ctx: JobContext, groups: parts.Groups) -> None:
        """Write the part of a shard's groups that training needs, for `training_set` to read.

        By default these are whole groups with their rewards, and the log-probabilities of the policy that drew
        them: `Samples`.
        """
        samples_of(groups).save(ctx.out)

    def judge(self, ctx: JobContext) -> parts.Judge | None:
        """Return the function that scores completions drawn in training; None for the rewards of the dataset."""
        return None

    def data(self, ctx: JobContext) -> tuple[Path, ...]:
        """Return the folders to train on: of this round, or of all so far if the settings say `aggregate`."""
        return base.rounds_to_train_on(ctx, aggregate=ctx.settings(PolicyAlgoConfig).aggregate)

    def generate(self, ctx: JobContext) -> None:
        """Draw completions with the current policy.

        In the first round the reference itself, or that of `start`.
        """
        algo, dataset = ctx.settings(PolicyAlgoConfig), parts.open_dataset(ctx)
        policy = self.current_policy(ctx, dataset)
        drawn = parts.draw_groups(ctx, dataset, policy, algo.num_generations)
        replace(drawn, logprobs=parts.exact_logprobs(ctx, algo, policy, drawn)).save(ctx.out)

    def __init__(self) -> None:
        self._anchors: dict[Anchor, parts.PreTrainedModel] = {}
        self._trained: parts.PreTrainedModel | None = None

    def score(self, ctx: JobContext) -> None:
        """Score the drawn completions."""
        groups = parts.score_shard(ctx)
        self.keep(ctx, groups)
        groups.note(ctx.out, groups.tally())

    def train(self, ctx: JobContext) -> None:
        """Train, and save the policy (or its adapters) with its tokenizer."""
        algo = ctx.settings(PolicyAlgoConfig)
        model = self._trained = parts.opening.to_train(ctx, algo)
        fitted = parts.fit_online if algo.draws_to_train else _fit_round
        about, tally = fitted(self, ctx, model, self._fitting(ctx))
        ctx.ranks.gather(model)
        if not ctx.ranks.is_first:
            return
        parts.opening.save_policy(ctx, algo, model)
        parts.load.save_tokenizer(parts.opening.reference_tokenizer(ctx), ctx.out)
        told = about.pop("note", None)
        note = base.noted(base.teaching(about, algo.num_generations), algo.batch_size, tally, told=told)
        (ctx.out / TRAINING).write_text(json_text({**about, **note}) + "\n")

    def evaluate(self, ctx: JobContext) -> None:
        """Sample from the trained policy, and compare it with the reference."""
        dataset = parts.open_dataset(ctx)
        policy = parts.opening.trained_policy(ctx, dataset, ctx.input("train"), compared=True)
        parts.evaluate(ctx, policy, dataset, ctx.out)

    def metrics(self, ctx: JobContext) -> None:
        """Compute the metrics of all evaluated samples."""
        parts.write_metrics(ctx)

    def current_policy(self, ctx: JobContext, dataset: parts.Dataset) -> parts.TextPolicy:
        """Return the policy that this round's training starts from."""
        folder = base.started_from(ctx)
        if folder is None:
            return parts.opening.reference_policy(ctx, dataset)
        return parts.opening.trained_policy(ctx, dataset, folder)

    def of_anchor(
        self, ctx: JobContext, anchor: Anchor, data: parts.Sequences, of: Of, width: int | None = None
    ) -> NDArray[np.float64]:
        """Compute a function of the frozen anchor on sequences; see `values_of`.

        Adapters are trained on frozen weights. If these are the anchor, no second copy of them is loaded.
        """
        algo, previous = ctx.settings(PolicyAlgoConfig), anchor is Anchor.previous
        trained = self._trained if parts.opening.is_below_adapters(ctx, algo, previous=previous) else None
        model = self._anchor(ctx, anchor) if trained is None else trained
        parts.scoring.note_scored(data, model, trained=trained is None)
        shared = nullcontext() if trained is None else parts.lora.without_adapters(trained)
        with shared, parts.scoring.without_padding(model, ctx.config.training.padding_free):
            return values_of(ctx, model, data, of, width=width)

    def _anchor(self, ctx: JobContext, anchor: Anchor) -> parts.PreTrainedModel:
        """Load the anchor, once if training draws online."""
        algo, previous = ctx.settings(PolicyAlgoConfig), anchor is Anchor.previous
        if not algo.draws_to_train:
            return parts.opening.frozen_policy(ctx, algo, previous=previous)
        if anchor not in self._anchors:
            self._anchors[anchor] = parts.opening.frozen_policy(ctx, algo, previous=previous)
        return self._anchors[anchor]

    def _fitting(self, ctx: JobContext) -> parts.Fitting:
        algo = ctx.settings(PolicyAlgoConfig)
        return fitting_of(ctx, "policy", algo.batch_size, algo.epochs, algo.learning_rate)


def values_of(
    ctx: JobContext, model: parts.PreTrainedModel, data: parts.Sequences, of: Of, **how: Any
) -> NDArray[np.float64]:
    """Compute a function of a model on sequences; all ranks call this together.

    Args:
        ctx: Context of the training.
        model: On its device, or sharded over the ranks.
        data: The sequences.
        of: Function of the model and a batch, as `score` of `score_sequences`.
        how: Further arguments of `score_sequences`.
    """
    with parts.computing_in(ctx.config.system.dtype, ctx.device, ctx.ranks):
        return parts.scoring.score_sequences(
            data,
            partial(of, model),
            micro_batch_size=ctx.config.training.micro_batch_size,
            device=ctx.device,
            ranks=ctx.ranks,
            sizes=parts.BatchSizes(ctx.hints, ctx.device, model),
            **how,
        )


def groups_drawn(size: int, logprobs: Mapping[str, bool] | None = None) -> Mapping[str, Any]:
    """Return what determines drawn groups besides the policy: see `Algorithm.drawn_with`.

    Args:
        size: Completions per prompt.
        logprobs: Which weights log-probabilities are computed with (`exact_logprobs`); None if none are.
    """
    return {"num_generations": size, "logprobs": logprobs}


def _online(stages: Iterable[Stage], learns_reward: bool) -> Iterator[Stage]:
    """Yield the same stages for a training that draws and scores itself."""
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


def samples_of(groups: parts.Groups) -> parts.Samples:
    """Return whole groups with rewards and, if kept, the log-probabilities of the policy that drew them."""
    sequences = groups.sequences(range(len(groups.tokens)), groups.scored.values.tolist())
    if groups.logprobs is None:
        return parts.Samples.without_logprobs(sequences)
    sampled = None if groups.sampled is None else parts.grpo.padded(groups.sampled)
    return parts.Samples(sequences, parts.grpo.padded(groups.logprobs), sampled)


def _fit_round(
    algorithm: PostTrainingAlgorithms, ctx: JobContext, model: parts.PreTrainedModel, fitting: parts.Fitting
) -> tuple[dict[str, Any], Tally | None]:
    """Train on completions of earlier stages; return entries of ``training.json``, and the tally of the draws."""
    spent = {"tokens_generated": base.tokens_generated(ctx)}
    made = algorithm.training_set(ctx, model, algorithm.data(ctx))
    losses = parts.fit(model, made, fitting)
    tally = base.tally_of(base.rounds_to_train_on(ctx, aggregate=ctx.settings(PolicyAlgoConfig).aggregate))
    about = {**spent, **made.about, **algorithm.told_before(ctx)}
    tokens = parts.trained_tokens(made.data, fitting.epochs) + algorithm.spent_before(ctx)
    return {**about, "tokens_trained": tokens, "loss": losses, **made.told}, tally


def fitting_of(
    ctx: JobContext, name: str, batch_size: int, epochs: int, learning_rate: float, *, more: bool = False
) -> parts.Fitting:
    """Return the optimization settings of a training in a stage.

    Args:
        ctx: Context of the stage.
        name: Name of this training within the stage.
        batch_size: Sequences per optimizer step.
        epochs: Passes over the data.
        learning_rate: Peak learning rate.
        more: Whether the stage goes on with other work afterwards.
    """
    return parts.Fitting(
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
