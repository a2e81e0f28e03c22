"""One process of a job that needs several devices, as the worker that has started it sees it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.devices.worker_env import rank_environment
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
from pipeline.files import remove_tree
from pipeline.machine import children
from pipeline.machine.begin import NOTICES, held_back
from pipeline.machine.children import Child

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
