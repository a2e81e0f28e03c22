"""Own the workers: start them, wait on all of them at once, replace the dead, and leave none behind.

    engine thread --- Pool.send ---> worker 0 .. n-1        one pipe each, one job at a time each
                  <-- Pool.wait ---  pipes and sentinels    one wait on all of them

Workers share nothing, so the death of one cannot block another.
"""

import logging
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

from pipeline.engine.devices.inventory import FREE_TIMEOUT_S, Device, worker_environment
from pipeline.engine.workers import messages
from pipeline.engine.workers.entrypoint import Settings
from pipeline.errors import WorkerError
from pipeline.machine import children, descendants
from pipeline.machine.children import Channel, Child, tail
from pipeline.machine.descendants import Reaper

# -- protocol ----------------------------------------------------------------------------------------------------
# Interface of a worker, whatever runs it: a process on this machine, this process itself, or a Ray actor. A worker
# lives once: it is started, runs jobs one at a time, and is over when it has delivered `WorkerExited`. The pool
# then replaces it.


Deliver = Callable[[messages.FromWorker], None]


class Worker(ABC):
    """One device and whatever runs jobs on it. Only `receive` may take long, and no method may raise.

    Attributes:
        index: Index of the worker in the pool.
    """

    def __init__(self, index: int) -> None:
        self.index = index

    @abstractmethod
    def start(self) -> None:
        """Start; `WorkerReady` follows."""

    @abstractmethod
    def send(self, job: messages.RunJob) -> None:
        """Hand over a job. On failure `WorkerExited` follows."""

    def flush(self) -> None:  # noqa: B027 - most have no use for it
        """Send what was handed over; several jobs in one write wake the other side once."""

    def sources(self) -> Sequence[int]:
        """Return file descriptors that become readable when `receive` has something to do."""
        return []

    def pending(self) -> bool:
        """Return whether `receive` has something to do that no descriptor signals."""
        return False

    @abstractmethod
    def receive(self, deliver: Deliver) -> None:
        """Deliver the messages that have arrived, without waiting for more.

        `WorkerExited` comes last, and once.
        """

    def show_stacks(self) -> None:  # noqa: B027 - most have no use for it
        """Write the worker's current stacks to the job's log, before the worker is killed for hanging."""

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Ask the worker to let its job finish or save a checkpoint, then to exit: the first step of stopping."""

    def terminate(self) -> None:
        """Interrupt the job, in a way that the job can catch: the second step of stopping."""
        self.ask_to_stop()

    def kill(self) -> None:
        """Kill the worker and all its children, in a way that no code can catch: the last step of stopping."""
        self.ask_to_stop()

    def interrupt(self) -> None:  # noqa: B027 - most have no use for it
        """Ask a job that runs in the calling thread itself to stop. Called in a signal handler.

        The second call interrupts it.
        """

    def release(self) -> None:  # noqa: B027 - most have no use for it
        """Free what it holds beside its process, which has ended: no other worker follows in its slot."""

    def last_words(self) -> str:
        """Return the end of what it wrote outside of jobs, by `tail`: for example why it could not start."""
        return ""


# -- slot --------------------------------------------------------------------------------------------------------
# Slots: the pool's record of which worker is in a slot, and how far it has come.


@dataclass(eq=False)
class Slot:
    """A slot of the pool, and the worker in it."""

    worker: Worker
    deadline: float | None = None
    """When to kill the worker, unless it is ready by then."""
    is_ready: bool = False
    failed_starts: int = 0
    """Number of workers in a row that ended in this slot before their first job."""
    used: bool = False
    """Whether the worker has begun a job."""
    alive: bool = False
    closed: bool = False
    """Whether the worker is not to be replaced when it ends."""
    dismissed: bool = False
    """Whether the worker is being ended on purpose, so that its further messages are ignored."""


MAX_FAILED_STARTS = 3
"""Number of workers that may end in a slot before they begin a job, until the slot is given up."""

MakeWorker = Callable[[int, Reaper], Worker]

log = logging.getLogger("pipeline")


STACKS_S = 1.0
"""Seconds for a hanging worker to write its stacks before it is killed."""
_TERMINATE_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 30.0

Hear = Callable[[int, messages.FromWorker], None]


class Pool:
    """A number of workers.

    Attributes:
        size: Number of workers.
    """

    def __init__(
        self,
        make: MakeWorker,
        size: int,
        *,
        start_timeout_s: float | None = 60.0,
        stop_grace_s: float = 5.0,
        site: AbstractContextManager[object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Describe a pool; nothing starts yet.

        Args:
            make: Makes the worker of an index.
            size: Number of workers.
            start_timeout_s: Seconds until a new worker must have reported that it is ready; None if workers wait
                for resources, and have timeouts of their own.
            stop_grace_s: Seconds that a worker has to end by itself when asked to.
            site: Context manager around the workers, entered before the first starts and left after the last; None
                for this machine.
            clock: Monotonic seconds.
        """
        self.size = size
        self._make = make
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self._clock = clock
        self._site = site or nullcontext()
        self._slots: list[Slot] = []
        self._reaper: Reaper | None = None
        self._stopping = False

    def start(self) -> None:
        """Start all workers, without waiting for them.

        Raises:
            WorkerError: A process cannot be started at all.
        """
        self._reaper = Reaper()
        self._stopping = False
        self._site.__enter__()
        for index in range(self.size):
            self._slots.append(Slot(self._make(index, self._reaper)))
            self._begin(self._slots[index])

    def watch_path(self, path: Path) -> None:
        """Have a folder or file removed at the end, even if this process is killed."""
        if self._reaper:
            self._reaper.watch("path", str(path.absolute()))

    def send(self, index: int, job: messages.RunJob) -> None:
        """Give a job to a worker that is ready; it begins the job after those that it was given before.

        The job is sent by the next `wait`.
        """
        self._slots[index].worker.send(job)

    def abort(self, index: int) -> None:
        """Kill a hanging worker, after a moment in which its stacks are written to the job's log."""
        slot = self._slots[index]
        slot.worker.show_stacks()
        slot.deadline = self._clock() + STACKS_S

    def restart(self, index: int) -> None:
        """Replace a worker that has no job, because its process is not reliable any more."""
        self._slots[index].used = True  # its end does not count as a failed start
        self.dismiss(index)

    def dismiss(self, index: int) -> None:
        """End a worker that sent an impossible message; it is replaced as if it had died."""
        self._slots[index].dismissed = True
        self._slots[index].worker.kill()

    def open(self, index: int) -> None:
        """Start a worker in a new slot, which follows the last one, or let a closed slot have workers again.

        Raises:
            WorkerError: A process cannot be started at all.
        """
        assert self._reaper is not None
        if is_new := index == len(self._slots):
            self._slots.append(Slot(self._make(index, self._reaper)))
            self.size = len(self._slots)
        slot = self._slots[index]
        slot.closed, slot.failed_starts = False, 0
        if not slot.alive:
            if not is_new:
                slot.worker = self._make(index, self._reaper)
            self._begin(slot)

    def close(self, index: int) -> None:
        """End the worker of a slot as `stop_job` does, and do not replace it."""
        self._slots[index].closed = True
        if self._slots[index].alive:
            self.stop_job(index)

    def stop_job(self, index: int) -> None:
        """Ask a worker to let its job finish or save a checkpoint, and to exit; after a while it is killed.

        It is replaced.
        """
        slot = self._slots[index]
        slot.deadline = self._clock() + self._stop_grace_s
        slot.worker.ask_to_stop()

    def interrupt(self) -> None:
        """Ask a job that runs in this thread to stop; the second call interrupts it. For signal handlers."""
        for slot in self._slots:
            slot.worker.interrupt()

    def wait(self, timeout_s: float | None, deliver: Hear, also: Sequence[int] = ()) -> None:
        """Wait until some worker has a message, and deliver it.

        A worker that ended is replaced after its end was delivered. A slot in which workers repeatedly end before
        they begin a job is given up, and `WorkerUnusable` is delivered.

        Args:
            timeout_s: Longest wait; None for no limit.
            deliver: Called with the worker's index and its message, in the order in which the worker sent them.
            also: Other file descriptors that end the wait when they become readable.

        Raises:
            WorkerError: No slot is left.
        """
        self._wait(timeout_s, deliver, also)
        self._check_deadlines()

    def stop(self, deliver: Hear, hurry: Sequence[int] = ()) -> None:
        """End all workers: ask, terminate, kill, each with a deadline. Returns when none is left.

        Args:
            deliver: As in `wait`; jobs that finish meanwhile still count.
            hurry: File descriptors; one that becomes readable ends the waiting.
        """
        self._stopping = True
        try:
            steps = (
                ("ask_to_stop", self._stop_grace_s),
                ("terminate", _TERMINATE_TIMEOUT_S),
                ("kill", _KILL_TIMEOUT_S),
            )
            for step, patience_s in steps:
                for slot in self._living():
                    getattr(slot.worker, step)()
                self._wait_for_end(patience_s, deliver, () if step == "kill" else hurry)
        finally:
            if self._reaper:
                self._site.__exit__(None, None, None)
                self._reaper.close()
            alive = [slot.worker.index for slot in self._living()]
            self._slots, self._reaper = [], None
        if alive:
            raise WorkerError(f"workers {alive} did not end within {_KILL_TIMEOUT_S:.0f} s of being killed")

    def _wait_for_end(self, patience_s: float, deliver: Hear, hurry: Sequence[int]) -> None:
        give_up = self._clock() + patience_s
        while self._living() and (remaining_s := give_up - self._clock()) > 0:
            if hurry and wait(hurry, 0):
                return
            self._wait(remaining_s, deliver, hurry)

    def _wait(self, timeout_s: float | None, deliver: Hear, also: Sequence[int]) -> None:
        living = self._living()
        for slot in living:
            slot.worker.flush()
        owners = {source: slot for slot in living for source in slot.worker.sources()}
        speaking = [slot for slot in living if slot.worker.pending()]
        heard = wait([*owners, *also], 0 if speaking else self._shorter(timeout_s))
        speaking += [owners[source] for source in heard if source in owners]
        for slot in {id(slot): slot for slot in speaking}.values():
            if slot.alive:
                slot.worker.receive(partial(self._deliver, slot, deliver))

    def _deliver(self, slot: Slot, deliver: Hear, message: messages.FromWorker) -> None:
        if slot.dismissed and not isinstance(message, messages.WorkerExited):
            return
        match message:
            case messages.WorkerReady():
                slot.is_ready, slot.deadline = True, None
            case messages.JobStarted():
                slot.used, slot.failed_starts = True, 0
            case messages.WorkerExited():
                slot.alive, slot.deadline = False, None
        deliver(slot.worker.index, message)
        if isinstance(message, messages.WorkerExited) and not self._stopping:
            self._replace(slot, message, deliver)

    def _replace(self, slot: Slot, ended: messages.WorkerExited, deliver: Hear) -> None:
        if not slot.used and not slot.closed:
            slot.failed_starts += 1
            if slot.failed_starts >= MAX_FAILED_STARTS:
                words = slot.worker.last_words() or " It wrote nothing."
                error = WorkerError(
                    f"worker {slot.worker.index} ended {slot.failed_starts} times in a row before it began a job, "
                    f"last with {ended.said}.{words}"
                )
                slot.closed = True
                if all(other.closed for other in self._slots):
                    raise error
                deliver(slot.worker.index, messages.WorkerUnusable(reason=str(error)))
        if slot.closed:
            slot.worker.release()
        else:
            assert self._reaper is not None
            slot.worker = self._make(slot.worker.index, self._reaper)
            self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        try:
            slot.worker.start()
        except OSError as error:
            raise WorkerError(f"cannot start worker {slot.worker.index}: {error}") from error
        slot.deadline = self._start_timeout_s and self._clock() + self._start_timeout_s
        slot.alive, slot.is_ready, slot.used, slot.dismissed = True, False, False, False

    def _check_deadlines(self) -> None:
        for slot in self._living():
            if slot.deadline is not None and self._clock() >= slot.deadline:
                if not slot.is_ready:
                    late = "worker %d was not ready within %g s; killing it"
                    log.warning(late, slot.worker.index, self._start_timeout_s)
                slot.deadline = None
                slot.worker.kill()

    def _shorter(self, timeout_s: float | None) -> float | None:
        deadlines = [slot.deadline for slot in self._living() if slot.deadline is not None]
        waits = [max(0.0, deadline - self._clock()) for deadline in deadlines]
        return min([*waits, *([] if timeout_s is None else [timeout_s])], default=None)

    def _living(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.alive]


# -- process -----------------------------------------------------------------------------------------------------
# A worker as a process on this machine, with its device pinned by its environment.


_EXIT_AFTER_HANGUP_S = 0.2


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """Common settings of the processes of a pool.

    Attributes:
        threads: Threads for numerical libraries.
        portable: Whether processes compute the same results on every processor, see `pipeline.arithmetic`.
        heartbeat_s: Seconds between heartbeats.
        log_dir: Folder for output of workers outside of jobs, one file each.
        free_timeout_s: Seconds that a new process waits for the memory of its predecessor.
    """

    threads: int
    portable: bool = False
    heartbeat_s: float
    log_dir: str
    free_timeout_s: float = FREE_TIMEOUT_S


class LocalWorker(Worker):
    """A worker process, which can be ended with all its descendants.

    It has its own process group; descendants that have left the group are found by a tag in their environment.
    """

    def __init__(
        self,
        index: int,
        device: Device,
        settings: ProcessSettings,
        reaper: Reaper,
        level_bytes: int | None = None,
    ) -> None:
        """Describe a worker.

        Args:
            index: Index of its slot in the pool.
            device: Its device.
            settings: Common settings.
            reaper: Ends registered processes if this process dies.
            level_bytes: See `Settings`.
        """
        super().__init__(index)
        self._device = device
        self._settings = settings
        self._reaper = reaper
        self._level_bytes = level_bytes
        self._log_path = Path(settings.log_dir) / f"worker-{index}.txt"
        self._child: Child | None = None
        """The process, until its end was delivered."""
        self._pidfd = -1
        self._tag = descendants.new_tag()
        self._unsent: list[bytes] = []

    def start(self) -> None:
        """Start the process."""
        self._reaper.watch("tag", self._tag)
        self._child = self._spawn()
        self._reaper.watch("group", self._child.process.pid)
        with suppress(AttributeError, OSError):  # Linux before 5.3 has no pidfd
            self._pidfd = os.pidfd_open(self._child.process.pid)

    def _spawn(self) -> Child:
        settings = Settings(
            device=self._device,
            heartbeat_s=self._settings.heartbeat_s,
            level_bytes=self._level_bytes,
            free_timeout_s=self._settings.free_timeout_s,
        )
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as output:
            return Child(
                "pipeline.engine.workers.entrypoint",
                worker_environment(
                    self._device, self._settings.threads, os.environ, portable=self._settings.portable
                ),
                asdict(settings),
                max_bytes=messages.MAX_MESSAGE_BYTES,
                send_timeout_s=messages.SEND_TIMEOUT_S,
                output=output,
                own_group=True,
                tag=self._tag,
            )

    def send(self, job: messages.RunJob) -> None:
        """Queue a job; a worker that does not take it is killed."""
        self._unsent.append(messages.encode(job))

    def flush(self) -> None:
        """Write the queued jobs to the pipe."""
        if self._unsent:
            lines, self._unsent = self._unsent, []
            self._write(b"\n".join(lines))

    def _send(self, message: messages.ToWorker) -> None:
        self.flush()
        self._write(messages.encode(message))

    def _write(self, lines: bytes) -> None:
        try:
            if self._child:
                self._child.channel.send(lines)
        except TimeoutError as error:
            log.warning("worker %d: %s; killing it", self.index, error)
            self.kill()
        except OSError:
            pass  # it is already ending, which the sentinel will signal

    def sources(self) -> Sequence[int]:
        """Return the pipe while it is open, and the process's sentinel if the system has one."""
        if self._child is None:
            return []
        channel = self._child.channel
        pipe = [] if channel.closed else [channel.fileno()]
        return [*pipe, self._pidfd] if self._pidfd >= 0 else pipe

    def receive(self, deliver: Deliver) -> None:
        """Deliver the messages of the process and, if it is over, how it ended."""
        child = self._child
        if child is None:
            return
        # Checked before reading: everything that a dead process sent is in the pipe by then, so nothing is missed.
        ended = child.has_ended()
        for message in self._messages(child.channel):
            deliver(message)
        if child.channel.closed and not ended:
            # It has hung up, so it is ending or broken: wait a moment for an exit code of its own.
            ended = True
            if self._pidfd < 0 or not wait([self._pidfd], _EXIT_AFTER_HANGUP_S):
                self.kill()
        if ended:
            deliver(messages.WorkerExited(exit_code=self._reap(child)))

    def _messages(self, channel: Channel) -> Iterator[messages.FromWorker]:
        try:
            for line in channel.receive():
                yield messages.decode_report(line)
        except WorkerError as error:
            self.kill()
            channel.closed = True  # later bytes are unreliable
            yield messages.WorkerUnreadable(reason=str(error))

    def _reap(self, child: Child) -> int:
        if alive := children.end([child]):  # processes that it left behind
            log.warning("worker %d: processes %s do not end", self.index, sorted(other.pid for other in alive))
        self._reaper.forget("group", child.process.pid)
        self._reaper.forget("tag", self._tag)
        code = child.wait()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._child, self._pidfd = None, -1
        with suppress(OSError):
            if not self._log_path.stat().st_size:
                self._log_path.unlink()
                self._log_path.parent.rmdir()
        return code

    def show_stacks(self) -> None:
        """Send SIGUSR1, on which the worker writes the stacks of all threads to its job's log."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child.process.pid, signal.SIGUSR1)

    def ask_to_stop(self) -> None:
        """Send `Shutdown`."""
        self._send(messages.Shutdown())

    def terminate(self) -> None:
        """Send `Shutdown` at once, and SIGTERM to the process and its group."""
        self._send(messages.Shutdown(at_once=True))
        if self._child:
            self._child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process and its group; descendants elsewhere follow when its end is noticed."""
        if self._child:
            self._child.kill()

    def last_words(self) -> str:
        """Return the end of the worker's own log."""
        return tail(self._log_path)
