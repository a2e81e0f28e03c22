"""Sweeps of runs of this package: what their parameters may not be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.values import brief
from pipeline.sweeps.reading.parameters import Entry
from pipeline.sweeps.reading.yaml_file import Fault

PROGRAM = "run_parallel.py"
SPLIT = "evaluation.split"
RESERVED = (
    "experiment.name",
    "output_dir",
    "stage",
    "dry_run",
    "device",
    "distributed.gpu_ids",
    "distributed.gpu_list",
    "distributed.num_gpus",
)
"""Settings of a run that its sweep decides."""
_SHOWN = 20
"""Values of a list that a message writes out."""
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def is_of_package(words: Iterable[str]) -> bool:
    """Whether a command runs this package."""
    return any(Path(word).name == PROGRAM for word in words)


def own_faults(data: Mapping[str, Any], entry: Entry) -> Iterator[Fault]:
    """Why a parameter cannot be one of a run of this package.

    Args:
        data: The file.
        entry: The parameter.
    """
    command = data.get("command")
    words = [data.get("program"), *(command if isinstance(command, list) else ())]
    if not is_of_package(word for word in words if isinstance(word, str)):
        return
    if entry.name in RESERVED:
        yield (
            entry.place,
            (
                "the sweep decides it for each of its runs. Leave it out; the name of the sweep, --output-dir, "
                "--device, --gpu-list and num_gpus say it"
            ),
        )
    if entry.name == SPLIT:
        yield (
            entry.place,
            (
                "trials are compared on validation prompts, and the test split would no longer be held out. Leave "
                "it out: the best trial is evaluated on the test split at the end"
            ),
        )
    values = entry.right.get("values", [])
    if any(isinstance(each, int | float) for each in values) and _is_list(entry.name):
        lists = [each if each is None or isinstance(each, list) else [each] for each in values[:_SHOWN]]
        shown = json.dumps(lists, default=str)
        yield (
            (*entry.place, "values"),
            f"a trial is given one of these, and {entry.name} is a list: write `values: {shown}`",
        )
    if not _KEY.fullmatch(entry.name):
        yield (
            entry.place,
            (
                f"{brief(entry.name)} is no setting of {PROGRAM}, which is given its parameters as KEY=VALUE: "
                "letters, digits, '_', '.' and '-', beginning with a letter or '_'. Programs of your own may have "
                "any name"
            ),
        )


def _is_list(key: str) -> bool:
    """Whether a setting that ships is a list."""
    from pipeline.config.meaning import shipped_meanings  # what no sweep of another program has a use for

    meaning = shipped_meanings().get(key)
    return meaning is not None and meaning.type.startswith("list")
