"""Requests to stop, as something that the loop's one wait can wait on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

_NAMES = {
    signal.SIGINT: "SIGINT",
    signal.SIGTERM: "SIGTERM",
    # The terminal was closed. Whoever started the run is gone, so it ends as if told to.
    signal.SIGHUP: "SIGTERM",
    # What Slurm is commonly asked to send some minutes before the end of an allocation.
    signal.SIGUSR2: "SIGUSR2",
}


class StopSignals:
    """While entered, SIGINT, SIGTERM, SIGHUP and SIGUSR2 make `fileno()` readable instead of ending the process.

    Elsewhere than in the main thread Python cannot handle signals; there this does nothing.

    Attributes:
        received: Name of the first signal that came, or None.
    """

    def __init__(self, on_signal: Callable[[], None]) -> None:
        """Prepare.

        Args:
            on_signal: Called in the handler itself, between two instructions of whatever runs; may raise.
        """
        self.received: str | None = None
        self._on_signal = on_signal
        self._read = self._write = -1
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        if threading.current_thread() is threading.main_thread():
            for number in _NAMES:
                # `nohup` ignores SIGHUP, and means it.
                if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)

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
        self.received = self.received or _NAMES[signal.Signals(number)]
        with suppress(BlockingIOError):  # full of signals that nobody has read yet
            os.write(self._write, b"s")
        self._on_signal()
