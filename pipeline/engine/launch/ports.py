"""A port for a program that opens it later: free now, and kept from other programs of this user meanwhile."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.engine.devices.locks import LockFile, lease_dir
from pipeline.engine.launch.request import LOOPBACK
from pipeline.errors import DeviceError

_FIRST, _END = 20_000, 32_768
"""Below those that the kernel gives to connections, which would come and go."""
_TRIES = 200


@contextmanager
def own_port() -> Iterator[int]:
    """A port that no other program which asks here is given until this ends.

    Raises:
        DeviceError: None is free.
    """
    chosen = random.SystemRandom()
    for _ in range(_TRIES):
        port = chosen.randrange(_FIRST, _END)
        with LockFile(lease_dir() / f"port-{port}.lock") as file:
            if file.try_lock() and _is_free(port):
                yield port
                return
    raise DeviceError(f"no port from {_FIRST} to {_END - 1} is free, of {_TRIES} that were tried")


def _is_free(port: int) -> bool:
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True
