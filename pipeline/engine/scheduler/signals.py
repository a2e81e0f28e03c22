"""Turn requests to stop into something that the loop's single wait can wait on.

Signals are handled from the first file of a run to its last output. While jobs run, a signal ends the run; before
and after, the current write is finished first.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    # The terminal was closed. The user has gone, so the run ends as on SIGTERM.
    signal.SIGHUP,
    # Slurm is commonly asked to send this signal some minutes before the end of an allocation.
    signal.SIGUSR2,
)


_PATIENCE = 3
"""Signals outside of `calling` that end the process after all, in case a write never finishes."""


class StopSignals:
    """While entered, SIGINT, SIGTERM, SIGHUP and SIGUSR2 make `fileno()` readable instead of ending the process.

    Entering it again meanwhile changes nothing.

    Outside of the main thread Python cannot handle signals, so there this does nothing.

    Attributes:
        received: Name of the first signal that came, or None.
        times: Number of signals received.
    """

    def __init__(self) -> None:
        """Prepare."""
        self.received: str | None = None
        self.times = 0
        self._on_signal: Callable[[], None] | None = None
        self._entered = self._unheard = 0
        self._read = self._write = -1
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._entered += 1
        if self._entered > 1:
            return self
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # `nohup` ignores SIGHUP on purpose.
                if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if self._entered:
            return
        for number in self._previous:
            if signal.getsignal(number) == self._handle:  # otherwise other code has replaced the handler meanwhile
                self._restore(number)
        os.close(self._read)
        os.close(self._write)

    @contextmanager
    def calling(self, on_signal: Callable[[], None]) -> Iterator[None]:
        """Call a function at once on a signal, while jobs run.

        Args:
            on_signal: Called in the signal handler, between any two instructions of the running code; may raise.
        """
        with self:
            self._on_signal = on_signal
            try:
                yield
            finally:
                self._on_signal = None

    def fileno(self) -> int:
        """Return a file descriptor that is readable once a signal has come, until `drain`."""
        return self._read

    def drain(self) -> None:
        """Forget the signals so far, so that a further one is noticed."""
        with suppress(BlockingIOError):
            while os.read(self._read, 64):
                pass

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self.received:
            return  # when a terminal closes, its shell sends one and the kernel another: not a second request
        self.times += 1
        self.received = self.received or signal.Signals(number).name
        with suppress(BlockingIOError):  # the pipe is full of signals that nobody has read yet
            os.write(self._write, b"s")
        if self._on_signal is not None:
            self._on_signal()
            return
        self._unheard += 1
        if self._unheard >= _PATIENCE:
            self._restore(signal.Signals(number))
            signal.raise_signal(number)

    def _restore(self, number: signal.Signals) -> None:
        previous = self._previous[number]
        signal.signal(number, previous if previous is not None else signal.SIG_DFL)
