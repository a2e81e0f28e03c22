"""Rewards tried before anything is generated: on the columns of a dataset, on one row, and on its own solutions.

What no completion can bring about is refused: a column that is missing, a name that is not defined, a result that
is no list of numbers. What may be due to the completion, which is made up here, is only a warning.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.schema import DatasetConfig
from pipeline.errors import ConfigError, JobError
from pipeline.learning.datasets.base import Dataset, Row, load_dataset, plain_text
from pipeline.learning.datasets.from_files import FilesDataset, MissingColumns, ReservedColumn
from pipeline.learning.datasets.prepared import PreparedDataset, places_of
from pipeline.learning.rewards.answers import is_missing
from pipeline.learning.rewards.calling import Mismatch, columns_of, items_of, mismatch, needed_columns
from pipeline.learning.rewards.pool import Graded, GraderPool
from pipeline.learning.rewards.registry import LoadedReward, judge_of, known_rewards, load_functions, ships

_USUAL = {
    "prompt": ("question", "instruction", "problem", "query", "input", "text"),
    "": ("answer", "label", "target", "ground_truth", "gold", "output", "response", "completion"),
}
"""What the column with the prompt, and one that a reward compares with, is often called."""
_MADE_UP = "0"
_WHOLE = re.compile(r"(-?\d+)\.0+")


def check_rewards(
    name: str, config: DatasetConfig, dataset: Dataset, row: Row, columns: Iterable[str]
) -> list[str]:
    """Try the rewards of a dataset that are functions; models are not loaded for it.

    Args:
        name: Of the dataset in the configuration, for messages.
        config: Of the dataset.
        dataset: As the configuration makes it, for messages.
        row: One to call the rewards with.
        columns: All columns that rows have besides their texts.

    Returns:
        Warnings.

    Raises:
        ConfigError: A reward cannot work, whatever the completions.
    """
    check_judge(name, config)
    rewards, known = load_functions(config), list(columns)
    for reward in rewards:
        if found := mismatch(reward.function, columns_of(row) | dict.fromkeys(known), reward.arguments):
            raise ConfigError(_told(reward, found, name, dataset, row, known))
    text, warnings, unscored = _completion(row), list[str](), True
    tried = f"datasets.{name}: for the completion {text[:40]!r} of row {row.id}"
    with GraderPool(config.grading) as pool:
        for reward in rewards:
            graded = _graded(pool, reward, config, row, text)
            unscored = unscored and bool(graded) and all(one.value is None for one in graded)
            if graded and graded[0].fault is not None:
                # Those that ship raise for no completion, so it must be the row.
                if graded[0].fault == "error" and (graded[0].certain or ships(reward)):
                    message = graded[0].message.partition("WrongScores: the reward ")[2]
                    said = Mismatch(said=message or f"fails: {graded[0].message}")
                    raise ConfigError(_told(reward, said, name, dataset, row, known))
                warnings.append(
                    f"{tried} the reward '{reward.name}' gives no score: {graded[0].message}. If it does so for "
                    "others too, mend it"
                )
            elif graded:
                warnings += [f"{tried} {each}" for each in _misled(pool, reward, config, row, text, graded)]
    lacks = any(is_missing(row.columns.get(each)) for reward in rewards for each in _needed(reward))
    if rewards and unscored and not warnings and not lacks:
        warnings.append(f"{tried} no reward gives a score, but None or nan")
    return warnings


def check_judge(name: str, config: DatasetConfig) -> None:
    """See whether it is known which reward of a dataset says what is correct, or that none does.

    Raises:
        ConfigError: It is not known.
    """
    rewards = known_rewards(config)
    try:
        judge_of(rewards, config)
    except ConfigError as error:
        raise ConfigError(f"datasets.{name}: {error}") from error


def _graded(
    pool: GraderPool, reward: LoadedReward, config: DatasetConfig, row: Row, text: str
) -> Sequence[Graded]:
    """What becomes of a call in a grading process; empty where the row cannot be sent to one, and need not be.

    A reward that may compare completions is given another one besides.
    """
    texts = [text] if reward.traits.pointwise else [text, f"{text} {_MADE_UP}"]
    ids = [[0] * (1 + at) for at in range(len(texts))]
    items = items_of([row] * len(texts), texts, ids, _needed(reward), reward.messages)
    try:
        return pool.grade(reward.path, reward.options, [items])[0]
    except JobError:
        if reward.traits.isolated and config.grading.isolated:
            raise
        return []


def _misled(
    pool: GraderPool, reward: LoadedReward, config: DatasetConfig, row: Row, text: str, graded: Sequence[Graded]
) -> Iterator[str]:
    """What to say of a function for texts that is given conversations: it fails at none and means nothing."""
    if ships(reward) or "completions" in reward.messages or isinstance(row.prompt, str):
        return
    bare = _graded(pool, reward, config, replace(row, prompt=plain_text(row.prompt)), text)
    for given, of_text in zip(graded, bare, strict=False):
        if of_text.fault is None and of_text.value != given.value:
            yield (
                f"the reward '{reward.name}' gives {given.value}, and {of_text.value} where it is given text. "
                "Prompts are conversations here, so completions are too, as in TRL: lists of one turn, whose text "
                "is completion[0]['content']"
            )
            return


def _completion(row: Row) -> str:
    """Something to score: an answer that the row has, where it has one."""
    if row.answer is not None:
        return row.answer if isinstance(row.answer, str) else str(row.answer[-1]["content"])
    solution = row.columns.get("solution")
    return solution if isinstance(solution, str) else _MADE_UP


def _needed(reward: LoadedReward) -> tuple[str, ...]:
    return needed_columns(reward.function, reward.arguments)


# -- words -------------------------------------------------------------------------------------------------------


def _told(
    reward: LoadedReward, problem: Mismatch, name: str, dataset: Dataset, row: Row, columns: list[str]
) -> str:
    code = None if ships(reward) else getattr(inspect.unwrap(reward.function), "__code__", None)
    place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    who = f"datasets.{name}: reward '{reward.name}'{place}"
    if not problem.missing:
        return f"{who} {problem.said}"
    texts = [each for each in ("prompt", "completion", "chosen", "rejected") if getattr(row, each) is not None]
    if kept := [each for each in problem.missing if each in texts]:
        return f"{who} needs `{kept[0]}`, but is given `prompts`, `completions` and further columns, as `solution`"
    several = "columns" if len(problem.missing) > 1 else "a column"
    wanted = ", ".join(f"`{each}`" for each in problem.missing)
    # A pair needs both of its answers, and the turns of a conversation are no solution.
    inside = [f"{outer}.{key}" for outer, cell in row.columns.items() if isinstance(cell, Mapping) for key in cell]
    there = [*(["completion"] if isinstance(row.completion, str) else []), *columns, *inside]
    advice = f"choose another reward by datasets.{name}.reward"
    if isinstance(dataset, FilesDataset) and there and type(dataset).adapt is FilesDataset.adapt:
        renamed = dataset.source.columns
        advice = f"write {_typed(name, renamed, problem.missing, [renamed.get(each, each) for each in there])}"
    return f"{who} needs {several} {wanted}; this dataset has: {', '.join([*texts, *columns])}; {advice}"


def advice_on(error: MissingColumns | ReservedColumn, name: str, config: DatasetConfig) -> str:
    """How to name columns: those that a row lacks and with them those that the rewards will, or one to rename.

    Args:
        error: Tells which columns are missing and which are there, or which one has a name that is taken.
        name: Of the dataset in the configuration.
        config: Of the dataset.
    """
    dataset = load_dataset(config)
    assert isinstance(dataset, FilesDataset)
    if isinstance(error, ReservedColumn):
        renamed = _setting(name, {**dataset.source.columns, f"dataset_{error.column}": error.column})
        return f"Rename it by {renamed}, or list those to keep in datasets.{name}.further_columns."
    missing = list(error.missing)
    if type(dataset).adapt is FilesDataset.adapt:
        rewards = load_functions(config) if config.reward or config.rewards else []
        missing += [each for reward in rewards for each in _needed(reward) if each not in error.there]
    # What is there by a name of ours was renamed already, and so is something else than what is missing.
    there = [each for each in error.there if each not in dataset.source.columns]
    if not there:
        return f"Write {' and '.join(dict.fromkeys(missing))} there, or leave the row out."
    mapped = _typed(name, dataset.source.columns, dict.fromkeys(missing), there)
    return f"If they are called otherwise, write {mapped}."


def _typed(name: str, known: Mapping[str, str], missing: Iterable[str], there: list[str]) -> str:
    """The setting that names columns, as it is typed in a shell, with the likeliest ones for those missing."""
    mapping = dict(known)
    named: list[str] = []
    for each in missing:
        free = [other for other in there if other not in named]
        names = (f"{each}s", *_USUAL.get(each, _USUAL[""]))
        usual = [other for usual in names for other in free if other.rpartition(".")[2] == usual]
        # A column may have two names.
        mapping[each] = each if each in mapping.values() else (free if len(free) == 1 else [*usual, "NAME"])[0]
        named.append(mapping[each])
    return _setting(name, mapping)


def _setting(name: str, columns: Mapping[str, str]) -> str:
    plain = re.compile(r"[A-Za-z_][\w-]*( [\w-]+)*", re.ASCII)
    quoted = {ours: each if plain.fullmatch(each) else json.dumps(each) for ours, each in columns.items()}
    pairs = ", ".join(f"{ours}: {each}" for ours, each in quoted.items())
    return shlex.quote(f"datasets.{name}.columns={{{pairs}}}")


# -- rows --------------------------------------------------------------------------------------------------------


class RowCheck:
    """What rewards say of rows as they are read: those that none can judge, and columns that hold nothing."""

    def __init__(self, name: str, config: DatasetConfig) -> None:
        """Find the rewards.

        Args:
            name: Of the dataset in the configuration, for messages.
            config: Of the dataset.
        """
        self._name = name
        self._needs = [(reward, _needed(reward)) for reward in load_functions(config)]
        self._lacking: dict[tuple[str, str], tuple[int, str]] = {}
        self._as_text = [reward.name for reward, _ in self._needs if reward.traits.right is not None]
        self._float = ""
        self._all_floats = True

    def __call__(self, columns: Mapping[str, Any], place: str) -> str:
        """Take a row into account.

        Args:
            columns: Of the row, without its texts.
            place: Where it is, for messages.

        Returns:
            Why a reward can judge no completion of it; "" where each can.
        """
        place = place.rpartition("/")[2]  # what is written down does not depend on where files are
        for reward, needed in self._needs:
            if reward.traits.refuses is not None and (problem := reward.traits.refuses(columns)):
                another = f"or choose another reward by datasets.{self._name}.reward"
                return f"the reward '{reward.name}' {problem}, {another}"
            for column in needed:
                # To rewards that ship an empty text is none; to others it may be a text as any other.
                if is_missing(given := columns.get(column)) and (ships(reward) or given is None):
                    count, first = self._lacking.get((reward.name, column), (0, place))
                    self._lacking[reward.name, column] = count + 1, first
        solution = columns.get("solution")
        if not is_missing(solution):
            is_float = isinstance(solution, str) and _WHOLE.fullmatch(solution.strip()) is not None
            self._all_floats = self._all_floats and is_float
            self._float = self._float or f"{solution} ({place})"
        return ""

    def told(self) -> list[str]:
        """Warnings of all rows that were taken into account."""
        said = [
            f"`{column}`, which the reward '{reward}' is given, is null or empty in {count:,} "
            f"row{'s' * (count != 1)} (first {first}). Write it there or leave them out, unless they are to have "
            "no score"
            for (reward, column), (count, first) in self._lacking.items()
        ]
        if self._as_text and self._float and self._all_floats:
            said.append(
                f"all solutions are whole numbers with a point, as {self._float}: '{self._as_text[0]}' compares "
                "texts, and takes the number without the point for wrong. Write them without"
            )
        return said


# -- solutions ---------------------------------------------------------------------------------------------------
# Is what is right taken for right? A reward that reads another answer in a solution than a reader does, or none,
# gives wrong scores without a word. So each solution, written as a right completion writes it (the trait `gold`),
# has to be correct, and its first number alone must not be where it is something else.

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
    row: Row
    text: str
    right: bool


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
    warnings: list[str] = []
    with GraderPool(config.grading) as pool:
        for reward in load_functions(config):
            try:
                found = _outcomes(pool, reward, rows) if reward.traits.gold is not None else []
            except JobError:
                if reward.traits.isolated:
                    raise
                continue  # its rows cannot be sent to a process, and need not be
            warnings += _wrong(name, reward, found, rows, dataset)
    return warnings


def _outcomes(pool: GraderPool, reward: LoadedReward, rows: PreparedDataset) -> list[tuple[_Try, Graded]]:
    assert reward.traits.gold is not None
    most = ROWS if reward.traits.isolated else QUICK_ROWS
    tries = [
        _Try(row, text, right)
        for split in ("train", "validation", "test")
        for row in map(rows.row, rows.ids(split)[:most].tolist())
        for text, right in zip(reward.traits.gold(columns_of(row)), (True, False), strict=False)
    ]
    found: list[tuple[_Try, Graded]] = []
    for start in range(0, len(tries), _AT_ONCE):
        some = tries[start : start + _AT_ONCE]
        given = [items_of([one.row], [one.text], [[0]], _needed(reward), reward.messages) for one in some]
        found += zip(some, (group[0] for group in pool.grade(reward.path, reward.options, given)), strict=True)
        if sum(each.fault is not None for _, each in found) > _MOST_FAULTS:
            break
    return found


def _wrong(
    name: str, reward: LoadedReward, found: Sequence[tuple[_Try, Graded]], rows: PreparedDataset, dataset: Dataset
) -> Iterator[str]:
    odd = [
        (each, graded)
        for each, graded in found
        if each.right != (graded.value is not None and graded.value >= reward.traits.correct_from)
    ]
    of, there = sum(each.right for each, _ in found), sum(rows.about["rows"].values())
    tried = f"of {of:,} tried{f' (there are {there:,})' if there > of else ''}"
    wrong, number = [one for one in odd if one[0].right], [one for one in odd if not one[0].right]
    if wrong:
        said = (
            f"the reward '{reward.name}' does not take the own solutions of {len(wrong):,} rows for right, "
            f"{tried}: {_shown(wrong, dataset)}"
        )
        if len(wrong) == of:
            raise ConfigError(
                f"datasets.{name}: {said}. No completion can be right. See that `solution` is the answer, by "
                f"datasets.{name}.columns, and that it is written as the reward reads it, or choose another "
                f"reward by datasets.{name}.reward"
            )
        yield f"{said}. Write them as it reads them, leave these rows out, or choose another reward"
    if number:
        yield (
            f"the reward '{reward.name}' takes the first number alone of the solutions of {len(number):,} rows "
            f"for right, {tried}: {_shown(number, dataset)}. Choose a reward that reads the whole answer"
        )


def _shown(failed: Sequence[tuple[_Try, Graded]], dataset: Dataset) -> str:
    first = sorted(failed, key=lambda each: each[0].row.id)[:_SHOWN]
    places = places_of(dataset, {each.row.id for each, _ in first})
    said = []
    for each, graded in first:
        outcome = f"fails ({graded.message[:_LONGEST]})"
        if graded.fault is None:
            outcome = "is not judged" if graded.value is None else f"gets {graded.value:g}"
        text = each.text if len(each.text) <= _LONGEST else f"{each.text[:_LONGEST]}..."
        said.append(f"{places[each.row.id]}: {text!r} {outcome}")
    return "; ".join(said) + (" and so on" if len(failed) > _SHOWN else "")
