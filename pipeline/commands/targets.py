"""Where commands may write: anywhere but over what runs and stores hold, their records and the outputs of jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console

from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store_lock import is_store
from pipeline.errors import ConfigError
from pipeline.files import plain_target, write_whole
from pipeline.runs.loaded import LoadedRun
from pipeline.sweeps.folder import SweepFolder
from pipeline.terminal.console import say

_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def is_standard_output(path: Path | None) -> bool:
    """Whether a user means what the command prints, by one of the names that it has."""
    return str(path) in _STANDARD_OUTPUT


def write_table(path: Path, text: str, console: Console) -> None:
    """Write a table for other programs: to a file, or to standard output without another word.

    Raises:
        ConfigError: It cannot be written.
    """
    if is_standard_output(path):
        sys.stdout.write(text)
    else:
        written(path, lambda: write_whole(plain_target(path), text), console)


def refuse_records(option: str, path: Path, runs: Iterable[LoadedRun], *, is_page: bool = False) -> None:
    """Refuse a place inside a store or the folder of any run or sweep, also by a link to there.

    Stores are those of the runs, and what looks like one.

    Args:
        option: As it is typed.
        path: What was given with it.
        runs: Those that the command is about.
        is_page: Whether a report is written, which may take the place of the report of a run or sweep.

    Raises:
        ConfigError: It is, or it is standard output, which is no place.
    """
    if is_standard_output(path):
        raise ConfigError(f"{option} {path}: nothing is written to the output of a command; name a file or folder")
    target = path.resolve()
    roots = {run.store.root for run in runs}
    roots.update(parent for parent in (target, *target.parents, *path.absolute().parents) if is_store(parent))
    for root in roots:
        if target.is_relative_to(root.resolve()):
            raise ConfigError(
                f"{option} {path}: that is inside the store {root}, which holds the outputs of jobs alone; name a "
                "place outside of it"
            )
    for folder in map(RunFolder, (target, *target.parents)):
        # By its name first: folders of other programs have files of the same names.
        if folder.begun and folder.holds_run and not (is_page and target == folder.report):
            raise ConfigError(
                f"{option} {path}: that is inside the folder of a run, {folder.path}, which holds what the run "
                "left alone; name a place outside of it"
            )
    for path_of_sweep in (target, *target.parents):
        sweep = SweepFolder(path_of_sweep)
        if sweep.begun and not (is_page and target == sweep.report):
            raise ConfigError(
                f"{option} {path}: that is inside the folder of a sweep, {sweep.path}, which holds what its "
                "trials left alone; name a place outside of it"
            )


def written(path: Path, write: Callable[[], None], console: Console) -> None:
    """Write a file that a user has named, and say where it is.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}. Give another file") from error
    say(console, "written:", copy=str(path))
