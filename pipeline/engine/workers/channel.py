"""One end of the pipe between the engine and a worker: messages as lines of JSON over a socket.

Lines rather than length-prefixed frames, read without blocking: a worker that is stopped in the middle of a
message, or that writes garbage where a length belongs, must not make the engine wait for bytes that never come.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator

from pipeline.engine.workers.messages import FromWorker, ToWorker, encode
from pipeline.errors import WorkerError

MAX_MESSAGE_BYTES = 64 << 20
_CHUNK = 1 << 16
_CHUNKS_AT_ONCE = 64
"""More than a socket holds, so all that a dead process sent is read; one that never stops must wait its turn."""


class Channel:
    """Sends and receives messages. `send` may be called from several threads.

    Attributes:
        closed: The other side has hung up; nothing more will arrive.
    """

    def __init__(self, connection: socket.socket, *, send_timeout_s: float | None = None) -> None:
        self.closed = False
        self._socket = connection
        self._socket.setblocking(False)
        self._send_timeout_s = send_timeout_s
        self._lock = threading.Lock()
        self._partial = bytearray()

    def fileno(self) -> int:
        """Readable when something arrived or the other side hung up."""
        return self._socket.fileno()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def send(self, message: ToWorker | FromWorker) -> None:
        """Send a message whole.

        Raises:
            OSError: The other side is gone, or takes nothing for as long as `send_timeout_s`.
        """
        data = memoryview(encode(message) + b"\n")
        give_up = None if self._send_timeout_s is None else time.monotonic() + self._send_timeout_s
        with self._lock:
            while data:
                try:
                    data = data[self._socket.send(data) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, give_up)

    def receive(self) -> Iterator[bytes]:
        """The whole messages that have arrived, without waiting for more; sets `closed` at the end of the stream.

        Raises:
            WorkerError: A line is longer than any message.
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

    def wait(self) -> None:
        """Wait until something has arrived."""
        self._wait(select.POLLIN, None)

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield bytes(self._partial) + line
            self._partial.clear()
        self._partial += rest
        if len(self._partial) > MAX_MESSAGE_BYTES:
            raise WorkerError(f"a message of more than {MAX_MESSAGE_BYTES} bytes on the worker's pipe")

    def _wait(self, event: int, give_up: float | None) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        left = None if give_up is None else max(0.0, give_up - time.monotonic()) * 1000
        if not poll.poll(left):
            raise TimeoutError("the other side of the worker's pipe takes nothing")
