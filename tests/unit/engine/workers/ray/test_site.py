"""A Ray as the engine uses it, without one: processes and sockets of this machine stand for its own."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipeline.config.schema import LOCAL, RayConfig
from pipeline.engine.workers.ray import site
from pipeline.engine.workers.ray.backend import nodes_of
from pipeline.engine.workers.ray.site import RaySite, Watch, endpoint_of, join, places_of, present_with
from pipeline.engine.workers.reaper import Reaper
from pipeline.errors import WorkerError
from pipeline.machine import descendants


class LocalRay:
    """As much of the library as a site uses. What its processes have started it leaves behind."""

    def __init__(self, *ports: int) -> None:
        self.ports = ports
        self.left: subprocess.Popen[bytes] | None = None
        self.killed: list[Any] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: object) -> None:
        self.left = subprocess.Popen(["sleep", "3600"])

    def shutdown(self) -> None: ...

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address=f"127.0.0.1:{self.ports[0]}")

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": self.ports[-1]}]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """They stand for a head and a raylet, and what comes to them is taken for answered."""
    monkeypatch.setattr(site, "_answers", lambda *_: True)
    made = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    yield made
    for server in made:
        server.close()


def library(servers: list[socket.socket]) -> LocalRay:
    return LocalRay(*(server.getsockname()[1] for server in servers))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is looked up by its number")
def test_nothing_of_a_local_ray_outlives_its_site_or_its_engine(
    servers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = library(servers)
    constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True)
    for name, module in (
        ("", ModuleType("ray")),
        ("._private", ModuleType("p")),
        ("._private.ray_constants", constants),
    ):
        monkeypatch.setitem(sys.modules, f"ray{name}", module)  # type: ignore[misc]
    monkeypatch.setattr(sys.modules["ray"], "_private", sys.modules["ray._private"], raising=False)
    monkeypatch.setattr(sys.modules["ray._private"], "ray_constants", constants, raising=False)
    monkeypatch.setattr(site, "library", lambda _: ray)
    monkeypatch.setattr(site, "_quieten", lambda: None)
    told: list[set[descendants.Process]] = []
    monkeypatch.setattr(Reaper, "watch_processes", lambda _, processes: told.append(set(processes)))
    reaper = Reaper()
    made = RaySite(RayConfig(), {"CPU": 1.0}, [0])
    try:
        made.open(reaper)
        assert ray.left is not None
        assert [[one.pid for one in processes] for processes in told] == [[ray.left.pid]]
        made._actors[0] = actor = object()
        assert made.lost == ""
        assert made._watch is not None
        servers[0].close()
        made._watch.look()
        assert made.lost
        made.drop(0, actor)
        assert ray.killed == [], "it was asked of what is gone"
        made.close()
        assert ray.left.wait(600) == -signal.SIGKILL
        assert made._folder is None
    finally:
        made.close()
        reaper.close()
        if ray.left is not None:
            ray.left.kill()
            ray.left.wait()


def test_a_cluster_that_answers_nothing_is_left_without_asking_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question would be waited for as long as it says nothing."""
    asked: list[str] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as head:
        ray = library([head])
        monkeypatch.setattr(ray, "shutdown", lambda: asked.append("shutdown"))
        monkeypatch.setattr(site, "library", lambda _: ray)
        monkeypatch.setattr(site, "join", lambda *_: None)
        monkeypatch.setattr(site, "_quieten", lambda: None)
        monkeypatch.setattr(site, "_ask_nothing", lambda: asked.append("nothing"))
        monkeypatch.setattr(site, "_ANSWER_S", 0.01)
        made = RaySite(RayConfig(address="head:6379"), {"CPU": 1.0}, [0])
        reaper = Reaper()
        try:
            made.open(reaper)
            made._actors[0] = object()
            made._groups[0] = object()
            made.close()
        finally:
            reaper.close()
    assert asked == ["nothing", "shutdown"]
    assert ray.killed == []


# -- whether there is a Ray, and stays there ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("head:6379", ("head", 6379)),
        ("ray://head:10001", ("head", 10001)),
        ("[::1]:6379", ("::1", 6379)),
        *((address, None) for address in ("auto", "local", "head", "head:port")),
    ],
)
def test_what_an_address_names(address: str, found: tuple[str, int] | None) -> None:
    assert endpoint_of(address) == found


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_nothing_answers_no_ray_is_asked(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_CONNECT_S", 0.1)
    services = SimpleNamespace(canonicalize_bootstrap_address=str)
    monkeypatch.setitem(sys.modules, "ray._private.services", services)  # type: ignore[misc]
    ray = SimpleNamespace(is_initialized=lambda: False)  # it has no `init`
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(WorkerError, match="does not answer"):
            join(ray, RayConfig(address=address))
    with pytest.raises(WorkerError, match="refused"):
        join(ray, RayConfig(address=address))


@pytest.mark.parametrize(("ends", "named"), [(0, "its head"), (1, "its raylet")])
def test_a_local_ray_has_ended_with_either_of_its_processes(
    ends: int, named: str, servers: list[socket.socket]
) -> None:
    watching = Watch(library(servers), LOCAL)
    watching.look()
    assert watching.lost == ""
    servers[ends].close()
    watching.look()
    assert named in watching.lost


@contextmanager
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds that a watch goes by."""
    now_s = [time.monotonic()]
    monkeypatch.setattr(site, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    yield now_s


def test_a_cluster_is_given_as_long_as_its_head_may_take_to_come_back(
    servers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_gcs_rpc_server_reconnect_timeout_s", raising=False)
    with clock(monkeypatch) as now_s:
        watching = Watch(library(servers), "head:6379")
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
        assert watching.lost
        monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
        patient = Watch(None, "ray://127.0.0.1:1")
        for later_s, lost in ((299.0, False), (1.0, True)):
            now_s[0] += later_s
            patient.look()
            assert bool(patient.lost) is lost


@pytest.mark.parametrize("address", [LOCAL, "head:6379"])
def test_a_head_that_says_nothing_is_told_of_and_waited_for(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as head, clock(monkeypatch) as now_s:
        watching = Watch(library([head, head]), address)
        for later_s, is_told in ((0.0, False), (7.0, False), (3600.0, True)):
            now_s[0] += later_s
            watching.look()
            assert (watching.lost, watching.is_silent, bool(watching.notice)) == ("", True, is_told)
        over = threading.Event()
        answering = threading.Thread(target=_answer, args=[head, over])
        answering.start()
        monkeypatch.setattr(site, "_ANSWER_S", 60.0)
        watching.look()
        over.set()
        answering.join()
        assert (watching.is_silent, watching.notice) == (False, "")


def _answer(head: socket.socket, over: threading.Event) -> None:
    head.settimeout(0.01)
    while not over.is_set():
        with suppress(OSError):  # nobody comes, or those that came before have gone
            connection, _ = head.accept()
            with connection:
                connection.sendall(b"\0")


@pytest.mark.parametrize("address", [LOCAL, "head:6379"])
def test_what_this_machine_lacks_says_nothing_of_ray(
    address: str, servers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with clock(monkeypatch) as now_s:
        watching = Watch(library(servers), address)
        monkeypatch.setattr(site.socket, "create_connection", fail)
        now_s[0] += 3600.0
        watching.look()
        assert watching.lost == ""


def test_it_looks_by_itself_until_it_is_closed(
    servers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_LOOK_S", 0.001)
    watching = Watch(library(servers), LOCAL)
    thread = threading.Thread(target=watching.keep_looking)
    thread.start()
    servers[0].close()
    thread.join(600)
    assert watching.lost
    other = Watch(library(servers[1:]), LOCAL)
    looks = threading.Thread(target=other.keep_looking)
    looks.start()
    other.closed.set()
    looks.join(600)
    assert not other.lost
    assert not looks.is_alive()


# -- room -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "taken", "places"),
    [
        ({"GPU": 4.0, "CPU": 8.0}, {"GPU": 1.0}, 4),
        ({"GPU": 4.0, "CPU": 3.0}, {"GPU": 1.0, "CPU": 2.0}, 1),
        ({"CPU": 8.0}, {"GPU": 1.0}, 0),
        ({"CPU": 8.0}, {"CPU": 2.0, "memory": 0.0}, 4),
    ],
)
def test_room_on_a_node(there: dict[str, float], taken: dict[str, float], places: int) -> None:
    assert places_of(there, taken) == places


def test_large_nodes_are_filled_first_and_those_to_come_are_as_large() -> None:
    assert nodes_of([2, 4], 6) == [0, 0, 0, 0, 1, 1]
    assert nodes_of([2, 4], 3) == [0, 0, 0]
    assert nodes_of([2, 4], 11) == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("room", "whole", "present"),
    [(2, False, 2), (3, False, 3), (9, False, 6), (3, True, 2), (4, True, 4), (9, True, 6), (1, False, 2)],
)
def test_places_are_asked_for_once_nodes_have_joined_that_have_room(room: int, whole: bool, present: int) -> None:
    assert present_with([0, 0, 1, 1, 2, 2], 2, room, whole=whole) == present
