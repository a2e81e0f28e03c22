"""Beginning a sweep, or going on with one: its file is kept, and its journal says so."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, StoreError
from pipeline.files import write_whole
from pipeline.sweeps.folder import SweepFolder, sweep_folder
from pipeline.sweeps.reading.file import read_sweep
from pipeline.sweeps.record import Record
from pipeline.sweeps.space import fingerprint
from pipeline.sweeps.spec import Sweep

_FIXED = ("method", "metric", "parameters", "program", "command")
"""What trials have in common; a sweep with others is another sweep."""


def begin_sweep(
    sweep: Sweep,
    file: Path,
    output_dir: Path,
    *,
    overrides: Sequence[str] = (),
    count: int | None = None,
    say: Callable[[str], None] = lambda _text: None,
) -> SweepFolder:
    """Make the folder of a sweep, or see that the one which is there is the same sweep.

    Args:
        sweep: What is asked for.
        file: Where it was read.
        output_dir: Folder of all runs.
        overrides: Settings of the command line, which `sweep` has.
        count: The most trials; None for no bound.
        say: Told a line where an agent keeps the lock of the sweep for long.

    Raises:
        ConfigError: There is another sweep of that name.
        StoreError: The folder cannot be written.
    """
    folder = sweep_folder(output_dir.absolute(), sweep.name)
    record = Record(folder, say)
    with record.turn():
        if record.view.started is not None:
            _refuse_another(sweep, folder, record.view.overrides)
        try:
            write_whole(folder.file, file.read_text())
        except OSError as error:
            raise StoreError(f"cannot write {folder.file}: {error.strerror}") from error
        if record.view.started is None or not record.living_agents():
            record.write(
                "SweepStarted",
                name=sweep.name,
                method=sweep.method.value,
                metric=sweep.metric.name if sweep.metric else None,
                goal=sweep.metric.goal.value if sweep.metric else None,
                folder=str(sweep.folder.absolute()),
                overrides=list(overrides),
                count=count,
                pid=os.getpid(),
                host=socket.gethostname(),
            )
    return folder


def _refuse_another(sweep: Sweep, folder: SweepFolder, overrides: Sequence[str]) -> None:
    try:
        there = read_sweep(folder.file, name=folder.name, overrides=overrides)
    except (ConfigError, OSError):
        return  # what it was cannot be told any more, and is replaced
    other = [name for name in _FIXED if not _alike(there.given.get(name), sweep.given.get(name))]
    if other:
        raise ConfigError(
            f"sweep {folder.name} in {folder.path} was begun with other {', '.join(other)}: its trials would "
            "not belong together. Give this one a name of its own by --name, or remove that folder"
        )


def _alike(one: Any, other: Any) -> bool:
    """Whether two parts of a file say the same, values being told apart as a grid does."""
    match one, other:
        case Mapping(), Mapping():
            return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(_alike, one, other))
    return fingerprint(one) == fingerprint(other)
