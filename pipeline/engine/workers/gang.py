"""Run a multi-GPU job: one process (rank) for each device, all of which run the job's entry.

    engine -- pipe --> worker that leads the gang -- one pipe each --> rank 0 .. k-1
                       the other k-1 workers: lent, as fresh processes that hold no memory of their devices

The ranks are children of the leading worker and in its process group, so whatever ends that worker ends them. It
adopts processes that they leave behind, and ends these with the job. The ranks find each other by the environment
that `torch.distributed` reads. If one dies or raises, all are ended at once.
"""

import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

from pipeline.engine.devices.inventory import held_port, rank_environment
from pipeline.engine.workers import messages
from pipeline.engine.workers.work import Work, log_stacks
from pipeline.errors import GangError, JobError, JobStopped, WorkerError, describe_exit
from pipeline.files import remove_tree
from pipeline.machine import children
from pipeline.machine.children import Child, tail
from pipeline.machine.descendants import NOTICES, held_back

_TERMINATE_S = 1.0
"""Seconds that ranks have to end after another one failed, before they are killed."""
_OTHERS_S = 1.0
"""Seconds to wait, after a rank lost the connection to another, until that other one is seen to be dead."""
_POLL_S = 0.1


@dataclass(kw_only=True)
class _Rank:
    """A rank of the job.

    Attributes:
        number: Its rank.
        child: The process.
        log: File of its output.
        out: Folder in which it writes its output; dropped for ranks other than the first.
        last: Its last message.
        is_over: Whether no further message can come.
        lost: How it ended if it sent no last message, or sent something unreadable, in words.
    """

    number: int
    child: Child
    log: Path
    out: Path
    last: messages.End | None = None
    is_over: bool = False
    lost: str = ""

    @property
    def exit_code(self) -> int | None:
        return self.child.process.poll()

    def hear(self) -> Iterator[messages.JobProgress]:
        """Receive its messages and check whether it is over; yield its progress."""
        if self.is_over:
            return
        # Checked before reading: everything that a dead process sent is in the pipe by then, so nothing is missed.
        ended = self.exit_code is not None
        try:
            for line in self.child.channel.receive():
                match messages.decode_report(line):
                    case messages.JobFinished() | messages.JobRaised() | messages.AttemptStopped() as last:
                        self.last = last
                    case messages.JobProgress() as progress:
                        yield progress
        except WorkerError as error:
            ended, self.lost = True, str(error)
        self.is_over = ended
        if ended and self.last is None:
            self.lost = self.lost or describe_exit(self.exit_code)


@dataclass
class _Gang:
    """All ranks of a job, while it runs."""

    order: messages.RunJob
    work: Work
    ranks: list[_Rank] = field(default_factory=list)
    told_to_stop: bool = False
    loads: bool = False

    def start(self, number: int, port: int) -> None:
        """Start a rank."""
        order, device = self.order, self.work.device
        out = Path(order.scratch) / f"rank{number}-{order.key[:16]}-{os.getpid()}" if number else self.work.out
        log = Path(order.log_path)
        log = log.with_suffix(f".rank{number}{log.suffix}") if number else log
        out.mkdir(exist_ok=True)
        if number:
            log.unlink(missing_ok=True)
        settings = {
            "rank": number,
            "device": f"cuda:{number}" if device.startswith("cuda") else device,
            "out": str(out),
        }
        # Rank 0 shares the log of this process. A signal during the start is held until the rank can handle it.
        with log.open("ab") if number else nullcontext() as output, held_back(NOTICES):
            child = Child(
                "pipeline.engine.workers.entrypoint",
                rank_environment(os.environ, order.gang, rank=number, master_port=port),
                settings,
                max_bytes=messages.MAX_MESSAGE_BYTES,
                send_timeout_s=messages.SEND_TIMEOUT_S,
                output=output,
            )
        self.ranks.append(_Rank(number=number, child=child, log=log, out=out))
        with suppress(OSError):  # it has already ended, which is noticed next
            child.channel.send(messages.encode(order))

    def wait_for_all(self) -> None:
        """Forward progress until every rank is over.

        Raises:
            GangError: A rank has failed.
        """
        since: float | None = None
        while not all(rank.is_over for rank in self.ranks):
            self._hear()
            if failed := self._failed():
                # A rank that lost the connection to another is rarely the cause.
                since = since or time.monotonic()
                if not _is_consequence(failed) or time.monotonic() >= since + _OTHERS_S:
                    break
        if failed := self._failed():
            raise self._error(failed)

    def _hear(self) -> None:
        if self.work.stopping() and not self.told_to_stop:
            self.told_to_stop = True
            for rank in self.ranks:
                with suppress(OSError):
                    rank.child.channel.send(messages.encode(messages.Shutdown()))
        # The end of a process shows at its pipe, unless a child of it has a copy of the pipe: hence the limit.
        channels = [rank.child.channel for rank in self.ranks]
        if open_ones := [channel.fileno() for channel in channels if not channel.closed]:
            wait(open_ones, _POLL_S)
        else:
            time.sleep(_POLL_S / 10)
        for rank in self.ranks:
            for progress in rank.hear():
                if rank.number == 0:
                    self._report(progress)
        if any(isinstance(rank.last, messages.AttemptStopped) for rank in self.ranks) and not self.work.stopping():
            os.kill(os.getpid(), signal.SIGUSR2)  # as if this worker had been told to stop: all ranks stop

    def _report(self, message: messages.JobProgress) -> None:
        if message.loading != self.loads:
            self.loads = message.loading
            self.work.report_loading(self.loads)
        else:
            self.work.show(message.numbers)
            self.work.progress(message.done, message.total, message.tokens)

    def _failed(self) -> _Rank | None:
        """Return the rank that is most likely the cause: the first one that died, else the first that raised."""
        died = [rank for rank in self.ranks if rank.lost]
        raised = [rank for rank in self.ranks if isinstance(rank.last, messages.JobRaised)]
        return next(iter([*died, *sorted(raised, key=_is_consequence)]), None)

    def _error(self, rank: _Rank) -> GangError:
        who, lines = f"rank {rank.number} of {len(self.ranks)}", tail(rank.log)
        log = f"\nIts log, {rank.log.name}, {'ends:' + lines if lines else 'is empty.'}"
        if not isinstance(rank.last, messages.JobRaised) or rank.lost:
            how, kind, code = f"was lost ({rank.lost})", messages.FailureKind.lost.value, rank.exit_code
            return GangError(f"{who} {how}{log}", rank=rank.number, kind=kind, exit_code=code)
        return GangError(
            f"{who} {'raised' if rank.last.error_type else 'failed:'} {rank.last.said}{log}",
            rank=rank.number,
            kind=rank.last.kind.value,
            damaged_key=rank.last.damaged_key,
        )

    def conclude(self) -> None:
        """Copy the counts of rank 0.

        Raises:
            JobStopped: The ranks were told to stop and have saved a checkpoint.
        """
        stopped = [rank.number for rank in self.ranks if isinstance(rank.last, messages.AttemptStopped)]
        if stopped:
            raise JobStopped(f"ranks {', '.join(map(str, stopped))}")
        first = self.ranks[0].last
        assert isinstance(first, messages.JobFinished)
        self.work.load_s += first.load_s
        # Each rank counts the work of all of them.
        self.work.samples, self.work.tokens, self.work.flops = first.samples, first.tokens, first.flops
        self.work.answers = first.answers
        peaks = [rank.last.peak_mb for rank in self.ranks if isinstance(rank.last, messages.JobFinished)]
        self.work.peak_mb = max((peak for peak in peaks if peak is not None), default=None)

    def end(self) -> None:
        """End the ranks that still run, and drop the output folders of ranks other than the first."""
        children.end([rank.child for rank in self.ranks], _TERMINATE_S)
        for rank in self.ranks:
            rank.child.wait()
            if rank.number:
                remove_tree(rank.out)

    @contextmanager
    def showing_stacks(self) -> Iterator[None]:
        """Pass requests for stacks on to the ranks; this process itself only waits."""

        def show(*_: object) -> None:
            for rank in self.ranks:
                rank.child.send_signal(signal.SIGUSR1)

        faulthandler.unregister(signal.SIGUSR1)
        before = signal.signal(signal.SIGUSR1, show)
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, before)
            log_stacks()


def run_gang(order: messages.RunJob, work: Work) -> None:
    """Run a job in one process per device. Called in the worker that leads them.

    Args:
        order: The job; its `gang` has one entry per rank.
        work: Rank 0 writes to its `out`.

    Raises:
        GangError: A rank has died or raised; none is left running.
        JobStopped: The ranks were told to stop and have saved a checkpoint.
        JobError: No processes can be started on these devices.
    """
    if slices := [name for name in order.gang if name.startswith("MIG-")]:
        why = f"CUDA shows a process one MIG slice and nothing else, and {slices[0]} is one"
        raise JobError(
            f"{order.job_id} needs {len(order.gang)} devices: {why}. Choose whole GPUs, or gpus_per_job=1"
        )
    gang = _Gang(order, work)
    with held_port(order.payload.get("master_port")) as port, gang.showing_stacks():
        try:
            for number in range(len(order.gang)):
                gang.start(number, port)
            gang.wait_for_all()
        finally:
            gang.end()
    gang.conclude()


def _is_consequence(rank: _Rank) -> bool:
    """Return whether a rank failed as it would if another rank had failed first."""
    return isinstance(rank.last, messages.JobRaised) and rank.last.kind is messages.FailureKind.transient
