"""Workers of a Ray cluster without one: the host is in this process, and calls to it take the way of threads."""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pipeline
from pipeline.config.schema import RayConfig
from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.workers import on_ray
from pipeline.engine.workers.messages import (
    FromWorker,
    JobFinished,
    RunJob,
    WorkerExited,
    WorkerReady,
    WorkerWaits,
)
from pipeline.engine.workers.on_ray import POLLS, Host, HostSettings, RayWorker, join, nodes_of, places_of
from pipeline.engine.workers.pool import Pool
from pipeline.errors import WorkerError

PATIENCE_S = 60.0


class NodeDiedError(Exception):
    """What Ray calls it."""


class Call:
    """One that is under way; a pretended Ray carries it out in a thread, as an actor would."""

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self.work = work
        self.answer: queue.Queue[Any] = queue.Queue()

    def run(self) -> None:
        try:
            self.answer.put((self.work(), None))
        except Exception as error:
            self.answer.put((None, error))


class Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self.actor, self.name = actor, name

    def remote(self, *words: Any) -> Call:
        method = getattr(self.actor.host, self.name)
        call = Call(self.name, lambda: method(*words))
        self.actor.calls.append(call)
        if self.actor.lost is not None:
            call.answer.put((None, self.actor.lost))
        self.actor.queues[getattr(method, "__ray_concurrency_group__", "")].put(call)
        return call


class Actor:
    """A host, with a thread for each group of calls."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.host = Host(told)
        self.calls: list[Call] = []
        self.lost: Exception | None = None
        self.queues: dict[str, queue.Queue[Call | None]] = {"": queue.Queue(), POLLS: queue.Queue()}
        self.threads = [
            threading.Thread(target=self._serve, args=[calls], daemon=True) for calls in self.queues.values()
        ]
        for thread in self.threads:
            thread.start()

    def _serve(self, calls: queue.Queue[Call | None]) -> None:
        while (call := calls.get()) is not None:
            call.run()

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)

    def lose(self, error: Exception) -> None:
        self.lost = error
        for call in self.calls:
            call.answer.put((None, error))

    def close(self) -> None:
        self.host.act(self.host._life, "kill")
        self.host._reaper.close()


class Site:
    """As `RaySite`, and as Ray itself."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.ray = self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        for actor in self.actors:
            for calls in actor.queues.values():
                calls.put(None)
            for thread in actor.threads:  # what is being started is there to be ended then
                thread.join(PATIENCE_S)
            actor.close()

    def actor(self, place: int, told: dict[str, Any]) -> tuple[Actor, bool]:
        if is_new := not self.actors:
            self.actors.append(Actor(told))
        return self.actors[-1], is_new

    def release(self, place: int, actor: Actor) -> None:
        self.drop(place, actor)

    def drop(self, place: int, actor: Actor) -> None:
        assert actor is not None
        if actor in self.actors:
            self.actors.remove(actor)
            # First, as a host that is being closed answers with errors of its own.
            actor.lose(NodeDiedError("The actor's node has died."))
            actor.close()

    def get(self, call: Call) -> Any:
        answer, error = call.answer.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return answer


def settings(folder: Path) -> HostSettings:
    (folder / "run").mkdir(exist_ok=True)
    return HostSettings(
        device=cpu_slots(1)[0],
        threads=1,
        portable=False,
        heartbeat_s=60.0,
        log_dir=str(folder / "run" / "workers"),
        free_timeout_s=1.0,
        start_timeout_s=PATIENCE_S,
        sys_path=sys.path,
        folder="",
        version=pipeline.__version__,
    )


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Site()


class Team:
    """A pool of one such worker."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        told = asdict(settings(folder))
        self.heard: list[FromWorker] = []
        self.pool = Pool(lambda index, _: RayWorker(index, site, told), 1, start_timeout_s=None, site=site)

    def wait_for(self, kind: type[FromWorker], number: int = 1) -> Any:
        give_up = time.monotonic() + PATIENCE_S
        while sum(isinstance(one, kind) for one in self.heard) < number:
            assert time.monotonic() < give_up, self.heard
            self.pool.wait(0.1, lambda _, message: self.heard.append(message))
        return [one for one in self.heard if isinstance(one, kind)][-1]

    def order(self, name: str, entry: str = "write") -> RunJob:
        (self.folder / "scratch").mkdir(exist_ok=True)
        return RunJob(
            job_id=name,
            attempt=1,
            key="",
            entry=f"tests.doubles.bodies:{entry}",
            payload={},
            inputs={},
            store=str(self.folder / "store"),
            scratch=str(self.folder / "scratch"),
            verified=str(self.folder / "verified"),
            log_path=str(self.folder / f"{name}.txt"),
        )


def test_a_worker_there_is_as_one_here(site: Site, tmp_path: Path) -> None:
    team = Team(site, tmp_path)
    team.pool.start()
    try:
        ready = team.wait_for(WorkerReady)
        assert ready.pid != os.getpid()
        team.pool.send(0, team.order("a", "nothing"))
        assert team.wait_for(JobFinished).job_id == "a"
        # Another process follows on the same device, without another actor.
        team.pool.send(0, team.order("b", "kill_self"))
        assert team.wait_for(WorkerExited).exit_code == -9
        assert team.wait_for(WorkerReady, 2).pid != ready.pid
        assert len(site.actors) == 1
        # The node goes; what takes its place serves as well.
        site.drop(0, site.actors[0])
        lost = team.wait_for(WorkerExited, 2)
        assert lost.elsewhere
        team.wait_for(WorkerReady, 3)
        team.pool.send(0, team.order("c", "nothing"))
        assert team.wait_for(JobFinished, 2).job_id == "c"
    finally:
        team.pool.stop(lambda _, message: team.heard.append(message))
    assert isinstance(team.heard[-1], WorkerExited)
    assert team.heard[-1].exit_code == 0


def test_a_place_that_is_given_back_has_no_actor_until_it_is_taken_again(site: Site, tmp_path: Path) -> None:
    team = Team(site, tmp_path)
    team.pool.start()
    try:
        team.wait_for(WorkerReady)
        team.pool.close(0)
        assert team.wait_for(WorkerExited).exit_code == 0
        assert site.actors == []
        team.pool.open(0)
        team.wait_for(WorkerReady, 2)
        assert len(site.actors) == 1
    finally:
        team.pool.stop(lambda _, message: team.heard.append(message))
    assert [type(one) for one in team.heard] == [WorkerWaits, WorkerReady, WorkerExited] * 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.0.1"}, r"this node has version .*, and the engine 0\.0\.1"),
        ({"log_dir": "/no/such/run/workers"}, "this node does not see /no/such/run"),
    ],
)
def test_a_node_that_cannot_serve_says_why(site: Site, tmp_path: Path, changes: dict[str, str], said: str) -> None:
    with pytest.raises(WorkerError, match=said):
        Host(asdict(replace(settings(tmp_path), **changes)))


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_nothing_answers_no_ray_is_asked(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "_CONNECT_S", 0.1)
    monkeypatch.setattr(
        on_ray, "library", lambda: SimpleNamespace(is_initialized=lambda: False)
    )  # it has no `init`
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(WorkerError, match="refused"):
        join(RayConfig(address=address))


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
