"""What runs in an actor: it has a device, and keeps one worker process on it after the other.

    engine's thread of a worker -- poll --> host -- lines over a socket --> worker process (`entrypoint`)
    engine ---------------------- send -->                                  as on one machine

Jobs run in a process of their own rather than in the actor: its environment is whole before it starts, what a job
does to its process is no concern of Ray's, and a new one takes a moment where a new actor takes seconds. The actor
leads it as the engine leads those on its machine, with the same class, and ends with all of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

import pipeline
from pipeline.engine.devices.inventory import Device, find_gpus, read_levels
from pipeline.engine.devices.worker_env import NODE_ADDRESS
from pipeline.engine.workers.messages import (
    FromWorker,
    RunJob,
    WorkerExited,
    WorkerReady,
    WorkerUnreadable,
    WorkerUnusable,
    decode_order,
    encode,
)
from pipeline.engine.workers.process import LocalWorker, ProcessSettings
from pipeline.engine.workers.reaper import Reaper
from pipeline.errors import WorkerError
from pipeline.foreign import converted

POLL_S = 2.0
"""How long a host keeps the engine waiting where its worker says nothing."""
POLLS = "poll"
"""The group of calls that wait."""
RAY_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable
_ACTIONS = ("show_stacks", "ask_to_stop", "terminate", "kill")
_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class HostSettings(ProcessSettings):
    """What a host is told; `log_dir` is below the folder of the run, which all nodes must see.

    Attributes:
        device: What the engine takes its device for; the number of a GPU is Ray's to choose.
        start_timeout_s: Seconds until a worker process must be ready.
        sys_path: Where the engine finds modules.
        folder: Where the engine works; "" to stay where Ray has put the actor.
        version: Of this package, at the engine.
        name_nodes: Whether there are nodes to tell apart.
    """

    device: Device
    start_timeout_s: float
    sys_path: list[str]
    folder: str
    version: str
    name_nodes: bool


def _polls(method: _Method) -> _Method:
    """Have Ray give a method the thread of those that wait, as `ray.method` would: this module does without Ray.

    Said with each call it would not get through Ray Client.
    """
    method.__ray_concurrency_group__ = POLLS  # type: ignore[attr-defined]
    return method


class Host:
    """Keeps worker processes on one device. `poll` has a thread of its own, and all else shares another."""

    def __init__(self, told: dict[str, Any]) -> None:
        """Take the device that Ray has given this process.

        Raises:
            WorkerError: The node cannot serve this run, and in words why not.
        """
        os.environ.pop(RAY_TOKEN, None)  # Ray has read it; jobs need not know it
        self._settings = settings = converted(told, HostSettings)
        _check(settings)
        _find_modules(settings)
        self._device = _device(settings.device)
        self._level = read_levels([self._device]).get(self._device.uuid or "")
        self._begun = False
        self._node_words = ""
        if settings.name_nodes:
            ray = importlib.import_module("ray")
            address = ray.util.get_node_ip_address()
            self._node_words = f"node {ray.get_runtime_context().get_node_id()[:8]} ({address})"
            os.environ[NODE_ADDRESS] = address  # the environment of worker processes is made of this one
        self._reaper = Reaper()
        self._worker: LocalWorker | None = None
        self._life = -1
        self._ready_by = 0.0
        self._lock = threading.Lock()

    @_polls
    def begin(self, life: int) -> None:
        """Start a worker process. The thread that polls calls it: the process ends with whoever starts it.

        Args:
            life: Number of the worker, which later calls name.
        """
        settings = self._settings
        index = settings.device.index
        level, self._begun = self._level if self._begun else None, True
        with self._lock:
            self._worker = LocalWorker(index, self._device, settings, self._reaper, level)
            self._life = life
            self._ready_by = time.monotonic() + settings.start_timeout_s
            self._worker.start()

    @_polls
    def poll(self, life: int) -> dict[str, Any]:
        """What the worker says, waited for a moment.

        Returns:
            Plain data, as far as there is any: ``lines``, messages of the worker, as it would send them to an
            engine on its machine; ``unreadable``, why what it sent is no message; ``ended``, whether it is over,
            and then its ``exit_code`` as in `WorkerExited`, and the end of its own log as ``last_words``.
        """
        worker = self._worker
        if worker is None or life != self._life:
            return {"ended": True}
        left_s = max(0.0, self._ready_by - time.monotonic()) if self._ready_by else POLL_S
        said: list[FromWorker] = []
        wait(worker.sources(), min(POLL_S, left_s))
        with self._lock:
            worker.receive(said.append)
            self._check_start(worker, said)
        return self._heard(said, worker)

    def _check_start(self, worker: LocalWorker, said: Sequence[FromWorker]) -> None:
        if any(isinstance(message, WorkerReady) for message in said):
            self._ready_by = 0.0
        elif self._ready_by and time.monotonic() >= self._ready_by:
            self._ready_by = 0.0
            worker.kill()

    def _heard(self, said: Sequence[FromWorker], worker: LocalWorker) -> dict[str, Any]:
        lines: list[bytes] = []
        answer: dict[str, Any] = {"lines": lines}
        for message in said:
            match message:
                case WorkerExited():
                    answer |= {"ended": True, "exit_code": message.exit_code, "last_words": worker.last_words()}
                case WorkerUnreadable():
                    answer["unreadable"] = message.reason
                case WorkerUnusable():
                    pass  # a pool says that, and there is none here
                case WorkerReady():
                    lines.append(encode(replace(message, node=self._node_words)))
                case _:
                    lines.append(encode(message))
        return answer

    def send(self, life: int, line: bytes) -> None:
        """Hand a job to the worker."""
        order = decode_order(line)
        if isinstance(order, RunJob):
            self._do(life, lambda worker: worker.send(order))

    def act(self, life: int, action: str) -> None:
        """Do something else about it: what the method of `Worker` does that has this name, one of `_ACTIONS`."""
        assert action in _ACTIONS
        self._do(life, operator.methodcaller(action))

    def _do(self, life: int, action: Callable[[LocalWorker], None]) -> None:
        with self._lock:
            if self._worker is not None and life == self._life:
                action(self._worker)

    def close(self) -> None:
        """End what it has started."""
        with suppress(Exception):
            self._do(self._life, LocalWorker.kill)
        self._reaper.close()


def _check(settings: HostSettings) -> None:
    """See that this node can serve the run."""
    if pipeline.__version__ != settings.version:
        raise WorkerError(
            f"this node has version {pipeline.__version__} of the package, and the engine {settings.version}: "
            "install the same on all, or name it in execution.ray.runtime_env"
        )
    if not Path(settings.log_dir).parent.is_dir():
        raise WorkerError(
            f"this node does not see {Path(settings.log_dir).parent}: output_dir and execution.store must be on a "
            "disk that all nodes share, under the same path"
        )


def _find_modules(settings: HostSettings) -> None:
    """Have jobs find modules where the engine does, as far as that is here; and none of those that Ray brings."""
    there = [entry for entry in settings.sys_path if Path(entry).exists()]
    sys.path[:] = list(dict.fromkeys([*there, *search_path()]))
    if settings.folder and Path(settings.folder).is_dir():
        os.chdir(settings.folder)


def search_path() -> list[str]:
    """Where this process finds modules, without what Ray has added for itself: copies of packages among them."""
    spec = importlib.util.find_spec("ray")
    ray = Path(spec.origin).parent if spec and spec.origin else Path(os.devnull)
    return [entry or str(Path.cwd()) for entry in sys.path if ray not in (Path(entry), *Path(entry).parents)]


def _device(asked: Device) -> Device:
    if asked.kind == "cpu":
        return asked
    found = find_gpus(os.environ)
    if not found:
        mask = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        raise WorkerError(f"Ray has given a worker the GPU '{mask}' of this node, and the driver knows none there")
    return found[0]
