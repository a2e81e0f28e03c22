"""Decide preferences by correctness or scores of two completions, or take the pairs of a dataset.

Shapes: N pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import LARGEST_WEIGHT, Config, Settings, number
from pipeline.errors import JobError
from pipeline.learning.datasets.base import Row, is_text
from pipeline.learning.datasets.chat import as_turns, shared, without_prompt
from pipeline.learning.rewards.traits import Text

if TYPE_CHECKING:
    from pipeline.learning.rewards.scoring import Scored

FIRST, SECOND, UNDECIDED = 1, 0, -1


class Preference(Enum):
    """How a difference of scores becomes a preference."""

    bradley_terry = "bradley_terry"  # drawn with probability sigmoid(beta * difference)
    hard = "hard"  # the higher score wins


class PreferenceSource(Enum):
    """What says which of two completions is preferred."""

    correctness = "correctness"  # the one that is correct while the other is not
    reward = "reward"  # the difference of their scores
    correctness_then_reward = "correctness_then_reward"  # the first, else the second


class Ties(Enum):
    """What happens to a pair whose scores are equal."""

    drop = "drop"  # it says nothing
    coin = "coin"  # a fair draw decides


@dataclass(kw_only=True)
class PreferenceRule(Settings):
    """Which of two completions is preferred."""

    source: PreferenceSource = PreferenceSource.correctness_then_reward
    preference: Preference = Preference.hard
    """How a difference of scores decides."""
    beta: float = number(1.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Slope of the Bradley-Terry draw."""
    ties: Ties = Ties.drop

    def idle(self, setting: str) -> str:
        """Also report the slope as unused if nothing is drawn."""
        if setting == "beta" and self.preference is Preference.hard:
            return "with preference=hard the higher score wins, whatever the difference"
        return super().idle(setting)


@dataclass(kw_only=True)
class PreferenceConfig(PreferenceRule):
    """How pairs among the completions of a prompt are decided, and which of them are kept."""

    pairs_per_prompt: int = number(3, at_least=1, at_most=1_000_000)
    """Decided pairs that are kept of each prompt at most."""
    widest_first: bool = False
    """Keep those with the largest differences of rewards instead of the first ones."""

    def compared(self, group: int, decided: float) -> float:
        """Estimate the completions in kept pairs of a group, if the share `decided` of all pairs is decided."""
        return 2 * min(self.pairs_per_prompt, decided * group * (group - 1) / 2)


def halved_pairs(key: str, batch_size: int, config: Config) -> Iterator[str]:
    """Report odd batch sizes, where both completions of a pair count.

    Args:
        key: Key of the settings with this batch size.
        batch_size: Sequences of a step.
        config: The whole request.
    """
    sizes = {f"{key}.batch_size": batch_size, "training.micro_batch_size": config.training.micro_batch_size}
    for name, size in sizes.items():
        if size % 2:
            yield f"{name}={size}: must be even, since both completions of a pair count"


@dataclass(frozen=True)
class ExistingPair:
    """A pair of a preference dataset.

    Attributes:
        row: Id of the dataset's row.
        prompt: Text or conversation.
        chosen: The preferred answer: text if the prompt is text, otherwise turns.
        rejected: The other answer.
    """

    row: int
    prompt: Text
    chosen: Text
    rejected: Text


def decide(first: Scored, second: Scored, draws: NDArray[np.float64], rule: PreferenceRule) -> NDArray[np.int8]:
    """Decide every pair.

    Args:
        first: Scores of the first completions.
        second: Scores of the second completions.
        draws: Random numbers in (0, 1), shape [N], one per pair, so that a decision depends on no other pair.
        rule: Rule of the decision. By correctness, the difference is 1 if only the first completion is correct,
            and -1 if only the second is. A difference decides by a draw with probability sigmoid(beta *
            difference) (Bradley and Terry 1952), or for the higher score. With `ties=drop` no pair of equal scores
            is kept, so a reward of 0 and 1 gives no coin flips as labels.

    Returns:
        1 if the first is preferred, 0 if the second is, -1 if undecided, shape [N]. A completion for which a
        reward failed is never part of a decided pair.
    """
    difference = _differences(first, second, rule.source)
    decided = _verdicts(difference, draws, rule.preference, rule.beta, rule.ties)
    if rule.source is PreferenceSource.correctness:  # equal correctness decides nothing, and is no tie of scores
        decided = np.where(difference == 0, UNDECIDED, decided)
    failed = [a is not None or b is not None for a, b in zip(first.faults, second.faults, strict=True)]
    return np.where(np.array(failed, bool), UNDECIDED, decided).astype(np.int8)


def _differences(first: Scored, second: Scored, source: PreferenceSource) -> NDArray[np.float64]:
    """Return the lead of the first completion, NaN if unknown; by correctness 1, 0 or -1."""
    scores = first.values - second.values
    if source is PreferenceSource.reward:
        return scores
    right, other = (_correctness(scored) for scored in (first, second))
    by_correctness: NDArray[np.float64] = right - other
    if source is PreferenceSource.correctness:
        return by_correctness
    told = ~np.isnan(by_correctness) & (by_correctness != 0)
    return np.where(told, by_correctness, scores)


def _correctness(scored: Scored) -> NDArray[np.float64]:
    return np.array([np.nan if one is None else float(one) for one in scored.correct], np.float64)


def _verdicts(
    difference: NDArray[np.float64],
    draws: NDArray[np.float64],
    preference: Preference,
    beta: float,
    ties: Ties,
) -> NDArray[np.int8]:
    if preference is Preference.bradley_terry:
        # The logistic function in terms of tanh, which cannot overflow.
        wins = draws < 0.5 * (1 + np.tanh(0.5 * beta * difference))
    else:
        wins = difference > 0
    tied = np.full(len(draws), UNDECIDED, np.int8) if ties is Ties.drop else (draws < 0.5).astype(np.int8)
    decided = np.where(difference == 0, tied, wins.astype(np.int8))
    return np.where(np.isnan(difference), UNDECIDED, decided).astype(np.int8)


def existing_pairs(rows: Sequence[Row]) -> list[ExistingPair]:
    """Return the pairs in the columns ``chosen`` and ``rejected`` of a preference dataset, in TRL's forms.

    If both answers include the prompt, it is removed: the prompt of the row, otherwise their common first turns
    (TRL's implicit prompt). If only the prompt is text, it becomes a user's turn; if only the answers are text,
    they become turns of the assistant. Pairs of equal answers are left out.

    Raises:
        JobError: A row lacks these columns, or they hold something else than text or conversations.
    """
    pairs = [_pair(row) for row in rows]
    return [pair for pair in pairs if pair.chosen != pair.rejected]


def _pair(row: Row) -> ExistingPair:
    missing = [name for name in ("chosen", "rejected") if row.columns.get(name) is None]
    if missing:
        raise JobError(f"row {row.id} has no column '{missing[0]}'; existing pairs need 'chosen' and 'rejected'")
    chosen, rejected = (_checked(row, name) for name in ("chosen", "rejected"))
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise JobError(f"row {row.id}: of 'chosen' and 'rejected' one is text and the other a conversation")
    if isinstance(chosen, str):
        chosen, rejected = (
            each if isinstance(row.prompt, str) else as_turns(each, "assistant") for each in (chosen, rejected)
        )
        return ExistingPair(row.id, row.prompt, *without_prompt(row.prompt, chosen, rejected))
    prompt = as_turns(row.prompt, "user") if row.prompt else chosen[: shared(chosen[:-1], rejected[:-1])]
    return ExistingPair(row.id, prompt, *without_prompt(prompt, chosen, rejected))


def _checked(row: Row, name: str) -> Text:
    value: Any = row.columns[name]
    value = [value] if isinstance(value, dict) else value
    if is_text(value):
        found: Text = value
        return found
    raise JobError(f"row {row.id}: column '{name}' must hold text, or a list of messages with role and content")
