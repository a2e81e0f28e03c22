"""Check an output against the formats before it is committed: a wrong file fails the job that wrote it."""

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.errors import JobError
from pipeline.files import walk
from pipeline.foreign import ForeignDataError
from pipeline.outputs import formats

MAX_LEVELS = 64
"""Folders in one another that an output may have, so that every path in it can be opened on every file system."""
MAX_FILES = 1_000_000
"""Files and folders of an output at most, so that its manifest can be read whole."""


def check_output(folder: Path) -> dict[str, os.stat_result]:
    """Hold a finished folder to the formats of `outputs.formats`, whichever stage it is of.

    Returns:
        The entries of the folder, as `walk` tells.

    Raises:
        JobError: A file with one of these names holds something else; says which, where and what. Or there are
            more files, or folders in one another, than an output may have.
    """
    names, entries = _look_through(folder)
    for name, read in _READERS.items() if names else ():
        shown = sorted(path for path in names if _is_shown(path)) if name == formats.SAMPLES else ()
        for inside in (name, *shown):
            if inside in names:
                with suppress(FileNotFoundError):
                    _hold(folder / inside, inside, read)
    return entries


def _is_shown(name: str) -> bool:
    """Return whether a file has samples of one of several policies."""
    parent, _, last = name.rpartition("/")
    return last == formats.SAMPLES and (
        parent == formats.GREEDY or (parent.startswith(formats.ETA) and "/" not in parent)
    )


def _look_through(folder: Path) -> tuple[set[str], dict[str, os.stat_result]]:
    """Return the names in a folder that must follow a format, at any depth, and all files that exist.

    Raises:
        JobError: There are more than an output may have.
    """
    names, entries = set(), {}
    try:
        for number, (name, status) in enumerate(walk(folder)):
            entries[name] = status
            if name.rpartition("/")[2] in _READERS:
                names.add(name)
            if name.count("/") >= MAX_LEVELS:
                start = "/".join(name.split("/")[:3])
                raise JobError(f"its output has more than {MAX_LEVELS} folders in one another, under {start}")
            if number > MAX_FILES:
                raise JobError(
                    f"its output has more than {MAX_FILES:,} files and folders. Put them together in fewer"
                )
        return names, entries
    except OSError as error:
        raise JobError(f"its output cannot be read: {error.strerror}") from error


def _hold(path: Path, shown: str, read: Callable[[Path], object]) -> None:
    try:
        read(path)
    except FileNotFoundError:
        raise
    except (ForeignDataError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):  # no fault of the file
            raise JobError(f"the output cannot be looked at: {formats.problem_in_words(error)}") from error
        raise JobError(
            f"{shown} is not as it must be: {formats.problem_in_words(error)}. "
            f"What it must hold, with an example: {formats.PAGE}"
        ) from error


def _read_prompts(path: Path) -> None:
    # Not with the other imports: every worker looks at outputs, and few of those make it load numpy.
    from pipeline.outputs.prompts import read_prompts

    read_prompts(path.parent)


def _read_samples(path: Path) -> None:
    if os.path.lexists(path.parent / formats.METRICS):
        formats.read_shown_samples(path.parent)
    else:
        for _ in formats.read_lines(path, formats.Sample):
            pass


_READERS: Mapping[str, Callable[[Path], object]] = {
    formats.METRICS: lambda path: formats.read_metrics(path.parent),
    formats.PROMPTS: _read_prompts,
    formats.SAMPLES: _read_samples,
    formats.TRAINING: formats.read_training,
    formats.GENERATION: formats.read_generation,
    formats.REWARD: formats.read_reward_fit,
    formats.FAULTS: formats.read_faults,
    formats.ASKED: formats.read_asked,
    formats.CURVES: lambda path: formats.read_curve(path.parent),
    formats.GUIDANCE: formats.read_guidance,
    formats.ADAPTERS: formats.read_adapters,
}
"""Names that any stage may write; ``model.json`` is left to the reference."""
