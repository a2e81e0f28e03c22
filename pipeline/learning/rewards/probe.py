"""Rewards tried before anything is generated: do they fit the columns, and what do they return for one row?

What no completion can bring about is refused: a column that is missing, a name that is not defined, a result that
is no list of numbers (`cause`). What may be due to the completion, which is made up here, is only a warning.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from pipeline.config.bases import DatasetConfig
from pipeline.errors import ConfigError, JobError
from pipeline.learning.datasets.base import Dataset, Row, plain_text
from pipeline.learning.datasets.columns import MissingColumns, ReservedColumn
from pipeline.learning.datasets.from_files import FilesDataset
from pipeline.learning.datasets.registry import load_dataset
from pipeline.learning.rewards.answers import is_missing
from pipeline.learning.rewards.base import columns_of, items_of
from pipeline.learning.rewards.calling import Mismatch, mismatch, needed_columns
from pipeline.learning.rewards.grading import Graded
from pipeline.learning.rewards.pool import GraderPool
from pipeline.learning.rewards.registry import LoadedReward, judge_of, known_rewards, load_functions, ships
from pipeline.learning.rewards.scoring import pool_settings
from pipeline.learning.rewards.traits import WrongScores

_ANSWERS = ("answer", "label", "target", "ground_truth", "gold", "output", "response", "completion")
"""What the column that a reward compares with is often called."""
_QUESTIONS = ("question", "instruction", "problem", "query", "input", "text")
"""What the column with the prompt is often called."""
_MADE_UP = "0"


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
    problems = []
    for reward in rewards:
        if (
            found := mismatch(reward.function, columns_of(row) | dict.fromkeys(known), reward.arguments)
        ) is not None:
            problems.append(_told(reward, found, name, dataset, row, known))
    if problems:
        raise ConfigError("; ".join(problems))
    return _called(rewards, name, config, dataset, row, known)


def check_judge(name: str, config: DatasetConfig) -> None:
    """See whether it is known which reward of a dataset says what is correct, or that none does.

    Args:
        name: Of the dataset in the configuration, for messages.
        config: Of the dataset.

    Raises:
        ConfigError: It is not known.
    """
    rewards = known_rewards(config)
    try:
        judge_of(rewards, config)
    except ConfigError as error:
        raise ConfigError(f"datasets.{name}: {error}") from error


def _called(
    rewards: list[LoadedReward], name: str, config: DatasetConfig, dataset: Dataset, row: Row, columns: list[str]
) -> list[str]:
    text = _completion(row)
    found: dict[str, Sequence[Graded]] = {}
    misled: list[str] = []
    with GraderPool(pool_settings(config.grading)) as pool:
        for reward in rewards:
            graded = _graded(pool, reward, config, row, text)
            if graded is not None:
                found[reward.name] = graded
                misled += _misled(pool, reward, config, row, text, graded)
    for reward in rewards:
        problem = _certain(next(iter(found.get(reward.name, [])), None), reward, columns)
        if problem is not None:
            raise ConfigError(_told(reward, problem, name, dataset, row, columns))
    tried = f"datasets.{name}: for the completion {text[:40]!r} of row {row.id}"
    warnings = [
        f"{tried} the reward '{reward}' gives no score: {graded[0].message}. If it does so for others too, mend it"
        for reward, graded in found.items()
        if graded[0].fault is not None
    ]
    warnings += [f"{tried} {each}" for each in misled]
    lacks = any(is_missing(row.columns.get(each)) for reward in rewards for each in _needed(reward))
    unscored = all(one.value is None for graded in found.values() for one in graded)
    if found and not warnings and not lacks and unscored:
        warnings.append(f"{tried} no reward gives a score, but None or nan")
    return warnings


def _graded(
    pool: GraderPool, reward: LoadedReward, config: DatasetConfig, row: Row, text: str
) -> Sequence[Graded] | None:
    """What becomes of a call in a grading process; None where the row cannot be sent to one, and need not be.

    A reward that may compare completions is given another one besides.
    """
    texts = [text] if reward.traits.pointwise else [text, f"{text} {_MADE_UP}"]
    count = len(texts)
    items = items_of(
        [row] * count, texts, [[0] * (1 + at) for at in range(count)], _needed(reward), reward.messages
    )
    try:
        return pool.grade(reward.path, reward.options, [items])[0]
    except JobError:
        if reward.traits.isolated and config.grading.isolated:
            raise
        return None


def _misled(
    pool: GraderPool, reward: LoadedReward, config: DatasetConfig, row: Row, text: str, graded: Sequence[Graded]
) -> Iterator[str]:
    """What to say of a function for texts that is given conversations: it fails at none and means nothing."""
    annotated = "completions" in reward.messages
    if ships(reward) or annotated or isinstance(row.prompt, str) or graded[0].fault is not None:
        return
    bare = _graded(pool, reward, config, replace(row, prompt=plain_text(row.prompt)), text) or ()
    # Of one letter the text is as long as its turn is: the longer one may tell.
    for given, text_given in zip(graded, bare, strict=False):
        if text_given.fault is not None or text_given.value == given.value:
            continue
        yield (
            f"the reward '{reward.name}' gives {given.value}, and {text_given.value} where it is given text. "
            "Prompts are conversations here, so completions are too, as in TRL: lists of one turn, whose text is "
            "completion[0]['content']"
        )
        return


def _certain(graded: Graded | None, reward: LoadedReward, columns: list[str]) -> Mismatch | None:
    if graded is None or graded.fault != "error":
        return None
    if graded.cause.column and graded.cause.column not in columns:  # else it is this row alone that lacks it
        return Mismatch(missing=(graded.cause.column,))
    # Those that ship raise for no completion, so it must be the row.
    if ships(reward) or (graded.cause.certain and not graded.cause.column):
        said = graded.message.removeprefix(f"{WrongScores.__module__}.{WrongScores.__qualname__}: the reward ")
        return Mismatch(said=said if said != graded.message else f"fails: {said}")
    return None


def _completion(row: Row) -> str:
    """Something to score: an answer that the row has, where it has one."""
    for text in (row.completion, row.chosen):
        if text is not None:
            return text if isinstance(text, str) else plain_text([text[-1]]).partition(": ")[2]
    solution = row.columns.get("solution")
    return solution if isinstance(solution, str) else _MADE_UP


def _told(
    reward: LoadedReward, problem: Mismatch, name: str, dataset: Dataset, row: Row, columns: list[str]
) -> str:
    who = f"datasets.{name}: reward '{reward.name}'{'' if ships(reward) else _where(reward)}"
    if not problem.missing:
        return f"{who} {problem.said}"
    texts = [each for each in ("prompt", "completion", "chosen", "rejected") if getattr(row, each) is not None]
    if kept := [each for each in problem.missing if each in texts]:
        return f"{who} needs `{kept[0]}`, but is given `prompts`, `completions` and further columns, as `solution`"
    there = [*texts, *columns]
    several = "columns" if len(problem.missing) > 1 else "a column"
    wanted = ", ".join(f"`{each}`" for each in problem.missing)
    # A pair needs both of its answers, and the turns of a conversation are no solution.
    inside = [
        f"{name}.{inner}" for name, cell in row.columns.items() if isinstance(cell, Mapping) for inner in cell
    ]
    named = [*(["completion"] if isinstance(row.completion, str) else []), *columns, *inside]
    advice = _advice(problem.missing, name, dataset, named)
    return f"{who} needs {several} {wanted}; this dataset has: {', '.join(there)}; {advice}"


def _where(reward: LoadedReward) -> str:
    """The line where a function begins, in brackets; "" for what is no plain function."""
    code = getattr(inspect.unwrap(reward.function), "__code__", None)
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"


def _advice(missing: tuple[str, ...], name: str, dataset: Dataset, there: list[str]) -> str:
    another = f"choose another reward by datasets.{name}.reward"
    own = dataset.config.class_path is not None
    if not isinstance(dataset, FilesDataset):
        return f"give it in row() as one of the columns of Row, or {another}" if own else another
    if type(dataset).adapt is not FilesDataset.adapt:
        return f"give it in adapt(), or {another}" if own else another
    if not there:
        return f"write it in each row, or {another}"
    return f"write {_typed(name, dataset.source.columns, missing, there)}"


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
        missing += [each for reward in rewards for each in _needed(reward)]
    lacking = [each for each in dict.fromkeys(missing) if each in error.missing or each not in error.there]
    # What is there by a name of ours was renamed already, and so is something else than what is missing.
    there = [each for each in error.there if each not in dataset.source.columns]
    if not there:
        return f"Write {' and '.join(lacking)} there, or leave the row out."
    mapped = _typed(name, dataset.source.columns, lacking, there)
    return f"If they are called otherwise, write {mapped}."


def _needed(reward: LoadedReward) -> tuple[str, ...]:
    return needed_columns(reward.function, reward.arguments)


def _typed(name: str, known: Mapping[str, str], missing: Iterable[str], there: list[str]) -> str:
    """The setting that names columns, as it is typed in a shell."""
    mapping = dict(known)
    for each in missing:
        free = [other for other in there if other not in mapping.values()]
        mapping[each] = each if each in mapping.values() else _likely(each, free)  # a column may have two names
    return _setting(name, mapping)


def _setting(name: str, columns: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{ours}: {_quoted(theirs)}" for ours, theirs in columns.items())
    return shlex.quote(f"datasets.{name}.columns={{{pairs}}}")


def _quoted(column: str) -> str:
    """The name of a column, in quotes where Hydra would read more or less than a word."""
    plain = re.fullmatch(r"[A-Za-z_][\w-]*( [\w-]+)*", column, re.ASCII)
    quoted: str = column if plain else QuotedString(column, Quote.double).with_quotes()
    return quoted


def _likely(missing: str, there: list[str]) -> str:
    if len(there) == 1:
        return there[0]
    names = _QUESTIONS if missing == "prompt" else _ANSWERS
    usual = [each for name in names for each in there if each.rpartition(".")[2] == name]
    return next(iter([*get_close_matches(missing, there, n=1, cutoff=0.75), *usual]), "NAME")


# -- row check ---------------------------------------------------------------------------------------------------
# What rewards have to say of rows as they are read: some that none can judge, and columns that hold nothing.


_WHOLE = re.compile(r"(-?\d+)\.0+")


class RowCheck:
    """Is asked of each row, and says in the end what they have in common."""

    def __init__(self, name: str, config: DatasetConfig) -> None:
        """Find the rewards.

        Args:
            name: Of the dataset in the configuration, for messages.
            config: Of the dataset.
        """
        self._name = name
        rewards = load_functions(config)
        self._needs = [(reward, needed_columns(reward.function, reward.arguments)) for reward in rewards]
        self._lacking: dict[tuple[str, str], tuple[int, str]] = {}
        self._floats: dict[str, tuple[str, str] | None] = {}

    def __call__(self, columns: Mapping[str, Any], place: str) -> str:
        """Take a row into account.

        Args:
            columns: Of the row, without its texts.
            place: Where it is, for messages.

        Returns:
            Why a reward can judge no completion of it; "" where each can.
        """
        for reward, needed in self._needs:
            refuses = reward.traits.refuses
            if refuses is not None and (problem := refuses(columns)):
                another = f"or choose another reward by datasets.{self._name}.reward"
                return f"the reward '{reward.name}' {problem}, {another}"
            for column in needed:
                self._note_missing(reward, column, columns, place)
            if reward.traits.right is not None:
                self._note_float(reward, columns, place)
        return ""

    def told(self) -> list[str]:
        """Warnings of all rows that were taken into account."""
        said = []
        for (reward, column), (count, first) in self._lacking.items():
            rows = f"{count:,} row{'s' * (count != 1)} (first {first})"
            said.append(
                f"`{column}`, which the reward '{reward}' is given, is null or empty in {rows}. Write it there or "
                "leave them out, unless they are to have no score"
            )
        for reward, example in self._floats.items():
            if example is not None:
                text, place = example
                said.append(
                    f"all solutions are whole numbers with a point, as {text} ({place}), which numbers become "
                    f"where some of their column are missing: '{reward}' takes {text.partition('.')[0]} for wrong "
                    "there. Write them without"
                )
        return said

    def _note_missing(self, reward: LoadedReward, column: str, columns: Mapping[str, Any], place: str) -> None:
        """To rewards that ship an empty text is none; to others it may be a text as any other."""
        given = columns.get(column)
        if is_missing(given) and (ships(reward) or given is None):
            count, first = self._lacking.get((reward.name, column), (0, _shown(place)))
            self._lacking[reward.name, column] = count + 1, first

    def _note_float(self, reward: LoadedReward, columns: Mapping[str, Any], place: str) -> None:
        """Of a reward that compares texts: whether all solutions are texts such as 42.0."""
        solution = columns.get("solution")
        if is_missing(solution) or self._floats.get(reward.name, "") is None:
            return
        is_float = isinstance(solution, str) and _WHOLE.fullmatch(solution.strip())
        if not is_float:
            self._floats[reward.name] = None
        else:
            self._floats.setdefault(reward.name, (str(solution).strip(), _shown(place)))


def _shown(place: str) -> str:
    """What is written down does not depend on where files are."""
    return place.rpartition("/")[2]
