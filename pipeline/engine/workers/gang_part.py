"""The ranks of a job on a machine that does not lead it: a worker there starts them, as the one that leads says.

    worker that leads (`gang`) -- listens; says where, in a file of the run's scratch folder
         ^                                                    |
         +------- lines of JSON over TCP ------ worker here --+-- one pipe each --> its ranks

It tells what each rank says at its end and how it ended, and decides nothing. Its ranks end with the connection.
"""

from __future__ import annotations

import array
import hashlib
import secrets
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from pipeline.engine.devices.worker_env import LOOPBACK
from pipeline.engine.workers.messages import MAX_MESSAGE_BYTES, SEND_TIMEOUT_S, RunJob, encode
from pipeline.engine.workers.rank_process import MachineRanks, OwnRank, end, open_channels, show_stacks, start_rank
from pipeline.errors import WorkerError
from pipeline.files import json_text, replacing
from pipeline.foreign import ForeignDataError, read_json, read_json_file
from pipeline.machine.channel import Channel

MEET_S = 120.0
"""How long a machine looks for the one that leads, and that waits for it: a shared disk may show a file late."""
ALIVE_S = 5.0
"""How often it says that it is there."""
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class RanksMeeting:
    """Where the worker that leads listens, and what shows that who comes may read the run's scratch folder."""

    address: str
    port: Annotated[int, Meta(ge=1, le=65535)]
    secret: str


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first line to it."""

    part: int
    secret: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What became of a rank; of none, that its machine is there.

    Attributes:
        rank: Which; -1 for none.
        said: Its last word, a message as ranks send them.
        over: Whether its process is over.
        exit_code: How, as in `WorkerExited`.
        how: The same in words, where it said what is no message, or could not be started.
        stops: Of none: whether its machine was asked to end, so that all are to save what they need to go on.
    """

    rank: int = -1
    said: str = ""
    over: bool = False
    exit_code: int | None = None
    how: str = ""
    stops: bool = False


@dataclass(frozen=True, kw_only=True)
class GangOrder:
    """What the one that leads says. The first is `start`, with the port where ranks meet."""

    what: Literal["start", "stop", "stacks", "end"]
    port: int = 0


def line_of(message: Hello | RankReport | GangOrder) -> bytes:
    """A message as a line."""
    return json_text(asdict(message)).encode()


def meeting_path(order: RunJob) -> Path:
    """The file that says where an attempt's ranks meet."""
    name = hashlib.sha256(order.job_id.encode()).hexdigest()[:16]
    return Path(order.scratch) / f"meeting-{name}-{order.attempt}"


def new_meeting(order: RunJob, address: str, port: int) -> RanksMeeting:
    """Say where it is, to whoever may read the folder."""
    made = RanksMeeting(address=address, port=port, secret=secrets.token_hex(32))
    with replacing(meeting_path(order), durable=False) as path:
        path.touch(0o600)
        path.write_text(json_text(asdict(made)))
    return made


def start_part(
    order: RunJob, device: str, enough: Callable[[], bool], stopping: Callable[[], bool] = lambda: False
) -> None:
    """Start the ranks of this machine when told to, and end them with the connection.

    Args:
        order: The job; its `part` says which machine this is.
        device: ``cpu`` or ``cuda``.
        enough: Whether to end at once.
        stopping: Whether this machine was asked to end, which the one that leads is told.
    """
    give_up = time.monotonic() + MEET_S
    while not enough() and time.monotonic() < give_up:
        if (found := _connect(order)) is not None:
            _Part(order, device, *found).serve(enough, stopping)
            return
        time.sleep(_POLL_S)


def _connect(order: RunJob) -> tuple[Channel, RanksMeeting, str] | None:
    try:
        meeting = read_json_file(meeting_path(order), RanksMeeting)
        connection = socket.create_connection((meeting.address, meeting.port), SEND_TIMEOUT_S)
        here = str(connection.getsockname()[0])
        channel = Channel(connection, max_bytes=MAX_MESSAGE_BYTES, send_timeout_s=SEND_TIMEOUT_S)
        channel.send(line_of(Hello(part=order.part, secret=meeting.secret)))
    except (OSError, WorkerError, ForeignDataError):  # not there yet, or of an attempt that is over
        return None
    return channel, meeting, here


class _Part:
    """The ranks here, while there is a connection."""

    def __init__(self, order: RunJob, device: str, channel: Channel, meeting: RanksMeeting, here: str) -> None:
        self._order = order
        self._device = device
        self._channel = channel
        self._meeting = meeting
        self._here = here
        self._first = sum(order.spans[: order.part])
        self._ranks: list[OwnRank] = []
        self._running: list[OwnRank] = []
        self._tell_s = 0.0
        self._done = self._told_stop = False

    def serve(self, enough: Callable[[], bool], stopping: Callable[[], bool]) -> None:
        try:
            while not (self._done or self._channel.closed or enough()):
                wait([self._channel.fileno(), *open_channels(self._running)], _POLL_S)
                for line in self._channel.receive():
                    self._do(read_json(line, GangOrder))
                self._hear()
                if stopping() and not self._told_stop:
                    self._told_stop = True
                    self._send(RankReport(stops=True))
        except (OSError, WorkerError, ForeignDataError):
            pass  # whoever leads is gone, or is none
        finally:
            end(self._ranks)
            self._channel.close()

    def _do(self, told: GangOrder) -> None:
        match told.what:
            case "start":
                self._start(told.port)
            case "stop":
                for rank in self._running:
                    rank.tell_to_stop()
            case "stacks":
                show_stacks(self._running)
            case "end":
                self._done = True

    def _start(self, port: int) -> None:
        place = MachineRanks(
            first=self._first,
            count=self._order.spans[self._order.part],
            device=self._device,
            master=self._meeting.address,
            port=port,
            interface=interface_of(self._here),
        )
        for number in range(place.first, place.first + place.count):
            try:
                self._ranks.append(start_rank(self._order, place, number))
            except OSError as error:
                self._send(RankReport(rank=number, over=True, how=f"it cannot be started: {error}"))
        self._running = list(self._ranks)

    def _hear(self) -> None:
        for rank in list(self._running):
            said = rank.said
            rank.hear()
            if rank.said is not said and rank.said is not None:
                self._send(RankReport(rank=rank.number, said=encode(rank.said).decode()))
            if rank.is_over:
                self._running.remove(rank)
                self._send(RankReport(rank=rank.number, over=True, exit_code=rank.exit_code, how=rank.lost))
        if time.monotonic() >= self._tell_s:
            self._send(RankReport())

    def _send(self, message: RankReport) -> None:
        self._tell_s = time.monotonic() + ALIVE_S
        self._channel.send(line_of(message))


def interface_of(address: str) -> str:
    """The network interface of this machine that has an address; "" where none is found."""
    if sys.platform != "linux" or address == LOOPBACK:
        return ""
    import fcntl  # no Windows has it

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = array.array("B", name.encode()[:15].ljust(256, b"\0"))
            with suppress(OSError):
                fcntl.ioctl(asked.fileno(), 0x8915, request)  # SIOCGIFADDR
                if socket.inet_ntoa(request[20:24].tobytes()) == address:
                    return name
    return ""
