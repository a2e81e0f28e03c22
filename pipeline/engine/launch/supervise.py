"""Runs one process to its end for somebody else: passes signals on, and leaves nothing behind that it has started.

The process is in a session of its own, so Ctrl-C in a terminal reaches this one alone. What is orphaned becomes a
child of this process (it is their "subreaper"), which ends when nothing is left.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from pipeline.machine import descendants

SIGNALLED = 128
"""What a shell adds to the number of a signal."""
_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASS_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""What Slurm may be asked to send before the end of an allocation; for the program to make of it what it likes."""
MARGIN_S = 5.0
"""What whoever starts ranks needs on top of the grace that it gives them."""


def supervise(
    words: Sequence[str],
    environment: Mapping[str, str],
    grace_s: float,
    *,
    server: socket.socket | None = None,
    output: int | None = None,
    folder: Path | None = None,
    on_start: Callable[[int], None] = lambda _pid: None,
    own: bool = True,
) -> int:
    """Run a command; return once it and everything that it has started are gone.

    Args:
        words: The command.
        environment: All that it finds in its environment.
        grace_s: Seconds that it has to end after a request to stop, before it is killed.
        server: A socket that it inherits, and that is closed here.
        output: Descriptor where its standard output and error go; nothing is read from standard input then. None
            leaves it those of this process.
        folder: Where it starts.
        on_start: Told its process id.
        own: Whether it is ours: it ends by itself with this process, and passes requests to stop on to those that
            it has started. Of any other the kernel sees to the one, and its group is told the other.

    Returns:
        Its exit code; 128 + n after signal n, be it one that came to this process before its end.
    """
    descendants.adopt_orphans()
    fds = [server.fileno()] if server else []
    parent = os.getpid()
    with _Signals(grace_s + MARGIN_S if own else grace_s, to_group=not own) as signals:
        process = subprocess.Popen(
            words,
            env=environment,
            cwd=folder,
            start_new_session=True,
            pass_fds=fds,
            stdin=None if output is None else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=None if own else lambda: descendants.die_with_parent(parent),
        )
        if server:
            server.close()  # so that the port is closed when the process ends
        on_start(process.pid)
        signals.to(process)
        try:
            while (code := _wait(process)) is None:
                if signals.overdue():
                    process.kill()
        finally:
            descendants.end_own(MARGIN_S)
        if signals.received:
            return SIGNALLED + signals.received
    return code if code >= 0 else SIGNALLED - code


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(0.5)
    return None


class _Signals:
    """While entered, passes signals on to a process, and remembers the first request to stop.

    Attributes:
        received: Its number; 0 for none.
    """

    def __init__(self, grace_s: float, *, to_group: bool) -> None:
        self.received = 0
        self._to_group = to_group
        self._grace_s = grace_s
        self._end = float("inf")
        self._process: subprocess.Popen[bytes] | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> _Signals:
        for number in (*_STOP, *_PASS_ON):
            # `nohup` ignores SIGHUP, and means it.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)  # type: ignore[arg-type]

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Whom to pass them on to; one that came before is passed on now."""
        self._process = process
        if self.received:
            self._ask(self.received)

    def overdue(self) -> bool:
        """Whether the time to stop is over."""
        return time.monotonic() >= self._end

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number in _PASS_ON:
            self._to_ranks(number)
            return
        if self._process is not None and self._process.poll() is not None:
            return  # it has ended by itself, which is what its exit code is to say
        if self.received:  # a second one: at once; of a closed terminal both its shell and the kernel tell
            if number != signal.SIGHUP:
                self._end = 0
            return
        self.received = number
        self._end = time.monotonic() + self._grace_s
        self._ask(number)

    def _ask(self, number: int) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            if self._to_group:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)

    def _to_ranks(self, number: int) -> None:
        if self._to_group:
            self._ask(number)
            return
        import psutil

        if self._process is not None:
            with suppress(psutil.Error):
                for rank in psutil.Process(self._process.pid).children():
                    rank.send_signal(number)
