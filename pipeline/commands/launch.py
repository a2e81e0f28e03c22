"""What the options of ``python -m pipeline launch`` ask for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from pipeline.engine.launch.request import LaunchRequest
from pipeline.errors import ConfigError

_ID = re.compile("[0-9]{1,9}")  # `str.isdigit` takes what `int` does not


def requested(
    *, program: Sequence[str] | None, gpus: str | None, device: str | None, grace: int, **others: Any
) -> LaunchRequest:
    """What the options of the command ask for, by their names.

    Raises:
        ConfigError: One cannot be read, or they contradict each other.
    """
    if device not in (None, "cuda", "auto", "cpu"):
        raise ConfigError(f"--device {device}: cpu, or leave it out for GPUs")
    if (device == "cpu") != (others["nproc"] is not None):
        raise ConfigError(
            "--device cpu and --nproc N go together: processes without GPUs, and how many. With GPUs there is one "
            "process on each: use --num-gpus N"
        )
    if device == "cpu" and (gpus is not None or others["num_gpus"] is not None):
        raise ConfigError("--device cpu uses no GPU: leave out --gpus and --num-gpus, or --device cpu")
    ids = None if gpus is None else parse_ids(gpus, "--gpus")
    return LaunchRequest(program=program or [], gpus=ids, grace_s=grace, **others)


def parse_ids(text: str, option: str) -> list[int]:
    """``4,5,6,7`` as numbers.

    Args:
        text: What was given.
        option: With which option.

    Raises:
        ConfigError: An entry is no number.
    """
    entries = [entry.strip() for entry in text.split(",")]
    wrong = [entry for entry in entries if not _ID.fullmatch(entry)]
    if wrong:
        raise ConfigError(
            f"{option} {shlex.quote(text)}: '{wrong[0]}' is no id. Give numbers with commas between: "
            f"{option} 4,5,6,7"
        )
    return [int(entry) for entry in entries]
