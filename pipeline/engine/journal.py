"""Every state change of a run, one JSON object a line.

    append --> lines in memory --flush--> the file, which other processes read --force--> the disk

A process that is killed leaves all that was flushed, a machine that loses power all that was forced, and of either
whole lines from the first on.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.json import Encoder

from pipeline.engine.events import Event, read_event, whole_lines
from pipeline.errors import StoreError
from pipeline.files import json_text, open_plain
from pipeline.foreign import ForeignDataError
from pipeline.locks import LocksUnsupportedError, lock

_ENCODER = Encoder()


class Journal:
    """Appends events to ``journal.jsonl``. One writer, which holds an exclusive lock on the file meanwhile.

    Attributes:
        unforced: Whether something was written that may not be on disk yet.
    """

    def __init__(self, path: Path) -> None:
        """Open a journal, or go on with one.

        Raises:
            StoreError: It cannot be written, or another process is writing it.
        """
        self._path = path
        try:
            self._file = open(path, "ab", buffering=0, opener=_plainly)  # noqa: SIM115 - open as long as the run
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error
        with suppress(LocksUnsupportedError):
            if not lock(self._file.fileno(), wait=False):
                self._file.close()
                raise StoreError(f"another process is writing {path}; a run has a folder of its own")
        try:
            whole = _whole_bytes(path)
        except OSError as error:
            self._file.close()
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        self._lines: list[bytes] = []
        self._cut(whole)
        self.unforced = False

    def write(self, event: str, **fields: Any) -> Event:
        """Append one event, have it on disk, and return it as it was written.

        Raises:
            StoreError: It could not be written. What was written before stands, and no part of this event.
        """
        written = self.append(event, **fields)
        self.force()
        return written

    def append(self, event: str, **fields: Any) -> Event:
        """Add one event with its wall-clock time, to be written by the next `flush`; returns it as it will be."""
        written: Event = {"event": event, "time": round(time.time(), 3), **fields}
        self._lines.append(_line(written) + b"\n")
        return written

    def flush(self) -> None:
        """Write what was appended, in one go.

        Raises:
            StoreError: It could not be written. What was written before stands, and none of this.
        """
        data, self._lines = b"".join(self._lines), []
        if data:
            self._do(data, force=False)

    def force(self) -> None:
        """Write what was appended, and have all that was written on disk.

        Raises:
            StoreError: As `flush`.
        """
        data, self._lines = b"".join(self._lines), []
        if data or self.unforced:
            self._do(data, force=True)

    def _do(self, data: bytes, *, force: bool) -> None:
        try:
            if data and self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, "only a part was written")
            if force:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._cut(self._length)
            raise StoreError(f"cannot write {self._path}: {error.strerror}") from error
        self._length += len(data)
        self.unforced = not force

    def _cut(self, length: int) -> None:
        """Leave whole lines only."""
        self._length = length
        with suppress(OSError):
            os.ftruncate(self._file.fileno(), length)

    def close(self) -> None:
        """Close the file. What was appended and never flushed is not in it."""
        self._file.close()


def _line(event: Event) -> bytes:
    try:
        return _ENCODER.encode(event)
    except (UnicodeEncodeError, OverflowError):  # half of a character; a number that has no end
        return json_text(event, separators=(",", ":")).encode()


def _plainly(path: str, flags: int) -> int:
    """Refuse, rather than wait for, what is in the place of a journal and is no file."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file", path)
    return descriptor


def _whole_bytes(path: Path) -> int:
    """Bytes up to the end of the last whole line."""
    with open_plain(path) as file:
        for _ in whole_lines(file):
            pass
        return file.tell()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a journal. What is no event is left out, as is a last line that a crash cut off.

    Raises:
        OSError: It is missing, or no plain file.
    """
    with open_plain(path, follow=True) as file:
        for line in whole_lines(file):
            with suppress(ForeignDataError):
                yield read_event(line)


class JournalReader:
    """Reads the events of a journal as they come. A line without its end is left for the next time.

    Attributes:
        unreadable: Lines so far that are no events.
    """

    def __init__(self, path: Path, read: Callable[[bytes], dict[str, Any]] = read_event) -> None:
        """Begin at its first line.

        Args:
            path: The journal, which need not be there yet.
            read: Makes an event of a line, or raises a `ForeignDataError`.
        """
        self.unreadable = 0
        self._path, self._read = path, read
        self._offset = 0

    def new_events(self) -> Iterator[dict[str, Any]]:
        """What came since the last time.

        Raises:
            StoreError: The journal cannot be read.
        """
        try:
            with open_plain(self._path, follow=True) as file:
                file.seek(self._offset)
                for line in whole_lines(file):
                    self._offset = file.tell()
                    try:
                        yield self._read(line)
                    except ForeignDataError:
                        self.unreadable += 1
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror or error}") from error
