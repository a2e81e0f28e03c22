"""A local Ray from its start to its end, without one: processes of the system stand for its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import closing, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.schema import RayConfig
from pipeline.engine.workers.ray import site, watch
from pipeline.engine.workers.ray.site import RaySite
from pipeline.engine.workers.reaper import Reaper
from pipeline.machine import descendants


class LocalRay:
    """As much of the library as a site uses. What its processes have started it leaves behind."""

    def __init__(self, port: int) -> None:
        self.port = port
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
        return SimpleNamespace(gcs_address=f"127.0.0.1:{self.port}")

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": self.port}]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is looked up by its number")
def test_nothing_of_a_local_ray_outlives_its_site_or_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as head:
        ray = LocalRay(head.getsockname()[1])
        monkeypatch.setattr(site, "library", lambda _: ray)
        monkeypatch.setattr(site, "_on_loopback", nullcontext)
        monkeypatch.setattr(site, "_quieten", lambda: None)
        monkeypatch.setattr(watch, "_answers", lambda _: True)
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
            head.close()
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
        ray = LocalRay(head.getsockname()[1])
        monkeypatch.setattr(ray, "shutdown", lambda: asked.append("shutdown"))
        monkeypatch.setattr(site, "library", lambda _: ray)
        monkeypatch.setattr(site, "join", lambda *_: None)
        monkeypatch.setattr(site, "_quieten", lambda: None)
        monkeypatch.setattr(site, "_ask_nothing", lambda: asked.append("nothing"))
        monkeypatch.setattr(watch, "_ANSWER_S", 0.01)
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
