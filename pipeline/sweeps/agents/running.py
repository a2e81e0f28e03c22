"""A trial under way, seen from its agent: the process that runs it, what it logs, and how it is ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

import msgspec

from pipeline.engine.devices.inventory import Device
from pipeline.engine.journal import JournalReader
from pipeline.engine.workers.strays import end_strays
from pipeline.errors import PipelineError, WorkerError
from pipeline.foreign import ForeignDataError, read_json
from pipeline.machine import children, descendants
from pipeline.machine.children import Child
from pipeline.sweeps.agents.trial_process import MODULE, Order, Said
from pipeline.sweeps.agents.wandb_metrics import take_over
from pipeline.sweeps.folder import TrialFolder
from pipeline.sweeps.logged import read_line
from pipeline.sweeps.trials import Trial, TrialState

_MARGIN_S = 15.0
"""What the process of a trial needs on top of the grace of its program, to clear up."""
_MESSAGE_BYTES = 1 << 20


class Curve:
    """What a trial has logged so far, read as it comes.

    Attributes:
        judged: Values of the metric, in order; None for what is no finite number.
        last: Name -> last value, of everything.
    """

    def __init__(self, folder: TrialFolder, attempt: int, metric: str) -> None:
        self.judged: list[float | None] = []
        self.last: dict[str, float | None] = {}
        self._folder, self._attempt, self._metric = folder, attempt, metric
        self._lines = JournalReader(folder.metrics(attempt), _read_line)

    def refresh(self) -> bool:
        """Take what is new; whether there are new values of the metric."""
        before = len(self.judged)
        try:
            for line in self._lines.new_events():
                self.last.update(line)
                if self._metric in line:
                    self.judged.append(line[self._metric])
        except PipelineError:  # it cannot be read now, and is looked at again
            return False
        return len(self.judged) > before

    def conclude(self, since: float) -> None:
        """Take what is new at the end; of a program that tells W&B instead, what it has told that.

        Args:
            since: When it began, in seconds since 1970.
        """
        if not self.refresh() and not self.judged:
            take_over(self._folder, self._attempt, self._metric, since)
            self.refresh()

    @property
    def latest(self) -> float | None:
        """The last value of the metric that is a finite number."""
        return next((value for value in reversed(self.judged) if value is not None), None)


def _read_line(line: bytes) -> dict[str, float | None]:
    return read_line(line).values


class Program:
    """A program under way in a process that looks after it.

    Attributes:
        devices: Where it runs.
        curve: What it has logged.
        asked: What it is being ended for, and why; None while it may go on.
        said: What its process has told at its end.
    """

    def __init__(self, devices: Sequence[Device], curve: Curve, order: Order, tag: str) -> None:
        """Start it.

        Args:
            devices: Where.
            curve: For what it logs.
            order: What is run.
            tag: Of the agent, by which its processes are found should it be gone.

        Raises:
            OSError: No process can be started.
        """
        self.devices, self.curve = list(devices), curve
        self.asked: tuple[TrialState, str] | None = None
        self.said: Said | None = None
        self._grace_s, self._end = order.grace_s, float("inf")
        self._began = time.time()
        self._child = Child(
            MODULE,
            descendants.with_tag(os.environ, tag),
            {"order": msgspec.to_builtins(order)},
            max_bytes=_MESSAGE_BYTES,
            send_timeout_s=5.0,
            own_group=True,
        )

    def fileno(self) -> int:
        """Readable when its process has said something, or has ended."""
        return self._child.channel.fileno()

    def is_over(self) -> bool:
        """Whether its process has ended; takes what that says."""
        try:
            for line in self._child.channel.receive():
                self.said = read_json(line, Said)
        except (WorkerError, ForeignDataError):
            self._child.kill()
            return True
        return self._child.channel.closed

    def ask(self, state: TrialState, reason: str) -> None:
        """Have it end. What it was asked for first stands."""
        if self.asked is None:
            self.asked = (state, reason)
            self._end = time.monotonic() + self._grace_s + _MARGIN_S
            self._child.send_signal(signal.SIGTERM)

    def hurry(self) -> None:
        """Kill it if it takes longer to end than it may."""
        if time.monotonic() >= self._end:
            self.kill()

    def kill(self) -> None:
        """Kill it now, with everything that it has started."""
        self._child.kill()
        children.end([self._child])

    def close(self) -> int | None:
        """Clear up after its process has ended; the exit code of the program, None where that is not known."""
        children.end([self._child])
        self._child.wait()
        end_strays()  # of a process that was killed; what hides from its tag is a child of the agent now
        self.curve.conclude(self._began)
        return self.said.exit_code if self.said is not None else None


class Running(Program):
    """One attempt at a trial.

    Attributes:
        trial: The trial.
        attempt: Which attempt, from 1.
        compared: How many of its values have been compared with those of other trials.
    """

    def __init__(
        self, trial: Trial, attempt: int, devices: Sequence[Device], curve: Curve, order: Order, tag: str
    ) -> None:
        """Start it, see `Program`."""
        super().__init__(devices, curve, order, tag)
        self.trial, self.attempt, self.compared = trial, attempt, 0
