"""Main function of one process of a job that needs several devices. Free of torch until the job imports it.

It is a worker for one job: the same pipe and messages, but what it talks to is `gang.run_gang` in another worker,
which commits the output and keeps the heartbeat.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from pipeline.engine.workers import messages
from pipeline.engine.workers.work import call_entry, contained, ended_by, finished, log_stacks, work_of
from pipeline.errors import WorkerError
from pipeline.machine.children import Channel
from pipeline.machine.descendants import NOTICES, begin


class _Rank:
    """One process of a job."""

    channel: Channel
    lines: Iterator[bytes]
    settings: dict[str, Any]

    def __init__(self) -> None:
        self.stop_requested = False
        self._has_signal = False
        """Whether it had a SIGTERM."""
        self._cut_off = False

    def begin(self, settings: dict[str, Any]) -> None:
        """Take what it was started with."""
        self.channel = Channel.inherited(settings["fd"])
        self.lines = self.channel.lines()
        self.settings = settings

    def run(self) -> bool:
        """Run the job, and tell how it went.

        Returns:
            Whether it went well.
        """
        start = time.monotonic()
        line = next(self.lines, None)
        if line is None:  # as below: whoever leads the gang is gone
            return False
        order = messages.decode_order(line)
        assert isinstance(order, messages.RunJob)
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        message = self._run(order, start)
        sys.stdout.flush()
        sys.stderr.flush()
        self.channel.send(messages.encode(message))
        return not isinstance(message, messages.JobRaised)

    def _run(
        self, order: messages.RunJob, start: float
    ) -> messages.JobFinished | messages.JobRaised | messages.AttemptStopped:
        try:
            work = work_of(
                order,
                Path(self.settings["out"]),
                self.settings["device"],
                memory={},
                send=lambda message: self.channel.send(messages.encode(message)),
                stopping=lambda: self.stop_requested,
                rank=self.settings["rank"],
            )
            with contained():
                call_entry(order, work)
            work.check_counts()
        except BaseException as error:
            if self._cut_off:
                return messages.AttemptStopped(job_id=order.job_id, attempt=order.attempt)
            return ended_by(order, error, start, stop_requested=self.stop_requested)
        return finished(order, work, start)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """SIGTERM or Slurm's notice: stop at the next step; SIGTERM once more: at once."""
        self.stop_requested = True
        if number == signal.SIGTERM:
            if self._has_signal:
                self._cut_off = True
                raise KeyboardInterrupt
            self._has_signal = True

    def _read(self) -> None:
        with suppress(OSError, WorkerError):
            for line in self.lines:
                self.stop_requested |= isinstance(messages.decode_order(line), messages.Shutdown)
        # Whoever leads the gang is gone, and with it the sense of this.
        os._exit(1)


def main() -> None:
    """Run one rank of one job."""
    rank = _Rank()
    for number in NOTICES:
        signal.signal(number, rank.on_signal)
    rank.begin(begin())  # from here on signals are not held back any more
    log_stacks()
    went_well = False
    with suppress(KeyboardInterrupt, OSError):
        went_well = rank.run()
    # Not by returning: a broken process group would be waited for by the libraries that made it.
    os._exit(0 if went_well else 1)


if __name__ == "__main__":
    main()
