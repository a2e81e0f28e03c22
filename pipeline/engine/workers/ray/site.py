"""A Ray cluster as the engine uses it, joined or started, and the workers on it as the pool sees them.

Ray decides on which node an actor lives; it starts none of them anew, as what is tried again is decided here.
Actors belong to the job that the engine is to Ray, so they end with it, whatever becomes of it. Where the head is
gone Ray itself says so, and ends the engine.

pool's thread                  sends orders, and takes messages when a descriptor tells of some
a thread of each worker's own  asks the actor what the worker says, again and again; an error is the worker's end
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import pipeline
from pipeline.config.schema import AUTO, LOCAL, DeviceChoice, ExecutionConfig, RayConfig
from pipeline.engine.devices.inventory import Device, cpu_slots, read_machine
from pipeline.engine.workers.messages import (
    FromWorker,
    RunJob,
    WorkerExited,
    WorkerUnreadable,
    decode_report,
    encode,
)
from pipeline.engine.workers.pool import Deliver, Pool, Worker
from pipeline.engine.workers.process import ProcessSettings
from pipeline.engine.workers.ray.host import POLLS, RAY_TOKEN, Host, HostSettings, search_path
from pipeline.engine.workers.reaper import Reaper
from pipeline.errors import ConfigError, DeviceError, WorkerError
from pipeline.foreign import converted
from pipeline.machine import descendants

_OBJECT_STORE_BYTES = 80 << 20
"""Messages are small and are never put there: the least that Ray takes, which it sets aside in memory."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_CONNECT_S = 5.0
_SHUTDOWN_S = 15.0
"""What Ray is given to take leave of a head, for whose answer it would wait for ever."""
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
_KILL_S = 5.0
"""What the actor is given to end its worker; then it ends itself, by Ray."""

_lives = count()


@dataclass
class RaySite:
    """Where the workers of a pool live.

    Attributes:
        settings: Which cluster.
        resources: What each place takes of it.
        nodes: Of each place, the node on which the devices of a job are to lie together.
        together: Whether there are such jobs: then the places of a node are a placement group.
        visible: GPUs of this machine that a cluster started here may use, as CUDA_VISIBLE_DEVICES names them.
        ray: The library, once the site is open.
    """

    settings: RayConfig
    resources: Mapping[str, float]
    nodes: Sequence[int]
    together: bool = False
    visible: Sequence[str] = ()
    ray: Any = None
    _actors: dict[int, Any] = field(default_factory=dict)
    _groups: dict[int, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _folder: Path | None = None
    _tag: str = field(default_factory=descendants.new_tag)

    def open(self, reaper: Reaper) -> None:
        """Join the cluster, or start one.

        Raises:
            WorkerError: That fails, in words.
        """
        self.ray = library(self.settings)
        try:
            with _own_signals():
                if self.settings.address == LOCAL:
                    self._start_local(reaper)
                else:
                    join(self.ray, self.settings)
        except Exception as error:
            self.close(reaper)
            raise cannot_join(self.settings.address, error) from error

    def _start_local(self, reaper: Reaper) -> None:
        # Sockets lie in it, whose paths may have some hundred characters; TMPDIR may be long.
        self._folder = Path(tempfile.mkdtemp(prefix="ppl-ray-", dir="/tmp"))
        reaper.watch_path(self._folder)
        total = {name: value * len(self.nodes) for name, value in self.resources.items()}
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(self.visible)} if self.visible else {}
        # What Ray's own processes have started outlasts them by a minute, and a head that is gone ends nobody.
        reaper.watch_tag(self._tag)
        seen |= descendants.with_tag(os.environ, self._tag)
        # As on systems where it knows no clusters: else Ray listens at all interfaces, whatever it is told.
        constants = "ray._private.ray_constants.ENABLE_RAY_CLUSTER"
        with patch.dict(os.environ, seen), patch(constants, new=False):
            self.ray.init(
                address="local",
                num_cpus=total.pop("CPU", 0),
                num_gpus=total.pop("GPU", 0),
                resources=total or None,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=str(self._folder),
                _node_ip_address="127.0.0.1",
                **_common(self.settings),
            )

    def actor(self, place: int, told: dict[str, Any]) -> Any:
        """The actor of a place, which may have to wait until the cluster has what it takes."""
        with self._lock:
            if place not in self._actors:
                options = {_OPTIONS[name]: value for name, value in self.resources.items() if name in _OPTIONS}
                others = {name: value for name, value in self.resources.items() if name not in _OPTIONS}
                made = self.ray.remote(
                    max_restarts=0,
                    max_task_retries=0,
                    concurrency_groups={POLLS: 1},
                    **{"num_cpus": 0, "num_gpus": 0, **options},
                    resources=others,
                    **self._within(place),
                )(Host)
                self._actors[place] = made.remote(told)
            return self._actors[place]

    def _within(self, place: int) -> dict[str, Any]:
        if not self.together:
            return {}
        node, util = self.nodes[place], importlib.import_module("ray.util")
        if node not in self._groups:
            bundles = [dict(self.resources)] * self.nodes.count(node)
            self._groups[node] = util.placement_group(bundles, strategy="STRICT_PACK")
        strategy = importlib.import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        bundle = list(self.nodes[:place]).count(node)
        return {"scheduling_strategy": strategy(self._groups[node], placement_group_bundle_index=bundle)}

    def drop(self, place: int, actor: Any) -> None:
        """End an actor, or what is left of it; another takes its place when one is asked for."""
        with self._lock:
            if self._actors.get(place) is actor:
                del self._actors[place]
        with suppress(Exception):  # Ray has errors of many kinds for what is gone already
            self.ray.kill(actor)

    def close(self, reaper: Reaper) -> None:
        """End what this engine has on the cluster; one that was started here ends."""
        leaving = threading.Thread(target=self._leave, name="ray shutdown", daemon=True)
        leaving.start()
        leaving.join(_SHUTDOWN_S)
        if leaving.is_alive():
            atexit.unregister(self.ray.shutdown)  # which would wait as long once more
        if self._folder is not None:
            descendants.end(lambda: descendants.tagged({self._tag}))
            reaper.forget_tag(self._tag)
            shutil.rmtree(self._folder, ignore_errors=True)
            reaper.forget_path(self._folder)
            self._folder = None

    def _leave(self) -> None:
        for place, actor in list(self._actors.items()):
            self.drop(place, actor)
        for group in self._groups.values():
            with suppress(Exception):  # as in `drop`
                importlib.import_module("ray.util").remove_placement_group(group)
        self._groups.clear()
        with suppress(Exception):
            self.ray.shutdown()


def library(settings: RayConfig) -> Any:
    """Ray, which reads its environment once, when it is imported.

    Raises:
        WorkerError: It is not installed.
    """
    quiet = dict(_QUIET)
    if settings.address == LOCAL and os.environ.get("RAY_AUTH_MODE", "token") == "token":
        # A token of its own that no file has: Ray itself would leave one in the user's home.
        quiet |= {RAY_TOKEN: secrets.token_hex(32), "RAY_AUTH_MODE": "token"}
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise WorkerError(f"execution.backend=ray needs Ray, which cannot be imported: {error}") from error


def endpoint_of(address: str) -> tuple[str, int] | None:
    """The host and port that `execution.ray.address` names, as far as it names both."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:  # no port at all
        return None


def join(ray: Any, settings: RayConfig) -> None:
    """Become a driver of a cluster that is there, unless this process is one already.

    Raises:
        WorkerError: Nothing is there. Ray's library would wait for minutes, deaf to Ctrl-C.
    """
    if ray.is_initialized():
        return
    if endpoint := endpoint_of(settings.address):
        try:
            socket.create_connection(endpoint, _CONNECT_S).close()
        except OSError as error:
            raise WorkerError(f"{settings.address}: {error.strerror or error}") from error
    ray.init(address=settings.address, **_common(settings))


def cannot_join(address: str, error: Exception) -> WorkerError:
    """What to raise where a cluster is not there, takes another token, or cannot be started."""
    said = " ".join(str(error).split())[:500] or type(error).__name__
    if address == LOCAL:
        return WorkerError(f"Ray cannot be started on this machine ({said})")
    return WorkerError(
        f"execution.ray.address={address}: Ray cannot be joined there ({said}). See that the address is right "
        f"and that {RAY_TOKEN}, or ~/.ray/auth_token, is the token of that cluster"
    )


def places_of(there: Mapping[str, float], taken: Mapping[str, float]) -> int:
    """How many workers find room on a node."""
    return min((int(there.get(name, 0) / amount) for name, amount in taken.items() if amount), default=0)


def _common(settings: RayConfig) -> dict[str, Any]:
    asked = dict(settings.runtime_env)
    paths = [str(Path(__file__).parents[4]), *filter(None, [asked.get("env_vars", {}).get("PYTHONPATH")])]
    asked["env_vars"] = {**asked.get("env_vars", {}), "PYTHONPATH": os.pathsep.join(paths)}
    return {
        "namespace": f"pipeline-{secrets.token_hex(8)}",
        "runtime_env": asked,
        "log_to_driver": False,
        "configure_logging": False,
    }


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray puts a handler of its own for SIGTERM, which would end the engine where it stands."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- workers -----------------------------------------------------------------------------------------------------


def loss_of(error: BaseException) -> tuple[str, bool]:
    """Say how a worker was lost, and whether its machine was, so that neither a job nor a device is to blame.

    Jobs run in a process below the actor, which tells of its end. The end of the actor itself is no job's doing.

    Args:
        error: What a call to its actor has raised.
    """
    text = str(error).strip()
    if getattr(error, "actor_init_failed", False):
        last = text.splitlines()[-1].strip()  # the exception of the constructor
        return f"its node cannot serve: {last.partition('WorkerError: ')[2] or last}", False
    return f"Ray has lost its actor or node: {' '.join(text.split())[:300] or type(error).__name__}", True


class RayWorker(Worker):
    """A worker process that an actor of a Ray cluster keeps."""

    def __init__(self, index: int, site: RaySite, told: Mapping[str, Any]) -> None:
        """Describe a worker.

        Args:
            index: Number of its place in the pool.
            site: The cluster.
            told: Settings of its host.
        """
        super().__init__(index)
        self._site = site
        self._told = dict(told)
        self._life = next(_lives)
        self._actor: Any = None
        self._up = self._over = self._unwanted = False
        self._reading, self._writing = -1, -1
        self._said: deque[FromWorker] = deque()
        self._pipe = threading.Lock()
        self._words = ""
        self._kill: threading.Timer | None = None

    def start(self) -> None:
        """Ask for an actor and have it start a process; neither is waited for."""
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        os.set_blocking(self._reading, False)
        self._actor = self._site.actor(self.index, self._told)
        threading.Thread(target=self._follow, name=f"ray worker {self.index}", daemon=True).start()

    # -- its own thread ----------------------------------------------------------------------------------------

    def _follow(self) -> None:
        try:
            self._call("begin", wait=True)
            self._up = True
            if self._unwanted:
                self._act("kill")
            while not self._hear(self._call("poll", wait=True)):
                pass
        except Exception as error:  # Ray's own errors have no common class with those of the network below it
            self._site.drop(self.index, self._actor)
            how, elsewhere = loss_of(error)
            self._words = "".join(f"\n    {line}" for line in str(error).strip().splitlines()[-15:])
            self._tell(WorkerExited(exit_code=None, how=how, elsewhere=elsewhere))

    def _hear(self, heard: Mapping[str, Any]) -> bool:
        """Take what the host has answered; whether the worker is over."""
        said: list[FromWorker] = []
        try:
            said += map(decode_report, heard.get("lines", ()))
        except WorkerError as error:
            self._act("kill")
            said.append(WorkerUnreadable(reason=str(error)))
        if heard.get("unreadable"):
            said.append(WorkerUnreadable(reason=heard["unreadable"]))
        if ended := bool(heard.get("ended")):
            self._words = heard.get("last_words", "")
            said.append(WorkerExited(exit_code=heard.get("exit_code")))
        self._tell(*said)
        return ended

    def _tell(self, *messages: FromWorker) -> None:
        with self._pipe:
            self._said.extend(messages)
            if messages and not self._over:
                with suppress(BlockingIOError):  # full: then it is readable already
                    os.write(self._writing, b".")

    # -- the pool's thread -------------------------------------------------------------------------------------

    def send(self, job: RunJob) -> None:
        """Send a job; that it is lost shows where answers are waited for."""
        self._call("send", encode(job))

    def sources(self) -> Sequence[int]:
        """What tells that something has arrived."""
        return [] if self._reading < 0 else [self._reading]

    def receive(self, deliver: Deliver) -> None:
        """Deliver what has arrived."""
        with suppress(BlockingIOError):
            os.read(self._reading, 1 << 12)
        while self._said and not self._over:
            message = self._said.popleft()
            if isinstance(message, WorkerExited):
                self._end()
            deliver(message)

    def _end(self) -> None:
        if self._kill is not None:
            self._kill.cancel()
        with self._pipe:
            self._over = True
            os.close(self._reading)
            os.close(self._writing)
            self._reading = self._writing = -1

    def show_stacks(self) -> None:
        """As a process here would be asked."""
        self._act("show_stacks")

    def ask_to_stop(self) -> None:
        """Send `Shutdown`; where no node has room for it yet there is nothing to wait for."""
        if self._up:
            self._act("ask_to_stop")
        else:
            self.kill()

    def terminate(self) -> None:
        """SIGTERM to the process and its group."""
        self._act("terminate")

    def kill(self) -> None:
        """SIGKILL to the process and its group; if that is not answered, the actor with all that it has."""
        self._unwanted = True
        if not self._up:
            self._give_up()
        else:
            self._act("kill")
            if self._kill is None:
                self._kill = threading.Timer(_KILL_S, self._give_up)
                self._kill.daemon = True
                self._kill.start()

    def _give_up(self) -> None:
        self._site.drop(self.index, self._actor)
        # Where no node has started it yet, or none answers, whoever waits for it may wait in vain.
        self._tell(WorkerExited(exit_code=None, how="its actor was given up", elsewhere=True))

    def last_words(self) -> str:
        """The end of the worker's own log, or what Ray says of its actor."""
        return self._words

    # -- calls -------------------------------------------------------------------------------------------------

    def _act(self, action: str) -> None:
        self._call("act", action)

    def _call(self, method: str, *words: Any, wait: bool = False) -> Any:
        ask = getattr(self._actor, method).remote
        if wait:
            return self._site.ray.get(ask(self._life, *words))
        with suppress(Exception):  # as above: whoever waits for answers tells
            ask(self._life, *words)
        return None


# -- backend -----------------------------------------------------------------------------------------------------
# What a run may ask of a Ray cluster, what that has for its workers, and the pool of them.


_PROBE_S = 120.0


def check_address(settings: RayConfig) -> None:
    """Refuse an address that no Ray can have.

    Raises:
        ConfigError: It is one.
    """
    if settings.address not in (LOCAL, AUTO) and endpoint_of(settings.address) is None:
        raise ConfigError(
            f"execution.ray.address={settings.address}: must be local, auto, host:port or ray://host:port"
        )


def check_environment(settings: RayConfig) -> None:
    """Have the Ray that is installed look at the environment of workers, without any cluster.

    Raises:
        ConfigError: It refuses that, or does not know a key of it.
        WorkerError: It cannot be imported.
    """
    if not (asked := settings.runtime_env):
        return
    library(settings)
    made: Any = importlib.import_module("ray.runtime_env").RuntimeEnv
    try:
        made(**asked)
    except Exception as error:  # whatever its checks raise
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"execution.ray.runtime_env={asked}: Ray says: {said}") from error
    known = {name.lstrip("_") for name in made.known_fields} | set(made.known_fields)
    # Ray takes any name. A plugin has a key of its own, and only the nodes know which.
    if (unknown := sorted(set(asked) - known)) and not os.environ.get("RAY_RUNTIME_ENV_PLUGINS"):
        raise ConfigError(
            f"execution.ray.runtime_env.{unknown[0]}: Ray has no such setting. Known: {sorted(known)}"
        )


def cluster_devices(
    choice: DeviceChoice, execution: ExecutionConfig, threads: int, num_gpus: int | None
) -> list[Device]:
    """One device for each worker. This process is a driver of the cluster afterwards.

    Args:
        choice: Which kind.
        execution: Which cluster, how many workers, and what each takes.
        threads: Of a worker on a CPU slot.
        num_gpus: How many GPUs are asked for; all if None.

    Raises:
        WorkerError: The cluster is not there.
        DeviceError: It has nothing of what workers take.
    """
    ray = library(execution.ray)
    try:
        join(ray, execution.ray)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        gpus = _find_gpus(ray, nodes) if choice is not DeviceChoice.cpu else []
    except Exception as error:  # Ray has no common class of errors for this
        raise cannot_join(execution.ray.address, error) from error
    if choice is DeviceChoice.cuda and not gpus:
        raise DeviceError("device=cuda: no node of the Ray cluster has a GPU that its driver knows")
    taken = execution.ray.resources or ({"GPU": 1.0} if gpus else {"CPU": float(threads)})
    counts = [count for node in nodes if (count := places_of(node["Resources"], taken))]
    if not counts:
        raise DeviceError(
            f"no node of the Ray cluster has what a worker takes, {taken}; they have "
            f"{[{name: node['Resources'].get(name, 0) for name in taken} for node in nodes]}. See "
            "execution.ray.resources"
        )
    number = execution.workers or num_gpus or sum(counts)
    # Every GPU is taken for the smallest, as Ray decides which of them a worker gets.
    least = min(gpus, key=lambda gpu: gpu.memory_total_bytes, default=cpu_slots(1)[0])
    like = replace(least, uuid=None, slice_index=None)
    return [replace(like, index=index, node=node) for index, node in enumerate(nodes_of(counts, number))]


def nodes_of(counts: Sequence[int], number: int) -> list[int]:
    """The node of each worker: large ones first; those that may join are taken for as large as the largest."""
    sizes = sorted(counts, reverse=True)
    found: list[int] = []
    while len(found) < number:
        node = found[-1] + 1 if found else 0
        size = sizes[node] if node < len(sizes) else sizes[0]
        found += [node] * min(size, number - len(found))
    return found


def _find_gpus(ray: Any, nodes: Sequence[Mapping[str, Any]]) -> list[Device]:
    """What the drivers of the nodes say: Ray alone does not know how much memory a GPU has."""
    strategy = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    ask = ray.remote(num_cpus=0, num_gpus=0, max_retries=0)(_gpus_here)
    asked = [
        ask.options(scheduling_strategy=strategy(node["NodeID"], soft=False)).remote()
        for node in nodes
        if node["Resources"].get("GPU")
    ]
    told = [found for answer in ray.get(asked, timeout=_PROBE_S) for found in json.loads(answer)]
    return [converted(found, Device) for found in told]


def _gpus_here() -> str:
    return json.dumps([asdict(device) for device in read_machine().devices.values()])


def ray_pool(
    execution: ExecutionConfig,
    devices: Sequence[Device],
    settings: ProcessSettings,
    width: int = 1,
) -> Pool:
    """Describe the pool of a run; nothing starts yet.

    Args:
        execution: Which cluster, and deadlines.
        devices: One for each worker.
        settings: What its processes have in common.
        width: Devices that the widest job takes.
    """
    ray = execution.ray
    gpus = [device for device in devices if device.kind == "cuda"]
    taken = {"GPU": 1.0} if gpus else {"CPU": float(settings.threads)}
    site = RaySite(
        ray,
        ray.resources or taken,
        [device.node for device in devices],
        together=width > 1 and ray.address != LOCAL,
        visible=[device.uuid or str(device.index) for device in gpus] if ray.address == LOCAL else (),
    )
    told = HostSettings(
        **asdict(settings),
        device=devices[0],
        start_timeout_s=execution.start_timeout_s,
        sys_path=search_path(),
        folder="" if "working_dir" in ray.runtime_env else str(Path.cwd()),
        version=pipeline.__version__,
        name_nodes=ray.address != LOCAL,
    )

    def make(index: int, _reaper: Reaper) -> RayWorker:
        return RayWorker(index, site, asdict(replace(told, device=devices[index])))

    return Pool(make, len(devices), start_timeout_s=None, stop_grace_s=execution.stop_grace_s, site=site)
