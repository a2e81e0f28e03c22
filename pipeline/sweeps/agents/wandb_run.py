"""What a program has logged to W&B, read from the file that wandb writes on this machine, offline or online.

    7 bytes, then blocks of 32 KiB as in LevelDB's logs; a record is a message of Protocol Buffers:
    Record { 2: history { 1: item }   3: summary { 1: update  2: remove } }
    item   { 1: key   2: nested_key ...   16: value as JSON }

Nothing of wandb is imported: it takes seconds, and may be installed for the program alone. A file that is cut off,
as of a program that was killed, is read up to there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, parse_json

LARGEST = 64 << 20
"""Bytes at the end of a file that are looked at."""
_BLOCK, _HEADER = 1 << 15, 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _SUMMARY = 2, 3
_UPDATE, _REMOVE = 1, 2
_KEY, _NESTED, _JSON = 1, 2, 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(kw_only=True)
class WandbRun:
    """What one run has logged.

    Attributes:
        rows: What each call of ``log`` had, by name; what is nested by dotted name. None for what is not finite.
        summary: What stands for the run as a whole, likewise: mostly the last values.
    """

    rows: list[dict[str, float | None]] = field(default_factory=list)
    summary: dict[str, float | None] = field(default_factory=dict)


def newest_run(folder: Path, since: float = 0.0) -> Path | None:
    """The file of the run that was written to last; None where there is none.

    Args:
        folder: What WANDB_DIR was for the program.
        since: Seconds since 1970; files that were last written before do not count.
    """
    found = []
    for path in folder.glob("wandb/*run-*/run-*.wandb"):
        try:
            written = path.stat().st_mtime
        except OSError:
            continue
        if written >= since:
            found.append((written, path))
    return max(found)[1] if found else None


def read_wandb_run(path: Path) -> WandbRun:
    """Read a run, as far as it was written and can be understood.

    Raises:
        OSError: The file cannot be read.
    """
    run = WandbRun()
    try:
        for record in _records(*_tail(path)):
            for number, value in _fields(record):
                if number == _HISTORY and isinstance(value, bytes):
                    run.rows.append(dict(_numbers(value, _UPDATE)))
                elif number == _SUMMARY and isinstance(value, bytes):
                    run.summary.update(_numbers(value, _UPDATE))
                    for name, _ in _items(value, _REMOVE):
                        run.summary.pop(name, None)
    except _UnreadableError:
        pass  # what came before stands
    return run


class _UnreadableError(ValueError):
    """Bytes that are no such record."""


def _tail(path: Path) -> tuple[bytes, int]:
    """Its bytes from the beginning of a block on, and where in them records begin."""
    with open_plain(path) as file:
        size = file.seek(0, 2)
        start = max(0, size - LARGEST) // _BLOCK * _BLOCK
        file.seek(start)
        return file.read(LARGEST + _BLOCK), 0 if start else _HEADER


def _records(data: bytes, at: int) -> Iterator[bytes]:
    """Whole records; of one that began before the data, or does not end in it, nothing."""
    parts: list[bytes] = []
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        piece = data[at + _HEADER : at + _HEADER + length]
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or len(piece) < length or length > left - _HEADER:
            return
        at += _HEADER + length
        if kind in (_WHOLE, _FIRST):
            parts = []
        elif not parts:
            continue
        parts.append(piece)
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
            parts = []


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
