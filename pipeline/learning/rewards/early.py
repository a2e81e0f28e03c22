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

from pipeline.config.place import told
from pipeline.config.plain import stage_config_from_plain
from pipeline.config.schema import DatasetConfig
from pipeline.errors import ConfigError, DataError, PipelineError
from pipeline.foreign import ForeignDataError
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.chat import TemplateOfFolder, refusal_of, unread
from pipeline.learning.datasets.from_files import FilesDataset, MissingColumns, ReservedColumn
from pipeline.learning.datasets.rows import LOOK_S, Look, look_at
from pipeline.learning.rewards.probe import RowCheck, advice_on, check_judge, check_rewards
from pipeline.learning.rewards.registry import known_rewards
from pipeline.machine.children import Channel
from pipeline.machine.descendants import begin

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
    said: dict[str, Any] = {each: [] for each in ("problems", "warnings", "conversations", "texts")}
    said |= {each: {} for each in ("graded", "unpaired", "unanswered")}
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
                check_judge(name, config)
            graded = [reward.name for reward in known_rewards(config) if reward.traits.graded and reward.weight]
            said["graded"][name] = f"its reward '{graded[0]}'" if graded else ""
        except PipelineError as error:
            said["problems"].append(str(error))
        except KeyboardInterrupt as error:  # of a module: Ctrl-C is for the group of the process that plans
            said["problems"].append(f"datasets.{name}: its reward or its class cannot be imported: {told(error)}")
    return {**said, **{each: [*map(_shortened, said[each])] for each in ("problems", "warnings")}}


def _read(
    name: str, config: DatasetConfig, dataset: FilesDataset, templates: Collection[str], said: dict[str, Any]
) -> None:
    """Look at a dataset whose rows are in files; `prepare` will refuse what is wrong with later ones."""
    check = RowCheck(name, config)
    look = _looked_at(name, config, dataset, check)
    if look.first is None:
        check_judge(name, config)
        return
    said["warnings"] += [f"datasets.{name}: {each}" for each in look.warnings]
    try:
        tried = check_rewards(name, config, dataset, look.first, look.columns)
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
        with suppress(OSError, ForeignDataError, UnicodeDecodeError):  # told where models are checked
            template = TemplateOfFolder(Path(folder))
            if template.chat_template is not None:
                said["problems"] += _refused(name, look, template)
                if found := dict.fromkeys(each for _, row in look.turns for each in unread(template, row)):
                    said["warnings"].append(
                        f"datasets.{name}: the chat template of {folder} does not read {', '.join(found)}, so "
                        "that this changes nothing there"
                    )


def _looked_at(name: str, config: DatasetConfig, dataset: FilesDataset, check: RowCheck) -> Look:
    try:
        return look_at(dataset, check)
    except (MissingColumns, ReservedColumn) as error:
        raise DataError(f"datasets.{name}: {error} {advice_on(error, name, config)}") from error
    except PipelineError as error:
        raise DataError(f"datasets.{name}: {error}") from error
    except (Exception, SystemExit) as error:  # of a class of the user's own
        raise DataError(f"datasets.{name}: its rows cannot be made: {told(error)}") from error


def _refused(name: str, look: Look, template: TemplateOfFolder) -> Iterator[str]:
    """The first conversation that a chat template cannot write, as far as a few seconds tell."""
    give_up = time.monotonic() + LOOK_S
    for place, row in look.turns:
        if refusal := refusal_of(template, row):
            yield f"datasets.{name}: {place}: {refusal.replace('datasets.NAME', f'datasets.{name}')}"
            return
        if time.monotonic() > give_up:
            return


def _shortened(message: str) -> str:
    """A message that can be printed: own code may put a whole row into an error."""
    half = _LONGEST // 2
    return message if len(message) <= _LONGEST else f"{message[:half]} [...] {message[-half:]}"


if __name__ == "__main__":
    main()
