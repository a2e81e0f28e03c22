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
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from pipeline.engine.devices.worker_env import LOOPBACK, NODE_ADDRESS
from pipeline.engine.workers import rank_process
from pipeline.engine.workers.failure import FailureKind
from pipeline.engine.workers.far_ranks import FarRanks, far_ranks
from pipeline.engine.workers.gang_part import interface_of
from pipeline.engine.workers.messages import AttemptStopped, JobFinished, JobProgress, JobRaised, RunJob
from pipeline.engine.workers.output import log_stacks
from pipeline.engine.workers.rank_process import MachineRanks, OwnRank, Rank, open_channels, start_rank
from pipeline.engine.workers.work import Work
from pipeline.errors import GangError, JobError, JobStopped
from pipeline.machine.log_tail import tail

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
        rank_process.end(self.own)
        if self.far:
            self.far.wait_for_end()

    def show_stacks(self) -> None:
        """Have every rank write the stacks of its threads to its log."""
        rank_process.show_stacks(self.own)
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
