"""The ranks of a job on a machine that does not lead it: a worker there starts them, as the one that leads says.

    worker that leads (`gang`) -- listens; says where, in a file of the run's scratch folder
         ^                                                    |
         +------- lines of JSON over TCP ------ worker here --+-- one pipe each --> its ranks

It tells what each rank says at its end and how it ended, and decides nothing. Its ranks end with the connection.
"""

from __future__ import annotations

import array
import hashlib
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from pipeline.engine.devices.worker_env import LOOPBACK, rank_environment
from pipeline.engine.workers.messages import (
    MAX_MESSAGE_BYTES,
    SEND_TIMEOUT_S,
    AttemptStopped,
    JobFinished,
    JobProgress,
    JobRaised,
    Report,
    RunJob,
    Shutdown,
    decode_report,
    encode,
)
from pipeline.errors import WorkerError, describe_exit
from pipeline.files import json_text, remove_tree, replacing
from pipeline.foreign import ForeignDataError, read_json, read_json_file
from pipeline.machine import children
from pipeline.machine.children import Channel, Child
from pipeline.machine.descendants import NOTICES, held_back

# -- rank process ------------------------------------------------------------------------------------------------
# One process of a job that needs several devices, as the worker that has started it sees it.


TERMINATE_S = 1.0
"""What ranks are given to end when another one has failed, before they are killed."""


@dataclass(kw_only=True)
class Rank:
    """What is known of a rank, wherever it is.

    Attributes:
        number: Its rank.
        log: Where its output goes.
        said: Its last word.
        is_over: Whether nothing more comes of it.
        lost: How it ended if it said nothing, or what it says is no message, in words.
        exit_code: Of its process, once that is over.
    """

    number: int
    log: Path
    said: JobFinished | JobRaised | AttemptStopped | None = None
    is_over: bool = False
    lost: str = ""
    exit_code: int | None = None

    def take(self, message: Report) -> None:
        """Note its last word."""
        if isinstance(message, JobFinished | JobRaised | AttemptStopped):
            self.said = message

    def ends(self, exit_code: int | None, how: str = "") -> None:
        """Nothing more comes of it."""
        self.is_over, self.exit_code = True, exit_code
        if self.said is None or how:
            self.lost = how or describe_exit(exit_code)


@dataclass(frozen=True, kw_only=True)
class MachineRanks:
    """The ranks of one machine, and how they find the others.

    Attributes:
        first: The first of them.
        count: How many.
        device: As workers on this machine have it: ``cpu`` or ``cuda``.
        master: The address of the machine of rank 0.
        port: Where they meet there.
        interface: By which this machine reaches it; "" for the loopback, or where that is unknown.
    """

    first: int
    count: int
    device: str
    master: str
    port: int
    interface: str = ""


@dataclass(kw_only=True)
class OwnRank(Rank):
    """A rank that this process has started.

    Attributes:
        child: The process.
        out: What it writes as its output.
    """

    child: Child
    out: Path

    def tell_to_stop(self) -> None:
        """Send `Shutdown`."""
        with suppress(OSError):
            self.child.channel.send(encode(Shutdown()))

    def hear(self, progress: Callable[[JobProgress], None] = lambda _: None) -> None:
        """Take what it has sent, and see whether it is over."""
        if self.is_over:
            return
        # Asked before reading: what a dead process sent is in the pipe by then, so nothing can be missed.
        ended = self.child.process.poll() is not None
        how = ""
        try:
            for line in self.child.channel.receive():
                message = decode_report(line)
                self.take(message)
                if isinstance(message, JobProgress):
                    progress(message)
        except WorkerError as error:
            how = str(error)
        if ended or how:
            self.ends(self.child.process.poll(), how)


def start_rank(order: RunJob, place: MachineRanks, number: int, out: Path | None = None) -> OwnRank:
    """Start a process of a job.

    Args:
        order: The job.
        place: The ranks of this machine.
        number: Which of them.
        out: What rank 0 writes to; that of others is dropped.
    """
    here = order.gang[place.first : place.first + place.count]
    environment = rank_environment(
        os.environ,
        here,
        rank=number,
        master_port=place.port,
        master=place.master,
        interface=place.interface,
        first=place.first,
        size=len(order.gang),
    )
    # Processes of other machines may have the same number, and jobs there ranks of the same.
    out = out or Path(order.scratch) / f"rank{number}-{order.key[:16]}-{os.getpid()}"
    log = log_of(Path(order.log_path), number)
    device = f"cuda:{number - place.first}" if place.device.startswith("cuda") else place.device
    out.mkdir(exist_ok=True)
    if number:
        log.unlink(missing_ok=True)
    # Rank 0 has the log of this process. A notice that comes while it starts waits until it can be taken.
    with log.open("ab") if number else nullcontext() as output, held_back(NOTICES):
        child = Child(
            "pipeline.engine.workers.rank",
            environment,
            {"rank": number, "device": device, "out": str(out)},
            max_bytes=MAX_MESSAGE_BYTES,
            send_timeout_s=SEND_TIMEOUT_S,
            output=output,
        )
    with suppress(OSError):  # it is over already, as is about to be seen
        child.channel.send(encode(order))
    return OwnRank(number=number, child=child, log=log, out=out)


def log_of(order_log: Path, rank: int) -> Path:
    """The log of a rank: rank 0 writes the job's own, ``log.txt``, another one ``log.rank1.txt`` beside it."""
    return order_log if rank == 0 else order_log.with_suffix(f".rank{rank}{order_log.suffix}")


def open_channels(ranks: Collection[OwnRank]) -> list[int]:
    """Descriptors that become readable when one of them has something to say."""
    channels = [rank.child.channel for rank in ranks]
    return [channel.fileno() for channel in channels if not channel.closed]


def show_stacks(ranks: Collection[OwnRank]) -> None:
    """Have each write the stacks of its threads to its log."""
    for rank in ranks:
        rank.child.send_signal(signal.SIGUSR1)


def end(ranks: Collection[OwnRank]) -> None:
    """End whatever still runs, and drop what ranks other than the first have written."""
    children.end([rank.child for rank in ranks], TERMINATE_S)
    for rank in ranks:
        rank.child.wait()
        if rank.number:
            remove_tree(rank.out)


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
