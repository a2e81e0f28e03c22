"""Main function of a process that tries rewards and rows while a run is planned, which imports none of their code.

settings    {"datasets": {name: its settings with their schema}, "to read": [names],
             "templates": {model: the folder that has its chat template}}
answer      {"problems": [...], "warnings": [...], "graded": {dataset: which of its rewards, in words},
             "conversations": [datasets], "texts": [datasets], "unpaired": {dataset without pairs: its columns},
             "unanswered": {dataset with rows that have no completion: how many of how many}}, in one line
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.config.bases import DatasetConfig
from pipeline.config.place import told
from pipeline.config.plain import stage_config_from_plain
from pipeline.errors import ConfigError, DataError, PipelineError
from pipeline.foreign import ForeignDataError
from pipeline.learning.datasets.base import Dataset
from pipeline.learning.datasets.chat import TemplateOfFolder, refusal_of, unread
from pipeline.learning.datasets.columns import MissingColumns, ReservedColumn
from pipeline.learning.datasets.from_files import FilesDataset
from pipeline.learning.datasets.look import LOOK_S, Look, look_at
from pipeline.learning.datasets.registry import load_dataset
from pipeline.learning.rewards.probe import RowCheck, advice_on, check_judge, check_rewards
from pipeline.learning.rewards.registry import known_rewards
from pipeline.machine.begin import begin
from pipeline.machine.channel import Channel

_ROWS = 8
"""Rows that are looked at for their columns, as each may lack some."""
_LONGEST = 4000
"""Characters of a message."""


def main() -> None:
    """Try the rewards of datasets that make their rows, and of those that are to be read."""
    asked = begin()
    channel = Channel.inherited(asked["fd"])
    channel.send(json.dumps(answer(asked["datasets"], asked["to read"], asked["templates"])).encode())
    os._exit(0)  # whatever threads the modules have started


def answer(
    datasets: Mapping[str, Any], to_read: Collection[str], templates: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What there is to say, as JSON data."""
    problems: list[str] = []
    warnings: list[str] = []
    graded: dict[str, str] = {}
    conversations: list[str] = []
    texts: list[str] = []
    unpaired: dict[str, list[str]] = {}
    unanswered: dict[str, list[int]] = {}
    for name, plain in datasets.items():
        try:
            config = stage_config_from_plain({"dataset": plain}).dataset
            dataset = load_dataset(config)
            if not dataset.prepared:
                warnings += _tried(name, config, dataset)
            elif name in to_read and isinstance(dataset, FilesDataset):
                check = RowCheck(name, config)
                look = _looked_at(name, config, dataset, check)
                warnings += _read(name, config, dataset, look, check)
                conversations += [name] * look.is_conversation
                texts += [name] * (look.first is not None and not look.is_conversation)
                if look.first is not None and look.first.chosen is None:
                    unpaired[name] = ["prompt", *look.columns]
                if look.unanswered:
                    unanswered[name] = [look.unanswered, look.number]
                problems += _refused(name, look, templates or {})
                warnings += _unread(name, look, templates or {})
            else:
                check_judge(name, config)
            graded[name] = _graded(config)
        except PipelineError as error:
            problems.append(str(error))
        except KeyboardInterrupt as error:  # of a module: Ctrl-C is for the group of the process that plans
            problems.append(f"datasets.{name}: its reward or its class cannot be imported: {told(error)}")
    told_of = {"problems": [*map(_shortened, problems)], "warnings": [*map(_shortened, warnings)]}
    rows = {"conversations": conversations, "texts": texts, "unpaired": unpaired, "unanswered": unanswered}
    return {**told_of, "graded": graded, **rows}


def _refused(name: str, look: Look, templates: Mapping[str, str]) -> Iterator[str]:
    """What the chat templates of models cannot write of the rows of a dataset: the first of each."""
    for folder in templates.values() if look.turns else ():
        with suppress(OSError, ForeignDataError, UnicodeDecodeError):  # told where models are checked
            template = TemplateOfFolder(Path(folder))
            if template.chat_template is None:
                continue
            give_up = time.monotonic() + LOOK_S
            for place, row in look.turns:
                if said := refusal_of(template, row):
                    yield f"datasets.{name}: {place}: {said.replace('datasets.NAME', f'datasets.{name}')}"
                    break
                if time.monotonic() > give_up:
                    break


def _unread(name: str, look: Look, templates: Mapping[str, str]) -> Iterator[str]:
    """Which arguments of rows the chat templates of models do not read."""
    for folder in templates.values() if look.turns else ():
        with suppress(OSError, ForeignDataError, UnicodeDecodeError):
            template = TemplateOfFolder(Path(folder))
            found = dict.fromkeys(argument for _, row in look.turns for argument in unread(template, row))
            if found and template.chat_template is not None:
                yield (
                    f"datasets.{name}: the chat template of {folder} does not read {', '.join(found)}, so that "
                    "this changes nothing there"
                )


def _shortened(message: str) -> str:
    """A message that can be printed: own code may put a whole row into an error."""
    half = _LONGEST // 2
    return message if len(message) <= _LONGEST else f"{message[:half]} [...] {message[-half:]}"


def _tried(name: str, config: DatasetConfig, dataset: Dataset) -> list[str]:
    rows = [dataset.row(int(row_id)) for row_id in dataset.ids("train")[:_ROWS]]
    columns = dict.fromkeys(column for row in rows for column in row.columns)
    return check_rewards(name, config, dataset, rows[0], columns)


def _looked_at(name: str, config: DatasetConfig, dataset: FilesDataset, check: RowCheck) -> Look:
    """A look at a dataset whose rows are in files; `prepare` will refuse what is wrong with later ones."""
    try:
        return look_at(dataset, check)
    except (MissingColumns, ReservedColumn) as error:
        raise DataError(f"datasets.{name}: {error} {advice_on(error, name, config)}") from error
    except PipelineError as error:
        raise DataError(f"datasets.{name}: {error}") from error
    except (Exception, SystemExit) as error:  # of a class of the user's own
        raise DataError(f"datasets.{name}: its rows cannot be made: {told(error)}") from error


def _read(name: str, config: DatasetConfig, dataset: FilesDataset, look: Look, check: RowCheck) -> list[str]:
    """Warnings about such a dataset and its rewards."""
    if look.first is None:
        check_judge(name, config)
        return []
    warnings = [f"datasets.{name}: {'; '.join(look.warnings)}"] if look.warnings else []
    try:
        tried = check_rewards(name, config, dataset, look.first, look.columns)
        return [*warnings, *(f"datasets.{name}: {said}" for said in check.told()), *tried]
    except ConfigError as error:
        if look.is_all:
            raise
        return [*warnings, f"{error} (as its first {look.number:,} rows tell)"]


def _graded(config: DatasetConfig) -> str:
    """The first reward that is declared to be graded, in words; "" for none."""
    found = [reward.name for reward in known_rewards(config) if reward.traits.graded and reward.weight]
    return f"its reward '{found[0]}'" if found else ""


if __name__ == "__main__":
    main()
