"""Whose turn it is: runs that wait for GPUs line up with tickets, files that each holds while it waits."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pipeline.devices.locks import PRIVATE, open_file, try_lock, unlock


class Ticket:
    """A place in the queue: a file whose name sorts by time, locked while its owner waits."""

    def __init__(self, folder: Path, names: set[str]) -> None:
        self._folder = folder / "queue"
        self._names = names
        self._path: Path | None = None
        self._fd = -1

    def queue(self) -> bool:
        """Line up; called under the guard. False if this was done before."""
        if self._path is not None:
            return False
        self._folder.mkdir(mode=PRIVATE, exist_ok=True)
        path = self._folder / f"{time.time_ns():020d}-{os.getpid()}"
        self._fd = open_file(path)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        os.write(self._fd, json.dumps(sorted(self._names)).encode())
        self._path = path
        return True

    def is_next(self) -> bool:
        """Whether nobody who came earlier waits for any of these devices; called under the guard.

        Who does not want to wait has no ticket and goes after all who have one: otherwise a stream of small runs
        would keep one that needs many GPUs waiting for ever.
        """
        if not self._folder.is_dir():
            return True
        return not any(self._names & wanted for wanted in self._earlier())

    def _earlier(self) -> Iterator[set[str]]:
        for path in sorted(self._folder.iterdir()):
            if self._path is not None and path.name >= self._path.name:
                return
            fd = open_file(path)
            try:
                if try_lock(fd):  # its owner is gone
                    path.unlink()
                    continue
                yield set(json.loads(os.read(fd, 1 << 16)))
            finally:
                os.close(fd)

    def __enter__(self) -> Self:
        """The ticket; nobody queues yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the queue."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            unlock(self._fd)
