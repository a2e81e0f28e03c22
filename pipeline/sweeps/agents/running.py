"""A trial under way, seen from its agent: what it logs, and what it is ended for."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.engine.devices.inventory import Device
from pipeline.engine.journal import JournalReader
from pipeline.errors import PipelineError
from pipeline.sweeps.agents.handle import Handle
from pipeline.sweeps.agents.trial_process import Order
from pipeline.sweeps.agents.wandb_run import WandbMetrics
from pipeline.sweeps.folder import TrialFolder
from pipeline.sweeps.recorded import read_line
from pipeline.sweeps.spec import Metric
from pipeline.sweeps.trials import Trial, TrialState


class Curve:
    """What a trial has logged so far, read as it comes.

    Attributes:
        judged: Values of the metric, in order; None for what is no finite number.
        last: Name -> last value, of everything.
    """

    def __init__(self, folder: TrialFolder, attempt: int, metric: Metric | None) -> None:
        self.judged: list[float | None] = []
        self.last: dict[str, float | None] = {}
        self._folder, self._attempt, self._by = folder, attempt, metric
        self._metric = metric.name if metric else ""
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

    def follow(self, at_wandb: WandbMetrics, *, to_its_end: bool = False) -> None:
        """Take what is new; of a program that tells W&B instead, what it has told that.

        Args:
            at_wandb: Where it tells W&B.
            to_its_end: Whether the program is over.
        """
        self.refresh()
        if len(self.judged) <= at_wandb.taken:  # it says nothing here itself
            if to_its_end:
                at_wandb.conclude()
            else:
                at_wandb.follow()
            self.refresh()

    def at_wandb(self, start: Path = Path()) -> WandbMetrics:
        """What the attempt, which begins now, will tell W&B.

        Args:
            start: The folder in which its program is started.
        """
        return WandbMetrics(self._folder, self._attempt, self._by, self._clock(), start)

    def _clock(self) -> float:
        """Seconds since 1970, as its files have them: their disk may be that of a machine with another clock."""
        with suppress(OSError), tempfile.TemporaryFile(dir=self._folder.path) as file:
            return os.fstat(file.fileno()).st_mtime
        return time.time()


def _read_line(line: bytes) -> dict[str, float | None]:
    return read_line(line).values


class Program(Handle):
    """A program under way.

    Attributes:
        devices: Where it runs.
        curve: What it has logged.
        at_wandb: What it logs to W&B.
        asked: What it is being ended for, and why; None while it may go on.
    """

    def __init__(self, devices: Sequence[Device], curve: Curve, order: Order, tag: str) -> None:
        """Start it.

        Args:
            devices: Where.
            curve: For what it logs.
            order: What is run.
            tag: Of the agent, see `Handle`.

        Raises:
            OSError: No process can be started.
        """
        self.devices, self.curve = list(devices), curve
        self.asked: tuple[TrialState, str] | None = None
        self.at_wandb = curve.at_wandb(Path(order.folder))
        super().__init__(order, tag)

    def ask(self, state: TrialState, reason: str) -> None:
        """Have it end. What it was asked for first stands."""
        self.asked = self.asked or (state, reason)
        self.ask_to_end()

    def close(self) -> int | None:
        """As `clear_up`, and take what it has logged to its end."""
        code = self.clear_up()
        self.curve.follow(self.at_wandb, to_its_end=True)
        return code


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
