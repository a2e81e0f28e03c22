"""Whether there is a Ray at an address, asked before Ray's library is: that waits for minutes, deaf to Ctrl-C."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pipeline.config.ray import AUTO, CLIENT, LOCAL
from pipeline.engine.workers.ray.host import RAY_TOKEN
from pipeline.errors import WorkerError

_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - the name of a variable
_CONNECT_S = 5.0
_ANSWER_S = 10
_START_S = 120.0
"""What a process that asks is given to be there: it imports Ray, perhaps from a disk that many read at once."""
_SHOWN = 200
_PORTS = "host:port is that of `ray start --head --port`, and ray://host:port that of --ray-client-server-port"
_ASK = """
import signal, sys
kind, address, seconds = sys.argv[1:]
try:
    if kind == "client":
        import grpc
    else:
        from ray._raylet import GcsClient
except ImportError:
    sys.exit(0)
signal.alarm(int(seconds))
if kind == "client":
    grpc.channel_ready_future(grpc.insecure_channel(address)).result()
else:
    try:
        GcsClient(address=address)
    except Exception as error:
        print(error)
        sys.exit(1)
"""
"""The alarm ends it wherever it waits. In this process a client whose head does not answer would end all of it."""


class Endpoint(NamedTuple):
    """Where something takes connections."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def endpoint_of(address: str) -> Endpoint | None:
    """What `execution.ray.address` names, as far as it names a host and a port."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        return Endpoint(parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:  # no port at all
        return None


def resolved(address: str) -> str:
    """Where Ray is going to look for a cluster: this machine's last one for `auto`, its own address for loopback.

    Raises:
        Exception: Ray knows of no cluster here.
    """
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS") or AUTO
    if "://" in address:
        return address
    services: Any = importlib.import_module("ray._private.services")
    return str(services.canonicalize_bootstrap_address(address))


def cannot_join(address: str, error: Exception) -> str:
    """What to say of a cluster that is not there, takes another token, or cannot be started."""
    said = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if address != LOCAL and "token" in said.lower():
        return (
            f"the Ray cluster at '{address}' refuses {_shown_token()}. Have the token with which `ray start` was "
            f"called there in {RAY_TOKEN}, else in the file that {_TOKEN_PATH} names, else in ~/.ray/auth_token, "
            "with RAY_AUTH_MODE=token"
        )
    what = (
        "Ray cannot be started on this machine"
        if address == LOCAL
        else f"the Ray cluster at '{address}' is not there"
    )
    return f"{what} ({said}). Look at execution.ray.address, or run with execution.backend=local"


def _shown_token() -> str:
    """Where the token is from that Ray shows in this process; never what it is."""
    if (mode := os.environ.get("RAY_AUTH_MODE", "token")) != "token":
        return f"who shows no token, as with RAY_AUTH_MODE={mode}"
    if os.environ.get(RAY_TOKEN):
        return f"the token of {RAY_TOKEN}"
    if path := os.environ.get(_TOKEN_PATH):
        return f"the token of the file {path} ({_TOKEN_PATH})"
    with suppress(RuntimeError):
        if (Path.home() / ".ray" / "auth_token").is_file():
            return "the token of ~/.ray/auth_token"
    return "who shows no token, and there is none here"


def check_reachable(address: str) -> None:
    """See that a cluster answers where one is said to be, within seconds.

    Raises:
        WorkerError: None does.
    """
    if address == LOCAL or (endpoint := endpoint_of(address)) is None:
        return
    try:
        with socket.create_connection(endpoint, _CONNECT_S):
            pass
    except OSError as error:
        raise WorkerError(f"nothing takes connections at {endpoint}: {error.strerror or error}") from error
    client = address.startswith(CLIENT)
    if client and os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return  # certificates are Ray's to read
    _ask(endpoint, "client" if client else "head")


def _ask(endpoint: Endpoint, kind: str) -> None:
    asked = [sys.executable, "-c", _ASK, kind, str(endpoint), str(_ANSWER_S)]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=_START_S, check=False)
    except subprocess.TimeoutExpired:
        raise WorkerError(f"whether {endpoint} is a cluster was not known after {_START_S:g} s") from None
    if answer.returncode == -signal.SIGALRM:
        raise WorkerError(f"what is at {endpoint} does not answer as Ray does: {_PORTS}")
    if answer.returncode == 1 and (said := " ".join(answer.stdout.split())):
        hint = "" if "token" in said.lower() else f"; {_PORTS}"
        raise WorkerError(f"what is at {endpoint} says '{said[:_SHOWN]}'{hint}")
