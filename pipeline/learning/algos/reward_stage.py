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
from pipeline.learning.algos import base, toolbox
from pipeline.learning.algos.policy_config import too_few
from pipeline.learning.algos.post_training import EVALUATE, fitting_of, groups_drawn
from pipeline.learning.choices import HeadType
from pipeline.learning.rewards.preference import PreferenceConfig, halved_pairs
from pipeline.outputs import formats


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
    pairs: toolbox.Sequences,
    settings: RewardModelConfig,
    fold: int | None = None,
    tokens: int = 0,
) -> tuple[toolbox.ValueModel, dict[str, Any]]:
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

    model = toolbox.opening.fresh_value_model(ctx, HeadType.v)
    fitting = fitting if fold is None else replace(fitting, on_step=on_step)
    losses = toolbox.value.fit_reward_model(model, pairs, fitting)
    trained = toolbox.trained_tokens(pairs, settings.epochs)
    return model, {"pairs": len(pairs) // 2, "tokens_trained": trained, "loss": losses}


def _scores(
    ctx: base.JobContext, model: toolbox.ValueModel, data: toolbox.Sequences, **how: Any
) -> NDArray[np.float64]:
    """Return raw scores of sequences, shape [N]."""
    size = ctx.config.training.micro_batch_size
    return toolbox.value.reward_scores(
        model, data, micro_batch_size=size, device=ctx.device, hints=ctx.hints, **how
    )


def _save(ctx: base.JobContext, model: toolbox.ValueModel, folder: Path) -> None:
    """Save a reward model with its tokenizer."""
    folder.mkdir(exist_ok=True)
    toolbox.save_model(model, folder, ctx.ranks)
    if ctx.ranks.is_first:
        toolbox.load.save_tokenizer(toolbox.opening.reference_tokenizer(ctx), folder)


def cross_fitted(
    ctx: base.JobContext, folders: Sequence[Path], data: toolbox.Sequences, settings: RewardModelConfig
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
    pairs = toolbox.Sequences.load(folders, toolbox.PAIRS)
    of_pairs, of_data = toolbox.prompt_folds(pairs.prompts[::2], data.prompts, settings.folds)
    found, fits, tokens = np.zeros(len(data)), [], 0
    for fold in range(settings.folds):
        unseen = np.repeat((of_pairs == fold) & (settings.folds > 1), 2)
        model, about = fit_reward_model(ctx, pairs.some(np.flatnonzero(~unseen)), settings, fold, tokens)
        tokens += about["tokens_trained"]
        places = np.flatnonzero(of_data == fold)
        raw = _scores(ctx, model, data.some(places), ranks=ctx.ranks)
        mean, deviation = toolbox.value.scale_of(raw)
        found[places] = (raw - mean) / deviation
        held_out = _scores(ctx, model, pairs.some(np.flatnonzero(unseen)), ranks=ctx.ranks)
        fits.append(
            {
                **about,
                "held_out_pairs": len(held_out) // 2,
                "held_out_accuracy": toolbox.value.share_preferred(held_out),
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


def fitted_rewards(ctx: base.JobContext, folders: Sequence[Path]) -> toolbox.Judge:
    """Return the reward models of a round as a judge for completions of its prompts that are drawn later.

    As in the stage itself, the model that has not seen a prompt's pairs scores it, and scores are standardised
    with the mean and deviation of that stage.

    Args:
        ctx: Context of the training.
        folders: Outputs with the pairs that the models were fitted to.
    """
    place = ctx.input(REWARD.name)
    fits = formats.read_input(place, formats.REWARD, formats.read_reward_fit).fits
    pairs = toolbox.Sequences.load(folders, toolbox.PAIRS).prompts[::2]
    models = [
        toolbox.load.load_value(place / f"fold_{fold}", ctx.config.system, ctx.device)
        for fold in range(len(fits) if ctx.ranks.is_first else 0)
    ]

    def scored(data: toolbox.Sequences) -> list[float]:
        found = np.zeros(len(data))
        _, folds = toolbox.prompt_folds(pairs, data.prompts, len(fits))
        for fold, (model, fit) in enumerate(zip(models, fits, strict=True)):
            places = np.flatnonzero(folds == fold)
            raw = _scores(ctx, model, data.some(places))
            found[places] = (raw - fit.mean) / fit.deviation
        return found.tolist()

    def judge(
        prompts: Sequence[list[int]], completions: Sequence[list[int]], rows: NDArray[np.int64]
    ) -> toolbox.Scored:
        texts = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        data = toolbox.Sequences.of(texts, [*map(len, prompts)], [0.0] * len(texts), rows.tolist())
        # Only one of the ranks scores: otherwise each would load all models.
        values = np.array(ctx.ranks.made_by_first(lambda: scored(data)))
        unknown = [None] * len(texts)
        return toolbox.Scored(values, {}, unknown, unknown, unknown)

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


@dataclass(kw_only=True)
class BestOfNConfig(AlgoConfig):
    """Best of n samples of the reference; only the selection is trained."""

    num_generations: int = number(4, at_least=1, at_most=100_000)
    """Number of samples to pick from, n."""
    selection: Selection = Selection.reward_model
    aggregate: bool = True
    """Fit the reward model to the data of all rounds so far instead of this round only."""
    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step of the reward model; both completions of a pair count."""
    learning_rate: float = number(1e-3, above=0, at_most=LARGEST_RATE)
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)

    @property
    def trains(self) -> bool:
        """Whether a reward model is trained."""
        return self.selection is Selection.reward_model

    def drawn(self, samples: int) -> float:
        """Return the completions drawn: whole groups."""
        return self.num_generations

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Return both completions of each pair."""
        return self.epochs * self.preferences.compared(self.num_generations, decided) * self.trains

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Report too few samples to pick from, also of greedy decoding, and batch sizes that split pairs."""
        yield from too_few(key, self.num_generations)
        for name in (name for name, one in config.datasets.items() if self.enabled and one.sampling.is_greedy):
            greedy = f"datasets.{name}.sampling.temperature=0 draws one, which leaves nothing to choose from"
            yield f"{key}: {greedy}. Leave one of the two out"
        yield from halved_pairs(key, self.batch_size, config)

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
        assert isinstance(settings, BestOfNConfig)
        return groups_drawn(settings.num_generations)

    def generate(self, ctx: base.JobContext) -> None:
        """Draw completions with the reference."""
        dataset = toolbox.open_dataset(ctx)
        policy = toolbox.opening.reference_policy(ctx, dataset)
        toolbox.draw_groups(ctx, dataset, policy, ctx.settings(BestOfNConfig).num_generations).save(ctx.out)

    def score(self, ctx: base.JobContext) -> None:
        """Score completions and form pairs."""
        groups = toolbox.score_shard(ctx)
        groups.pairs(ctx.settings(BestOfNConfig).preferences).save(ctx.out, toolbox.PAIRS)
        groups.note(ctx.out, groups.tally())

    def train(self, ctx: base.JobContext) -> None:
        """Fit the reward model that picks."""
        algo = ctx.settings(BestOfNConfig)
        spent = {"tokens_generated": base.tokens_generated(ctx)}
        if algo.selection is Selection.majority:
            (ctx.out / formats.TRAINING).write_text(files.json_text({**spent, "tokens_trained": 0}) + "\n")
            return
        settings = RewardModelConfig(
            batch_size=algo.batch_size, epochs=algo.epochs, learning_rate=algo.learning_rate
        )
        folders = base.rounds_to_train_on(ctx, aggregate=algo.aggregate)
        pairs = toolbox.Sequences.load(folders, toolbox.PAIRS)
        model, about = fit_reward_model(ctx, pairs, settings)
        _save(ctx, model, ctx.out)
        if ctx.ranks.is_first:
            note = base.noted(len(pairs), settings.batch_size, base.tally_of(folders), _FITTED)
            (ctx.out / formats.TRAINING).write_text(files.json_text({**about, **note, **spent}) + "\n")

    def evaluate(self, ctx: base.JobContext) -> None:
        """Draw n completions for each that is needed, and pick one."""
        algo, dataset = ctx.settings(BestOfNConfig), toolbox.open_dataset(ctx)
        policy = toolbox.opening.reference_policy(ctx, dataset, kind=toolbox.policy.BestOfNPolicy)
        assert isinstance(policy, toolbox.policy.BestOfNPolicy)
        policy.count = algo.num_generations
        by_majority = algo.selection is Selection.majority
        policy.pick = _majority(ctx, policy, dataset) if by_majority else _reward_model(ctx)
        toolbox.evaluate(ctx, policy, dataset, ctx.out)

    def metrics(self, ctx: base.JobContext) -> None:
        """Compute the metrics of all evaluated samples."""
        toolbox.write_metrics(ctx)


def _reward_model(ctx: base.JobContext) -> toolbox.policy.Picker:

    folder, system = ctx.input("train"), ctx.config.system
    key = ("value", str(folder))
    model = ctx.models.get(key, lambda: toolbox.load.load_value(folder, system, ctx.device), ctx.loading)
    how: dict[str, Any] = {"micro_batch_size": ctx.config.generation.batch_size, "device": ctx.device}
    how |= {"purpose": "guidance", "hints": ctx.hints}
    return toolbox.policy.by_score(partial(toolbox.value.reward_scores, model, **how))


def _majority(ctx: base.JobContext, policy: toolbox.TextPolicy, dataset: toolbox.Dataset) -> toolbox.policy.Picker:

    judge = toolbox.judge_of(toolbox.known_rewards(dataset.config), dataset.config)
    if judge is None or judge.traits.answer is None:
        raise errors.JobError(
            f"no reward of this dataset says what an answer is, so there is no majority; "
            f"use algos.{ctx.algo}.selection=reward_model"
        )
    some = dataset.example()  # a template begins the answers to all rows in the same way
    return toolbox.policy.by_majority(lambda completion: judge.traits.vote(policy.text([completion], [some])[0]))
