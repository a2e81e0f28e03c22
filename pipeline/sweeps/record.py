"""The journal of a sweep as those use it who run trials: read, decided upon and written by one at a time.

Whoever holds the lock is the owner for that moment; nobody has to be there for a sweep to be in good order, and
one that dies leaves nothing but a line that was cut off, which the next one removes.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pipeline.engine.journal import Journal
from pipeline.errors import StoreError
from pipeline.locks import LocksUnsupportedError, lock
from pipeline.sweeps.folder import TRIALS, SweepFolder
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.trials import LAST_TRIAL
from pipeline.sweeps.turns import one_turn

_SHOWN = 100
_NUMBER = re.compile(r"[0-9]{4,10}")
"""What folders of trials are called; `str.isdigit` takes what `int` does not."""


class Record(RecordedSweep):
    """The record of a sweep, which this process may add to.

    Attributes:
        has_locks: Whether the file system lets one process exclude others; known after the first turn.
    """

    def __init__(self, folder: SweepFolder, say: Callable[[str], None] = lambda _text: None) -> None:
        """Make the folder if it is not there, and read what it holds.

        Args:
            folder: Of the sweep.
            say: Told a line where somebody else keeps its lock for long.

        Raises:
            StoreError: It cannot be made, or its journal cannot be read.
        """
        self.has_locks = True
        self._say = say
        self._journal_file: Journal | None = None
        try:
            folder.agents.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write to {folder.path}: {error.strerror}") from error
        super().__init__(folder)

    def refresh(self) -> None:
        """Take what the journal has got since the last time, and that alone: what is lost is to be written.

        Raises:
            StoreError: The journal cannot be read.
        """
        self._take()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Be the only one who reads, decides and writes; all that is recorded so far has been read.

        Raises:
            StoreError: The lock or the journal cannot be opened.
        """
        with one_turn(self.folder.lock, self._say) as self.has_locks:
            try:
                self.refresh()
                yield
            finally:
                self._close()

    def write(self, event: str, **fields: Any) -> None:
        """Add an event, inside a turn; it is on disk, and in the view, when this returns.

        Raises:
            StoreError: It cannot be written, and no part of it was; or it was, and cannot be read back.
        """
        # First what may fail for want of descriptors: what was written once is read back.
        if self._journal_file is None:
            self._journal_file = Journal(self.folder.journal)
        self.refresh()
        unreadable = self.unreadable
        self._journal_file.write(event, **fields)
        self.refresh()
        if self.unreadable > unreadable:
            told = ", ".join(f"{name}={value!r}"[:_SHOWN] for name, value in fields.items())
            raise StoreError(f"{self.folder.journal}: an event that was added is not read back: {event}({told})")

    def _close(self) -> None:
        if self._journal_file is not None:
            self._journal_file.close()
            self._journal_file = None


@dataclass(frozen=True, kw_only=True)
class Present:
    """Who an agent is, as its file says."""

    pid: int
    host: str


def sign(path: Path) -> None:
    """Write who this process is into a file that it has locked, for those who wait for it."""
    with (
        suppress(OSError),
        open(path, "wb", opener=_no_link) as file,
    ):  # a full disk: then nobody is told who it is
        file.write(json.dumps(asdict(Present(pid=os.getpid(), host=socket.gethostname()))).encode())


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextmanager
def present(folder: SweepFolder, named: Collection[str] = ()) -> Iterator[str]:
    """Be seen as an agent that lives: its file is locked until this process ends, however it ends.

    Args:
        folder: Of the sweep.
        named: Ids of agents that were there before.

    Yields:
        Its id: the first that no other has had, as there is neither word of it nor a file.

    Raises:
        StoreError: The file cannot be written.
    """
    ids = (f"a{number}" for number in count(1))
    path, descriptor = next(filter(None, (_own_file(folder.agents / id_) for id_ in ids if id_ not in named)))
    try:
        sign(path)
        yield path.name
        with suppress(OSError):
            path.unlink()
    finally:
        os.close(descriptor)


def _own_file(path: Path) -> tuple[Path, int] | None:
    """Make and lock a file, without waiting for anybody; None where there is something already."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return None
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    with suppress(LocksUnsupportedError):
        if not lock(descriptor, wait=False):  # somebody looks at it in this moment
            os.close(descriptor)
            return None
    return path, descriptor


def next_trial_number(folder: SweepFolder, known: Collection[int]) -> int:
    """A number that no trial has had, not even one whose line in the journal is damaged.

    Args:
        folder: Of the sweep.
        known: Those in the journal.
    """
    folders = (int(name) for name in _names(folder.path / TRIALS) if _NUMBER.fullmatch(name))
    used = {*known, *(number for number in folders if number <= LAST_TRIAL)}
    after = max(used, default=-1) + 1
    # Somebody else has made the last one: there are others left.
    return after if after <= LAST_TRIAL else next(number for number in count() if number not in used)


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []
