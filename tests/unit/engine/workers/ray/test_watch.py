"""Whether what a run needs of Ray stays there: sockets of this process stand for Ray's."""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from pipeline.config.ray import LOCAL
from pipeline.engine.workers.ray import watch
from pipeline.engine.workers.ray.reach import Endpoint
from pipeline.engine.workers.ray.watch import Watch, watch_of


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """They stand for a head and a raylet, and what comes to them is taken for answered."""
    monkeypatch.setattr(watch, "_answers", lambda _: True)
    made = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    yield made
    for server in made:
        server.close()


def library(servers: list[socket.socket]) -> SimpleNamespace:
    """As much of Ray as is asked."""
    head, raylet = (server.getsockname() for server in servers)
    return SimpleNamespace(
        get_runtime_context=lambda: SimpleNamespace(gcs_address=f"{head[0]}:{head[1]}"),
        nodes=lambda: [{"NodeManagerAddress": raylet[0], "NodeManagerPort": raylet[1]}],
    )


@pytest.mark.parametrize(("ends", "named"), [(0, "its head"), (1, "its raylet")])
def test_a_local_ray_has_ended_with_either_of_its_processes(
    ends: int, named: str, servers: list[socket.socket]
) -> None:
    watching = watch_of(library(servers), LOCAL)
    watching.look()
    assert watching.lost == ""
    address = "{}:{}".format(*servers[ends].getsockname())
    servers[ends].close()
    watching.look()
    assert watching.lost.startswith("the local Ray has ended")
    assert watching.lost.endswith(f"{named} takes no connections at {address} any more")


def test_a_cluster_is_given_as_long_as_its_head_may_take_to_come_back(
    servers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_gcs_rpc_server_reconnect_timeout_s", raising=False)
    now_s = [0.0]
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now_s[0], time=time.time))
    watching = watch_of(library(servers), "head:6379")
    servers[1].close()  # of nodes others come
    address = servers[0].getsockname()
    for _ in range(3):
        servers[0].close()
        now_s[0] += 29.0
        watching.look()
        assert watching.lost == ""
        servers[0] = socket.create_server(address)
        watching.look()
    servers[0].close()
    now_s[0] += 30.0
    watching.look()
    assert watching.lost == (
        f"the Ray cluster is lost: its head takes no connections at {address[0]}:{address[1]} for 30 s"
    )


@pytest.mark.parametrize(("given", "patience_s"), [("600", 300.0), ("soon", 30.0)])
def test_who_has_ray_wait_longer_for_a_head_is_followed(
    given: str, patience_s: float, servers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", given)
    assert watch_of(library(servers), "head:6379")._patience_s == patience_s
    proxy = watch_of(None, "ray://head:10001")
    assert proxy._needed == {"its proxy": ("head", 10001)}


@pytest.mark.parametrize("address", [LOCAL, "head:6379"])
def test_a_head_that_says_nothing_is_told_of_and_waited_for(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pipeline")
    monkeypatch.setattr(watch, "_ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as head:
        watching = watch_of(library([head, head]), address)
        now_s = time.monotonic()
        clock = SimpleNamespace(**vars(time) | {"monotonic": lambda: now_s})
        monkeypatch.setattr(watch, "time", clock)
        for later_s, is_told in ((0.0, False), (7.0, False), (3600.0, True)):
            now_s += later_s
            watching.look()
            assert (watching.lost, watching.is_silent, bool(watching.notice)) == ("", True, is_told)
        assert re.fullmatch(
            r"Ray has not answered since \d\d:\d\d:\d\d \(its head at 127\.0\.0\.1:\d+\): what runs goes on, and "
            r"workers of a machine that is lost are not replaced",
            watching.notice,
        )
        over = threading.Event()
        answering = threading.Thread(target=_answer, args=[head, over])
        answering.start()
        monkeypatch.setattr(watch, "_ANSWER_S", 60.0)
        watching.look()
        over.set()
        answering.join()
        assert (watching.is_silent, watching.notice) == (False, "")
        assert caplog.messages == ["Ray answers again"]


def _answer(head: socket.socket, over: threading.Event) -> None:
    head.settimeout(0.01)
    while not over.is_set():
        with suppress(OSError):  # nobody comes, or those that came before have gone
            connection, _ = head.accept()
            with connection:
                connection.sendall(b"\0")


@pytest.mark.parametrize("patience_s", [0.0, 1.0])
def test_what_this_machine_lacks_says_nothing_of_ray(patience_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    now_s = [0.0]
    monkeypatch.setattr(watch, "socket", SimpleNamespace(create_connection=fail))
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now_s[0], time=time.time))
    watching = Watch({"its head": Endpoint("127.0.0.1", 1)}, patience_s, "lost")
    now_s[0] = 3600.0
    watching.look()
    assert watching.lost == ""


def test_it_looks_by_itself_until_it_is_closed(
    servers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LOOK_S", 0.001)
    watching = watch_of(library(servers), LOCAL)
    thread = watching.start()
    servers[0].close()
    thread.join(600)
    assert watching.lost
    servers[0] = socket.create_server(("127.0.0.1", 0))
    other = watch_of(library(servers), LOCAL)
    looks = other.start()
    other.close()
    looks.join(600)
    assert not other.lost
    assert not looks.is_alive()
