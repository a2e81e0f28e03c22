"""Start Python processes that find modules where this one does, die with it, and end with what they started.

    parent                                                child
    command(MODULE, ...) ---- one argument, JSON ---->    begin(), before anything else
    settings of a Child  ---- a file without name --->    which returns them with those
    Child(MODULE, ...)   <--- lines over a socket --->    Channel.inherited(settings["fd"])
    end(...)                                              killed, and its descendants wherever they went

Workers, ranks, graders and the process that tries rewards are children in this sense. The agent of a launch has
other streams, and uses `command` and `begin` alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pipeline.errors import WorkerError
from pipeline.files import open_plain
from pipeline.machine import descendants
from pipeline.machine.descendants import Process
from pipeline.terminal.streams import without_colours

# -- channel -----------------------------------------------------------------------------------------------------
# One end of the pipe between this process and one that it has started: messages as lines of JSON over a
# socket. Lines rather than length-prefixed frames, read without blocking: a process that is stopped in the
# middle of a message, or that writes garbage where a length belongs, must not make its parent wait for bytes
# that never come.


_CHUNK = 1 << 16
_CHUNKS_AT_ONCE = 64
"""More chunks than a socket holds, so a dead process is read whole; one that never stops must wait its turn."""


class Channel:
    """Sends and receives lines. `send` may be called from several threads.

    Attributes:
        closed: The other side has hung up; nothing more will arrive.
    """

    def __init__(
        self, connection: socket.socket, *, max_bytes: int = sys.maxsize, send_timeout_s: float | None = None
    ) -> None:
        """Take over a socket.

        Args:
            connection: One end of a pair.
            max_bytes: Bytes that a line from the other side may have; a child's parent can be trusted.
            send_timeout_s: Seconds in which the other side must take a line; None for as long as it takes.
        """
        self.closed = False
        self._socket = connection
        self._socket.setblocking(False)
        self.max_bytes = max_bytes
        self._send_timeout_s = send_timeout_s
        self._lock = threading.Lock()
        self._partial = bytearray()
        self._arrivals = select.poll()
        self._arrivals.register(connection, select.POLLIN)

    @classmethod
    def inherited(cls, descriptor: int) -> Channel:
        """Return the end of the channel that this process inherited; its own children do not inherit it."""
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """Readable when something arrived or the other side hung up."""
        return self._socket.fileno()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def send(self, line: bytes) -> None:
        """Send a line whole.

        Raises:
            OSError: The other side is gone, or takes nothing for as long as `send_timeout_s`.
        """
        data = memoryview(line + b"\n")
        give_up = None if self._send_timeout_s is None else time.monotonic() + self._send_timeout_s
        with self._lock:
            while data:
                try:
                    data = data[self._socket.send(data) :]
                except BlockingIOError:
                    self._wait_for_room(give_up)

    def receive(self) -> Iterator[bytes]:
        """Yield the complete lines that have arrived, without waiting; sets `closed` at the end of the stream.

        Raises:
            WorkerError: A line is too long.
        """
        for _ in range(_CHUNKS_AT_ONCE):
            if self.closed:
                return
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except ConnectionError:
                chunk = b""
            self.closed = not chunk
            yield from self._lines(chunk)
            if len(chunk) < _CHUNK:
                return  # that was all; a hang-up after it is told by the next wait

    def lines(self) -> Iterator[bytes]:
        """Yield every line, waiting for each, until the other side hangs up.

        Raises:
            OSError: The socket was closed here.
            WorkerError: As `receive`.
        """
        while not self.closed:
            self._arrivals.poll()
            yield from self.receive()

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield bytes(self._partial) + line
            self._partial.clear()
        self._partial += rest
        if len(self._partial) > self.max_bytes:
            raise WorkerError(f"a message of more than {self.max_bytes} bytes on the worker's pipe")

    def _wait_for_room(self, give_up: float | None) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        left_ms = None if give_up is None else max(0.0, give_up - time.monotonic()) * 1000
        if not poll.poll(left_ms):
            raise TimeoutError("the other side of the worker's pipe takes nothing")


PACKAGE_PARENT = Path(__file__).parents[2]
"""Folder where a child finds this package, whatever has become of its parent's search path."""
_START = (
    "import json, runpy, sys; here, data = sys.argv[1], json.loads(sys.argv[3]); "
    "sys.path[:] = [here, *data['sys_path']]; del sys.argv[:2]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
"""Program of a child: it takes the search path of its parent before it imports a module of ours."""
_POLL_S = 0.01


def command(module: str, environment: Mapping[str, str], **settings: Any) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that start a module of this package as a process.

    Args:
        module: Dotted path of the module. The process calls `begin` first.
        environment: Environment of the process and of those it starts.
        settings: Plain data that `begin` returns; less than 100 KB, as the system takes no longer argument.
    """
    data = {
        "parent_pid": os.getpid(),
        "sys_path": [entry or str(Path.cwd()) for entry in sys.path],
        **settings,
    }
    # -P: a file in the current folder must not take the place of a module of the standard library.
    return [sys.executable, "-P", "-c", _START, str(PACKAGE_PARENT), module, json.dumps(data)], dict(environment)


class Child:
    """A process with a channel to it, and whatever that process starts in turn.

    Attributes:
        process: The process. Until `wait` its number, and that of its group, is that of no other.
        channel: The pipe to it.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str],
        settings: Mapping[str, Any],
        *,
        max_bytes: int,
        send_timeout_s: float,
        output: IO[bytes] | int | None = subprocess.DEVNULL,
        own_group: bool = False,
        tag: str = "",
    ) -> None:
        """Start it.

        Args:
            module: As for `command`.
            environment: Likewise; the tag is added.
            settings: Plain data of any length that `begin` returns; `fd` is added, for `Channel.inherited`.
            max_bytes: See `Channel`.
            send_timeout_s: Likewise. Its reader takes messages at once, so one that takes none is stuck.
            output: Standard output and error of the process; None for those of this one.
            own_group: Whether it leads a process group, which is ended with it.
            tag: Tag that somebody was told beforehand; see `descendants`.
        """
        ours, theirs = socket.socketpair()
        self._own_group = own_group
        self._tag = tag or descendants.new_tag()
        self._family: set[Process] = set()
        """Descendants when it was killed, should they have no tag any more."""
        try:
            # A file without a name, in memory: it ends with those who have it open, and no disk is full for it.
            with os.fdopen(os.memfd_create("settings"), "w+b") as file:
                file.write(json.dumps(settings).encode())
                file.seek(0)
                words, environment = command(
                    module, descendants.with_tag(environment, self._tag), fd=theirs.fileno(), told=file.fileno()
                )
                self.process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    pass_fds=[theirs.fileno(), file.fileno()],
                    process_group=0 if own_group else None,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._began = descendants.began(self.process.pid) or 0
        self.channel = Channel(ours, max_bytes=max_bytes, send_timeout_s=send_timeout_s)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it, and to its group if it has one of its own; nothing after `wait`."""
        if self.process.returncode is not None:
            return
        pid = self.process.pid
        with suppress(ProcessLookupError, PermissionError):
            # Its code may have moved it to another group. Twice SIGTERM would mean something else than once.
            if not self._own_group or number == signal.SIGKILL or os.getpgid(pid) != pid:
                os.kill(pid, number)
        if self._own_group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def has_ended(self) -> bool:
        """Return whether it is over, with all its threads. It is not reaped, so that its pid is not reused."""
        if self.process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # code of a job has asked for the exit codes of all children
            return True

    def kill(self) -> None:
        """SIGKILL; descendants elsewhere follow in `end`."""
        if not self.has_ended():  # then its children have another parent already
            self._family |= descendants.below(self.process.pid)
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Hang up, and wait until it is over; its exit code."""
        self.channel.close()
        return self.process.wait()


def end(children: Collection[Child], grace_s: float = 0.0) -> set[Process]:
    """End children with all that they have started: ask by SIGTERM, give them time, kill. `Child.wait` follows.

    Args:
        children: Children to end; they may have ended already.
        grace_s: Seconds in which they may end by themselves; none for no asking.

    Returns:
        Processes that do not end, as the kernel itself may hold them.
    """
    if grace_s:
        for child in children:
            child.send_signal(signal.SIGTERM)
        give_up = time.monotonic() + grace_s
        while any(child.process.poll() is None for child in children) and time.monotonic() < give_up:
            time.sleep(_POLL_S)
    for child in children:
        child.kill()
    tags = {child._tag for child in children}
    since = min((child._began for child in children), default=0)
    families = set().union(*(child._family for child in children))
    return descendants.end(lambda: descendants.tagged(tags, since) | descendants.alive(families))


# -- log tail ----------------------------------------------------------------------------------------------------
# The end of a log, for a message about the process that wrote it.


_BYTES = 8000
_LINES = 15


def last_lines(log: Path) -> list[str]:
    """Return the lines at the end of a log without control characters; none if it cannot be read.

    Args:
        log: A file of any size, in which a process may have written anything.
    """
    with suppress(OSError), open_plain(log) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _BYTES))
        lines = file.read(_BYTES).decode(errors="replace").strip().splitlines()
        return [without_colours(line) for line in lines]
    return []


def tail(log: Path) -> str:
    """Return a log's last lines, indented; "" if there are none."""
    return "".join(f"\n    {line}" for line in last_lines(log)[-_LINES:])
