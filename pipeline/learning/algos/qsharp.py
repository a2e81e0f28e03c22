"""Q# (Zhou et al., arXiv 2502.20548): a value of the reference's own future reward guides its decoding.

Per prompt: a response by the current guided policy, a cut drawn uniformly over its tokens, the rest by the
reference, the reward of the whole text. The tokens from the cut on are labelled with it; what the guided policy
wrote before is context only, since the value is that of the reference's continuations.
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
from pipeline.learning.algos import toolbox, value_guided
from pipeline.learning.algos.base import JobContext, Read, Stage, timed
from pipeline.learning.algos.reward_stage import REWARD, LearnsReward, RewardModelConfig, cross_fitted
from pipeline.learning.choices import SMALLEST_STEP, Others
from pipeline.learning.rewards.preference import UNDECIDED, PreferenceConfig
from pipeline.outputs.formats import Tally

MOST_GRID_ERROR = 0.1
"""Nats: odds that are off by a tenth, less than by what two fits of one value model differ."""
LARGEST_ATOMS = 10_000
_PLACES = 64
"""Places between two atoms that are looked at."""


@dataclass(kw_only=True)
class QSharpConfig(value_guided.ValueAlgoConfig):
    """Guidance by a learnt value of the reward that the reference still gets (arXiv 2502.20548)."""

    atoms: int = number(1, at_least=1, at_most=LARGEST_ATOMS, hint=" (1 is a single probability)")
    """Values at which the head has a probability each, evenly spaced over the range; 1 is the Bernoulli head, a
    single probability of the highest value."""
    value_min: float = number(0.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Lowest reward."""
    value_max: float = number(1.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Highest reward."""

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also a range without a width, and what the atoms cannot express."""
        yield from super().problems(key, config)
        if not self.value_min < self.value_max:
            yield f"{key}.value_min={self.value_min} must be below {key}.value_max={self.value_max}"
        else:
            yield from self.inexact(key, config.evaluation.etas)

    def inexact(self, key: str, etas: Sequence[float]) -> Iterator[str]:
        """What the atoms cannot express: labels are split between them for the one eta that is trained with.

        Args:
            key: Where the settings stand.
            etas: Further strengths that are asked for.
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
"""Of a distribution over graded rewards, where nothing else is known."""
_ROUNDING = 1e-6
"""Of the range: a reward so near to one of its ends is that end."""


class QSharp(value_guided.ValueGuidedAlgorithms):
    """Q# with a distribution over n rewards, or its Bernoulli case with two; offset log E[exp(R / eta)]."""

    name: ClassVar[str] = "QSharp"
    version: ClassVar[int] = 2
    config_class: ClassVar[type[AlgoConfig]] = QSharpConfig
    soft: ClassVar[bool] = True
    """Whether the tilt is an expectation of exp(R / eta), for which the mean of a reward is not enough."""

    def offset(self, algo: value_guided.ValueAlgoConfig) -> toolbox.Offset:
        """The soft value of the rewards that are to come."""
        assert isinstance(algo, QSharpConfig)
        if algo.atoms > 1:
            return toolbox.sampling.atoms_offset(atom_rewards(algo), algo.eta)
        # The lowest reward is in every offset alike, and adding a constant changes nothing: where it would, for
        # tokens of offset 0, requests with another lowest reward than 0 are refused.
        return toolbox.sampling.bernoulli_offset(algo.eta, algo.value_min, algo.value_max)

    def atoms(self, algo: value_guided.ValueAlgoConfig) -> int:
        """As the settings say."""
        assert isinstance(algo, QSharpConfig)
        return algo.atoms

    def rate(self, algo: value_guided.ValueAlgoConfig) -> float:
        """That of the tilt, so that a reward between two atoms is tilted by as if it were one."""
        assert isinstance(algo, QSharpConfig)
        return (algo.value_max - algo.value_min) / algo.eta if self.soft else 0.0

    def draw(
        self, ctx: JobContext, dataset: toolbox.Dataset, roll_in: toolbox.TextPolicy, reference: toolbox.TextPolicy
    ) -> toolbox.Drawn:
        """One roll-out per roll-in."""
        rollouts = toolbox.Rollouts(ctx, dataset, roll_in, finishes=1)
        # The cut is the last token of the prefix; it is labelled too, as its value was just sampled.
        cuts = rollouts.cut()
        prefixes = [tokens[: cut + 1] for tokens, cut in zip(rollouts.tokens, cuts, strict=True)]
        return rollouts.drawn(reference, [rollouts.finish(reference, prefixes, "roll_out")], cuts)

    def label(self, ctx: JobContext, groups: toolbox.Groups) -> toolbox.Sequences:
        """Every roll-out with its reward; those without one are left out."""
        rewards = groups.scored.values
        kept = np.flatnonzero(~np.isnan(rewards))
        return groups.sequences(kept.tolist(), self.labels(ctx, rewards[kept]).tolist())

    def labels(self, ctx: JobContext, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rewards on the scale from 0 to 1, which the value model is trained on.

        Raises:
            JobError: A reward is outside of the range that the settings give, or within it where a single
                probability could not express it.
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
    """The rewards of the atoms, evenly spaced over the range."""
    step = (algo.value_max - algo.value_min) / (algo.atoms - 1)
    return [algo.value_min + step * place for place in range(algo.atoms)]


# -- cd ----------------------------------------------------------------------------------------------------------
# CD as the paper of Q# has it for a baseline: guidance by the expected reward. It collects the same data and
# fits the same value model as Q#; only the tilt differs. Q# adds log E[exp(R / eta)], which is optimal for
# the KL-regularised objective; CD adds E[R] / eta, which Jensen's inequality makes the smaller. Of controlled
# decoding (Mudgal et al., arXiv 2310.17022) it is CD-FUDGE, but for cross-entropy and texts that the guided
# policy rolls in. CD-Q bootstraps from the value of the next token, and the blockwise variant picks among
# drawn blocks.


@dataclass(kw_only=True)
class CDConfig(QSharpConfig):
    """Guidance by the mean reward, the baseline of Q#'s paper (after arXiv 2310.17022)."""

    def inexact(self, key: str, etas: Sequence[float]) -> Iterator[str]:
        """Nothing: any atoms express a mean."""
        yield from ()


class CD(QSharp):
    """Q# with the expectation in the place of the soft value: the baseline of Q#'s paper."""

    name: ClassVar[str] = "CD"
    config_class: ClassVar[type[AlgoConfig]] = CDConfig
    soft: ClassVar[bool] = False

    def offset(self, algo: value_guided.ValueAlgoConfig) -> toolbox.Offset:
        """The expected reward over eta."""
        assert isinstance(algo, QSharpConfig)
        if algo.atoms > 1:
            return toolbox.sampling.expected_atoms_offset(atom_rewards(algo), algo.eta)
        return toolbox.sampling.expected_offset(algo.eta, algo.value_min, algo.value_max)


# -- qsharp hf ---------------------------------------------------------------------------------------------------
# Q#-HF: Q# on a reward that is learnt from preferences. From every cut the reference completes the response
# twice. Bradley-Terry reward models are fitted to the preferences between the two, each scores the texts of
# prompts that it has not seen, and the standardised scores are the labels that Q# learns from. After the
# stage `score` no other reward is looked at.


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
    """In standard deviations of the learnt reward; what lies outside is clipped."""
    value_max: float = number(2.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Likewise, in standard deviations of the learnt reward."""
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    reward_model: RewardModelConfig = field(default_factory=lambda: RewardModelConfig(learning_rate=3.3e-4))

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Two roll-outs of each roll-in, which are a pair for the reward model."""
        if stage == REWARD.name:
            return self.reward_model.trained(samples * self.preferences.compared(2, decided))
        return 2 * super().trained(stage, samples, decided)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also a single probability for a learnt reward."""
        yield from super().problems(key, config)
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
        self, ctx: JobContext, dataset: toolbox.Dataset, roll_in: toolbox.TextPolicy, reference: toolbox.TextPolicy
    ) -> toolbox.Drawn:
        """Two roll-outs per roll-in."""
        return toolbox.Rollouts(ctx, dataset, roll_in, finishes=2).pairs(reference)

    def label(self, ctx: JobContext, groups: toolbox.Groups) -> toolbox.Sequences:
        """All roll-outs, still without labels; and the pairs that can be decided."""
        told = enumerate(groups.decided(ctx.settings(QSharpHFConfig).preferences).tolist())
        places = [2 * index + side for index, one in told if one != UNDECIDED for side in (1 - one, one)]
        pairs = zip(places[::2], places[1::2], strict=True)
        kept = [place for pair in pairs if groups.tokens[pair[0]] != groups.tokens[pair[1]] for place in pair]
        groups.uncut().sequences(kept, [1.0, 0.0] * (len(kept) // 2)).save(ctx.out, toolbox.PAIRS)
        return groups.sequences(range(len(groups.tokens)), [0.0] * len(groups.tokens))

    def tally(self, ctx: JobContext, groups: toolbox.Groups, labelled: toolbox.Sequences) -> Tally:
        """Of pairs."""
        return groups.pair_tally(ctx.settings(QSharpHFConfig).preferences)

    def reward(self, ctx: JobContext) -> None:
        """Fit the reward models and label every roll-out by the one that has not seen its prompt."""
        algo = ctx.settings(QSharpHFConfig)
        folders = super().data(ctx)
        data = toolbox.Sequences.load(folders)
        rewards = cross_fitted(ctx, folders, data, algo.reward_model).clip(algo.value_min, algo.value_max)
        replace(data, labels=self.labels(ctx, rewards).astype("float32")).save(ctx.out)

    def data(self, ctx: JobContext) -> tuple[Path, ...]:
        """The roll-outs as the reward stage has labelled them."""
        return ctx.inputs["reward"]


# -- atoms -------------------------------------------------------------------------------------------------------
# How far a grid of atoms is off where it is used at another strength than it was made for. A label on [0, 1] is
# split between the two atoms beside it so that E[exp(rate * label)] is kept, the rate being the width of the range
# of rewards over eta (`training.value.atom_weights`). At another rate what is kept is not what is asked for. The
# error for any distribution of rewards is at most that for the worst single reward.


def grid_error(count: int, rate: float, other: float) -> float:
    """The largest error of ``log E[exp(other * label)]``, in nats.

    Args:
        count: Atoms, at least 2.
        rate: What labels were split for.
        other: What is asked for.
    """
    made, asked = rate / (count - 1), other / (count - 1)
    upper = share = np.arange(1, _PLACES) / _PLACES
    if made >= SMALLEST_STEP:
        upper = np.exp((share - 1) * made) * np.expm1(-share * made) / np.expm1(-made)
    # log(1 - upper + upper * exp(asked)) - share * asked, which cannot overflow in this form.
    return float(np.abs((1 - share) * asked + np.log(upper + (1 - upper) * np.exp(-asked))).max())
