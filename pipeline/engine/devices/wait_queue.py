"""Whose turn it is: runs that wait for GPUs line up with tickets, files that each holds while it waits."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from pipeline.engine.devices.locks import PRIVATE, LockFile
from pipeline.errors import DeviceError
from pipeline.foreign import ForeignDataError, read_json


def _wanted(text: str, all_names: set[str]) -> set[str]:
    try:
        return read_json(text, set[str])
    except ForeignDataError:
        return all_names


class Ticket:
    """A place in the queue: a file whose name sorts by time, locked while its owner waits."""

    def __init__(self, folder: Path, names: set[str]) -> None:
        """Draw none yet.

        Args:
            folder: The folder of leases.
            names: What is wanted.
        """
        self._folder = folder / "queue"
        self._names = names
        self._path: Path | None = None
        self._file: LockFile | None = None

    def queue(self) -> bool:
        """Line up; called under the guard. False if this was done before."""
        if self._file is not None:
            return False
        self._folder.mkdir(mode=PRIVATE, exist_ok=True)
        self._path = self._folder / f"{time.time_ns():020d}-{os.getpid()}"
        self._file = LockFile(self._path)
        self._file.try_lock()
        self._file.write(json.dumps(sorted(self._names)))
        return True

    def is_next(self) -> bool:
        """Whether nobody who came earlier waits for any of these devices; called under the guard.

        Who does not want to wait has no ticket and goes after all who have one: otherwise a stream of small runs
        would keep one that needs many GPUs waiting for ever.
        """
        return not any(self._names & wanted for wanted in self._earlier())

    def _earlier(self) -> Iterator[set[str]]:
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.iterdir()):
            if self._path is not None and path.name >= self._path.name:
                return
            with suppress(FileNotFoundError, DeviceError), LockFile(path, make=False) as file:
                # Its owner may leave meanwhile; what is no file is nobody's ticket.
                if file.try_lock():  # its owner is gone
                    path.unlink()
                    continue
                # Who waits for something that cannot be read may wait for anything.
                yield _wanted(file.read(), self._names)

    def __enter__(self) -> Self:
        """The ticket; nobody queues yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the queue."""
        if self._file is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()
