"""Try rewards before anything is generated: on the columns, on one row, and on a dataset's own solutions.

Problems that cannot depend on the completion are errors: a missing column, an undefined name, a result that is no
list of numbers. Problems that may depend on the completion, which is made up here, are only warnings.

Planning runs this module as a process of its own, since planning imports no code of rewards:

    settings    {"datasets": {name: its settings with their schema}, "to read": [names],
                 "templates": {model: the folder that has its chat template}}
    answer      {"problems": [...], "warnings": [...], "graded": {dataset: which of its rewards, in words},
                 "votes": {dataset: whether its rewards say what an answer is},
                 "conversations": [datasets], "texts": [datasets],
                 "unpaired": {dataset without pairs: its columns},
                 "unanswered": {dataset with rows that have no completion: how many of how many}}, in one line
"""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config.plain import stage_config_from_plain
from pipeline.config.schema import DatasetConfig
from pipeline.errors import ConfigError, DataError, JobError, PipelineError, told
from pipeline.foreign import ForeignDataError
from pipeline.learning.datasets.base import Dataset, Row, load_dataset, plain_text
from pipeline.learning.datasets.chat import TemplateOfFolder, refusal_of, unread
from pipeline.learning.datasets.from_files import FilesDataset, naming, of_dataset
from pipeline.learning.datasets.prepared import PreparedDataset
from pipeline.learning.datasets.rows import LOOK_S, Look, look_at
from pipeline.learning.rewards.answers import is_missing
from pipeline.learning.rewards.calling import Mismatch, columns_of, items_of, mismatch, needed_columns
from pipeline.learning.rewards.judge import judges_of
from pipeline.learning.rewards.registry import (
    LoadedReward,
    judge_of,
    known_rewards,
    load_functions,
    reads_answers,
    ships,
)
from pipeline.learning.rewards.scoring import Graded, GraderPool, is_correct
from pipeline.machine.children import Channel
from pipeline.machine.descendants import begin

_MADE_UP = "0"
_WHOLE = re.compile(r"(-?\d+)\.0+")
_ROWS = 8
"""Rows to look at for their columns, as each may lack some."""
_LONGEST = 4000
"""Largest number of characters in a message."""


def main() -> None:
    """Try the rewards of datasets that generate their rows, and of datasets that are to be read."""
    asked = begin()
    channel = Channel.inherited(asked["fd"])
    channel.send(json.dumps(answer(asked["datasets"], asked["to read"], asked["templates"])).encode())
    os._exit(0)  # whatever threads the modules have started


def answer(
    datasets: Mapping[str, Any], to_read: Collection[str], templates: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Collect the problems, warnings and facts about datasets, as JSON data."""
    said: dict[str, Any] = {each: [] for each in ("problems", "warnings", "conversations", "texts")}
    said |= {each: {} for each in ("graded", "votes", "unpaired", "unanswered")}
    for name, plain in datasets.items():
        try:
            config = stage_config_from_plain({"dataset": plain}).dataset
            dataset = load_dataset(config)
            if not dataset.prepared:
                rows = [dataset.row(int(row_id)) for row_id in dataset.ids("train")[:_ROWS]]
                columns = dict.fromkeys(column for row in rows for column in row.columns)
                said["warnings"] += check_rewards(name, config, dataset, rows[0], columns)
            elif name in to_read and isinstance(dataset, FilesDataset):
                _read(name, config, dataset, (templates or {}).values(), said)
            else:
                _check_judge(name, config)
            graded = [reward.name for reward in known_rewards(config) if reward.traits.graded and reward.weight]
            said["graded"][name] = f"its reward '{graded[0]}'" if graded else ""
            said["votes"][name] = reads_answers(config)
        except PipelineError as error:
            said["problems"].append(str(error))
        except KeyboardInterrupt as error:  # raised by a module: Ctrl-C goes to the group of the planning process
            said["problems"].append(f"datasets.{name}: its reward or its class cannot be imported: {told(error)}")
    return {**said, **{each: [*map(_shortened, said[each])] for each in ("problems", "warnings")}}


def _read(
    name: str, config: DatasetConfig, dataset: FilesDataset, templates: Collection[str], said: dict[str, Any]
) -> None:
    """Check the first rows of a dataset in files; `prepare` will reject problems of later rows."""
    check = RowCheck(name, config)
    look = _looked_at(name, dataset, check)
    if look.first is None:
        _check_judge(name, config)
        return
    said["warnings"] += [f"datasets.{name}: {each}" for each in look.warnings]
    try:
        # `prepare` will store the row in this form.
        first = replace(look.first, columns={**look.columns, **look.first.columns})
        tried = check_rewards(name, config, dataset, first, look.columns)
        said["warnings"] += [*(f"datasets.{name}: {each}" for each in check.told()), *tried]
    except ConfigError as error:
        if look.is_all:
            raise
        said["warnings"].append(f"{error} (as its first {look.number:,} rows tell)")
    said["conversations" if look.is_conversation else "texts"].append(name)
    if look.first.chosen is None:
        odd = f"label (neither true nor false in {look.unlabelled:,} of {look.number:,} rows)"
        columns = [odd if each == "label" and look.unlabelled else each for each in look.columns]
        said["unpaired"][name] = ["prompt", *columns]
    if look.unanswered:
        said["unanswered"][name] = [look.unanswered, look.number]
    for folder in templates if look.turns else ():
        with suppress(OSError, ForeignDataError, UnicodeDecodeError):  # reported where models are checked
            template = TemplateOfFolder(Path(folder))
            if template.chat_template is not None:
                said["problems"] += _refused(name, look, template)
                if found := dict.fromkeys(each for _, row in look.turns for each in unread(template, row)):
                    said["warnings"].append(
                        f"datasets.{name}: the chat template of {folder} does not read {', '.join(found)}, so "
                        "that this changes nothing there"
                    )


def _looked_at(name: str, dataset: FilesDataset, check: RowCheck) -> Look:
    try:
        return look_at(dataset, check)
    except PipelineError as error:
        raise DataError(f"datasets.{name}: {of_dataset(error, name)}") from error
    except (Exception, SystemExit) as error:  # of a class of the user's own
        raise DataError(f"datasets.{name}: its rows cannot be made: {told(error)}") from error


def _refused(name: str, look: Look, template: TemplateOfFolder) -> Iterator[str]:
    """Describe the first conversation that a chat template cannot render, if a few seconds suffice to find it."""
    give_up = time.monotonic() + LOOK_S
    for place, row in look.turns:
        if refusal := refusal_of(template, row):
            yield f"datasets.{name}: {place}: {of_dataset(refusal, name)}"
            return
        if time.monotonic() > give_up:
            return


def _shortened(message: str) -> str:
    """Shorten a message for printing: the user's code may put a whole row into an error."""
    half = _LONGEST // 2
    return message if len(message) <= _LONGEST else f"{message[:half]} [...] {message[-half:]}"


# -- a row -------------------------------------------------------------------------------------------------------


def check_rewards(
    name: str, config: DatasetConfig, dataset: Dataset, row: Row, columns: Iterable[str]
) -> list[str]:
    """Try the function rewards of a dataset; no models are loaded.

    Args:
        name: Name of the dataset in the configuration, for messages.
        config: Configuration of the dataset.
        dataset: The dataset of this configuration, for messages.
        row: Row for the calls of the rewards.
        columns: All columns of rows besides their texts.

    Returns:
        Warnings.

    Raises:
        ConfigError: A reward cannot work, whatever the completions.
    """
    _check_judge(name, config)
    for judge, settings in judges_of(config).items():
        if settings.mode == "pair" and settings.against == "answer" and row.answer is None:
            raise ConfigError(
                f"datasets.{name}: the reward '{judge}' compares with the answer of a row, and row {row.id} has "
                f"none. Set grading.options.{judge}.against=reference, or name the column by "
                f"datasets.{name}.columns={{completion: COLUMN}}"
            )
    rewards, known = load_functions(config), list(columns)
    for reward in rewards:
        if found := mismatch(reward.function, columns_of(row) | dict.fromkeys(known), reward.arguments):
            raise ConfigError(_refusal(reward, found, name, dataset, row, known))
    text, warnings, unscored = _completion(row), list[str](), True
    tried = f"datasets.{name}: for the completion {text[:40]!r} of row {row.id}"
    with GraderPool(config.grading) as pool:
        for reward in rewards:
            graded = _graded(pool, reward, config, row, text)
            unscored = unscored and bool(graded) and all(one.value is None for one in graded)
            if graded and graded[0].fault is not None:
                # Shipped rewards raise for no completion, so it must be the row.
                if graded[0].fault == "error" and (graded[0].certain or ships(reward)):
                    message = graded[0].message.partition("WrongScores: the reward ")[2]
                    said = Mismatch(said=message or f"fails: {graded[0].message}")
                    raise ConfigError(_refusal(reward, said, name, dataset, row, known))
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


def _check_judge(name: str, config: DatasetConfig) -> None:
    """Check that one reward of a dataset is known to judge correctness, or that none does."""
    rewards = known_rewards(config)
    try:
        judge_of(rewards, config)
    except ConfigError as error:
        raise ConfigError(f"datasets.{name}: {error}") from error


def _graded(
    pool: GraderPool, reward: LoadedReward, config: DatasetConfig, row: Row, text: str
) -> Sequence[Graded]:
    """Call a reward on one completion in a grading process; return nothing if the row cannot be sent to one.

    A reward that may compare completions also gets a second completion.
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
    """Yield a warning if a reward for texts gets conversations: it does not fail, but its scores mean nothing."""
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
    """Return a completion to score: the answer of the row, or else its solution or a made-up text."""
    if row.answer is not None:
        return row.answer if isinstance(row.answer, str) else str(row.answer[-1]["content"])
    solution = row.columns.get("solution")
    return solution if isinstance(solution, str) else _MADE_UP


def _needed(reward: LoadedReward) -> tuple[str, ...]:
    return needed_columns(reward.function, reward.arguments)


def _refusal(
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
    advice = f"choose another reward by datasets.{name}.reward: length, model and judge need no column"
    if columns and isinstance(dataset, FilesDataset) and type(dataset).adapt is FilesDataset.adapt:
        advice = f"write {of_dataset(naming(problem.missing[0]), name)}, or {advice}"
    return f"{who} needs {several} {wanted}; this dataset has: {', '.join([*texts, *columns])}; {advice}"


# -- all rows ----------------------------------------------------------------------------------------------------


class RowCheck:
    """Checks rows as they are read: rows that a reward rejects, and columns without a value."""

    def __init__(self, name: str, config: DatasetConfig) -> None:
        """Load the function rewards of a dataset.

        Args:
            name: Name of the dataset in the configuration, for messages.
            config: Configuration of the dataset.
        """
        self._name = name
        self._needs = [(reward, _needed(reward)) for reward in load_functions(config)]
        self._has_null = config.kind != "csv"
        self._lacking: dict[tuple[str, str, bool], tuple[int, str]] = {}
        self._as_text = [reward.name for reward, _ in self._needs if reward.traits.right is not None]
        self._float = ""
        self._all_floats = True

    def __call__(self, columns: Mapping[str, Any], place: str) -> str:
        """Check a row, and count it.

        Args:
            columns: Columns of the row, without its texts.
            place: Place of the row, for messages.

        Returns:
            Why a reward can score no completion of the row; "" if each can.
        """
        place = place.rpartition("/")[2]  # stored warnings do not depend on the location of files
        for reward, needed in self._needs:
            if reward.traits.refuses is not None and (problem := reward.traits.refuses(columns)):
                another = f"or choose another reward by datasets.{self._name}.reward"
                return f"the reward '{reward.name}' {problem}, {another}"
            for column in needed:
                # Shipped rewards treat an empty text as missing; for others it may be a value where there is null.
                is_value = self._has_null and not ships(reward) and columns.get(column) is not None
                if is_missing(columns.get(column)) and not is_value:
                    of = reward.name, column, ships(reward)
                    count, first = self._lacking.get(of, (0, place))
                    self._lacking[of] = count + 1, first
        solution = columns.get("solution")
        if not is_missing(solution):
            is_float = isinstance(solution, str) and _WHOLE.fullmatch(solution.strip()) is not None
            self._all_floats = self._all_floats and is_float
            self._float = self._float or f"{solution} ({place})"
        return ""

    def told(self) -> list[str]:
        """Return the warnings about all rows that were checked."""
        said = [
            f"`{column}`, which the reward '{reward}' is given, is null or empty in {count:,} "
            f"row{'s' * (count != 1)} (first {first}). Write it there or leave them out, unless "
            f"{'they are to have no score' if is_shipped else 'the reward allows for it'}"
            for (reward, column, is_shipped), (count, first) in self._lacking.items()
        ]
        if self._as_text and self._float and self._all_floats:
            said.append(
                f"all solutions are whole numbers with a point, as {self._float}: '{self._as_text[0]}' compares "
                "texts, and takes the number without the point for wrong. Write them without"
            )
        return said


# -- solutions ---------------------------------------------------------------------------------------------------
# Are correct solutions scored as correct? A reward that reads another answer in a solution than a reader does, or
# none, gives wrong scores without an error. So each solution, written as in a right completion (the trait `gold`),
# has to be correct.

ROWS, QUICK_ROWS = 250, 10_000
"""Largest number of rows to try in each split; the second for rewards without a process of their own. A number and
no time, so that stored warnings do not depend on the machine. `math_verify` takes 20 ms per text."""
_AT_ONCE = 64
_MOST_FAULTS = 4
"""Largest number of failures, as each may take as long as the deadline."""
_SHOWN = 3
_BRIEF = 60


class _Try(NamedTuple):
    row: int
    text: str
    graded: Graded


def check_gold(name: str, config: DatasetConfig, rows: PreparedDataset) -> list[str]:
    """Try the rewards of a dataset on its own solutions, in processes with a deadline.

    Args:
        name: Name of the dataset in the configuration, for messages.
        config: Configuration of the dataset.
        rows: Rows as `prepare` wrote them.

    Returns:
        Warnings about rewards that reject some solutions.

    Raises:
        ConfigError: A reward accepts none of the solutions that were tried.
    """
    warnings: list[str] = []
    with GraderPool(config.grading) as pool:
        for reward in load_functions(config):
            try:
                warnings += _wrong(name, reward, _tries(pool, reward, rows), sum(rows.about["rows"].values()))
            except JobError:
                if reward.traits.isolated:
                    raise  # otherwise the rows cannot be sent to a process, and need not be
    return warnings


def _tries(pool: GraderPool, reward: LoadedReward, rows: PreparedDataset) -> list[_Try]:
    gold = reward.traits.gold
    if gold is None:
        return []
    most = ROWS if reward.traits.isolated else QUICK_ROWS
    asked = [
        (row, text)
        for split in ("train", "validation", "test")
        for row in map(rows.row, rows.ids(split)[:most].tolist())
        for text in gold(columns_of(row))
    ]
    found: list[_Try] = []
    for start in range(0, len(asked), _AT_ONCE):
        some = asked[start : start + _AT_ONCE]
        given = [items_of([row], [text], [[0]], _needed(reward), reward.messages) for row, text in some]
        graded = pool.grade(reward.path, reward.options, given)
        found += [_Try(row.id, text, one[0]) for (row, text), one in zip(some, graded, strict=True)]
        if sum(each.graded.fault is not None for each in found) > _MOST_FAULTS:
            break
    return found


def _wrong(name: str, reward: LoadedReward, found: Sequence[_Try], there: int) -> Iterator[str]:
    of = len(found)
    tried = f"of {of:,} tried{f' (there are {there:,})' if there > of else ''}"
    wrong = [each for each in found if not is_correct(each.graded, reward)]
    if wrong:
        said = (
            f"the reward '{reward.name}' does not take the own solutions of {len(wrong):,} rows for right, "
            f"{tried}: {_shown(wrong)}"
        )
        if len(wrong) == of:
            raise ConfigError(
                f"datasets.{name}: {said}. No completion can be right. See that `solution` is the answer, by "
                f"datasets.{name}.columns, and that it is written as the reward reads it, or choose another "
                f"reward by datasets.{name}.reward"
            )
        yield f"{said}. Write them as it reads them, leave these rows out, or choose another reward"


def _shown(failed: Sequence[_Try]) -> str:
    said = []
    for row, text, graded in sorted(failed, key=lambda each: each.row)[:_SHOWN]:
        outcome = f"fails ({graded.message[:_BRIEF]})"
        if graded.fault is None:
            outcome = "is not judged" if graded.value is None else f"gets {graded.value:g}"
        said.append(f"row {row}: {text if len(text) <= _BRIEF else f'{text[:_BRIEF]}...'!r} {outcome}")
    return "; ".join(said) + (" and so on" if len(failed) > _SHOWN else "")


if __name__ == "__main__":
    main()
