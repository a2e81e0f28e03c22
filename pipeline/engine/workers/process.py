"""A worker that is a process of its own on this machine, with its device pinned by its environment."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.memory_reclaim import FREE_TIMEOUT_S
from pipeline.engine.devices.worker_env import worker_environment
from pipeline.engine.workers.channel import Channel
from pipeline.engine.workers.entrypoint import Settings
from pipeline.engine.workers.messages import (
    FromWorker,
    RunJob,
    Shutdown,
    WorkerExited,
    WorkerUnreadable,
    decode_report,
)
from pipeline.engine.workers.protocol import Deliver
from pipeline.engine.workers.reaper import Reaper
from pipeline.errors import WorkerError
from pipeline.machine import descendants
from pipeline.machine.descendants import Process

SEND_TIMEOUT_S = 5.0
"""A worker's reader takes messages at once, so one that takes none for so long is stuck."""
PACKAGE_PARENT = Path(__file__).parents[3]
"""Where a worker finds this package before it knows the search path of the engine."""
_EXIT_AFTER_HANGUP_S = 0.2
_LAST_WORDS_BYTES = 4000

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
    log_dir: Path
    free_timeout_s: float = FREE_TIMEOUT_S


class LocalWorker:
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
        self._index = index
        self._device = device
        self._settings = settings
        self._reaper = reaper
        self._level_bytes = level_bytes
        self._log_path = settings.log_dir / f"worker-{index}.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._pidfd = -1
        self._tag = descendants.new_tag()
        self._family: set[Process] = set()
        """Descendants when it was killed, should they have no tag any more."""

    @property
    def index(self) -> int:
        """Number of the worker in the pool."""
        return self._index

    @property
    def pid(self) -> int | None:
        """Process id while it lives."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair()
        if self._reaper:
            self._reaper.watch_tag(self._tag)
        try:
            self._process = self._spawn(theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours, send_timeout_s=SEND_TIMEOUT_S)
        if self._reaper:
            self._reaper.watch_group(self._process.pid)
        with suppress(AttributeError, OSError):  # neither macOS nor Linux before 5.3 has it
            self._pidfd = os.pidfd_open(self._process.pid)

    def _spawn(self, fd: int) -> subprocess.Popen[bytes]:
        env = worker_environment(
            self._device, self._settings.threads, os.environ, portable=self._settings.portable
        )
        env = descendants.with_tag(env, self._tag)
        settings = Settings(
            fd=fd,
            parent_pid=os.getpid(),
            device=self._device,
            heartbeat_s=self._settings.heartbeat_s,
            level_bytes=self._level_bytes,
            free_timeout_s=self._settings.free_timeout_s,
            sys_path=[entry or str(Path.cwd()) for entry in sys.path],
            python_path=env.get("PYTHONPATH"),
        )
        env["PYTHONPATH"] = str(PACKAGE_PARENT)
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as output:
            # -P: a file in the current folder must not take the place of a module of the standard library.
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "pipeline.engine.workers.entrypoint", settings.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                pass_fds=[fd],
                process_group=0,
            )

    def send(self, job: RunJob) -> None:
        """Send a job; a worker that does not take it is killed."""
        self._send(job)

    def _send(self, message: RunJob | Shutdown) -> None:
        try:
            if self._channel:
                self._channel.send(message)
        except TimeoutError as error:
            log.warning("worker %d: %s; killing it", self._index, error)
            self.kill()
        except OSError:
            pass  # it is ending already, as the sentinel is about to tell

    def sources(self) -> Sequence[int]:
        """The pipe while it is open, and the process's own sentinel where the system has one."""
        if self._channel is None:
            return []
        pipe = [] if self._channel.closed else [self._channel.fileno()]
        return [*pipe, self._pidfd] if self._pidfd >= 0 else pipe

    def pending(self) -> bool:
        """Never: everything is told by a descriptor."""
        return False

    def receive(self, deliver: Deliver) -> None:
        """Deliver what the process sent and, if it is over, how it ended."""
        channel = self._channel
        if channel is None:
            return
        # Asked before reading: what a dead process sent is in the pipe by then, so nothing can be missed.
        ended = self._has_ended()
        for message in self._messages(channel):
            deliver(message)
        if channel.closed and not ended:
            ended = self._see_off()
        if ended:
            deliver(WorkerExited(exit_code=self._bury()))

    def _messages(self, channel: Channel) -> Iterator[FromWorker]:
        try:
            for line in channel.receive():
                yield decode_report(line)
        except WorkerError as error:
            self.kill()
            channel.closed = True  # nothing that follows can be relied on
            yield WorkerUnreadable(reason=str(error))

    def _has_ended(self) -> bool:
        assert self._process is not None
        # Without reaping: until then the number of the process, and so of its group, cannot go to another.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def _see_off(self) -> bool:
        """It has hung up, so it is ending or broken: give it a moment for an exit code of its own."""
        if self._pidfd < 0 or not wait([self._pidfd], _EXIT_AFTER_HANGUP_S):
            self.kill()
        return True

    def _bury(self) -> int:
        assert self._process is not None
        assert self._channel is not None
        self.kill()  # children that it left behind; must come before it is reaped, as said above
        if left := descendants.end(self._descendants):
            log.warning("worker %d: processes %s do not end", self._index, sorted(one.pid for one in left))
        if self._reaper:
            self._reaper.forget_group(self._process.pid)
            self._reaper.forget_tag(self._tag)
        code = self._process.wait()
        self._channel.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._channel, self._pidfd = None, -1
        with suppress(OSError):
            if not self._log_path.stat().st_size:
                self._log_path.unlink()
                self._log_path.parent.rmdir()
        return code

    def show_stacks(self) -> None:
        """SIGUSR1, which the worker answers by writing the stacks of all threads to its job's log."""
        if self._process is not None and self._channel is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGUSR1)

    def ask_to_stop(self) -> None:
        """Send `Shutdown`."""
        self._send(Shutdown())

    def terminate(self) -> None:
        """SIGTERM to the process and its group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process and its group; descendants elsewhere follow when its end is noticed."""
        if self._process is not None and self._channel is not None:
            self._family |= descendants.below(self._process.pid)
        self._signal(signal.SIGKILL)

    def _descendants(self) -> set[Process]:
        return descendants.tagged({self._tag}) | descendants.alive(self._family)

    def interrupt(self) -> None:
        """Nothing to do: jobs run elsewhere."""

    def last_words(self) -> str:
        """The end of the worker's own log."""
        try:
            with self._log_path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _LAST_WORDS_BYTES))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or self._channel is None:
            return
        pid = self._process.pid  # it is not reaped yet, so the number is that of no other process or group
        # macOS says EPERM for a group whose only member is a zombie.
        with suppress(ProcessLookupError, PermissionError):
            # A job may have moved the process to another group. Twice SIGTERM would mean something else than once.
            if number == signal.SIGKILL or os.getpgid(pid) != pid:
                os.kill(pid, number)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
