"""A Ray as the engine uses it, without one: processes and sockets of this machine stand for its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import closing
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipeline.config.schema import RayConfig
from pipeline.engine.workers.ray import site
from pipeline.engine.workers.ray.site import RaySite, join, nodes_of, places_of
from pipeline.engine.workers.reaper import Reaper
from pipeline.errors import WorkerError
from pipeline.machine import descendants


class LocalRay:
    """As much of the library as a site uses. What its processes have started it leaves behind."""

    def __init__(self) -> None:
        self.left: subprocess.Popen[bytes] | None = None
        self.killed: list[Any] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: object) -> None:
        self.left = subprocess.Popen(["sleep", "3600"])

    def shutdown(self) -> None: ...

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is looked up by its number")
def test_nothing_of_a_local_ray_outlives_its_site_or_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = LocalRay()
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
    told: list[str] = []
    monkeypatch.setattr(Reaper, "watch_tag", lambda _, tag: told.append(tag))
    reaper = Reaper()
    made = RaySite(RayConfig(), {"CPU": 1.0}, [0])
    try:
        made.open(reaper)
        assert ray.left is not None
        assert {one.pid for one in descendants.tagged(told)} == {ray.left.pid}
        made._actors[0] = actor = object()
        made.close(reaper)
        assert ray.killed == [actor]
        assert ray.left.wait(600) == -signal.SIGKILL
        assert made._folder is None
    finally:
        made.close(reaper)
        reaper.close()
        if ray.left is not None:
            ray.left.kill()
            ray.left.wait()


# -- whether there is a Ray, and stays there ---------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_nothing_answers_no_ray_is_asked(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_CONNECT_S", 0.1)
    ray = SimpleNamespace(is_initialized=lambda: False)  # it has no `init`
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(WorkerError, match="refused"):
        join(ray, RayConfig(address=address))


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
