"""The process that runs one program (`trial_process`), as whoever has started it sees it: heard, asked, killed.

Handle(order)  --- order --->  its process  --->  the program
is_over(), said  <--- a line at its end
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Iterable

import msgspec

from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import WorkerError
from pipeline.foreign import ForeignDataError, read_json
from pipeline.machine import children, descendants
from pipeline.machine.children import Child
from pipeline.sweeps.agents.trial_process import MODULE, Order, Said

LOOK_S = 1.0
"""How long `heard` waits at most: what others write, and deadlines, are looked at between."""
_MARGIN_S = 15.0
"""What the process needs on top of the grace of its program, to clear up."""
_MESSAGE_BYTES = 1 << 20


class Handle:
    """A process that runs a program.

    Attributes:
        said: What it has told at its end; None before, and where it was killed.
    """

    def __init__(self, order: Order, tag: str) -> None:
        """Start it.

        Args:
            order: What is run.
            tag: Of this process, by which its processes are found should it be gone.

        Raises:
            OSError: No process can be started.
        """
        self.said: Said | None = None
        self._grace_s, self._end_s = order.grace_s, math.inf
        self._child = Child(
            MODULE,
            descendants.with_tag(os.environ, tag),
            {"order": msgspec.to_builtins(order)},
            max_bytes=_MESSAGE_BYTES,
            send_timeout_s=5.0,
            own_group=True,
        )

    def fileno(self) -> int:
        """Readable when it has said something, or has ended."""
        return self._child.channel.fileno()

    def is_over(self) -> bool:
        """Whether it has ended; takes what it says."""
        try:
            for line in self._child.channel.receive():
                self.said = read_json(line, Said)
        except (WorkerError, ForeignDataError):
            self._child.kill()
            return True
        return self._child.channel.closed

    @property
    def told_to_end(self) -> bool:
        """Whether it was told to end."""
        return self._end_s < math.inf

    def ask_to_end(self) -> None:
        """Have it end its program; from the first time on its time runs, see `hurry`."""
        if not self.told_to_end:
            self._end_s = time.monotonic() + self._grace_s + _MARGIN_S
            self._child.send_signal(signal.SIGTERM)

    def hurry(self) -> None:
        """Kill it if it takes longer to end than it may."""
        if time.monotonic() >= self._end_s:
            self.kill()

    def kill(self) -> None:
        """Kill it now, with everything that it has started."""
        self._child.kill()
        children.end([self._child])

    def clear_up(self) -> int | None:
        """End what it has left, once it is over; the exit code of the program, None where that is not known."""
        children.end([self._child])
        self._child.wait()
        return self.said.exit_code if self.said is not None else None


def heard(signals: StopSignals, processes: Iterable[Handle]) -> bool:
    """Whether a signal has come; waits a moment for that, or until one of the processes has said something."""
    poll = select.poll()
    for descriptor in (signals.fileno(), *(one.fileno() for one in processes)):
        poll.register(descriptor, select.POLLIN)
    if signals.fileno() not in dict(poll.poll(LOOK_S * 1000)):
        return False
    signals.drain()
    return True
