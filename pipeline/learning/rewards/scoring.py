"""Scoring completions by the rewards of a dataset: weighted, isolated where they need it, with failures counted.

Scorer --- isolated functions ---> pool of grading processes
       --- other functions    ---> called here
       --- reward models      ---> run here, on the worker's device
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.place import told
from pipeline.config.schema import DatasetConfig
from pipeline.config.tables import REWARD_MODEL
from pipeline.errors import JobError, PipelineError
from pipeline.learning.datasets.base import Row
from pipeline.learning.rewards.calling import Item, arguments, batches, items_of, needed_columns
from pipeline.learning.rewards.pool import FAULTS, Fault, Graded, GraderPool
from pipeline.learning.rewards.registry import LoadedReward, judge_of, load_rewards
from pipeline.learning.rewards.traits import WrongScores, read_scores

log = logging.getLogger("pipeline")

_SCORING_AT_ONCE = (
    ". It is called with many completions at once, as by TRL; if it looks at each alone, put "
    "@reward(RewardTraits(pointwise=True)) above it, and a failure costs one completion"
)


@dataclass(frozen=True)
class Scored:
    """Scores of N completions.

    Attributes:
        values: Weighted sum of the rewards, shape [N]; NaN where none of them applies, or where one failed.
        parts: Each reward by itself and without its weight, shape [N]; NaN as above.
        correct: Whether a completion is right; None where no reward can say so. One that made the reward fail is
            not right.
        answers: What a completion votes for in maj@k; None where the reward that judges cannot tell answers.
        faults: How a reward failed, or None.
        first_fault: What is said of the first one; "" where there is none.
    """

    values: NDArray[np.float64]
    parts: Mapping[str, NDArray[np.float64]]
    correct: Sequence[bool | None]
    answers: Sequence[str | None]
    faults: Sequence[Fault | None]
    first_fault: str = ""

    def some(self, places: Sequence[int] | NDArray[np.int64]) -> Scored:
        """Those of the completions at some places."""
        return Scored(
            values=self.values[places],
            parts={name: part[places] for name, part in self.parts.items()},
            correct=[self.correct[place] for place in places],
            answers=[self.answers[place] for place in places],
            faults=[self.faults[place] for place in places],
        )


class Scorer:
    """The rewards of a dataset, ready to be called; to be kept, as it holds models and processes."""

    def __init__(self, dataset: DatasetConfig, device: str = "cpu", hints: Path | None = None) -> None:
        """Load the rewards.

        Args:
            dataset: Its settings name them.
            device: For reward models.
            hints: Folder for sizes of batches that fitted.

        Raises:
            ConfigError: A reward or a setting of one is wrong.
        """
        grading = dataset.grading
        self._grading = grading
        self.rewards = load_rewards(dataset, device, hints)
        self._judge = judge_of(self.rewards, dataset)
        self._pool = GraderPool(grading)

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the grading processes; they end with the scorer anyway."""
        self._pool.close()

    def score(
        self,
        rows: Sequence[Row],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        batch_size: int = 256,
    ) -> Scored:
        """Score completions.

        Args:
            rows: The row of each completion, repeated where it has several, which are scored together; N of them.
            completions: Texts, without special tokens.
            completion_ids: The sampled token ids.
            batch_size: Completions per call at most, unless a row alone has more.

        Raises:
            JobError: A reward fails at every completion, returns the wrong number of scores, or cannot be run.
        """
        asked = (rows, completions, completion_ids)
        graded = {reward.name: self._grade(reward, *asked, batch_size) for reward in self.rewards}
        for reward in self.rewards:
            _report(reward, graded[reward.name])
        return _combine(self.rewards, graded, self._judge, len(rows))

    def _grade(
        self,
        reward: LoadedReward,
        rows: Sequence[Row],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        batch_size: int,
    ) -> list[Graded]:
        if not rows:
            return []
        needed = needed_columns(reward.function, reward.arguments)
        items = items_of(rows, completions, completion_ids, needed, reward.messages)
        isolated = reward.traits.isolated and self._grading.isolated
        if reward.path == REWARD_MODEL:  # looks at no columns, and batches its texts by itself
            places = [list(range(len(items)))]
        elif isolated and reward.traits.pointwise:
            places = [[at] for at in range(len(items))]
        else:
            places = batches(rows, items, batch_size)
        calls = [[items[at] for at in part] for part in places]
        graded = self._isolated(reward, calls) if isolated else _here(reward, calls)
        found = {
            at: one for part, ones in zip(places, graded, strict=True) for at, one in zip(part, ones, strict=True)
        }
        return [found[at] for at in range(len(items))]

    def _isolated(self, reward: LoadedReward, calls: Sequence[Sequence[Item]]) -> list[Sequence[Graded]]:
        """Grade calls in processes; equal ones are made once."""
        given = [[(item.prompt, item.completion, item.ids, item.columns) for item in call] for call in calls]
        keys = [json.dumps(call, sort_keys=True, default=_plain) for call in given]
        different = dict(zip(keys, calls, strict=True))
        graded = self._pool.grade(reward.path, reward.options, list(different.values()))
        found = dict(zip(different, graded, strict=True))
        return [found[key] for key in keys]


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _here(reward: LoadedReward, calls: Sequence[Sequence[Item]]) -> list[list[Graded]]:
    given = _call(reward, [arguments(call, reward.arguments) for call in calls])
    return [_read(reward, call, one) for call, one in zip(calls, given, strict=True)]


def _call(reward: LoadedReward, calls: Sequence[dict[str, Any]]) -> list[Any]:
    """Call a function in this process; what can be awaited is, for all batches at once."""
    try:
        given = [reward.function(**call) for call in calls]
        return asyncio.run(_awaited(given)) if any(map(isawaitable, given)) else given
    except PipelineError:
        raise
    except Exception as error:
        raise JobError(f"the reward '{reward.name}' failed: {told(error)}") from error


async def _awaited(given: Sequence[Any]) -> list[Any]:
    async def result(one: Any) -> Any:
        return await one if isawaitable(one) else one

    return await asyncio.gather(*map(result, given))


def _read(reward: LoadedReward, items: Sequence[Item], given: Any) -> list[Graded]:
    return [
        Graded(fault="error", message="the reward is infinite")
        if math.isinf(value)
        else Graded(None if math.isnan(value) else value, _vote(reward, item))
        for item, value in zip(items, _checked(given, len(items)), strict=True)
    ]


def _checked(given: object, expected: int) -> list[float]:
    try:
        return [math.nan if value is None else value for value in read_scores(given, expected)]
    except WrongScores as error:
        raise JobError(str(error)) from error


def _vote(reward: LoadedReward, item: Item) -> str | None:
    try:
        return reward.traits.vote(item.completion)
    except Exception as error:
        raise JobError(f"`answer` in the traits of the reward '{reward.name}' failed: {told(error)}") from error


def _report(reward: LoadedReward, graded: Sequence[Graded]) -> None:
    """Say in the log what failed.

    Raises:
        JobError: The reward failed at every one of several completions, so the fault is its own.
    """
    failed = [entry for entry in graded if entry.fault is not None]
    if not failed:
        return
    if len(failed) == len(graded) > 1:
        raise JobError(
            f"the reward '{reward.name}' failed at all of {len(graded)} completions, the first time with: "
            f"{failed[0].message}{'' if reward.traits.pointwise else _SCORING_AT_ONCE}"
        )
    kinds = Counter(entry.fault for entry in failed)
    counts = ", ".join(f"{kinds[kind]} {kind}{'s' if kinds[kind] > 1 else ''}" for kind in FAULTS if kinds[kind])
    log.warning(
        "reward '%s': %s among %d completions; the first: %s", reward.name, counts, len(graded), failed[0].message
    )


def _combine(
    rewards: Sequence[LoadedReward],
    graded: Mapping[str, Sequence[Graded]],
    judge: LoadedReward | None,
    count: int,
) -> Scored:
    parts = {
        name: np.array([math.nan if one.value is None else one.value for one in found], np.float64)
        for name, found in graded.items()
    }
    faults = [next((one.fault for one in ones if one.fault), None) for ones in zip(*graded.values(), strict=True)]
    weighted = np.array([reward.weight * parts[reward.name] for reward in rewards]).reshape(len(rewards), count)
    applies = ~np.isnan(weighted)
    sums = np.where(applies, weighted, 0.0).sum(0)
    # A part that failed must not look like one that gave 0.
    unknown = ~applies.any(0) | np.array([fault is not None for fault in faults], bool)
    return Scored(
        values=np.where(unknown, math.nan, sums),
        parts=parts,
        correct=[None] * count if judge is None else [_is_correct(one, judge) for one in graded[judge.name]],
        answers=[None] * count if judge is None else [one.answer for one in graded[judge.name]],
        faults=faults,
        first_fault=next(
            (f"reward '{name}': {one.message}" for name, found in graded.items() for one in found if one.fault), ""
        ),
    )


def _is_correct(graded: Graded, judge: LoadedReward) -> bool | None:
    if graded.fault is not None:
        return False
    return None if graded.value is None else graded.value >= judge.traits.correct_from
