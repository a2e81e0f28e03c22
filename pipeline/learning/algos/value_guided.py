"""Stages shared by value-guided methods. A method adds how data are collected and how values become offsets.

generate    roll in by the current guided policy, cut, roll out by the reference            (per shard)
score       ask rewards, label                                                             (per shard)
train       fit the value model to the labelled tokens
sweep       try further strengths of guidance on the validation split, where asked for         (per shard)
evaluate    sample from the guided policy                                                  (per shard)
metrics     numbers with intervals
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import ClassVar

from pipeline.config.schema import (
    LARGEST_RATE,
    SMALLEST_DIVISOR,
    AlgoConfig,
    Attention,
    Config,
    DType,
    number,
    option,
)
from pipeline.files import json_text
from pipeline.learning.algos import base, dpo, parts, post_training
from pipeline.learning.algos.base import Algorithm, JobContext, Read, Stage, timed
from pipeline.learning.algos.policy_config import LoraSettings
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.rewards.preference import FIRST, SECOND, UNDECIDED, PreferenceRule
from pipeline.outputs.formats import GUIDANCE, SWEEP_SPLIT, TRAINING, GuidanceSettings, Tally, is_key

STRENGTH = "Smaller is stronger (0.1 is strong, 1 is mild), and inf is the reference policy"


@dataclass(kw_only=True)
class ValueAlgoConfig(AlgoConfig):
    """Settings shared by value-guided algorithms."""

    guides: ClassVar[bool] = True

    eta: float = number(0.1, at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, advice=STRENGTH)
    """Guidance strength: the reference's probabilities are multiplied by exp(value / eta). Smaller is stronger
    (0.1 is strong, 1 is mild); inf is the reference policy."""
    head: HeadType = HeadType.q
    learning_rate: float = number(1e-3, above=0, at_most=LARGEST_RATE)
    """Learning rate of the backbone. It is pretrained: a high rate would destroy what it knows before the head can
    use it."""
    head_learning_rate: float | None = number(
        3e-2, above=0, at_most=LARGEST_RATE, hint=", or null for learning_rate"
    )
    """Learning rate of the head, which starts from zero; null uses `learning_rate`. A step changes a value by
    about this rate times the width of the model, so wider models need less: see docs/tuning.md."""
    top_k: int = number(6, at_least=1, at_most=1_000_000)
    """Number of candidates for guidance: the most likely tokens of the reference."""
    min_p: float = number(0.02, at_least=0, below=1)
    """Tokens to which the reference gives less than this probability are no candidates."""
    others: Others = Others.kept
    """Treatment of tokens that are no candidates: `kept` leaves each its probability under the reference,
    `offset_zero` is the rule of the papers' code for maths with one atom, `dropped` never draws one. See
    docs/guidance.md."""
    aggregate: bool = True
    """Train on the data of all rounds so far instead of this round only."""
    warm_start: bool = True
    """Continue from the value model of the previous round."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """Train adapters and the head instead of all weights of the value model; merged when stored."""
    pairs: dpo.PairSource = option(dpo.PairSource.sampled)
    """With `existing` nothing is drawn: the value model learns from whole completions of the dataset, `chosen` as
    the highest reward and `rejected` as the lowest, or `completion` by its `label`."""
    held_out: float = number(0.1, at_least=0, below=1, hint=" (0 trains on all)")
    """Fraction of prompts on which the value model is never trained. Its quality on them is in `training.json`,
    and a note is printed if it is no better than the base rate. 0 trains on all."""

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Return the roll-outs of a prompt, or both of its completions that the dataset has."""
        return super().trained(stage, 2 if self.pairs is dpo.PairSource.existing else samples, decided)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Report a head that the attention implementation does not support."""
        if config.system.attn_impl is Attention.flash_attention_2 and self.head is HeadType.v:
            yield f"{key}.head=v: needs system.attn_impl=sdpa, since flash_attention_2 takes no masks"


class ValueGuidedAlgorithms(Algorithm):
    """Methods that leave the reference unchanged and guide its decoding by a learned value (PITA, QSharp)."""

    version: ClassVar[int] = 4
    config_class: ClassVar[type[AlgoConfig]] = ValueAlgoConfig
    together: ClassVar[int] = 1
    """Number of adjacent sequences that no batch splits."""
    stages: ClassVar[tuple[Stage, ...]] = (
        base.GENERATE,
        base.SCORE,
        Stage(
            "train",
            reads=(base.REFERENCE_TRAIN, Read("train", "previous"), Read("score", "so_far")),
            config=("system", "training", "algo", "model"),
            scales=True,
            saves="value",
            seconds=9.5,
        ),
        Stage(
            "sweep",
            shards="eval",
            reads=(base.REFERENCE_TRAIN, Read("train")),
            config=(*base.TEXT, "evaluation", "algo"),
            only_with="evaluation.etas",
            seconds=1.5,
        ),
        Stage(
            "evaluate",
            shards="eval",
            reads=(base.REFERENCE_TRAIN, Read("train"), Read("sweep")),
            config=(*base.TEXT, "evaluation", "algo"),
            seconds=0.3,
        ),
        replace(base.METRICS, reads=(*base.METRICS.reads, Read("sweep"))),
    )

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[Stage, ...]:
        """Leave out the generate stage if the dataset has the completions."""
        if not isinstance(settings, ValueAlgoConfig) or settings.pairs is dpo.PairSource.sampled:
            return cls.stages
        return dpo.with_existing(cls.stages)

    @abstractmethod
    def offset(self, algo: ValueAlgoConfig) -> parts.Offset:
        """Return the function from value logits to offsets of the reference's log-probabilities."""

    @abstractmethod
    def draw(
        self, ctx: JobContext, dataset: parts.Dataset, roll_in: parts.TextPolicy, reference: parts.TextPolicy
    ) -> parts.Drawn:
        """Draw the completions of one shard, a group for each roll-in; see `Rollouts`."""

    @abstractmethod
    def label(self, ctx: JobContext, groups: parts.Groups) -> parts.Sequences:
        """Return the labelled sequences of one shard, from the rewards of its completions."""

    def tally(self, ctx: JobContext, groups: parts.Groups, labelled: parts.Sequences) -> Tally:
        """Count what became of the draws: how many have no label."""
        count = len(groups.tokens)
        return Tally("completions", count, unscored=count - len(labelled))

    def atoms(self, algo: ValueAlgoConfig) -> int:
        """Return the number of rewards over which the value model has a distribution.

        1 is a single probability.
        """
        return 1

    def rate(self, algo: ValueAlgoConfig) -> float:
        """Return the rate for which splitting a label between atoms preserves E[exp(rate * label)].

        0 preserves the mean.
        """
        return 0.0

    def data(self, ctx: JobContext) -> tuple[Path, ...]:
        """Return the folders of labelled sequences to train on."""
        return base.rounds_to_train_on(ctx, aggregate=ctx.settings(ValueAlgoConfig).aggregate)

    def generate(self, ctx: JobContext) -> None:
        """Draw completions with the current policy; in the first round that is the reference itself."""
        dataset = parts.open_dataset(ctx)
        # Value models read all collected texts.
        reference = parts.opening.reference_policy(ctx, dataset, parts.source.value_context(ctx.config.model))
        previous = ctx.optional_input("train@previous")
        roll_in = reference
        if previous is not None and not math.isinf(ctx.settings(ValueAlgoConfig).eta):
            roll_in = parts.opening.guided_policy(ctx, dataset, previous, self.tilt(ctx.settings(ValueAlgoConfig)))
        self.draw(ctx, dataset, roll_in, reference).save(ctx.out)

    def score(self, ctx: JobContext) -> None:
        """Score and label the drawn completions, or take those of the dataset."""
        if ctx.settings(ValueAlgoConfig).pairs is dpo.PairSource.existing:
            dpo.take_existing(ctx, dpo.write_labelled)
            return
        groups = parts.score_shard(ctx)
        labelled = self.label(ctx, groups)
        labelled.save(ctx.out)
        groups.note(ctx.out, self.tally(ctx, groups, labelled))

    def train(self, ctx: JobContext) -> None:
        """Fit the value model and save it with the reference's tokenizer."""
        algo = ctx.settings(ValueAlgoConfig)
        collected = parts.Sequences.load(self.data(ctx))
        apart = parts.value.held_out(collected.prompts, ctx.seed, algo.held_out)
        data = collected.some(~apart)
        model = self._start(ctx)
        merge = parts.lora.add_adapters(model.backbone, algo.lora, seed=ctx.seed * 1000 + ctx.round)
        fitting = replace(
            post_training.fitting_of(ctx, "value", algo.batch_size, algo.epochs, algo.learning_rate),
            head_learning_rate=algo.head_learning_rate,
        )
        losses = parts.value.fit_value(model, data, fitting, rate=self.rate(algo), group=self.together)
        calibration = parts.value.calibrate(model, collected.some(apart), fitting, rate=self.rate(algo))
        ctx.ranks.gather(model)
        if not ctx.ranks.is_first:
            return
        merge()
        parts.save_model(model, ctx.out)
        parts.load.save_tokenizer(parts.opening.reference_tokenizer(ctx), ctx.out)
        about = {
            "tokens_generated": base.tokens_generated(ctx),
            "tokens_trained": int(data.lengths.sum()) * algo.epochs + self.spent_before(ctx),
            "sequences": len(data),
            "mean_label": float(data.labels.mean()) if len(data) else None,
            **self.told_before(ctx),
            "calibration": None if calibration is None else asdict(calibration),
            **base.noted(
                len(data),
                algo.batch_size,
                base.tally_of(base.rounds_to_train_on(ctx, aggregate=algo.aggregate)),
                calibration=calibration,
            ),
        }
        (ctx.out / TRAINING).write_text(json_text({**about, "loss": losses}) + "\n")
        used = asdict(self.guidance(ctx.algo, algo, ctx.input("reference.train").name))
        (ctx.out / GUIDANCE).write_text(json_text(used) + "\n")

    def sweep(self, ctx: JobContext) -> None:
        """Sample from the guided policy at several strengths, on prompts that are in no reported result."""
        dataset, algo, drawn = parts.open_dataset(ctx), ctx.settings(ValueAlgoConfig), (0, 0)
        strengths = parts.evaluating.strengths(algo.eta, ctx.config.evaluation.etas)
        each = parts.opening.held_out_count(ctx, dataset, SWEEP_SPLIT) * ctx.config.evaluation.num_samples
        for name, eta in strengths.items():
            folder = ctx.out / name
            folder.mkdir()
            policy = self._policy(ctx, dataset, replace(algo, eta=eta))
            drawn = parts.evaluate(
                ctx, policy, dataset, folder, split=SWEEP_SPLIT, before=drawn, total=each * len(strengths)
            )

    def evaluate(self, ctx: JobContext) -> None:
        """Sample from the guided policy, at the best strength of the sweep if there was one.

        With eta=inf that is the reference, and no value model is loaded.
        """
        dataset, algo = parts.open_dataset(ctx), ctx.settings(ValueAlgoConfig)
        best = parts.evaluating.chosen(parts.evaluating.swept(ctx), ctx.config.evaluation)
        if best is not None:
            algo = replace(algo, eta=parts.evaluating.strengths(algo.eta, ctx.config.evaluation.etas)[best])
        parts.evaluate(ctx, self._policy(ctx, dataset, algo), dataset, ctx.out)

    def _policy(self, ctx: JobContext, dataset: parts.Dataset, algo: ValueAlgoConfig) -> parts.TextPolicy:

        if math.isinf(algo.eta):
            return parts.opening.reference_policy(ctx, dataset)
        return parts.opening.guided_policy(ctx, dataset, ctx.input("train"), self.tilt(algo))

    def metrics(self, ctx: JobContext) -> None:
        """Compute the metrics of all evaluated samples."""
        parts.write_metrics(ctx)

    def tilt(self, algo: ValueAlgoConfig) -> parts.Tilt:
        """Return the settings of guidance."""
        return parts.Tilt(self.offset(algo), top_k=algo.top_k, min_p=algo.min_p, others=algo.others)

    def guidance(self, name: str, algo: ValueAlgoConfig, reference: str) -> GuidanceSettings:
        """Return what is saved beside a value model, so that it can be used without its run.

        Args:
            name: Name of the algorithm in its run.
            algo: Its settings.
            reference: Key of the reference, which names its stored output.
        """
        tilt = self.tilt(algo)
        return GuidanceSettings(
            algo=name,
            eta=None if math.isinf(algo.eta) else algo.eta,
            offset=tilt.offset.rule if isinstance(tilt.offset, parts.KnownOffset) else None,
            top_k=tilt.top_k,
            min_p=tilt.min_p,
            others=tilt.others.name,
            reference=reference if is_key(reference) else None,
        )

    def _start(self, ctx: JobContext) -> parts.ValueModel:
        """Return the value model that training starts from: last round's, or a new one.

        It is never a cached one.
        """
        algo, previous = ctx.settings(ValueAlgoConfig), ctx.optional_input("train@previous")
        if previous is None or not algo.warm_start:
            return parts.opening.fresh_value_model(ctx, algo.head, self.atoms(algo))
        with ctx.loading():
            # Optimizer steps are too small for bfloat16, so weights are trained in float32.
            model = parts.load.load_value(
                previous, replace(ctx.config.system, dtype=DType.float32), ctx.first_device
            )
        model.to(ctx.first_device)  # type: ignore[arg-type]
        model.requires_grad_(True)
        return model


# -- pita --------------------------------------------------------------------------------------------------------
# PITA (Bobbili et al., arXiv 2507.20067): guidance learnt from preferences, without a reward model. For each
# prompt the current guided policy writes a response, a cut is drawn, and the reference completes the prefix before
# it twice, once greedily and once by sampling. The tokens of the preferred completion are labelled 1, those of the
# other 0; the value's logit is then the log-odds of being preferred, which is the offset that guidance needs.


class Pairing(Enum):
    """How PITA draws the two completions to compare."""

    greedy = "greedy"  # one greedy, one sampled
    sampled = "sampled"  # two sampled


@dataclass(kw_only=True)
class PITAConfig(PreferenceRule, ValueAlgoConfig):
    """Guidance by a value that is learnt from preferences, without a reward model (arXiv 2507.20067)."""

    eta: float = number(1.0, at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, advice=STRENGTH)
    batch_size: int = number(64, at_least=1, at_most=1_000_000)
    pairing: Pairing = Pairing.greedy

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Return both completions of each pair with a preference."""
        one = super().trained(stage, samples, decided)
        return one if self.pairs is dpo.PairSource.existing else 2 * decided * one

    def idle(self, setting: str) -> str:
        """Also report how pairs are drawn and decided as unused if the dataset has them."""
        drawing = ("pairing", "source", "preference", "beta", "ties")
        if setting in drawing and self.pairs is dpo.PairSource.existing:
            return "with pairs=existing the pairs come from the dataset"
        return super().idle(setting)


class PITA(ValueGuidedAlgorithms):
    """PITA, trained on both completions; the offset z / eta is never clamped."""

    name: ClassVar[str] = "PITA"
    config_class: ClassVar[type[AlgoConfig]] = PITAConfig
    stages: ClassVar[tuple[Stage, ...]] = timed(ValueGuidedAlgorithms.stages, generate=0.5, train=4.5)

    def offset(self, algo: ValueAlgoConfig) -> parts.Offset:
        """Return the function for the log-odds of being preferred."""
        return parts.sampling.preference_offset(algo.eta)

    def draw(
        self, ctx: JobContext, dataset: parts.Dataset, roll_in: parts.TextPolicy, reference: parts.TextPolicy
    ) -> parts.Drawn:
        """Draw two completions from every cut."""
        greedy_first = ctx.settings(PITAConfig).pairing is Pairing.greedy
        return parts.Rollouts(ctx, dataset, roll_in, finishes=2).pairs(reference, greedy_first=greedy_first)

    def label(self, ctx: JobContext, groups: parts.Groups) -> parts.Sequences:
        """Label preferred completions 1 and the others 0; pairs without a preference are left out."""
        decided = groups.decided(ctx.settings(PITAConfig)).repeat(2)
        places = [place for place, one in enumerate(decided) if one != UNDECIDED]
        return groups.sequences(places, [float(decided[place] == (FIRST, SECOND)[place % 2]) for place in places])

    def tally(self, ctx: JobContext, groups: parts.Groups, labelled: parts.Sequences) -> Tally:
        """Count the pairs."""
        return groups.pair_tally(ctx.settings(PITAConfig))
