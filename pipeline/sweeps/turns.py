"""The lock by which one agent at a time decides for a sweep: who has it stands in its file, for those who wait.

A holder that was stopped in the middle of its turn, by SIGSTOP or a debugger, keeps the lock: the kernel takes it
back from the dead alone. So whoever waits says after a while whom for, and what can be done.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.errors import StoreError
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.locks import LocksUnsupportedError, lock

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
