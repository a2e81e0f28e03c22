"""Whether there is a Ray at an address, and whether it stays there: sockets of this process stand for Ray's."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.config.schema import RayConfig
from pipeline.engine.workers.ray import reach, site
from pipeline.engine.workers.ray.reach import Endpoint, cannot_join, check_reachable, endpoint_of, resolved
from pipeline.engine.workers.ray.site import join
from pipeline.errors import WorkerError


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """It takes connections, and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as made:
        yield made


def endpoint(server: socket.socket) -> Endpoint:
    return Endpoint(*server.getsockname())


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("head:6379", "head:6379"),
        ("ray://head:10001", "head:10001"),
        ("[::1]:6379", "[::1]:6379"),
        ("auto", "None"),
        ("local", "None"),
        ("head", "None"),
        ("head:port", "None"),
    ],
)
def test_what_an_address_names(address: str, found: str) -> None:
    assert str(endpoint_of(address)) == found


def test_it_is_looked_for_where_ray_will(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"auto": "10.0.0.7:6379", "localhost:6379": "10.0.0.7:6379"}
    services = SimpleNamespace(canonicalize_bootstrap_address=places.__getitem__)
    monkeypatch.setitem(sys.modules, "ray._private.services", services)  # type: ignore[misc]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert resolved("auto") == resolved("localhost:6379") == "10.0.0.7:6379"
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert resolved("auto") == "ray://head:10001"


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_nothing_listens_no_ray_is_asked(
    scheme: str, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "resolved", str)
    address = f"{scheme}{endpoint(server)}"
    server.close()
    ray = SimpleNamespace(is_initialized=lambda: False)  # it has no `init`
    with pytest.raises(
        WorkerError, match=r"^nothing takes connections at 127\.0\.0\.1:\d+: Connection refused$"
    ) as said:
        join(ray, RayConfig(address=address))
    assert cannot_join(address, said.value).endswith("or run with execution.backend=local")


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"RAY_AUTH_TOKEN": "f00f00"}, "the token of RAY_AUTH_TOKEN."),
        ({"RAY_AUTH_TOKEN_PATH": "/secret"}, "the token of the file /secret (RAY_AUTH_TOKEN_PATH)."),
        ({}, "who shows no token, and there is none here."),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "f00f00"}, "as with RAY_AUTH_MODE=disabled."),
    ],
)
def test_a_token_that_is_refused_is_told_by_its_place(
    variables: dict[str, str], shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = cannot_join("auto", WorkerError("what is at 10.0.0.7:6379 says 'RPC error: InvalidAuthToken: ...'"))
    assert said.startswith("the Ray cluster at 'auto' refuses ")
    assert shown in said
    assert "in RAY_AUTH_TOKEN, else in the file that RAY_AUTH_TOKEN_PATH names, else in ~/.ray/auth_token" in said
    assert "f00f00" not in said
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("f00f00")
    assert ("the token of ~/.ray/auth_token" in cannot_join("auto", WorkerError("no token"))) == (not variables)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            "signal.alarm(0); os.kill(os.getpid(), signal.SIGALRM)",
            "does not answer as Ray does: host:port is that of",
        ),
        (
            "print('RPC error:'); print(' no such method'); sys.exit(1)",
            "says 'RPC error: no such method'; host:port is",
        ),
        ("print('InvalidAuthToken: wrong'); sys.exit(1)", "says 'InvalidAuthToken: wrong'$"),
        ("raise ValueError('Ray has changed')", ""),  # then its own library is to say what is wrong
        ("sys.exit(0)", ""),
    ],
)
def test_what_listens_is_asked_by_a_process_with_a_deadline(
    asked: str, said: str, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "_ASK", f"import os, signal, sys; {asked}")
    if not said:
        check_reachable(str(endpoint(server)))
        return
    with pytest.raises(WorkerError, match=said):
        check_reachable(str(endpoint(server)))


def test_whoever_asks_ends_at_its_deadline_wherever_it_waits() -> None:
    """With a library in the place of Ray's that waits without end."""
    library = "import sys, time, types; sys.modules['ray'] = types.ModuleType('ray'); "
    library += "sys.modules['ray._raylet'] = types.SimpleNamespace(GcsClient=lambda **_: time.sleep(3600)); "
    code = f"{library}exec(sys.argv.pop())"
    asked = [sys.executable, "-S", "-c", code, "head", "127.0.0.1:1", "1", reach._ASK]
    assert subprocess.run(asked, check=False).returncode == -14
