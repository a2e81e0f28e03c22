"""Sends everything a job writes to its log: Python's streams, and by file descriptor what native code writes."""

from __future__ import annotations

import ctypes
import faulthandler
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import TracebackType
from typing import Any, TextIO

from pipeline.files import in_folder


def log_stacks() -> None:
    """Have the stack of a crash written to the log of the job that runs, and on SIGUSR1 the stacks of all threads.

    The handler is in C, so it needs no cooperation of a job that hangs.
    """
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


class OutputTo:
    """While entered, file descriptors 1 and 2 and Python's standard streams write to a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._saved: list[int] = []
        self._log = -1
        self._streams: tuple[TextIO, TextIO] | None = None

    def __enter__(self) -> OutputTo:
        # Appending, so that processes which the job starts write after each other rather than over each other.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._log = in_folder(self._path.rpartition("/")[0], lambda: os.open(self._path, flags, 0o644))
        self._saved = [os.dup(1), os.dup(2)]
        self._streams = (sys.stdout, sys.stderr)
        self._redirect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        for descriptor in (*self._saved, self._log):
            os.close(descriptor)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write to the old places inside, for what the engine itself shows while a job runs in its process."""
        self._restore()
        try:
            yield
        finally:
            self._redirect()

    def _redirect(self) -> None:
        _flush()
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        # Where the streams are not those of the process (a notebook, a test runner) their text would be missed.
        if not _writes_to(sys.stdout, 1):
            sys.stdout = _stream(1)
        if not _writes_to(sys.stderr, 2):
            sys.stderr = _stream(2)

    def _restore(self) -> None:
        assert self._streams is not None
        _flush()
        os.dup2(self._saved[0], 1)
        os.dup2(self._saved[1], 2)
        sys.stdout, sys.stderr = self._streams


def _stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _writes_to(stream: Any, descriptor: int) -> bool:
    """Whether it is a plain stream; what the engine shows its own text with would change that of the job."""
    try:
        return type(stream) is io.TextIOWrapper and stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # The C library buffers on its own what native code printed.
    _c_library().fflush(None)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
