"""The processes that run programs (`trial_process`), as whoever has started them sees them: heard, asked, killed.

    Handle(order)       --- order --->  its process  --->  the program
    is_over(), said     <--- a line at its end
    SideBySide(...)     slots that take tasks until there are none, as several runs and several agents of W&B

The first signal asks what runs to end, a second one kills it. Nothing is left behind either way, nor when this
process itself is killed.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.workers.reaper import Reaper
from pipeline.errors import WorkerError
from pipeline.foreign import ForeignDataError, read_json
from pipeline.machine import children, descendants
from pipeline.machine.children import Child
from pipeline.sweeps.trial_process import MODULE, Order, Said

_LOOK_S = 1.0
"""How long `heard` waits at most: what others write, and deadlines, are looked at between."""
_MARGIN_S = 15.0
"""What the process needs on top of the grace of its program, to clear up."""


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
            max_bytes=1 << 20,
            send_timeout_s=5.0,
            own_group=True,
        )

    def fileno(self) -> int:
        """Readable when it has said something, or has ended."""
        return self._child.channel.fileno()

    def is_over(self) -> bool:
        """Whether it has ended; takes what it says, and kills it if it takes longer to end than it may."""
        if time.monotonic() >= self._end_s:
            self.kill()
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
        """Have it end its program; from the first time on its time runs."""
        if not self.told_to_end:
            self._end_s = time.monotonic() + self._grace_s + _MARGIN_S
            self._child.send_signal(signal.SIGTERM)

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
    if signals.fileno() not in dict(poll.poll(_LOOK_S * 1000)):
        return False
    signals.drain()
    return True


@contextmanager
def family() -> Iterator[str]:
    """Have nothing that is started with a tag outlive this process; yields the tag."""
    descendants.adopt_orphans()
    reaper, tag = Reaper(), descendants.new_tag()
    try:
        reaper.watch_tag(tag)
        yield tag
        reaper.forget_tag(tag)
    finally:
        reaper.close()


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is run: for messages, and the command with its devices."""

    name: str
    order: Order


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
        self._running: dict[int, tuple[Task, float, Handle]] = {}
        self._rests: dict[int, float] = dict.fromkeys(range(slots), 0.0)
        self._stopping = False

    def run(self, signals: StopSignals) -> str:
        """Work until no slot has anything to do.

        Returns:
            Name of the signal that has ended it before, or "".
        """
        with family() as tag:
            try:
                while self._fill(tag) or self._running:
                    if heard(signals, [handle for _, _, handle in self._running.values()]):
                        self._stop(signals.received or "a signal")
                    for slot, (task, began, handle) in list(self._running.items()):
                        if handle.is_over():
                            del self._running[slot]
                            handle.clear_up()
                            self._end(slot, task, began, handle.said or Said(), asked=handle.told_to_end)
            finally:
                for _, _, handle in self._running.values():
                    handle.kill()
        return (signals.received or "") if self._stopping else ""

    def _end(self, slot: int, task: Task, began: float, said: Said, *, asked: bool) -> None:
        now = time.monotonic()
        ended = Ended(
            slot=slot,
            task=task,
            exit_code=said.exit_code,
            busy=said.busy,
            refused=said.refused,
            asked=asked,
            seconds=now - began,
        )
        self._rests[slot] = now + self._ended(ended)

    def _fill(self, tag: str) -> bool:
        """Start what can start; whether a slot rests, after which there may be more."""
        if self._stopping:
            return False
        now, resting = time.monotonic(), False
        for slot in self._rests.keys() - self._running.keys():
            if self._rests[slot] <= now and (task := self._following(slot)) is not None:
                try:
                    self._running[slot] = (task, now, Handle(task.order, tag))
                except OSError as error:
                    why = f"no process can be started: {error.strerror}"
                    self._end(slot, task, now, Said(refused=why), asked=False)
            resting = resting or self._rests[slot] > now
        return resting

    def _stop(self, name: str) -> None:
        for _, _, handle in self._running.values():
            handle.kill() if self._stopping else handle.ask_to_end()
        if self._running and not self._stopping:
            names = ", ".join(task.name for task, _, _ in self._running.values())
            self._say(f"stopping on {name}: waiting for {names} to end; once more kills")
        self._stopping = True
