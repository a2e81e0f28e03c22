"""Rewards tried on a dataset's own solutions before anything is generated: is what is right taken for right?

A reward that reads another answer in a solution than a reader does, or none, gives wrong scores without a word.
So each solution, written as a right completion writes it, has to be correct, and its first number alone must not
be where it is something else. How an answer is written the trait `gold` says; what has none is not tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config.bases import DatasetConfig
from pipeline.errors import ConfigError, JobError
from pipeline.learning.datasets.base import Dataset, Row
from pipeline.learning.datasets.prepared import PreparedDataset, places_of
from pipeline.learning.rewards.base import columns_of, items_of
from pipeline.learning.rewards.calling import needed_columns
from pipeline.learning.rewards.grading import Graded, Item
from pipeline.learning.rewards.pool import GraderPool
from pipeline.learning.rewards.registry import LoadedReward, load_functions
from pipeline.learning.rewards.scoring import pool_settings

ROWS, QUICK_ROWS = 250, 10_000
"""Rows of each split that are tried at most; the second with rewards that need no process of their own. A number
and no time, so that what is stored does not depend on the machine. `math_verify` takes 20 ms for a text."""
_AT_ONCE = 64
_MOST_FAULTS = 4
"""Each may take as long as the deadline."""
_SHOWN = 3
_LONGEST = 60


@dataclass(frozen=True)
class _Try:
    row: int
    text: str
    right: bool
    item: Item


def check_gold(name: str, config: DatasetConfig, rows: PreparedDataset, dataset: Dataset) -> list[str]:
    """Try the rewards of a dataset on its own solutions, in processes with a deadline.

    Args:
        name: Of the dataset in the configuration, for messages.
        config: Of the dataset.
        rows: As they were prepared.
        dataset: Whose rows they are; its source is read again for the places of rows that fail.

    Returns:
        Warnings of rewards that fail at some rows.

    Raises:
        ConfigError: A reward takes no solution that was tried for right.
    """
    warnings = []
    with GraderPool(pool_settings(config.grading)) as pool:
        for reward in load_functions(config):
            if reward.traits.gold is not None:
                warnings += _checked(name, pool, reward, rows, dataset)
    return warnings


def _checked(
    name: str, pool: GraderPool, reward: LoadedReward, rows: PreparedDataset, dataset: Dataset
) -> list[str]:
    try:
        graded = _graded(pool, reward, _tries(reward, rows))
    except JobError:
        if reward.traits.isolated:
            raise
        return []  # its rows cannot be sent to a process, and need not be
    of, all_rows = sum(each.right for each, _ in graded), sum(rows.about["rows"].values())
    more = f" (there are {all_rows:,})" if all_rows > of else ""
    wrong = [(each, found) for each, found in graded if each.right and not _is_correct(reward, found)]
    number = [(each, found) for each, found in graded if not each.right and _is_correct(reward, found)]
    warnings = []
    if wrong:
        said = f"the reward '{reward.name}' does not take the own solutions of {len(wrong):,} of {of:,} rows tried"
        said += f"{more} for right: {_shown(wrong, dataset)}"
        if len(wrong) == of:
            raise ConfigError(
                f"datasets.{name}: {said}. No completion can be right. See that `solution` is the answer, by "
                f"datasets.{name}.columns, and that it is written as the reward reads it, or choose another "
                f"reward by datasets.{name}.reward"
            )
        warnings.append(f"{said}. Write them as it reads them, leave these rows out, or choose another reward")
    if number:
        warnings.append(
            f"the reward '{reward.name}' takes the first number alone of the solutions of {len(number):,} rows "
            f"for right, of {of:,} tried{more}: {_shown(number, dataset)}. Choose a reward that reads the whole "
            "answer"
        )
    return warnings


def _tries(reward: LoadedReward, rows: PreparedDataset) -> list[_Try]:
    assert reward.traits.gold is not None
    most = ROWS if reward.traits.isolated else QUICK_ROWS
    tries = []
    for split in ("train", "validation", "test"):
        for row_id in rows.ids(split)[:most]:
            row = rows.row(int(row_id))
            for text, right in zip(reward.traits.gold(columns_of(row)), (True, False), strict=False):
                tries.append(_Try(row.id, text, right, _item(reward, row, text)))
    return tries


def _item(reward: LoadedReward, row: Row, text: str) -> Item:
    needed = needed_columns(reward.function, reward.arguments)
    return items_of([row], [text], [[0]], needed, reward.messages)[0]


def _graded(pool: GraderPool, reward: LoadedReward, tries: Sequence[_Try]) -> list[tuple[_Try, Graded]]:
    found: list[tuple[_Try, Graded]] = []
    for start in range(0, len(tries), _AT_ONCE):
        some = tries[start : start + _AT_ONCE]
        groups = pool.grade(reward.path, reward.options, [[each.item] for each in some])
        found += zip(some, (group[0] for group in groups), strict=True)
        if sum(each.fault is not None for _, each in found) > _MOST_FAULTS:
            break
    return found


def _is_correct(reward: LoadedReward, graded: Graded) -> bool:
    return graded.value is not None and graded.value >= reward.traits.correct_from


def _shown(failed: Sequence[tuple[_Try, Graded]], dataset: Dataset) -> str:
    first = sorted(failed, key=lambda each: each[0].row)[:_SHOWN]
    places = places_of(dataset, {each.row for each, _ in first})
    said = [f"{places[each.row]}: {_short(each.text)} {_outcome(found)}" for each, found in first]
    return "; ".join(said) + (" and so on" if len(failed) > _SHOWN else "")


def _short(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def _outcome(graded: Graded) -> str:
    if graded.fault is not None:
        return f"fails ({graded.message[:_LONGEST]})"
    return "is not judged" if graded.value is None else f"gets {graded.value:g}"
