"""What a program has logged to W&B, read from the file that wandb writes on this machine, offline or online.

    7 bytes, then blocks of 32 KiB as in LevelDB's logs; a record is a message of Protocol Buffers:
    Record { 2: history { 1: item }   3: summary { 1: update  2: remove }   5: config   17: run { 4: config }
             18: exit { 1: exit_code } }
    config { 1: update  2: remove }
    item   { 1: key   2: nested_key ...   16: value as JSON }

Nothing of wandb is imported: it takes seconds, and may be installed for the program alone. A file that is cut off,
as of a program that was killed or still runs, is read up to there, and on from there the next time.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, parse_json

PART = 8 << 20
"""Bytes of a file that are read at a time."""
PRINTED = 1 << 18
_PRINTED = re.compile(rb"saved locally in (.+run-[0-9]{8}_[0-9]{6}-[^\s/]+)")
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_BLOCK, _HEADER = 1 << 15, 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _SUMMARY, _CONFIG, _RUN, _EXIT = 2, 3, 5, 17, 18
_CONFIG_OF_RUN, _CODE_OF_EXIT = 4, 1
_UPDATE, _REMOVE = 1, 2
_KEY, _NESTED, _JSON = 1, 2, 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def run_files(folders: Iterable[Path], since: float = 0.0) -> list[Path]:
    """The files of runs, in the order in which they were last written to.

    Args:
        folders: Those of runs.
        since: Seconds since 1970; files that were last written before do not count.
    """
    found = set()
    for path in (path for folder in folders for path in folder.glob("run-*.wandb")):
        try:
            written = path.stat().st_mtime
        except OSError:
            continue
        if written >= since:
            found.add((written, path))
    return [path for _, path in sorted(found)]


def run_folders(wandb_dir: Path) -> list[Path]:
    """The folders of the runs of a program.

    Args:
        wandb_dir: What WANDB_DIR was for it.
    """
    return list(wandb_dir.glob("wandb/*run-*"))


def printed_folders(log: Path, start: Path) -> list[Path]:
    """The folders of runs that a program has printed, as wandb does when one begins; it may say where by ``dir``.

    Args:
        log: What it has printed; its first and last `PRINTED` bytes are looked at.
        start: The folder in which it was started.

    Raises:
        OSError: The log cannot be read.
    """
    with open_plain(log) as file:
        said = file.read(PRINTED)
        file.seek(max(file.tell(), file.seek(0, 2) - PRINTED))
        said += file.read(PRINTED)
    found = _PRINTED.findall(_COLOURS.sub(b"", said))
    return list(dict.fromkeys(start / os.fsdecode(path) for path in found))


class WandbRun:
    """What one run has logged, read as it comes.

    Attributes:
        summary: What stands for the run as a whole so far: mostly the last values. By name; what is nested by
            dotted name. None for what is not finite.
        config: Its settings so far, name -> plain data.
        exit_code: With which it ended; 0 also where it has not, or was killed.
    """

    def __init__(self, path: Path) -> None:
        self.summary: dict[str, float | None] = {}
        self.config: dict[str, Any] = {}
        self.exit_code = 0
        self._path, self._at, self._parts = path, _HEADER, list[bytes]()

    def rows(self) -> Iterator[dict[str, float | None]]:
        """What further calls of ``log`` had, by name as `summary`, as far as it was written and can be understood.

        Raises:
            OSError: The file cannot be read.
        """
        before = 0
        while before != self._at:
            before = self._at
            with open_plain(self._path) as file:
                file.seek(before)
                data = file.read(PART)
            for record in self._records(data):
                with suppress(_UnreadableError):  # what came before, and what follows, stands
                    yield from self._row(record)

    def _records(self, data: bytes) -> Iterator[bytes]:
        """Whole records in the bytes after those that were read; one that ends beyond them waits for the rest."""
        start = self._at
        while (at := self._at - start) + _HEADER <= len(data):
            left = _BLOCK - self._at % _BLOCK
            if left < _HEADER:
                self._at += left
                continue
            _, length, kind = struct.unpack_from("<IHB", data, at)
            piece = data[at + _HEADER : at + _HEADER + length]
            if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or len(piece) < length or length > left - _HEADER:
                return
            self._at += _HEADER + length
            if kind in (_WHOLE, _FIRST):
                self._parts = []
            elif not self._parts:
                continue
            self._parts.append(piece)
            if kind in (_WHOLE, _LAST):
                record, self._parts = b"".join(self._parts), []
                yield record

    def _row(self, record: bytes) -> Iterator[dict[str, float | None]]:
        """The row in a record, if it is one; of others what they change is noted."""
        for number, value in _fields(record):
            if not isinstance(value, bytes):
                continue
            if number == _HISTORY:
                yield dict(_numbers(value, _UPDATE))
            elif number == _SUMMARY:
                self.summary.update(_numbers(value, _UPDATE))
                for name, _ in _items(value, _REMOVE):
                    self.summary.pop(name, None)
            elif number == _CONFIG:
                self._configure(value)
            elif number == _RUN:
                for part, inside in _fields(value):
                    if part == _CONFIG_OF_RUN and isinstance(inside, bytes):
                        self._configure(inside)
            elif number == _EXIT:
                codes = [code for part, code in _fields(value) if part == _CODE_OF_EXIT and isinstance(code, int)]
                self.exit_code = next(iter(codes), 0)

    def _configure(self, message: bytes) -> None:
        for name, text in _items(message, _UPDATE):
            try:
                self.config[name] = parse_json(text, infinite=True)
            except ForeignDataError:
                continue
        for name, _ in _items(message, _REMOVE):
            self.config.pop(name, None)


class _UnreadableError(ValueError):
    """Bytes that are no such record."""


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Numbers of fields and their values: bytes, or of a number its bits."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise _UnreadableError
        if at + length > len(message):
            raise _UnreadableError
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at
    raise _UnreadableError


def _items(message: bytes, which: int) -> Iterator[tuple[str, str]]:
    """Dotted name and JSON of each item of a history or summary."""
    for number, item in _fields(message):
        if number != which or not isinstance(item, bytes):
            continue
        names: list[str] = []
        text = ""
        for part, value in _fields(item):
            if isinstance(value, bytes):
                said = value.decode(errors="replace")
                if part in (_KEY, _NESTED):
                    names.append(said)
                elif part == _JSON:
                    text = said
        yield ".".join(names), text


def _numbers(message: bytes, which: int) -> Iterator[tuple[str, float | None]]:
    for name, text in _items(message, which):
        try:
            yield from _leaves(name, parse_json(text, infinite=True))
        except ForeignDataError:
            continue


def _leaves(name: str, value: Any) -> Iterator[tuple[str, float | None]]:
    if isinstance(value, Mapping):
        for inside, each in value.items():
            yield from _leaves(f"{name}.{inside}", each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        yield name, number if math.isfinite(number) else None
