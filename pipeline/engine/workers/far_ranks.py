"""The ranks of a job on other machines, as the worker that leads it hears of them; see `gang_part`."""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal

from pipeline.engine.workers.gang_part import (
    MEET_S,
    GangOrder,
    Hello,
    RankReport,
    RanksMeeting,
    line_of,
    meeting_path,
    new_meeting,
)
from pipeline.engine.workers.messages import SEND_TIMEOUT_S, RunJob, decode_report
from pipeline.engine.workers.rank_process import TERMINATE_S, Rank, log_of
from pipeline.errors import WorkerError
from pipeline.foreign import ForeignDataError, read_json
from pipeline.machine.channel import Channel

_SILENT_S = 60.0
"""After so long without a word a machine is taken for lost: it says every few seconds that it is there."""
_MAX_BYTES = 8 << 20
"""Of a line: the last word of a rank has two texts at most."""
_HELLO_BYTES = 4096
_MOST_GUESTS = 64
"""Who has come and not said who it is: beyond so many the one that came first goes."""
_END_S = TERMINATE_S + 5.0
"""What other machines are given to end their ranks and to remove what those have written."""


@dataclass
class _Machine:
    """One of the others, and the connection to it once it has come."""

    ranks: list[Rank]
    channel: Channel | None = None
    heard_s: float = field(default_factory=time.monotonic)
    is_lost: bool = False

    @property
    def is_over(self) -> bool:
        return all(rank.is_over for rank in self.ranks)


@dataclass
class FarRanks:
    """The ranks of all other machines.

    Attributes:
        problem: Why nothing more is heard of some of them, or "".
        missing: The first of those.
        stops: Whether one of the machines was asked to end.
    """

    order: RunJob
    port: int
    meeting: RanksMeeting
    listener: socket.socket
    problem: str = ""
    missing: int = 0
    stops: bool = False
    _machines: list[_Machine] = field(default_factory=list)
    _guests: list[Channel] = field(default_factory=list)
    """Who has come and not said yet who it is."""
    _told: list[Literal["stop", "stacks", "end"]] = field(default_factory=list)

    def __post_init__(self) -> None:
        log, first = Path(self.order.log_path), self.order.spans[0]
        for count in self.order.spans[1:]:
            numbers = range(first, first + count)
            self._machines.append(_Machine([Rank(number=number, log=log_of(log, number)) for number in numbers]))
            first += count

    @property
    def ranks(self) -> list[Rank]:
        """In their order."""
        return [rank for machine in self._machines for rank in machine.ranks]

    def sources(self) -> list[int]:
        """Descriptors that become readable when `hear` has something to do."""
        channels = [*self._guests, *(machine.channel for machine in self._machines if machine.channel)]
        return [self.listener.fileno(), *(channel.fileno() for channel in channels if not channel.closed)]

    def tell(self, what: Literal["stop", "stacks", "end"]) -> None:
        """Have each machine do something with its ranks; one that is still to come does it then."""
        self._told.append(what)
        for machine in self._machines:
            if machine.channel:
                _send(machine.channel, GangOrder(what=what))

    def hear(self) -> None:
        """Take what has arrived."""
        with suppress(OSError):  # nobody is there, or has gone again, or there is no descriptor for him
            connection, _ = self.listener.accept()
            self._guests.append(Channel(connection, max_bytes=_HELLO_BYTES, send_timeout_s=SEND_TIMEOUT_S))
        for guest in self._guests[:-_MOST_GUESTS]:
            guest.close()
        self._guests = self._guests[-_MOST_GUESTS:]
        for guest in list(self._guests):
            self._welcome(guest)
        for machine in self._machines:
            if not machine.is_lost and not machine.is_over:
                self._hear(machine)

    def _welcome(self, guest: Channel) -> None:
        try:
            line = next(iter(guest.receive()), None)
            if line is None and not guest.closed:
                return
            machine = self._named(read_json(line or b"", Hello))
        except (WorkerError, ForeignDataError):
            machine = None
        self._guests.remove(guest)
        if machine is None or machine.channel is not None:
            guest.close()
            return
        guest.max_bytes = _MAX_BYTES
        machine.channel, machine.heard_s = guest, time.monotonic()
        for do in (GangOrder(what="start", port=self.port), *(GangOrder(what=what) for what in self._told)):
            _send(guest, do)

    def _named(self, hello: Hello) -> _Machine | None:
        """Which machine this is, if it may read the folder of the run."""
        known = hmac.compare_digest(hello.secret.encode(), self.meeting.secret.encode())
        return self._machines[hello.part - 1] if known and 0 < hello.part <= len(self._machines) else None

    def _hear(self, machine: _Machine) -> None:
        now = time.monotonic()
        if machine.channel is None:
            if now >= machine.heard_s + MEET_S:
                self._lose(machine, f"did not come within {MEET_S:.0f} s")
            return
        try:
            for line in machine.channel.receive():
                machine.heard_s = now
                self._take(machine, read_json(line, RankReport))
        except (WorkerError, ForeignDataError) as error:
            self._lose(machine, f"sent what is no message ({error})")
            return
        if machine.is_over:
            return
        if machine.channel.closed:
            self._lose(machine, "has hung up")
        elif now >= machine.heard_s + _SILENT_S:
            self._lose(machine, f"has not been heard of for {_SILENT_S:.0f} s")

    def _take(self, machine: _Machine, about: RankReport) -> None:
        self.stops |= about.stops
        rank = next((one for one in machine.ranks if one.number == about.rank), None)
        if rank is not None and about.said:
            rank.take(decode_report(about.said.encode()))
        if rank is not None and about.over:
            rank.ends(about.exit_code, about.how)

    def _lose(self, machine: _Machine, how: str) -> None:
        machine.is_lost = True
        if not self.problem:
            first, last = machine.ranks[0].number, machine.ranks[-1].number
            ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
            self.missing = first
            self.problem = f"the machine of {ranks} of {len(self.order.gang)} {how}"

    def wait_for_end(self) -> None:
        """Wait until the others have ended their ranks, as far as they can be reached."""
        give_up = time.monotonic() + _END_S
        reached = [machine.channel for machine in self._machines if machine.channel and not machine.is_lost]
        while (left := [one for one in reached if not one.closed]) and time.monotonic() < give_up:
            wait([one.fileno() for one in left], max(0.0, give_up - time.monotonic()))
            for channel in left:
                with suppress(WorkerError):
                    for _ in channel.receive():
                        pass

    def close(self) -> None:
        """Hang up."""
        for channel in (*self._guests, *(machine.channel for machine in self._machines)):
            if channel:
                channel.close()


@contextmanager
def far_ranks(order: RunJob, address: str, port: int) -> Iterator[FarRanks]:
    """Have the workers on the other machines of a job start its ranks there.

    Args:
        order: The job.
        address: Where they reach this machine.
        port: Where ranks meet on it.
    """
    with socket.create_server((address, 0)) as listener:
        listener.setblocking(False)
        meeting = new_meeting(order, address, listener.getsockname()[1])
        found = FarRanks(order, port, meeting, listener)
        try:
            yield found
        finally:
            found.close()
            meeting_path(order).unlink(missing_ok=True)


def _send(channel: Channel, message: GangOrder) -> None:
    with suppress(OSError):  # it is gone, which shows where it is heard
        channel.send(line_of(message))
