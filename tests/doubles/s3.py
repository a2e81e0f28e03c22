"""A real S3 server on this machine, and between it and its client a place where every request can go wrong."""

import logging
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import BufferedReader
from threading import Lock, Thread

import pytest

FAULTS = ("dropped before", "dropped after", "500", "503", "slow")
"""What may become of a request: its connection ends before or after it was carried out; or it is answered so."""
BUCKET = "store"


class S3:
    """The server, and how requests to it go wrong.

    Attributes:
        requests: How many came since `fail` was called.
        disturbed: How many went wrong.
    """

    def __init__(self) -> None:
        """Start it; there is one bucket."""
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._lock, self._writing = Lock(), Lock()
        self._fault: tuple[int, int, str] = (0, 0, "")
        self._share, self._draw = 0.0, random.Random()
        self.requests = self.disturbed = 0
        Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def fail(self, first: int = 0, kind: str = "", number: int = 1) -> None:
        """Have some of the next requests go wrong, counted from 1; none where `first` is 0."""
        with self._lock:
            self.requests, self._fault = 0, (first, first + number, kind)

    def disturb(self, share: float, seed: int) -> None:
        """Have a share of all further requests go wrong, each in one of the ways there are."""
        with self._lock:
            self._share, self._draw = share, random.Random(seed)

    def stop(self) -> None:
        self._listener.close()
        self._server.stop()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                Thread(target=self._serve, args=self._listener.accept()[:1], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as file, suppress(OSError):
            head, length = _head(file)
            if b"100-continue" in head:
                client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = file.read(length)
            with self._lock:
                self.requests += 1
                first, end, kind = self._fault
                kind = kind if first <= self.requests < end else ""
                if self._draw.random() < self._share:
                    kind = self._draw.choice(FAULTS)
                self.disturbed += kind != ""
            if kind == "dropped before":
                return
            if kind in ("500", "503"):
                client.sendall(f"HTTP/1.1 {kind} Fault\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
                return
            if kind == "slow":
                time.sleep(0.05)
            # The server looks and writes in two steps, which S3 does in one.
            with self._writing if b"if-none-match" in head.lower() else nullcontext():
                answer = self._ask(head + b"Connection: close\r\n\r\n" + body)
            if kind != "dropped after":
                client.sendall(answer)

    def _ask(self, request: bytes) -> bytes:
        answer = b""
        with socket.create_connection(self._server.get_host_and_port()) as server:
            server.sendall(request)
            while chunk := server.recv(1 << 16):
                answer += chunk
        return answer


def _head(file: BufferedReader) -> tuple[bytes, int]:
    """The first lines of a request, without those about the connection, and how long its body is."""
    head, length = b"", 0
    while (line := file.readline()) not in (b"\r\n", b""):
        name = line.partition(b":")[0].lower()
        if name == b"content-length":
            length = int(line.partition(b":")[2])
        if name != b"connection":
            head += line
    return head, length


@contextmanager
def serving(patch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A server that the libraries find by the environment, with a bucket `BUCKET`."""
    server = S3()
    told = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in told.items():
        patch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(BUCKET)
    try:
        yield server
    finally:
        server.stop()
