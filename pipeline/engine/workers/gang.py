"""Runs a job that needs several devices: one process for each of them, all of which run the job's entry.

    engine -- pipe --> worker that leads the gang -- one pipe each --> rank 0 .. k-1
                       the other k-1 workers: lent, as fresh processes that hold no memory of their devices

The ranks are children of the leading worker and in its process group, so whatever ends that worker ends them. It
adopts what they leave behind, and ends that with the job. They find each other by the environment that
`torch.distributed` reads. If one dies or raises, all are ended at once.

Where the devices are those of several machines, a worker on each of the others has the ranks there, and says over
TCP what becomes of them (`far_ranks`, `gang_part`). If it is lost the engine ends the attempt, as it knows why.
"""

from __future__ import annotations

import faulthandler
import hmac
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal

from pipeline.engine.devices.worker_env import LOOPBACK, NODE_ADDRESS
from pipeline.engine.workers import gang_part
from pipeline.engine.workers.failure import FailureKind
from pipeline.engine.workers.gang_part import (
    MEET_S,
    TERMINATE_S,
    GangOrder,
    Hello,
    MachineRanks,
    OwnRank,
    Rank,
    RankReport,
    RanksMeeting,
    interface_of,
    line_of,
    log_of,
    meeting_path,
    new_meeting,
    open_channels,
    start_rank,
)
from pipeline.engine.workers.messages import (
    SEND_TIMEOUT_S,
    AttemptStopped,
    JobFinished,
    JobProgress,
    JobRaised,
    RunJob,
    decode_report,
)
from pipeline.engine.workers.work import Work, log_stacks
from pipeline.errors import GangError, JobError, JobStopped, WorkerError
from pipeline.foreign import ForeignDataError, read_json
from pipeline.machine.children import Channel, tail

# -- far ranks ---------------------------------------------------------------------------------------------------
# The ranks of a job on other machines, as the worker that leads it hears of them; see `gang_part`.


_SILENT_S = 60.0
"""After so long without a word a machine is taken for lost: it says every few seconds that it is there."""
_MAX_BYTES = 8 << 20
"""Of a line: the last word of a rank has two texts at most."""
_HELLO_S = 2.0
"""What who has come is given to say who it is: it says so at once."""
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
        channels = [machine.channel for machine in self._machines if machine.channel]
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
            self._welcome(Channel(connection, max_bytes=_MAX_BYTES, send_timeout_s=SEND_TIMEOUT_S))
        for machine in self._machines:
            if not machine.is_lost and not machine.is_over:
                self._hear(machine)

    def _welcome(self, guest: Channel) -> None:
        wait([guest.fileno()], _HELLO_S)
        try:
            machine = self._named(read_json(next(iter(guest.receive()), b""), Hello))
        except (WorkerError, ForeignDataError):
            machine = None
        if machine is None or machine.channel is not None:
            guest.close()
            return
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
        for machine in self._machines:
            if machine.channel:
                machine.channel.close()


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


_OTHERS_S = 1.0
"""How long to wait, after a rank has lost the connection to another, for that one to be seen to have died."""
_ENGINE_S = 30.0
"""The same where a machine was lost: the engine finds out how, and ends this."""
_POLL_S = 0.1


@dataclass
class _Gang:
    """All ranks of a job, while it runs."""

    order: RunJob
    work: Work
    far: FarRanks | None = None
    own: list[OwnRank] = field(default_factory=list)
    told_to_stop: bool = False
    wants_stacks: bool = False
    loads: bool = False

    @property
    def ranks(self) -> Sequence[Rank]:
        """All, in their order."""
        return [*self.own, *(self.far.ranks if self.far else ())]

    def wait_for_all(self) -> None:
        """Forward progress until every rank is over.

        Raises:
            GangError: One of them has failed.
        """
        since: float | None = None
        while not all(rank.is_over for rank in self.ranks):
            self._hear()
            is_cut_off = self.far is not None and bool(self.far.problem)
            if (failed := self._failed()) or is_cut_off:
                # A rank that only lost the connection to another is rarely the one to tell of.
                since = since or time.monotonic()
                is_told = failed is not None and not _is_consequence(failed)
                if is_told or time.monotonic() >= since + (_ENGINE_S if is_cut_off else _OTHERS_S):
                    raise self._error(failed)
        if failed := self._failed():
            raise self._error(failed)

    def _hear(self) -> None:
        if self.work.stopping() and not self.told_to_stop:
            self.told_to_stop = True
            for rank in self.own:
                rank.tell_to_stop()
            if self.far:
                self.far.tell("stop")
        if self.wants_stacks and self.far:
            self.wants_stacks = False
            self.far.tell("stacks")
        # The end of a process shows at its pipe, unless a child of its own has a copy of that: hence the limit.
        if open_ones := [*open_channels(self.own), *(self.far.sources() if self.far else ())]:
            wait(open_ones, _POLL_S)
        else:
            time.sleep(_POLL_S / 10)
        for rank in self.own:
            rank.hear(self._report if rank.number == 0 else lambda _: None)
        if self.far:
            self.far.hear()
        asked = any(isinstance(rank.said, AttemptStopped) for rank in self.own) or (self.far and self.far.stops)
        if asked and not self.work.stopping():
            os.kill(os.getpid(), signal.SIGUSR2)  # as if this worker had been: the attempt ends on all machines

    def _report(self, message: JobProgress) -> None:
        if message.loading != self.loads:
            self.loads = message.loading
            self.work.report_loading(self.loads)
        else:
            self.work.show(message.numbers)
            self.work.progress(message.done, message.total, message.tokens)

    def _failed(self) -> Rank | None:
        """The rank that is most likely the cause: one that died, else one that raised, the first of each."""
        died = [rank for rank in self.ranks if rank.lost]
        raised = [rank for rank in self.ranks if isinstance(rank.said, JobRaised)]
        return next(iter([*died, *sorted(raised, key=_is_consequence)]), None)

    def _error(self, rank: Rank | None) -> GangError:
        if self.far and self.far.problem and (rank is None or _is_consequence(rank)):
            kind = FailureKind.transient.value
            return GangError(self.far.problem, rank=self.far.missing, kind=kind)
        assert rank is not None
        if not isinstance(rank.said, JobRaised) or rank.lost:
            return GangError(
                f"rank {rank.number} of {len(self.ranks)} was lost ({rank.lost}){_end_of(rank)}",
                rank=rank.number,
                kind=FailureKind.lost.value,
                exit_code=rank.exit_code,
            )
        how = "raised" if rank.said.error_type else "failed:"
        return GangError(
            f"rank {rank.number} of {len(self.ranks)} {how} {rank.said.said}{_end_of(rank)}",
            rank=rank.number,
            kind=rank.said.kind.value,
            damaged_key=rank.said.damaged_key,
        )

    def conclude(self) -> None:
        """Take over what rank 0 has counted.

        Raises:
            JobStopped: The ranks were told to stop and have saved what they need.
        """
        stopped = [rank.number for rank in self.ranks if isinstance(rank.said, AttemptStopped)]
        if stopped:
            raise JobStopped(f"ranks {', '.join(map(str, stopped))}")
        first = self.ranks[0].said
        assert isinstance(first, JobFinished)
        self.work.load_s += first.load_s
        # Each rank counts what all of them do together.
        self.work.samples, self.work.tokens, self.work.flops = first.samples, first.tokens, first.flops
        self.work.answers = first.answers
        peaks = [rank.said.peak_mb for rank in self.ranks if isinstance(rank.said, JobFinished)]
        self.work.peak_mb = max((peak for peak in peaks if peak is not None), default=None)

    def end(self) -> None:
        """End whatever rank still runs, and drop what ranks other than the first have written."""
        if self.far:
            self.far.tell("end")
        gang_part.end(self.own)
        if self.far:
            self.far.wait_for_end()

    def show_stacks(self) -> None:
        """Have every rank write the stacks of its threads to its log."""
        gang_part.show_stacks(self.own)
        self.wants_stacks = True  # no sending here: this is a signal handler, and may interrupt just that


def run_gang(order: RunJob, work: Work) -> None:
    """Run a job in as many processes as it has devices. Called in the worker that leads them.

    Args:
        order: The job; its `gang` has one entry per rank.
        work: Its `out` is what rank 0 writes to.

    Raises:
        GangError: A rank has died or raised; none is left.
        JobStopped: They were told to stop and have saved what they need to go on.
        JobError: No processes can be started on these devices.
    """
    if slices := [name for name in order.gang if name.startswith("MIG-")]:
        raise JobError(
            f"{order.job_id} needs {len(order.gang)} devices, and {slices[0]} is a MIG slice: CUDA shows a "
            "process one slice at most, so slices cannot work together. Choose whole GPUs (distributed.gpu_ids), "
            "or training.gpus_per_job=1 and generation.gpus_per_job=1"
        )
    address = os.environ.get(NODE_ADDRESS, LOOPBACK) if order.spans else LOOPBACK
    with (
        held_port(order.payload.get("master_port")) as port,
        far_ranks(order, address, port) if order.spans else nullcontext() as far,
        _stacks_of(gang := _Gang(order, work, far)),
    ):
        count = order.spans[0] if order.spans else len(order.gang)
        where = interface_of(address)
        place = MachineRanks(first=0, count=count, device=work.device, master=address, port=port, interface=where)
        try:
            for number in range(count):
                gang.own.append(start_rank(order, place, number, None if number else work.out))
            gang.wait_for_all()
        finally:
            gang.end()
    gang.conclude()


@contextmanager
def held_port(wanted: int | None) -> Iterator[int]:
    """A TCP port of this machine for the ranks to meet at, which no other program is given meanwhile.

    The port is bound and never listened at: that keeps it from being handed out, while a program that asks for it
    by number and sets SO_REUSEADDR, as the store of torch does, may still listen there.

    Args:
        wanted: The port that the user asks for, or None for a free one.

    Raises:
        JobError: It is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("", wanted or 0))
        except OSError as error:
            raise JobError(
                f"distributed.master_port={wanted} is taken ({error.strerror}). Choose another one, or null for "
                "one that is free"
            ) from error
        yield int(holder.getsockname()[1])


def _is_consequence(rank: Rank) -> bool:
    """Whether a rank failed in a way in which it would if another one had."""
    return isinstance(rank.said, JobRaised) and rank.said.kind is FailureKind.transient


def _end_of(rank: Rank) -> str:
    lines = tail(rank.log)
    return f"\nIts log, {rank.log.name}, {'ends:' + lines if lines else 'is empty.'}"


@contextmanager
def _stacks_of(gang: _Gang) -> Iterator[None]:
    """Pass the request for stacks on to the ranks: what this process does is no riddle."""
    faulthandler.unregister(signal.SIGUSR1)
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: gang.show_stacks())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
        log_stacks()
