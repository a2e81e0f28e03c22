"""Scoring completions by the rewards of a dataset: weighted, isolated where they need it, with failures counted.

Scorer --- isolated functions ---> cache ---> pool of grading processes
       --- other functions    ---> called here
       --- reward models      ---> run here, on the worker's device
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import sqlite3
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.bases import DatasetConfig, GradingConfig
from pipeline.config.place import told
from pipeline.config.shipped import REWARD_MODEL
from pipeline.errors import JobError, PipelineError
from pipeline.learning.datasets.base import Row
from pipeline.learning.rewards.base import arguments, batches, checked, items_of
from pipeline.learning.rewards.calling import needed_columns
from pipeline.learning.rewards.grading import FAULTS, Fault, Graded, Item, PoolSettings
from pipeline.learning.rewards.pool import GraderPool
from pipeline.learning.rewards.registry import LoadedReward, judge_of, load_rewards

# -- cache -------------------------------------------------------------------------------------------------------
# Scores that are known already, by everything that determines them: in memory, and in a file if asked for.
# Only what a function returned is kept, by all that it was given in that call: a reward model's figures
# depend a little on what shares its batch, and a timeout on how busy the machine was.


FILE = "rewards.sqlite3"
_LOCK_PATIENCE_S = 30.0
_AT_ONCE = 500

log = logging.getLogger("pipeline")


def score_keys(identity: Mapping[str, Any], call: Sequence[Item]) -> list[str]:
    """A key for the score of each item of a call: a hash of the reward and of all that it is given.

    Args:
        identity: Plain data that names the reward, its version and its settings.
        call: What it scores at once.
    """
    given = [
        [item.prompt, item.completion, [int(token) for token in item.ids], dict(item.columns)] for item in call
    ]
    text = json.dumps([identity, given], sort_keys=True, separators=(",", ":"), default=_plain)
    whole = hashlib.sha256(text.encode()).hexdigest()[:40]
    return [f"{whole}/{at}" for at in range(len(call))]


def _sound(value: object, answer: object) -> bool:
    """Whether these can be a score and an answer: SQLite keeps any type in any column."""
    number = value is None or (isinstance(value, float) and math.isfinite(value))
    return number and (answer is None or isinstance(answer, str))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)


class ScoreCache:
    """Keeps the least recently used scores out of memory, and all of them in a file if there is one.

    The file only saves time: whatever goes wrong with it is logged, and scores are computed instead.
    """

    def __init__(self, capacity: int = 100_000, path: Path | None = None) -> None:
        """Make a cache.

        Args:
            capacity: Scores in memory.
            path: SQLite file, shared by any number of processes; None for memory alone.
        """
        self._capacity = capacity
        self._path = path
        self._kept: OrderedDict[str, Graded] = OrderedDict()

    def find(self, keys: Sequence[str]) -> dict[str, Graded]:
        """The scores that are known."""
        found = {key: self._kept[key] for key in keys if key in self._kept}
        for key in found:
            self._kept.move_to_end(key)
        missing = sorted(set(keys) - found.keys())
        stored = self._read(missing) if missing and self._path else {}
        self._keep(stored)
        return found | stored

    def add(self, scores: Mapping[str, Graded]) -> None:
        """Keep scores; those of a reward that failed are left out."""
        sound = {key: graded for key, graded in scores.items() if graded.fault is None}
        self._keep(sound)
        if sound and self._path:
            self._write(sound)

    def _keep(self, scores: Mapping[str, Graded]) -> None:
        self._kept.update(scores)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def _read(self, keys: Sequence[str]) -> dict[str, Graded]:
        found = {}
        try:
            with closing(self._open()) as file:
                for start in range(0, len(keys), _AT_ONCE):
                    part = keys[start : start + _AT_ONCE]
                    marks = ",".join("?" * len(part))
                    query = f"SELECT key, value, answer FROM scores WHERE key IN ({marks})"  # noqa: S608 - only '?'
                    rows = file.execute(query, part)
                    found.update(
                        {key: Graded(value, answer) for key, value, answer in rows if _sound(value, answer)}
                    )
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)
        return found

    def _write(self, scores: Mapping[str, Graded]) -> None:
        rows = [(key, graded.value, graded.answer) for key, graded in scores.items()]
        try:
            with closing(self._open()) as file, file:
                file.executemany("INSERT OR IGNORE INTO scores VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    def _open(self) -> sqlite3.Connection:
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # The plain rollback journal, not WAL: the folder may be on a network, where WAL is not safe.
        file = sqlite3.connect(self._path, timeout=_LOCK_PATIENCE_S)
        try:
            file.execute("CREATE TABLE IF NOT EXISTS scores (key TEXT PRIMARY KEY, value REAL, answer TEXT)")
        except BaseException:
            file.close()
            raise
        return file

    def _give_up(self, error: Exception) -> None:
        log.warning("scores are no longer kept in %s: %s", self._path, error)
        self._path = None


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

    @property
    def errors(self) -> int:
        """Completions at which a reward raised an exception."""
        return self.faults.count("error")

    @property
    def timeouts(self) -> int:
        """Completions at which a reward missed its deadline."""
        return self.faults.count("timeout")

    @property
    def crashes(self) -> int:
        """Completions at which a reward ended its process."""
        return self.faults.count("crash")

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
    """The rewards of a dataset, ready to be called; to be kept, as it holds models, processes and known scores."""

    def __init__(self, dataset: DatasetConfig, device: str = "cpu", hints: Path | None = None) -> None:
        """Load the rewards.

        Args:
            dataset: Its settings name them.
            device: For reward models.
            hints: Folder for scores that later runs may use, and for sizes of batches that fitted.

        Raises:
            ConfigError: A reward or a setting of one is wrong.
        """
        grading = dataset.grading
        self._grading = grading
        self.rewards = load_rewards(dataset, device, hints)
        self._judge = judge_of(self.rewards, dataset)
        self._pool = GraderPool(pool_settings(grading))
        self._cache = ScoreCache(path=hints / FILE if hints and grading.keep_scores else None)

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
        identity = reward.identity()
        keys = [tuple(score_keys(identity, call)) for call in calls]
        known = self._cache.find([key for of_call in keys for key in of_call])
        missing = {
            of_call: call for of_call, call in zip(keys, calls, strict=True) if not known.keys() >= {*of_call}
        }
        if missing:
            found = self._pool.grade(reward.path, reward.options, list(missing.values()))
            fresh = {
                key: one
                for of_call, graded in zip(missing, found, strict=True)
                for key, one in zip(of_call, graded, strict=True)
            }
            self._cache.add(fresh)
            known |= fresh
        return [[known[key] for key in of_call] for of_call in keys]


def pool_settings(grading: GradingConfig) -> PoolSettings:
    """How completions are graded, as the configuration has it."""
    return PoolSettings(
        processes=grading.processes,
        timeout_s=grading.timeout_s,
        memory_gib=grading.memory_gib,
        start_timeout_s=grading.start_timeout_s,
    )


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
        for item, value in zip(items, checked(given, len(items)), strict=True)
    ]


def _vote(reward: LoadedReward, item: Item) -> str | None:
    try:
        return reward.traits.vote(item.completion)
    except Exception as error:
        raise JobError(f"`answer` in the traits of the reward '{reward.name}' failed: {told(error)}") from error


def _report(reward: LoadedReward, graded: Sequence[Graded]) -> None:
    """Say in the log what failed.

    Raises:
        JobError: The reward raised an exception at every one of several completions, so the fault is its own.
    """
    failed = [entry for entry in graded if entry.fault is not None]
    if not failed:
        return
    if len(graded) > 1 and all(entry.fault == "error" for entry in graded):
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
    faults = [
        next((graded[reward.name][index].fault for reward in rewards if graded[reward.name][index].fault), None)
        for index in range(count)
    ]
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
        first_fault=_first_fault(graded),
    )


def _first_fault(graded: Mapping[str, Sequence[Graded]]) -> str:
    failed = ((name, one) for name, found in graded.items() for one in found if one.fault is not None)
    return next((f"reward '{name}': {one.message}" for name, one in failed), "")


def _is_correct(graded: Graded, judge: LoadedReward) -> bool | None:
    if graded.fault is not None:
        return False
    return None if graded.value is None else graded.value >= judge.traits.correct_from
