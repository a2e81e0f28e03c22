"""Requests to stop, as something that the loop's one wait can wait on.

They are held from the first file of a run to its last word. While jobs run they end it; before and after, what is
just being written is finished.
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
    # The terminal was closed. Whoever started the run is gone, so it ends as if told to.
    signal.SIGHUP,
    # What Slurm is commonly asked to send some minutes before the end of an allocation.
    signal.SIGUSR2,
)


_PATIENCE = 3
"""How many signals outside of `calling` it takes to end the process after all: something may never be written."""


class StopSignals:
    """While entered, SIGINT, SIGTERM, SIGHUP and SIGUSR2 make `fileno()` readable instead of ending the process.

    It may be entered again meanwhile, which changes nothing.

    Elsewhere than in the main thread Python cannot handle signals; there this does nothing.

    Attributes:
        received: Name of the first signal that came, or None.
        times: How many came.
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
                # `nohup` ignores SIGHUP, and means it.
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
            if signal.getsignal(number) == self._handle:  # else somebody has taken it over meanwhile
                self._restore(number)
        os.close(self._read)
        os.close(self._write)

    @contextmanager
    def calling(self, on_signal: Callable[[], None]) -> Iterator[None]:
        """While jobs run: have a signal do something at once.

        Args:
            on_signal: Called in the handler itself, between two instructions of whatever runs; may raise.
        """
        with self:
            self._on_signal = on_signal
            try:
                yield
            finally:
                self._on_signal = None

    def fileno(self) -> int:
        """Readable once a signal has come, until `drain`."""
        return self._read

    def drain(self) -> None:
        """Forget the signals so far, so that a further one is noticed."""
        with suppress(BlockingIOError):
            while os.read(self._read, 64):
                pass

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self.received:
            return  # where a terminal is closed its shell sends one and the kernel another: no second request
        self.times += 1
        self.received = self.received or signal.Signals(number).name
        with suppress(BlockingIOError):  # full of signals that nobody has read yet
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
