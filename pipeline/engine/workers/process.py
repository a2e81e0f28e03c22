"""A worker that is a process of its own on this machine, with its device pinned by its environment."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path

from pipeline.engine.devices.inventory import FREE_TIMEOUT_S, Device
from pipeline.engine.devices.worker_env import worker_environment
from pipeline.engine.workers.entrypoint import Settings
from pipeline.engine.workers.messages import (
    MAX_MESSAGE_BYTES,
    SEND_TIMEOUT_S,
    FromWorker,
    RunJob,
    Shutdown,
    ToWorker,
    WorkerExited,
    WorkerUnreadable,
    decode_report,
    encode,
)
from pipeline.engine.workers.pool import Deliver, Worker
from pipeline.engine.workers.reaper import Reaper
from pipeline.errors import WorkerError
from pipeline.machine import children, descendants
from pipeline.machine.children import Channel, Child, tail

_EXIT_AFTER_HANGUP_S = 0.2

log = logging.getLogger("pipeline")


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """What the processes of a pool have in common.

    Attributes:
        threads: Threads for numerical libraries.
        portable: Whether processes compute as on every processor, see `pipeline.arithmetic`.
        heartbeat_s: Seconds between signs of life.
        log_dir: Folder for what workers write outside of jobs, one file each.
        free_timeout_s: Seconds that a new process waits for the memory which the one before it had.
    """

    threads: int
    portable: bool = False
    heartbeat_s: float
    log_dir: str
    free_timeout_s: float = FREE_TIMEOUT_S


class LocalWorker(Worker):
    """A worker process, which can be ended with all its descendants.

    Its process group is its own; those that have left it are found by the tag in their environment.
    """

    def __init__(
        self,
        index: int,
        device: Device,
        settings: ProcessSettings,
        reaper: Reaper | None = None,
        level_bytes: int | None = None,
    ) -> None:
        """Describe a worker.

        Args:
            index: Number of its place in the pool.
            device: What it runs on.
            settings: What it has in common with others.
            reaper: Is told what to end with this process.
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
        if self._reaper:
            self._reaper.watch_tag(self._tag)
        self._child = self._spawn()
        if self._reaper:
            self._reaper.watch_group(self._child.process.pid)
        with suppress(AttributeError, OSError):  # neither macOS nor Linux before 5.3 has it
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
                max_bytes=MAX_MESSAGE_BYTES,
                send_timeout_s=SEND_TIMEOUT_S,
                output=output,
                own_group=True,
                tag=self._tag,
            )

    def send(self, job: RunJob) -> None:
        """Send a job; a worker that does not take it is killed."""
        self._unsent.append(encode(job))

    def flush(self) -> None:
        """Write it."""
        if self._unsent:
            lines, self._unsent = self._unsent, []
            self._write(b"\n".join(lines))

    def _send(self, message: ToWorker) -> None:
        self.flush()
        self._write(encode(message))

    def _write(self, lines: bytes) -> None:
        try:
            if self._child:
                self._child.channel.send(lines)
        except TimeoutError as error:
            log.warning("worker %d: %s; killing it", self.index, error)
            self.kill()
        except OSError:
            pass  # it is ending already, as the sentinel is about to tell

    def sources(self) -> Sequence[int]:
        """The pipe while it is open, and the process's own sentinel where the system has one."""
        if self._child is None:
            return []
        channel = self._child.channel
        pipe = [] if channel.closed else [channel.fileno()]
        return [*pipe, self._pidfd] if self._pidfd >= 0 else pipe

    def receive(self, deliver: Deliver) -> None:
        """Deliver what the process sent and, if it is over, how it ended."""
        child = self._child
        if child is None:
            return
        # Asked before reading: what a dead process sent is in the pipe by then, so nothing can be missed.
        ended = child.has_ended()
        for message in self._messages(child.channel):
            deliver(message)
        if child.channel.closed and not ended:
            ended = self._see_off()
        if ended:
            deliver(WorkerExited(exit_code=self._reap(child)))

    def _messages(self, channel: Channel) -> Iterator[FromWorker]:
        try:
            for line in channel.receive():
                yield decode_report(line)
        except WorkerError as error:
            self.kill()
            channel.closed = True  # nothing that follows can be relied on
            yield WorkerUnreadable(reason=str(error))

    def _see_off(self) -> bool:
        """It has hung up, so it is ending or broken: give it a moment for an exit code of its own."""
        if self._pidfd < 0 or not wait([self._pidfd], _EXIT_AFTER_HANGUP_S):
            self.kill()
        return True

    def _reap(self, child: Child) -> int:
        if left := children.end([child]):  # what it left behind
            log.warning("worker %d: processes %s do not end", self.index, sorted(one.pid for one in left))
        if self._reaper:
            self._reaper.forget_group(child.process.pid)
            self._reaper.forget_tag(self._tag)
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
        """SIGUSR1, which the worker answers by writing the stacks of all threads to its job's log."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child.process.pid, signal.SIGUSR1)

    def ask_to_stop(self) -> None:
        """Send `Shutdown`."""
        self._send(Shutdown())

    def terminate(self) -> None:
        """Send `Shutdown` for now, and SIGTERM to the process and its group."""
        self._send(Shutdown(at_once=True))
        if self._child:
            self._child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process and its group; descendants elsewhere follow when its end is noticed."""
        if self._child:
            self._child.kill()

    def last_words(self) -> str:
        """The end of the worker's own log."""
        return tail(self._log_path)
