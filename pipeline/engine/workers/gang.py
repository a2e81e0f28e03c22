"""Runs a job that needs several devices: one process for each of them, all of which run the job's entry.

    engine -- pipe --> worker that leads the gang -- one pipe each --> rank 0 .. k-1
                       the other k-1 workers: lent, as fresh processes that hold no memory of their devices

The ranks are children of the leading worker and in its process group, so whatever ends that worker ends them. It
adopts what they leave behind, and ends that with the job. They find each other by the environment that
`torch.distributed` reads. If one dies or raises, all are ended at once.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

from pipeline.engine.devices.worker_env import rank_environment
from pipeline.engine.workers.failure import FailureKind
from pipeline.engine.workers.messages import (
    MAX_MESSAGE_BYTES,
    SEND_TIMEOUT_S,
    AttemptStopped,
    JobFinished,
    JobProgress,
    JobRaised,
    RunJob,
    Shutdown,
    decode_report,
    encode,
)
from pipeline.engine.workers.output import log_stacks
from pipeline.engine.workers.work import Work
from pipeline.errors import GangError, JobError, JobStopped, WorkerError, describe_exit
from pipeline.files import remove_tree
from pipeline.machine import children
from pipeline.machine.children import Child
from pipeline.machine.log_tail import tail

TERMINATE_S = 1.0
"""What ranks are given to end when another one has failed, before they are killed."""
_OTHERS_S = 1.0
"""How long to wait, after a rank has lost the connection to another, for that one to be seen to have died."""
_POLL_S = 0.1


@dataclass
class _Rank:
    """One process and what it has said.

    Attributes:
        number: Its rank.
        child: The process.
        log: Where its output goes.
        out: What it writes as its output.
        said: Its last word.
        is_over: Whether the process has ended, and everything it sent was read.
        loads: Whether it has said that it loads a model.
    """

    number: int
    child: Child
    log: Path
    out: Path
    said: JobFinished | JobRaised | AttemptStopped | None = None
    is_over: bool = False
    loads: bool = False


@dataclass
class _Gang:
    """All ranks of a job, while it runs."""

    order: RunJob
    work: Work
    ranks: list[_Rank] = field(default_factory=list)
    told_to_stop: bool = False

    def wait_for_all(self) -> None:
        """Forward progress until every rank is over.

        Raises:
            GangError: One of them has failed.
        """
        give_up: float | None = None
        while not all(rank.is_over for rank in self.ranks):
            self._hear()
            if failed := self._failed():
                # A rank that only lost the connection to another is rarely the one to tell of.
                give_up = give_up or time.monotonic() + _OTHERS_S
                if not _is_consequence(failed) or time.monotonic() >= give_up:
                    raise self._error(failed)
        if failed := self._failed():
            raise self._error(failed)

    def _hear(self) -> None:
        if self.work.stopping() and not self.told_to_stop:
            self.told_to_stop = True
            for rank in self.ranks:
                with suppress(OSError):
                    rank.child.channel.send(encode(Shutdown()))
        channels = [rank.child.channel for rank in self.ranks]
        open_ones = [channel.fileno() for channel in channels if not channel.closed]
        # The end of a process shows at its pipe, unless a child of its own has a copy of that: hence the limit.
        if open_ones:
            wait(open_ones, _POLL_S)
        else:
            time.sleep(_POLL_S / 10)
        for rank in self.ranks:
            # Asked before reading: what a dead process sent is in the pipe by then, so nothing can be missed.
            ended = rank.child.process.poll() is not None
            try:
                for line in rank.child.channel.receive():
                    self._take(rank, decode_report(line))
            except WorkerError as error:
                raise self._lost(rank, str(error)) from error
            rank.is_over = ended

    def _take(self, rank: _Rank, message: object) -> None:
        if isinstance(message, JobProgress) and rank.number == 0:
            if message.loading != rank.loads:
                rank.loads = message.loading
                self.work.report_loading(rank.loads)
            else:
                self.work.show(message.numbers)
                self.work.progress(message.done, message.total, message.tokens)
        elif isinstance(message, JobFinished | JobRaised | AttemptStopped):
            rank.said = message

    def _failed(self) -> _Rank | None:
        """The rank that is most likely the cause: one that died, else one that raised, the first of each."""
        died = [rank for rank in self.ranks if rank.is_over and rank.said is None]
        raised = [rank for rank in self.ranks if isinstance(rank.said, JobRaised)]
        return next(iter([*died, *sorted(raised, key=_is_consequence)]), None)

    def _error(self, rank: _Rank) -> GangError:
        if not isinstance(rank.said, JobRaised):
            return self._lost(rank, describe_exit(rank.child.process.poll()))
        how = "raised" if rank.said.error_type else "failed:"
        return GangError(
            f"rank {rank.number} of {len(self.ranks)} {how} {rank.said.said}{_end_of(rank.log)}",
            rank=rank.number,
            kind=rank.said.kind.value,
            damaged_key=rank.said.damaged_key,
        )

    def _lost(self, rank: _Rank, how: str) -> GangError:
        return GangError(
            f"rank {rank.number} of {len(self.ranks)} was lost ({how}){_end_of(rank.log)}",
            rank=rank.number,
            kind=FailureKind.lost.value,
            exit_code=rank.child.process.poll(),
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
        children.end([rank.child for rank in self.ranks], TERMINATE_S)
        for rank in self.ranks:
            rank.child.wait()
            if rank.number:
                remove_tree(rank.out)

    def show_stacks(self) -> None:
        """Have every rank write the stacks of its threads to its log."""
        for rank in self.ranks:
            rank.child.send_signal(signal.SIGUSR1)


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
    gang = _Gang(order, work)
    with held_port(order.payload.get("master_port")) as port, _stacks_of(gang):
        try:
            for number in range(len(order.gang)):
                gang.ranks.append(_start(order, work, number, port))
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


def log_of(order_log: Path, rank: int) -> Path:
    """The log of a rank: rank 0 writes the job's own, ``log.txt``, another one ``log.rank1.txt`` beside it."""
    return order_log if rank == 0 else order_log.with_suffix(f".rank{rank}{order_log.suffix}")


def _start(order: RunJob, work: Work, number: int, port: int) -> _Rank:
    out = work.out if number == 0 else Path(order.scratch) / f"rank{number}-{os.getpid()}"
    log = log_of(Path(order.log_path), number)
    device = f"cuda:{number}" if work.device.startswith("cuda") else work.device
    out.mkdir(exist_ok=True)
    if number:
        log.unlink(missing_ok=True)
    with log.open("ab") if number else nullcontext() as output:  # rank 0 has that of this process
        child = Child(
            "pipeline.engine.workers.rank",
            rank_environment(os.environ, order.gang, rank=number, master_port=port),
            {"rank": number, "device": device, "out": str(out)},
            max_bytes=MAX_MESSAGE_BYTES,
            send_timeout_s=SEND_TIMEOUT_S,
            output=output,
        )
    with suppress(OSError):  # it is over already, as is about to be seen
        child.channel.send(encode(order))
    return _Rank(number, child, log, out)


def _is_consequence(rank: _Rank) -> bool:
    """Whether a rank failed in a way in which it would if another one had."""
    return isinstance(rank.said, JobRaised) and rank.said.kind is FailureKind.transient


def _end_of(log: Path) -> str:
    lines = tail(log)
    return f"\nIts log, {log.name}, {'ends:' + lines if lines else 'is empty.'}"


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
