"""The journal of a sweep as those use it who run trials: read, decided upon and written by one at a time.

Whoever holds the lock is the owner for that moment; nobody has to be there for a sweep to be in good order, and
one that dies leaves nothing but a line that was cut off, which the next one removes.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pipeline.engine.journal import Journal
from pipeline.errors import StoreError
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.locks import LocksUnsupportedError, lock
from pipeline.sweeps.folder import TRIALS, SweepFolder
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.trials import LAST_TRIAL

# -- turns -------------------------------------------------------------------------------------------------------
# The lock by which one agent at a time decides for a sweep: who has it stands in its file, for those who
# wait. A holder that was stopped in the middle of its turn, by SIGSTOP or a debugger, keeps the lock: the
# kernel takes it back from the dead alone. So whoever waits says after a while whom for, and what can be
# done.


_POLL_S = 0.02
_PATIENCE_S = 5.0
"""How long one holder may have the lock until those who wait are told; a turn takes milliseconds, or with a long
Bayesian search a second or two."""
_AGAIN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has the lock.

    Attributes:
        pid: Of the process.
        host: Where it runs.
        since: When its turn began, in seconds since 1970.
    """

    pid: int
    host: str
    since: float


@contextmanager
def one_turn(path: Path, say: Callable[[str], None]) -> Iterator[bool]:
    """Hold the lock.

    Args:
        path: Of its file, which is made.
        say: Told a line where somebody keeps it for long.

    Yields:
        Whether the file system has locks. Where it has none everybody is given a turn.

    Raises:
        StoreError: The file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}") from error
    try:
        has_locks = False
        with suppress(LocksUnsupportedError):
            _wait_for(descriptor, path, say)
            has_locks = True
            _sign(descriptor)
        yield has_locks
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, path: Path, say: Callable[[str], None]) -> None:
    """Polled, so that a signal is heard should a holder be stopped in the middle of its turn."""
    known: Holder | None = None
    due = time.monotonic()
    while not lock(descriptor, wait=False):
        if time.monotonic() >= due:
            holder, pause_s = _holder(path), _PATIENCE_S
            if holder is not None and holder == known:
                say(_in_words(holder))
                pause_s = _AGAIN_S
            known, due = holder, time.monotonic() + pause_s
        time.sleep(_POLL_S)


def _sign(descriptor: int) -> None:
    holder = Holder(pid=os.getpid(), host=socket.gethostname(), since=round(time.time(), 3))
    with suppress(OSError):  # a full disk: then nobody is told who it is
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)


def _holder(path: Path) -> Holder | None:
    try:
        return read_json_file(path, Holder)
    except (OSError, ForeignDataError):
        return None


def _in_words(holder: Holder) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(holder.since))
    there = "" if holder.host == socket.gethostname() else f" there, on {holder.host}"
    return (
        f"waiting for the sweep: process {holder.pid} on {holder.host} has had its lock since {since}. If it was "
        f"stopped, `kill -CONT {holder.pid}`{there} lets it go on, and `kill -9 {holder.pid}` ends it: its trials "
        "are tried again"
    )


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
