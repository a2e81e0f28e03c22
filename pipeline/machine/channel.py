"""One end of the pipe between this process and one that it has started: messages as lines of JSON over a socket.

Lines rather than length-prefixed frames, read without blocking: a process that is stopped in the middle of a
message, or that writes garbage where a length belongs, must not make its parent wait for bytes that never come.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator

from pipeline.errors import WorkerError

_CHUNK = 1 << 16
_CHUNKS_AT_ONCE = 64
"""More than a socket holds, so all that a dead process sent is read; one that never stops must wait its turn."""


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
        """The end that this process was started with, and that none which it starts is to have."""
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
        """The whole lines that have arrived, without waiting for more; sets `closed` at the end of the stream.

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
        """Every line until the other side hangs up, each waited for.

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
        left = None if give_up is None else max(0.0, give_up - time.monotonic()) * 1000
        if not poll.poll(left):
            raise TimeoutError("the other side of the worker's pipe takes nothing")
