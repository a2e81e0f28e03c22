"""Whether what a run cannot do without is there: Ray's library says nothing, and ends the engine after a minute.

local     the head (GCS) and the one node (raylet): nothing starts them again, so the first refusal is the end
cluster   the head, which others may start again: Ray waits a minute for it, and this half as long

One that takes connections and says nothing, as one that is stopped, is waited for: what runs does not need it.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from pipeline.config.ray import CLIENT, LOCAL
from pipeline.engine.workers.ray.reach import Endpoint, endpoint_of

log = logging.getLogger("pipeline")

_LOOK_S = 2.0
_ANSWER_S = 2.0
_SILENT_S = 8.0
"""So long a head may say nothing before anybody is told: a busy machine may keep it from answering."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How HTTP/2 begins, which all of Ray's servers speak: they tell their settings before they ask for a token."""
_RAY_WAITS = "RAY_gcs_rpc_server_reconnect_timeout_s"
_OWN = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""What this machine lacks itself, which says nothing of another."""


def watch_of(ray: Any, address: str) -> Watch:
    """A watch of the Ray that this process is a driver of.

    Args:
        ray: The library.
        address: As `execution.ray.address`.
    """
    if address.startswith(CLIENT):
        proxy = endpoint_of(address)
        return Watch({"its proxy": proxy} if proxy else {}, _head_patience_s(), "the Ray cluster is lost")
    head = endpoint_of(ray.get_runtime_context().gcs_address)
    needed = {"its head": head} if head else {}
    if address != LOCAL:
        return Watch(needed, _head_patience_s(), "the Ray cluster is lost")
    for node in ray.nodes():
        needed["its raylet"] = Endpoint(node["NodeManagerAddress"], node["NodeManagerPort"])
    return Watch(needed, 0.0, "the local Ray has ended, as after a kill or for lack of memory")


def _head_patience_s() -> float:
    """How long a head may be away: the half of what Ray takes before it ends this process."""
    try:
        return float(os.environ[_RAY_WAITS]) / 2
    except (KeyError, ValueError):
        return 30.0


class Watch:
    """Looks at places that take connections, in a thread of its own.

    Attributes:
        lost: What has ended, in words, or "".
        is_silent: Whether something that is there did not answer when it was looked at last.
    """

    def __init__(self, needed: Mapping[str, Endpoint], patience_s: float, words: str) -> None:
        """Describe a watch; nothing is looked at yet.

        Args:
            needed: What is to be there, in words, and where it takes connections.
            patience_s: How long one of them may be away; 0 where the first refusal is the end.
            words: What has ended then, before which of them it was.
        """
        self.lost = ""
        self.is_silent = False
        self._needed = needed
        self._patience_s = patience_s
        self._words = words
        self._there_s = dict.fromkeys(needed, time.monotonic())
        self._answered = dict.fromkeys(needed, (time.monotonic(), time.time()))
        self._closed = threading.Event()

    def start(self) -> threading.Thread:
        """Begin to look, in the thread that is returned."""
        thread = threading.Thread(target=self._keep_looking, name="ray watch", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Look no further."""
        self._closed.set()

    def _keep_looking(self) -> None:
        while not self.lost and not self._closed.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Look once."""
        silent, was_told = False, bool(self.notice)
        for name, endpoint in self._needed.items():
            try:
                with socket.create_connection(endpoint, _ANSWER_S) as connection:
                    self._there_s[name] = time.monotonic()
                    if _answers(connection):
                        self._answered[name] = time.monotonic(), time.time()
                    else:
                        silent = True
            except OSError as error:
                if self._is_lost(error, time.monotonic() - self._there_s[name]):
                    since = f" for {self._patience_s:g} s" if self._patience_s else " any more"
                    self.lost = f"{self._words}: {name} takes no connections at {endpoint}{since}"
        if was_told and not silent:
            log.info("Ray answers again")
        self.is_silent = silent

    @property
    def notice(self) -> str:
        """That something has said nothing for a while, in a line for a screen; else ""."""
        for name, endpoint in self._needed.items():
            heard_s, heard = self._answered[name]
            if self.is_silent and time.monotonic() - heard_s >= _SILENT_S:
                since = time.strftime("%H:%M:%S", time.localtime(heard))
                return (
                    f"Ray has not answered since {since} ({name} at {endpoint}): what runs goes on, and workers "
                    "of a machine that is lost are not replaced"
                )
        return ""

    def _is_lost(self, error: OSError, away_s: float) -> bool:
        if not self._patience_s:
            return isinstance(error, ConnectionRefusedError)
        return error.errno not in _OWN and away_s >= self._patience_s


def _answers(connection: socket.socket) -> bool:
    """Whether what has taken a connection says something within a moment."""
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return True  # certificates are Ray's to read
    try:
        connection.settimeout(_ANSWER_S)
        connection.sendall(_HELLO)
        connection.recv(1)
    except TimeoutError:
        return False
    except OSError:  # it is ending, as the next look is going to find
        return True
    return True
