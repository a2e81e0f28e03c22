"""Reading the files of a stored output, each by its type in `formats`; one that holds something else is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import JobError
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, read_json, read_json_file, read_plain
from pipeline.outputs.formats import (
    METRICS,
    PAGE,
    SAMPLES,
    Faults,
    Generation,
    Metrics,
    Pointer,
    PreparedRows,
    RewardFit,
    Tokenized,
    Training,
)
from pipeline.outputs.manifest import job_of

_LINE = 16 << 20
"""Bytes that a line of ``samples.jsonl`` has at most."""
_SHOWN = 64 << 20
"""Bytes of the samples beside metrics: they are for people, and those of all chains come together in one file."""
_T = TypeVar("_T")


def read_metrics(output: Path) -> Metrics:
    """Read the ``metrics.json`` of an output.

    Raises:
        ForeignDataError: It holds something else.
        OSError: It is not there, or cannot be read.
    """
    return read_json_file(output / METRICS, Metrics)


def read_shown_samples(output: Path) -> list[dict[str, Any]]:
    """Read the ``samples.jsonl`` beside metrics: any objects, for people.

    Raises:
        ForeignDataError: It holds something else.
        OSError: It is not there, or cannot be read.
    """
    lines = read_plain(output / SAMPLES, _SHOWN).splitlines(keepends=True)
    return list(_objects(enumerate(lines, 1), dict[str, Any]))


def read_lines(path: Path, kind: type[_T]) -> Iterator[_T]:
    """Read a file of JSON lines as objects of a type, one by one. Empty lines are passed over.

    Raises:
        ForeignDataError: A line is of another type; says which.
        OSError: The file is not there, or cannot be read.
    """
    with open_plain(path) as file:
        numbered = ((number, file.readline(_LINE + 1)) for number in count(1))
        yield from _objects(_until_the_end(numbered), kind)


def count_lines(path: Path) -> int:
    """How many lines a file has, which need not be of any type.

    Raises:
        ForeignDataError: It is no plain file.
        OSError: The file is not there, or cannot be read.
    """
    with open_plain(path) as file:
        return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))


def _until_the_end(lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    for number, line in lines:
        if not line:
            return
        yield number, line


def _objects(lines: Iterator[tuple[int, bytes]] | enumerate[bytes], kind: type[_T]) -> Iterator[_T]:
    for number, line in lines:
        if len(line) > _LINE:
            raise ForeignDataError(f"line {number}: it is longer than {_LINE:,} bytes")
        if not line.strip():
            continue
        try:
            yield read_json(line, kind)
        except ForeignDataError as error:
            raise ForeignDataError(f"line {number}: {error}") from error


def read_input(output: Path, name: str, read: Callable[[Path], _T]) -> _T:
    """Read a file of an output that this job reads.

    Args:
        output: Folder of the stored output.
        name: The file.
        read: Reads it.

    Raises:
        JobError: It is not there or not as it must be; says which job wrote it.
    """
    try:
        return read(output / name)
    except (ForeignDataError, OSError) as error:
        raise JobError(
            f"{name} in the output of {job_of(output)} ({output}) cannot be used: {problem_in_words(error)}. "
            f"What it must hold: {PAGE}"
        ) from error


def _reader(kind: type[_T]) -> Callable[[Path], _T]:
    """What reads a file as that; raises as `read_metrics` does."""
    return partial(read_json_file, kind=kind)


read_generation = _reader(Generation)
read_training = _reader(Training)
read_reward_fit = _reader(RewardFit)
read_prepared_rows = _reader(PreparedRows)
read_tokenized = _reader(Tokenized)
read_faults = _reader(Faults)
read_pointer = _reader(Pointer)


def problem_in_words(error: ForeignDataError | OSError) -> str:
    """What is wrong with a file that could not be read."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
