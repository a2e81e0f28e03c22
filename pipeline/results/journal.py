"""Every state change of a run, one JSON object a line, on disk before the engine acts on it."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.errors import StoreError
from pipeline.results.locks import LocksUnsupportedError, lock


class Journal:
    """Appends events to ``journal.jsonl``. One writer, which holds an exclusive lock on the file meanwhile."""

    def __init__(self, path: Path) -> None:
        """Open a journal, or go on with one.

        Raises:
            StoreError: It cannot be written, or another process is writing it.
        """
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error
        with suppress(LocksUnsupportedError):
            if not lock(self._file.fileno(), wait=False):
                self._file.close()
                raise StoreError(f"another process is writing {path}; a run has a folder of its own")
        self._cut(_whole_bytes(path))

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with its wall-clock time, and have it on disk when this returns.

        Raises:
            StoreError: It could not be written. What was written before stands, and no part of this event.
        """
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields}, separators=(",", ":"))
        data = line.encode() + b"\n"
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, "only a part was written")
            os.fsync(self._file.fileno())
        except OSError as error:
            self._cut(self._length)
            raise StoreError(f"cannot write {self._path}: {error.strerror}") from error
        self._length += len(data)

    def _cut(self, length: int) -> None:
        """Leave whole lines only."""
        self._length = length
        with suppress(OSError):
            os.ftruncate(self._file.fileno(), length)

    def close(self) -> None:
        """Close the file; nothing is buffered."""
        self._file.close()


def _whole_bytes(path: Path) -> int:
    """Bytes up to the end of the last whole line."""
    data = path.read_bytes()
    return data.rfind(b"\n") + 1


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a journal. A last line that was cut off by a crash is left out."""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield json.loads(line)
