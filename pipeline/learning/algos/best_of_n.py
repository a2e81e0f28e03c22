"""Best of n: the reference as it is, asked n times (Cobbe et al., arXiv 2110.14168, with a learnt verifier).

A baseline for methods that spend compute on training: this one spends it on every answer. What picks must not
be the reward that the answer is tested with, or the result would be pass@n under another name. So it is a reward
model fitted to preferences on training prompts, or a majority vote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.config.bases import LARGEST_RATE, AlgoConfig, number
from pipeline.config.schema import Config
from pipeline.errors import JobError
from pipeline.files import json_text
from pipeline.learning.algos import toolbox
from pipeline.learning.algos.base import (
    GENERATE,
    METRICS,
    REFERENCE_TRAIN,
    SCORE,
    Algorithm,
    JobContext,
    Read,
    Stage,
    timed,
)
from pipeline.learning.algos.policy_config import too_few
from pipeline.learning.algos.post_training import EVALUATE, groups_drawn
from pipeline.learning.algos.reward_stage import LearntReward, RewardModelConfig, reward_fitting
from pipeline.learning.algos.rounds import noted, rounds_to_train_on, tally_of, tokens_generated
from pipeline.learning.rewards.preference import PreferenceConfig, halved_pairs
from pipeline.outputs.formats import TRAINING

if TYPE_CHECKING:
    from pipeline.learning.algos.parts import Dataset, Picker, TextPolicy


class Selection(Enum):
    """How best-of-n picks. Never by the reward that it is tested with."""

    reward_model = "reward_model"  # the highest score of a reward model fitted to training prompts
    majority = "majority"  # the commonest answer, the first of equals


@dataclass(kw_only=True)
class BestOfNConfig(AlgoConfig):
    """Best of n samples of the reference, with nothing trained but what picks."""

    num_generations: int = number(4, at_least=1, at_most=100_000)
    """Samples that are picked from, n."""
    selection: Selection = Selection.reward_model
    aggregate: bool = True
    """Fit the reward model to the data of all rounds so far rather than of this round alone."""
    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step of the reward model; both completions of a pair count."""
    learning_rate: float = number(1e-3, above=0, at_most=LARGEST_RATE)
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)

    @property
    def trains(self) -> bool:
        """A reward model, or nothing."""
        return self.selection is Selection.reward_model

    def drawn(self, samples: int) -> float:  # noqa: ARG002 - of value-guided algorithms
        """Whole groups."""
        return self.num_generations

    def trained(self, stage: str, samples: int, decided: float) -> float:  # noqa: ARG002 - of the base
        """Both completions of each pair."""
        return self.epochs * self.preferences.compared(self.num_generations, decided) * self.trains

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Too few samples to pick from, and batches that part pairs."""
        yield from too_few(key, self.num_generations)
        yield from halved_pairs(key, self.batch_size, config)

    def idle(self, setting: str) -> str:
        """Also what is of the reward model, where there is none."""
        of_model = setting in ("learning_rate", "epochs", "batch_size") or setting.startswith("preferences.")
        if of_model and not self.trains:
            return "with selection=majority no reward model is trained"
        return super().idle(setting)


class BestOfN(Algorithm):
    """n samples of the reference, one of which is given. The policy is the same in every round; what picks learns.

    generate    draw groups by the reference                    (per shard)
    score       pair them by what rewards say                   (per shard)
    train       fit the reward model
    evaluate    draw n completions for each, pick one           (per shard)
    metrics     numbers with intervals
    """

    name: ClassVar[str] = "BestOfN"
    config_class: ClassVar[type[AlgoConfig]] = BestOfNConfig
    kl_is_bound: ClassVar[bool] = True
    stages: ClassVar[tuple[Stage, ...]] = (
        replace(GENERATE, reads=(REFERENCE_TRAIN,)),
        SCORE,
        Stage(
            "train",
            reads=(REFERENCE_TRAIN, Read("score", "so_far")),
            config=("system", "training", "algo", "model"),
            saves="rewards",
            seconds=19.0,
        ),
        *timed([EVALUATE], evaluate=0.6),
        METRICS,
    )

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[Stage, ...]:
        """A majority vote needs no data to train on."""
        return cls.stages if settings.trains else cls.stages[2:]

    @classmethod
    def drawn_with(cls, settings: AlgoConfig) -> Mapping[str, Any] | None:
        """As methods draw that begin with the reference."""
        assert isinstance(settings, BestOfNConfig)
        return groups_drawn(settings.num_generations)

    def generate(self, ctx: JobContext) -> None:
        """Draw by the reference."""
        dataset = toolbox.open_dataset(ctx)
        policy = toolbox.reference_policy(ctx, dataset)
        toolbox.draw_groups(ctx, dataset, policy, ctx.settings(BestOfNConfig).num_generations).save(ctx.out)

    def score(self, ctx: JobContext) -> None:
        """Score and pair."""
        groups = toolbox.score_shard(ctx)
        groups.pairs(ctx.settings(BestOfNConfig).preferences).save(ctx.out, toolbox.PAIRS)
        groups.note(ctx.out, groups.tally())

    def train(self, ctx: JobContext) -> None:
        """Fit the reward model that picks."""
        algo = ctx.settings(BestOfNConfig)
        spent = {"tokens_generated": tokens_generated(ctx)}
        if algo.selection is Selection.majority:
            (ctx.out / TRAINING).write_text(json_text({**spent, "tokens_trained": 0}) + "\n")
            return
        settings = RewardModelConfig(
            batch_size=algo.batch_size, epochs=algo.epochs, learning_rate=algo.learning_rate
        )
        folders = rounds_to_train_on(ctx, aggregate=algo.aggregate)
        pairs = toolbox.Sequences.load(folders, toolbox.PAIRS)
        learnt = LearntReward(ctx, pairs, settings, reward_fitting(ctx, settings, more=False))
        learnt.save(ctx.out)
        if ctx.ranks.is_first:
            note = noted(len(pairs), settings.batch_size, tally_of(folders), "the reward model was fitted to")
            (ctx.out / TRAINING).write_text(json_text({**learnt.about, **note, **spent}) + "\n")

    def evaluate(self, ctx: JobContext) -> None:
        """Give the best of n for every completion that is asked for."""
        algo, dataset = ctx.settings(BestOfNConfig), toolbox.open_dataset(ctx)
        model, tokenizer = toolbox.reference_model(ctx)
        sizes = toolbox.BatchSizes(ctx.hints, ctx.device, model)
        policy = toolbox.BestOfNPolicy(model, tokenizer, ctx.config.generation, dataset, ctx.device, sizes=sizes)
        policy.count = algo.num_generations
        policy.pick = (
            _majority(ctx, policy, dataset) if algo.selection is Selection.majority else _reward_model(ctx)
        )
        toolbox.evaluate(ctx, policy, dataset, ctx.out)

    def metrics(self, ctx: JobContext) -> None:
        """Metrics of all evaluated samples."""
        toolbox.write_metrics(ctx)


def _reward_model(ctx: JobContext) -> Picker:

    folder, system = ctx.input("train"), ctx.config.system
    key = ("value", str(folder))
    model = ctx.models.get(key, lambda: toolbox.load.load_value(folder, system, ctx.device), ctx.loading)
    size = ctx.config.generation.batch_size
    return toolbox.by_score(
        partial(
            toolbox.value.reward_scores,
            model,
            micro_batch_size=size,
            device=ctx.device,
            purpose="guidance",
            hints=ctx.hints,
        )
    )


def _majority(ctx: JobContext, policy: TextPolicy, dataset: Dataset) -> Picker:

    judge = toolbox.judge_of(toolbox.known_rewards(dataset.config), dataset.config)
    if judge is None or judge.traits.answer is None:
        raise JobError(
            f"no reward of this dataset says what an answer is, so there is no majority; "
            f"use algos.{ctx.algo}.selection=reward_model"
        )
    some = dataset.row(int(dataset.ids("train")[0]))  # a template begins the answers to all rows alike
    return toolbox.by_majority(lambda completion: judge.traits.vote(policy.text([completion], [some])[0]))
