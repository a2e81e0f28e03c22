"""Commands side by side, each on a slot of its own: what several runs, and several agents of W&B, have in common.

    following(slot) -> a task -> its process (`trial_process`), which has the devices -> ended(...)

The first signal asks what runs to end, a second one kills it. Nothing is left behind either way, nor when this
process itself is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.workers.reaper import Reaper
from pipeline.machine import descendants
from pipeline.sweeps.agents.handle import Handle, heard
from pipeline.sweeps.agents.shortage import shortage
from pipeline.sweeps.agents.trial_process import Order, Said


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is run.

    Attributes:
        name: For messages.
        order: The command and its devices.
        attempt: Which attempt at it, from 1.
    """

    name: str
    order: Order
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a task ended.

    Attributes:
        slot: Where it ran.
        task: What was run.
        exit_code: As a shell has it; None where the process that ran it was killed.
        busy: Who had one of its devices, so that nothing was started; else "".
        refused: Why it could not be started; else "".
        asked: Whether it was told to end.
        seconds: How long it took.
    """

    slot: int
    task: Task
    exit_code: int | None
    busy: str
    refused: str
    asked: bool
    seconds: float


class SideBySide:
    """Slots that take tasks until there are none."""

    def __init__(
        self,
        slots: int,
        following: Callable[[int], Task | None],
        ended: Callable[[Ended], float],
        say: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            slots: How many.
            following: The next task of a slot; None where it has none at this moment.
            ended: Told of each end; seconds for which the slot is to rest.
            say: Told a line when a signal has come.
        """
        self._following, self._ended, self._say = following, ended, say
        self._running: dict[int, _Running] = {}
        self._rests: dict[int, float] = dict.fromkeys(range(slots), 0.0)
        self._tag = descendants.new_tag()
        self._stopping = False

    def run(self, signals: StopSignals) -> str:
        """Work until no slot has anything to do.

        Returns:
            Name of the signal that has ended it before, or "".
        """
        descendants.adopt_orphans()
        with ExitStack() as held:
            reaper = Reaper()
            held.callback(reaper.close)
            reaper.watch_tag(self._tag)
            try:
                while self._fill() or self._running:
                    self._wait(signals)
                    self._collect()
            finally:
                for one in self._running.values():
                    one.kill()
            reaper.forget_tag(self._tag)
        return (signals.received or "") if self._stopping else ""

    def _fill(self) -> bool:
        """Start what can start; whether a slot rests, after which there may be more."""
        if self._stopping:
            return False
        now, resting = time.monotonic(), False
        for slot, until in self._rests.items():
            if slot in self._running:
                continue
            if until > now:
                resting = True
            elif (task := self._following(slot)) is not None:
                self._start(slot, task)
                resting = resting or slot not in self._running
        return resting

    def _start(self, slot: int, task: Task) -> None:
        try:
            self._running[slot] = _Running(task, self._tag)
        except OSError as error:
            why = f"no process can be started: {shortage(error) or error.strerror}"
            ended = Ended(slot=slot, task=task, exit_code=None, busy="", refused=why, asked=False, seconds=0.0)
            self._rests[slot] = time.monotonic() + self._ended(ended)

    def _wait(self, signals: StopSignals) -> None:
        if heard(signals, self._running.values()):
            self._stop(signals.received or "a signal")

    def _stop(self, name: str) -> None:
        if self._stopping:
            for one in self._running.values():
                one.kill()
            return
        self._stopping = True
        if self._running:
            names = ", ".join(one.task.name for one in self._running.values())
            self._say(f"stopping on {name}: waiting for {names} to end; once more kills")
        for one in self._running.values():
            one.ask_to_end()

    def _collect(self) -> None:
        for slot, one in list(self._running.items()):
            one.hurry()
            if one.is_over():
                del self._running[slot]
                rest_s = self._ended(one.close(slot))
                self._rests[slot] = time.monotonic() + rest_s


class _Running(Handle):
    """One task under way."""

    def __init__(self, task: Task, tag: str) -> None:
        self.task = task
        self._began_s = time.monotonic()
        super().__init__(task.order, tag)

    def close(self, slot: int) -> Ended:
        """Clear up after it."""
        self.clear_up()
        said = self.said or Said()
        return Ended(
            slot=slot,
            task=self.task,
            exit_code=said.exit_code,
            busy=said.busy,
            refused=said.refused or said.short,
            asked=self.told_to_end,
            seconds=time.monotonic() - self._began_s,
        )
