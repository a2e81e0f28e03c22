"""Stage of methods with a learnt reward: fit reward models to preferences, and score samples with them.

generate -> score -> reward -> train -> ...

In every round a new reward model starts from the backbone, and is fitted to the pairs of all rounds that the
method trains on. Its scores on its own training data would be too optimistic, so prompts are divided into folds,
and each fold is scored by a model that was fitted to the other folds only (cross-fitting).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline import errors, files
from pipeline.config.schema import LARGEST_RATE, AlgoConfig, Config, Settings, number
from pipeline.learning.algos import base, parts
from pipeline.learning.algos.dpo import PairSource, take_existing, with_existing, write_pairs
from pipeline.learning.algos.policy_config import too_few
from pipeline.learning.algos.post_training import EVALUATE, fitting_of, groups_drawn
from pipeline.learning.choices import HeadType
from pipeline.learning.rewards.preference import PreferenceConfig, halved_pairs
from pipeline.outputs import formats
from pipeline.outputs.prompts import PromptMeasures, read_prompts, write_prompts


@dataclass(kw_only=True)
class RewardModelConfig(Settings):
    """A reward model that is fitted to preferences (Bradley and Terry 1952), on the value models' backbone."""

    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step; both completions of a pair count."""
    learning_rate: float = number(1e-3, above=0, at_most=LARGEST_RATE)
    """Peak learning rate of AdamW."""
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    """Passes over the pairs."""
    folds: int = number(2, at_least=1, at_most=100)
    """Number of folds of prompts, and of reward models: each is fitted to the pairs of all folds but one, and
    scores the completions of that one. Costs folds - 1 passes over the pairs. With 1 the model scores its own
    training data, which is too optimistic."""

    def trained(self, compared: float) -> float:
        """Return the number of sequences in all of its passes over `compared` sequences."""
        return self.epochs * compared * max(1, self.folds - 1)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Report batch sizes that split pairs."""
        yield from halved_pairs(key, self.batch_size, config)


REWARD = base.Stage(
    "reward",
    reads=(base.REFERENCE_TRAIN, base.Read("score", "so_far")),
    config=("system", "training", "algo", "model"),
    scales=True,
    saves="rewards",
    seconds=40.0,
)


_FITTED = "the reward model was fitted to"


def fit_reward_model(
    ctx: base.JobContext,
    pairs: parts.Sequences,
    settings: RewardModelConfig,
    fold: int | None = None,
    tokens: int = 0,
) -> tuple[parts.ValueModel, dict[str, Any]]:
    """Fit a reward model to pairs.

    Args:
        ctx: Context of the stage.
        pairs: Chosen and rejected completions in turn.
        settings: Settings of the fit, with the number of folds.
        fold: Index of the model, if the stage goes on with other work afterwards; None for the only one.
        tokens: Tokens that earlier folds were trained on.

    Returns:
        The model, and a report of the fit for a file.
    """
    how = (settings.batch_size, settings.epochs, settings.learning_rate)
    fitting = fitting_of(ctx, f"reward_model_{fold}" if fold else "reward_model", *how, more=fold is not None)

    def on_step(done: int, total: int, own: int) -> None:
        # Folds have about the same size, and progress must never decrease.
        ctx.progress((fold or 0) * total + done, total=settings.folds * total, tokens=tokens + own)

    model = parts.opening.fresh_value_model(ctx, HeadType.v)
    fitting = fitting if fold is None else replace(fitting, on_step=on_step)
    losses = parts.value.fit_reward_model(model, pairs, fitting)
    trained = parts.trained_tokens(pairs, settings.epochs)
    return model, {"pairs": len(pairs) // 2, "tokens_trained": trained, "loss": losses}


def _scores(
    ctx: base.JobContext, model: parts.ValueModel, data: parts.Sequences, **how: Any
) -> NDArray[np.float64]:
    """Return raw scores of sequences, shape [N]."""
    size = ctx.config.training.micro_batch_size
    return parts.value.reward_scores(model, data, micro_batch_size=size, device=ctx.device, hints=ctx.hints, **how)


def _save(ctx: base.JobContext, model: parts.ValueModel, folder: Path) -> None:
    """Save a reward model with its tokenizer."""
    folder.mkdir(exist_ok=True)
    parts.save_model(model, folder, ctx.ranks)
    if ctx.ranks.is_first:
        parts.load.save_tokenizer(parts.opening.reference_tokenizer(ctx), folder)


def cross_fitted(
    ctx: base.JobContext, folders: Sequence[Path], data: parts.Sequences, settings: RewardModelConfig
) -> NDArray[np.float64]:
    """Fit one reward model per fold of prompts, and score that fold with it.

    Writes the models and ``reward.json``.

    Args:
        ctx: Context of the stage.
        folders: Outputs with pairs and their row ids.
        data: The completions, with row ids.
        settings: Settings of the fits.

    Returns:
        Standardised scores, shape [N], with mean 0 and standard deviation 1 in each fold: scores of two models
        share neither zero nor unit.
    """
    pairs = parts.Sequences.load(folders, parts.PAIRS)
    of_pairs, of_data = parts.prompt_folds(pairs.prompts[::2], data.prompts, settings.folds)
    found, fits, tokens = np.zeros(len(data)), [], 0
    for fold in range(settings.folds):
        unseen = np.repeat((of_pairs == fold) & (settings.folds > 1), 2)
        model, about = fit_reward_model(ctx, pairs.some(np.flatnonzero(~unseen)), settings, fold, tokens)
        tokens += about["tokens_trained"]
        places = np.flatnonzero(of_data == fold)
        raw = _scores(ctx, model, data.some(places), ranks=ctx.ranks)
        mean, deviation = parts.value.scale_of(raw)
        found[places] = (raw - mean) / deviation
        held_out = _scores(ctx, model, pairs.some(np.flatnonzero(unseen)), ranks=ctx.ranks)
        fits.append(
            {
                **about,
                "held_out_pairs": len(held_out) // 2,
                "held_out_accuracy": parts.value.share_preferred(held_out),
                "mean": mean,
                "deviation": deviation,
                "scored": len(places),
            }
        )
        _save(ctx, model, ctx.out / f"fold_{fold}")
        del model  # so that two models are never in memory at once
    if ctx.ranks.is_first:
        note = base.noted(len(pairs), settings.batch_size, base.tally_of(folders), _FITTED)
        whole = {"tokens_trained": tokens, **in_short(fits), "fits": fits, **note}
        (ctx.out / formats.REWARD).write_text(files.json_text(whole) + "\n")
    return found


def fitted_rewards(ctx: base.JobContext, folders: Sequence[Path]) -> parts.Judge:
    """Return the reward models of a round as a judge for completions of its prompts that are drawn later.

    As in the stage itself, the model that has not seen a prompt's pairs scores it, and scores are standardised
    with the mean and deviation of that stage.

    Args:
        ctx: Context of the training.
        folders: Outputs with the pairs that the models were fitted to.
    """
    place = ctx.input(REWARD.name)
    fits = formats.read_input(place, formats.REWARD, formats.read_reward_fit).fits
    pairs = parts.Sequences.load(folders, parts.PAIRS).prompts[::2]
    models = [
        parts.load.load_value(place / f"fold_{fold}", ctx.config.system, ctx.device)
        for fold in range(len(fits) if ctx.ranks.is_first else 0)
    ]

    def scored(data: parts.Sequences) -> list[float]:
        found = np.zeros(len(data))
        _, folds = parts.prompt_folds(pairs, data.prompts, len(fits))
        for fold, (model, fit) in enumerate(zip(models, fits, strict=True)):
            places = np.flatnonzero(folds == fold)
            raw = _scores(ctx, model, data.some(places))
            found[places] = (raw - fit.mean) / fit.deviation
        return found.tolist()

    def judge(
        prompts: Sequence[list[int]], completions: Sequence[list[int]], rows: NDArray[np.int64]
    ) -> parts.Scored:
        texts = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        data = parts.Sequences.of(texts, [*map(len, prompts)], [0.0] * len(texts), rows.tolist())
        # Only one of the ranks scores: otherwise each would load all models.
        values = np.array(ctx.ranks.made_by_first(lambda: scored(data)))
        unknown = [None] * len(texts)
        return parts.Scored(values, {}, unknown, unknown, unknown)

    return judge


def in_short(fits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise reward models for readers of the results: how many, and their accuracy on unseen pairs."""
    held_out = [(fit["held_out_pairs"], fit["held_out_accuracy"]) for fit in fits]
    pairs = sum(count for count, _ in held_out)
    right = sum(count * accuracy for count, accuracy in held_out if accuracy is not None)
    return {"folds": len(fits), "held_out_pairs": pairs, "held_out_accuracy": right / pairs if pairs else None}


class LearnsReward(base.Algorithm):
    """Methods with the stage `reward`: adds its figures to the report of a training."""

    def spent_before(self, ctx: base.JobContext) -> int:
        """Return the tokens used to fit the reward models."""
        return formats.read_input(ctx.input(REWARD.name), formats.REWARD, formats.read_reward_fit).tokens_trained

    def told_before(self, ctx: base.JobContext) -> dict[str, Any]:
        """Return the accuracy of the reward models on unseen pairs."""
        fit = formats.read_input(ctx.input(REWARD.name), formats.REWARD, formats.read_reward_fit)
        names = ("folds", "held_out_pairs", "held_out_accuracy")
        return {"reward_model": {name: getattr(fit, name) for name in names}}


# -- best of n ---------------------------------------------------------------------------------------------------
# Best of n: sample the plain reference n times and pick one (Cobbe et al., arXiv 2110.14168, with a learnt
# verifier). It is a baseline for methods that spend compute on training: this one spends it on every answer. The
# selection must not use the reward of the test, or the result would be pass@n under another name. So it uses a
# reward model fitted to preferences on training prompts, or a majority vote.


class Selection(Enum):
    """How best-of-n picks; never by the reward of the evaluation."""

    reward_model = "reward_model"  # the highest score of a reward model fitted to training prompts
    majority = "majority"  # the most frequent answer, the first of equals


def without_choice(key: str, settings: AlgoConfig, config: Config) -> Iterator[str]:
    """Report greedy decoding where a method chooses among samples."""
    for name in (name for name, one in config.datasets.items() if settings.enabled and one.sampling.is_greedy):
        greedy = f"datasets.{name}.sampling.temperature=0 draws one, which leaves nothing to choose from"
        yield f"{key}: {greedy}. Leave one of the two out"


@dataclass(kw_only=True)
class PickerConfig(AlgoConfig):
    """Settings shared by BestOfN and RM: of n samples of the reference, and of a model that picks one."""

    num_generations: int = number(4, at_least=1, at_most=100_000)
    """Number of samples to pick from, n."""
    aggregate: bool = True
    """Fit the reward model to the data of all rounds so far instead of this round only."""
    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step of the reward model; both completions of a pair count."""
    learning_rate: float = number(1e-3, above=0, at_most=LARGEST_RATE)
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)

    @property
    def fit(self) -> RewardModelConfig:
        """Return the settings for fitting the only reward model."""
        return RewardModelConfig(
            batch_size=self.batch_size, epochs=self.epochs, learning_rate=self.learning_rate, folds=1
        )

    def drawn(self, samples: int) -> float:
        """Return the completions drawn: whole groups."""
        return self.num_generations

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Return both completions of each pair."""
        return self.epochs * self.preferences.compared(self.num_generations, decided) * self.trains

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Report too few samples to pick from, also of greedy decoding, and batch sizes that split pairs."""
        yield from too_few(key, self.num_generations)
        yield from without_choice(key, self, config)
        yield from halved_pairs(key, self.batch_size, config)


@dataclass(kw_only=True)
class BestOfNConfig(PickerConfig):
    """Best of n samples of the reference; only the selection is trained."""

    selection: Selection = Selection.reward_model

    @property
    def trains(self) -> bool:
        """Whether a reward model is trained."""
        return self.selection is Selection.reward_model

    def idle(self, setting: str) -> str:
        """Also report settings of the reward model as unused without one."""
        of_model = setting in ("learning_rate", "epochs", "batch_size") or setting.startswith("preferences.")
        if of_model and not self.trains:
            return "with selection=majority no reward model is trained"
        return super().idle(setting)


class BestOfN(base.Algorithm):
    """Gives one of n samples of the reference. The policy is the same in every round; only the selection learns.

    generate    draw groups by the reference                    (per shard)
    score       pair them by what rewards say                   (per shard)
    train       fit the reward model
    evaluate    draw n completions for each, pick one           (per shard)
    metrics     numbers with intervals
    """

    name: ClassVar[str] = "BestOfN"
    config_class: ClassVar[type[AlgoConfig]] = BestOfNConfig
    kl_is_bound: ClassVar[bool] = True
    stages: ClassVar[tuple[base.Stage, ...]] = (
        replace(base.GENERATE, reads=(base.REFERENCE_TRAIN,)),
        base.SCORE,
        base.Stage(
            "train",
            reads=(base.REFERENCE_TRAIN, base.Read("score", "so_far")),
            config=("system", "training", "algo", "model"),
            saves="rewards",
            seconds=19.0,
        ),
        *base.timed([EVALUATE], evaluate=0.6),
        base.METRICS,
    )

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[base.Stage, ...]:
        """Leave out stages for training data with a majority vote."""
        return cls.stages if settings.trains else cls.stages[2:]

    @classmethod
    def drawn_with(cls, settings: AlgoConfig) -> Mapping[str, Any] | None:
        """Draw as methods do that start from the reference."""
        assert isinstance(settings, PickerConfig)
        return groups_drawn(settings.num_generations)

    def generate(self, ctx: base.JobContext) -> None:
        """Draw completions with the reference."""
        dataset = parts.open_dataset(ctx)
        policy = parts.opening.reference_policy(ctx, dataset)
        parts.draw_groups(ctx, dataset, policy, ctx.settings(PickerConfig).num_generations).save(ctx.out)

    def score(self, ctx: base.JobContext) -> None:
        """Score completions and form pairs."""
        groups = parts.score_shard(ctx)
        groups.pairs(ctx.settings(PickerConfig).preferences).save(ctx.out, parts.PAIRS)
        groups.note(ctx.out, groups.tally())

    def train(self, ctx: base.JobContext) -> None:
        """Fit the reward model that picks."""
        algo = ctx.settings(BestOfNConfig)
        spent = {"tokens_generated": base.tokens_generated(ctx)}
        if algo.selection is Selection.majority:
            (ctx.out / formats.TRAINING).write_text(files.json_text({**spent, "tokens_trained": 0}) + "\n")
            return
        folders = base.rounds_to_train_on(ctx, aggregate=algo.aggregate)
        pairs = parts.Sequences.load(folders, parts.PAIRS)
        model, about = fit_reward_model(ctx, pairs, algo.fit)
        _save(ctx, model, ctx.out)
        if ctx.ranks.is_first:
            note = base.noted(len(pairs), algo.batch_size, base.tally_of(folders), _FITTED)
            (ctx.out / formats.TRAINING).write_text(files.json_text({**about, **note, **spent}) + "\n")

    def evaluate(self, ctx: base.JobContext) -> None:
        """Draw n completions for each that is needed, and pick one."""
        algo, dataset = ctx.settings(PickerConfig), parts.open_dataset(ctx)
        policy = parts.opening.reference_policy(ctx, dataset, kind=parts.policy.BestOfNPolicy)
        assert isinstance(policy, parts.policy.BestOfNPolicy)
        policy.count = algo.num_generations
        policy.pick = _reward_model(ctx) if algo.trains else _majority(ctx, policy, dataset)
        parts.evaluate(ctx, policy, dataset, ctx.out)

    def metrics(self, ctx: base.JobContext) -> None:
        """Compute the metrics of all evaluated samples."""
        parts.write_metrics(ctx)


def _reward_model(ctx: base.JobContext) -> parts.policy.Picker:

    folder, system = ctx.input("train"), ctx.config.system
    key = ("value", str(folder))
    model = ctx.models.get(key, lambda: parts.load.load_value(folder, system, ctx.device), ctx.loading)
    how: dict[str, Any] = {"micro_batch_size": ctx.config.generation.batch_size, "device": ctx.device}
    how |= {"purpose": "guidance", "hints": ctx.hints}
    return parts.policy.by_score(partial(parts.value.reward_scores, model, **how))


def _majority(ctx: base.JobContext, policy: parts.TextPolicy, dataset: parts.Dataset) -> parts.policy.Picker:

    judge = parts.judge_of(parts.known_rewards(dataset.config), dataset.config)
    if judge is None or judge.traits.answer is None:
        raise errors.JobError(
            f"no reward of this dataset says what an answer is, so there is no majority; "
            f"use algos.{ctx.algo}.selection=reward_model"
        )
    some = dataset.example()  # a template begins the answers to all rows in the same way
    return parts.policy.by_majority(lambda completion: judge.traits.vote(policy.text([completion], [some])[0]))


# -- rm ----------------------------------------------------------------------------------------------------------
# A reward model for its own sake. Its policy is the best of n by it, so that tables say what it is worth; how well
# it orders pairs that it was not fitted to is a metric besides.


@dataclass(kw_only=True)
class RMConfig(PickerConfig):
    """A Bradley-Terry reward model, as TRL's RewardTrainer fits it; its policy is the best of n samples by it."""

    pairs: PairSource = PairSource.sampled
    held_out: float = number(0.1, at_least=0, below=1, hint=" (0 fits it to all)")
    """Fraction of prompts to whose pairs the reward model is not fitted. The share of these pairs that it orders
    correctly is the metric `held_out_accuracy`. 0 fits it to all pairs, and measures nothing."""

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Return both completions of each pair that is not held out."""
        whole = super().trained(stage, samples, decided) if self.pairs is PairSource.sampled else 2 * self.epochs
        return whole * (1 - self.held_out)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report prompts of which none would be held out."""
        yield from super().problems(key, config)
        prompts = config.data_collection.prompts_per_round
        if 0 < self.held_out * prompts < 1:
            yield (
                f"{key}.held_out={self.held_out:g}: less than one of data_collection.prompts_per_round={prompts} "
                f"prompts. Set it to {1 / prompts:.2g} or more, or to 0 to fit to all pairs and measure nothing"
            )

    def idle(self, setting: str) -> str:
        """Also report how pairs are decided as unused if the dataset has them."""
        if setting.startswith("preferences.") and self.pairs is PairSource.existing:
            return "with pairs=existing the pairs come from the dataset"
        return super().idle(setting)


class RM(BestOfN):
    """Best of n by a reward model that is fitted to most of the pairs, and tried on the rest of them."""

    name: ClassVar[str] = "RM"
    version: ClassVar[int] = 2
    config_class: ClassVar[type[AlgoConfig]] = RMConfig
    stages: ClassVar[tuple[base.Stage, ...]] = (
        *BestOfN.stages[:2],
        replace(BestOfN.stages[2], scales=True),
        BestOfN.stages[3],
        replace(base.METRICS, reads=(*base.METRICS.reads, base.Read("train"))),
    )

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[base.Stage, ...]:
        """Leave out the generate stage if the dataset has the pairs."""
        assert isinstance(settings, RMConfig)
        return cls.stages if settings.pairs is PairSource.sampled else with_existing(cls.stages)

    def score(self, ctx: base.JobContext) -> None:
        """Score completions and form pairs, or take the dataset's pairs."""
        if ctx.settings(RMConfig).pairs is PairSource.sampled:
            super().score(ctx)
        else:
            named = partial(write_pairs, name=lambda _, prompt: parts.text_id(prompt))
            take_existing(ctx, named)

    def train(self, ctx: base.JobContext) -> None:
        """Fit the reward model to all pairs but those of held-out prompts, and try it on these."""
        algo = ctx.settings(RMConfig)
        folders = base.rounds_to_train_on(ctx, aggregate=algo.aggregate)
        pairs = parts.Sequences.load(folders, parts.PAIRS)
        # Rows may have the same prompt.
        prompts = parts.prompt_ids(pairs) if algo.pairs is PairSource.sampled else pairs.prompts
        apart = parts.value.held_out(prompts, ctx.seed, algo.held_out)
        known = pairs.some(~apart)
        model, about = fit_reward_model(ctx, known, algo.fit, 0)
        scores = _scores(ctx, model, pairs.some(apart), ranks=ctx.ranks)
        _save(ctx, model, ctx.out)
        if not ctx.ranks.is_first:
            return
        untried = None if len(scores) else "no pair is held out, so it is not known how well it orders others"
        note = base.noted(len(known), algo.batch_size, base.tally_of(folders), _FITTED, told=untried)
        accuracy = parts.value.share_preferred(scores)
        fit = {**about, "held_out_pairs": len(scores) // 2, "held_out_accuracy": accuracy}
        whole = {"tokens_trained": about["tokens_trained"], **in_short([fit]), "fits": [fit]}
        (ctx.out / formats.REWARD).write_text(files.json_text(whole) + "\n")
        spent = {"tokens_generated": base.tokens_generated(ctx)}
        (ctx.out / formats.TRAINING).write_text(files.json_text({**about, **note, **spent}) + "\n")
        rows, places = np.unique(prompts[apart][::2], return_inverse=True)
        right = (np.sign(scores[0::2] - scores[1::2]) + 1) / 2
        above, below = (
            np.bincount(places, each, len(rows)).astype(np.float64) for each in (right, np.ones(len(right)))
        )
        write_prompts(ctx.out, PromptMeasures(rows, {formats.HELD_OUT: (above, below)}))

    def metrics(self, ctx: base.JobContext) -> None:
        """Compute the metrics of all evaluated samples, and the accuracy on held-out pairs."""
        tried = None
        if ctx.optional_input(
            "train"
        ):  # pairs are held out of the dataset that it was trained on, not of test sets
            tried = formats.read_input(ctx.input("train"), formats.PROMPTS, lambda path: read_prompts(path.parent))
        parts.write_metrics(ctx, of_training=tried)
