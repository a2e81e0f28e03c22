"""Q# (Zhou et al., arXiv 2502.20548): guide decoding with a learned value of the reference's future reward.

For each prompt the current guided policy writes a response, a cut is drawn uniformly over its tokens, and the
reference writes the rest again. The tokens from the cut on are labelled with the reward of the whole text; the
tokens before are context only, since the value is that of the reference's continuations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import LARGEST_RATE, LARGEST_WEIGHT, SMALLEST_DIVISOR, AlgoConfig, Config, number
from pipeline.errors import JobError
from pipeline.learning.algos import parts, value_guided
from pipeline.learning.algos.base import JobContext, Read, Stage, timed
from pipeline.learning.algos.dpo import PairSource
from pipeline.learning.algos.reward_stage import REWARD, LearnsReward, RewardModelConfig, cross_fitted
from pipeline.learning.choices import SMALLEST_STEP, Others
from pipeline.learning.rewards.preference import UNDECIDED, PreferenceConfig
from pipeline.outputs.formats import Tally

MOST_GRID_ERROR = 0.1
"""Largest error in nats: odds off by a tenth, less than the difference between two fits of one value model."""
LARGEST_ATOMS = 10_000
_PLACES = 64
"""Number of places between two atoms to check."""


@dataclass(kw_only=True)
class QSharpConfig(value_guided.ValueAlgoConfig):
    """Guidance by a learned value: the reward that the reference would still get (arXiv 2502.20548)."""

    atoms: int = number(1, at_least=1, at_most=LARGEST_ATOMS, hint=" (1 is a single probability)")
    """Number of atoms (evenly spaced rewards) whose probabilities the head predicts; 1 is the Bernoulli head, a
    single probability of the highest reward."""
    value_min: float = number(0.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Lowest reward."""
    value_max: float = number(1.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Highest reward."""

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report an empty range, and rewards that the atoms cannot express."""
        yield from super().problems(key, config)
        if not self.value_min < self.value_max:
            yield f"{key}.value_min={self.value_min} must be below {key}.value_max={self.value_max}"
        else:
            yield from self.inexact(key, config.evaluation.etas)

    def inexact(self, key: str, etas: Sequence[float]) -> Iterator[str]:
        """Report strengths that the atoms cannot express: labels are split between atoms for one eta only.

        Args:
            key: Key of the settings.
            etas: Further strengths that the request asks for.
        """
        if self.atoms == 1:
            if self.others is Others.offset_zero and self.value_min:
                yield (
                    f"{key}.atoms=1: must be 2 or more with {key}.others=offset_zero and {key}.value_min="
                    f"{self.value_min:g}, of which a single probability does not know the level"
                )
            return
        width = self.value_max - self.value_min
        errors = {eta: grid_error(self.atoms, width / self.eta, width / eta) for eta in etas}
        wrong = [f"{eta:g} ({error:.2f} nats)" for eta, error in errors.items() if error > MOST_GRID_ERROR]
        if wrong:
            yield (
                f"evaluation.etas: {', '.join(wrong)} must be nearer to {key}.eta={self.eta:g}, or {key}.atoms="
                f"{self.atoms} more: between two atoms rewards are off by above {MOST_GRID_ERROR} nats there"
            )


ATOMS = 11
"""Default number of atoms for graded rewards."""
_ROUNDING = 1e-6
"""Tolerance as a fraction of the range: a reward this close to an end counts as that end."""


class QSharp(value_guided.ValueGuidedAlgorithms):
    """Q# with a distribution over n rewards, or its Bernoulli case with two; the offset is log E[exp(R / eta)]."""

    name: ClassVar[str] = "QSharp"
    version: ClassVar[int] = 2
    config_class: ClassVar[type[AlgoConfig]] = QSharpConfig
    soft: ClassVar[bool] = True
    """Whether the offset is log E[exp(R / eta)], for which the mean of a reward is not enough."""

    def offset(self, algo: value_guided.ValueAlgoConfig) -> parts.Offset:
        """Return the function for the soft value of the future rewards."""
        assert isinstance(algo, QSharpConfig)
        if algo.atoms > 1:
            return parts.sampling.atoms_offset(atom_rewards(algo), algo.eta)
        # The lowest reward would add the same constant to every offset, which changes nothing. It would for tokens
        # of offset 0, so requests with a lowest reward other than 0 are refused there.
        return parts.sampling.bernoulli_offset(algo.eta, algo.value_min, algo.value_max)

    def atoms(self, algo: value_guided.ValueAlgoConfig) -> int:
        """Return the number of atoms from the settings."""
        assert isinstance(algo, QSharpConfig)
        return algo.atoms

    def rate(self, algo: value_guided.ValueAlgoConfig) -> float:
        """Return 1/eta on the reward range, so that a reward between two atoms keeps its soft value."""
        assert isinstance(algo, QSharpConfig)
        return (algo.value_max - algo.value_min) / algo.eta if self.soft else 0.0

    def draw(
        self, ctx: JobContext, dataset: parts.Dataset, roll_in: parts.TextPolicy, reference: parts.TextPolicy
    ) -> parts.Drawn:
        """Draw one roll-out per roll-in."""
        rollouts = parts.Rollouts(ctx, dataset, roll_in, finishes=1)
        # The cut is the last token of the prefix; it is labelled too, as its value was just sampled.
        cuts = rollouts.cut()
        prefixes = [tokens[: cut + 1] for tokens, cut in zip(rollouts.tokens, cuts, strict=True)]
        return rollouts.drawn(reference, [rollouts.finish(reference, prefixes, "roll_out")], cuts)

    def label(self, ctx: JobContext, groups: parts.Groups) -> parts.Sequences:
        """Label every roll-out with its reward; those without a reward are left out."""
        rewards = groups.scored.values
        kept = np.flatnonzero(~np.isnan(rewards))
        return groups.sequences(kept.tolist(), self.labels(ctx, rewards[kept]).tolist())

    def labels(self, ctx: JobContext, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rewards scaled to 0 to 1, the targets of the value model.

        Raises:
            JobError: A reward is outside of the range in the settings, or inside it where a single probability
                cannot express it.
        """
        algo = ctx.settings(QSharpConfig)
        low, high = algo.value_min, algo.value_max
        odd = rewards[(rewards < low) | (rewards > high)]
        if len(odd):
            raise JobError(
                f"a reward of {odd[0]:g} is outside of algos.{ctx.algo}.value_min={low:g} and value_max={high:g}. "
                "Set these to what the reward can give"
            )
        labels = (rewards - low) / (high - low)
        within = rewards[np.minimum(labels, 1 - labels) > _ROUNDING]
        if len(within) and algo.atoms == 1 and self.soft:
            key = f"algos.{ctx.algo}.atoms"
            raise JobError(
                f"a reward of {within[0]:g} lies between the lowest and the highest, and {key}=1 is a single "
                f"probability of the highest, which knows no E[exp(R / eta)]. Set {key}={ATOMS}, or more"
            )
        return labels


def atom_rewards(algo: QSharpConfig) -> list[float]:
    """Return the rewards of the atoms, evenly spaced over the range."""
    step = (algo.value_max - algo.value_min) / (algo.atoms - 1)
    return [algo.value_min + step * place for place in range(algo.atoms)]


# -- cd ----------------------------------------------------------------------------------------------------------
# CD, the baseline in the paper of Q#: guidance by the expected reward. It collects the same data and fits the same
# value model as Q#; only the offset differs. Q# adds log E[exp(R / eta)], which is optimal for the KL-regularised
# objective; CD adds E[R] / eta, which is smaller by Jensen's inequality. It corresponds to CD-FUDGE of controlled
# decoding (Mudgal et al., arXiv 2310.17022), except for the cross-entropy loss and the roll-ins of the guided
# policy. Their CD-Q bootstraps from the value of the next token, and their blockwise variant picks among drawn
# blocks.


@dataclass(kw_only=True)
class CDConfig(QSharpConfig):
    """Guidance by the mean reward, the baseline in Q#'s paper (after arXiv 2310.17022)."""

    def inexact(self, key: str, etas: Sequence[float]) -> Iterator[str]:
        """Report nothing: any atoms express a mean."""
        yield from ()


class CD(QSharp):
    """Q# with the expected reward instead of the soft value: the baseline in Q#'s paper."""

    name: ClassVar[str] = "CD"
    config_class: ClassVar[type[AlgoConfig]] = CDConfig
    soft: ClassVar[bool] = False

    def offset(self, algo: value_guided.ValueAlgoConfig) -> parts.Offset:
        """Return the function for the expected reward divided by eta."""
        assert isinstance(algo, QSharpConfig)
        if algo.atoms > 1:
            return parts.sampling.expected_atoms_offset(atom_rewards(algo), algo.eta)
        return parts.sampling.expected_offset(algo.eta, algo.value_min, algo.value_max)


# -- qsharp hf ---------------------------------------------------------------------------------------------------
# Q#-HF: Q# on a reward that is learnt from preferences. From every cut the reference completes the response twice.
# Bradley-Terry reward models are fitted to the preferences between the two, each scores the texts of prompts that
# it has not seen, and Q# learns from the standardised scores. No other reward is used after the stage `score`.


@dataclass(kw_only=True)
class QSharpHFConfig(QSharpConfig):
    """Q# on a reward that is learnt from preferences and standardised."""

    batch_size: int = number(256, at_least=1, at_most=1_000_000)
    learning_rate: float = number(1.2e-3, above=0, at_most=LARGEST_RATE)
    head_learning_rate: float | None = number(
        4.5e-2, above=0, at_most=LARGEST_RATE, hint=", or null for learning_rate"
    )
    epochs: int = number(3, at_least=1, at_most=1_000_000)
    eta: float = number(0.2, at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, advice=value_guided.STRENGTH)
    atoms: int = number(11, at_least=1, at_most=LARGEST_ATOMS, hint=" (1 is a single probability)")
    value_min: float = number(-2.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Lower bound in standard deviations of the learnt reward; smaller rewards are clipped."""
    value_max: float = number(2.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Upper bound in standard deviations of the learnt reward; larger rewards are clipped."""
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    reward_model: RewardModelConfig = field(default_factory=lambda: RewardModelConfig(learning_rate=3.3e-4))

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Count two roll-outs per roll-in, which form a pair for the reward model."""
        if stage == REWARD.name:
            return self.reward_model.trained(samples * self.preferences.compared(2, decided))
        return 2 * super().trained(stage, samples, decided)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report a Bernoulli head for a learnt reward, and pairs that are not drawn."""
        yield from super().problems(key, config)
        if self.pairs is PairSource.existing:
            yield f"{key}.pairs=existing: must be sampled, as its reward model reads roll-outs. Use QSharp"
        if self.atoms == 1:
            yield f"{key}.atoms=1: must be 2 or more, as a learnt reward has any value, for example 11"


class QSharpHF(LearnsReward, QSharp):
    """Q# with one more stage, which labels its data by a learnt reward."""

    name: ClassVar[str] = "QSharp-HF"
    config_class: ClassVar[type[AlgoConfig]] = QSharpHFConfig
    stages: ClassVar[tuple[Stage, ...]] = (
        *timed([*QSharp.stages[:2], REWARD], generate=0.5, reward=5.0),
        replace(QSharp.stages[2], reads=(*QSharp.stages[2].reads, Read("reward")), seconds=19.0),
        *QSharp.stages[3:],
    )

    def draw(
        self, ctx: JobContext, dataset: parts.Dataset, roll_in: parts.TextPolicy, reference: parts.TextPolicy
    ) -> parts.Drawn:
        """Draw two roll-outs per roll-in."""
        return parts.Rollouts(ctx, dataset, roll_in, finishes=2).pairs(reference)

    def label(self, ctx: JobContext, groups: parts.Groups) -> parts.Sequences:
        """Return all roll-outs without labels; also write the pairs that have a preference."""
        told = enumerate(groups.decided(ctx.settings(QSharpHFConfig).preferences).tolist())
        places = [2 * index + side for index, one in told if one != UNDECIDED for side in (1 - one, one)]
        pairs = zip(places[::2], places[1::2], strict=True)
        kept = [place for pair in pairs if groups.tokens[pair[0]] != groups.tokens[pair[1]] for place in pair]
        groups.uncut().sequences(kept, [1.0, 0.0] * (len(kept) // 2)).save(ctx.out, parts.PAIRS)
        return groups.sequences(range(len(groups.tokens)), [0.0] * len(groups.tokens))

    def tally(self, ctx: JobContext, groups: parts.Groups, labelled: parts.Sequences) -> Tally:
        """Count the pairs."""
        return groups.pair_tally(ctx.settings(QSharpHFConfig).preferences)

    def reward(self, ctx: JobContext) -> None:
        """Fit the reward models, and label every roll-out with the model that has not seen its prompt."""
        algo = ctx.settings(QSharpHFConfig)
        folders = super().data(ctx)
        data = parts.Sequences.load(folders)
        rewards = cross_fitted(ctx, folders, data, algo.reward_model).clip(algo.value_min, algo.value_max)
        replace(data, labels=self.labels(ctx, rewards).astype("float32")).save(ctx.out)

    def data(self, ctx: JobContext) -> tuple[Path, ...]:
        """Return the folders of roll-outs with the labels of the reward stage."""
        return ctx.inputs["reward"]


# -- atoms -------------------------------------------------------------------------------------------------------
# Error of a grid of atoms at another strength than its labels were made for. A label on [0, 1] is split between
# its two neighbouring atoms so that E[exp(rate * label)] is preserved, where the rate is the reward range over eta
# (`training.value.atom_weights`). At another rate it is only approximately preserved. For any distribution of
# rewards the error is at most that of the worst single reward.


def grid_error(count: int, rate: float, other: float) -> float:
    """Return the largest error of ``log E[exp(other * label)]``, in nats.

    Args:
        count: Number of atoms, at least 2.
        rate: Rate for which labels were split.
        other: Rate that is asked for.
    """
    made, asked = rate / (count - 1), other / (count - 1)
    upper = share = np.arange(1, _PLACES) / _PLACES
    if made >= SMALLEST_STEP:
        upper = np.exp((share - 1) * made) * np.expm1(-share * made) / np.expm1(-made)
    # log(1 - upper + upper * exp(asked)) - share * asked, in a form that cannot overflow.
    return float(np.abs((1 - share) * asked + np.log(upper + (1 - upper) * np.exp(-asked))).max())
