"""Run workers on a Ray cluster: Ray places them, carries messages and reports losses; our scheduler decides.

    pool's thread                   sends orders, and takes messages when a descriptor tells of some
    a thread of each worker's own   asks the worker's actor, `Host`, for what it says, again and again
    actor                           leads a worker process (`entrypoint`), as the engine leads those on its machine

Ray decides on which node an actor lives. It never restarts actors, as the scheduler decides what is retried. To
Ray the engine is a job that owns the actors, so they end with it. If the head node is lost, Ray itself reports it
and ends the engine.

Jobs run in a worker process rather than in the actor. So the environment is complete before the process starts, a
job cannot harm Ray by what it does to its process, and a new process takes a moment where a new actor takes
seconds.
"""

import atexit
import importlib
import importlib.util
import json
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from msgspec import structs

import pipeline
from pipeline.config.schema import AUTO, DeviceChoice, ExecutionConfig, RayConfig
from pipeline.engine.devices.inventory import Device, cpu_slots, find_gpus, read_levels, read_machine
from pipeline.engine.workers import messages
from pipeline.engine.workers.pool import Deliver, LocalWorker, Pool, ProcessSettings, Worker
from pipeline.errors import ConfigError, DeviceError, WorkerError
from pipeline.foreign import converted
from pipeline.machine.descendants import Reaper

RAY_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
_CONNECT_S = 5.0
_PROBE_S = 120.0
_SHUTDOWN_S = 15.0
"""Seconds for Ray to disconnect from a head node that may never answer."""
_KILL_S = 5.0
"""Seconds for the actor to end its worker; after that Ray ends the actor."""
_POLL_S = 2.0
"""Seconds for which `Host.poll` waits for a message of its worker."""
POLLS = "poll"
"""Ray concurrency group of the calls that wait."""
_Method = TypeVar("_Method", bound=Callable[..., Any])
_lives = count()

# -- in an actor -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HostSettings(ProcessSettings):
    """Settings of a host; `log_dir` is below the folder of the run, which all nodes must see.

    Attributes:
        device: The device as the engine sees it; Ray chooses the number of the GPU.
        start_timeout_s: Seconds until a worker process must be ready.
        sys_path: The engine's module search path.
        folder: The engine's working directory; "" to keep that of the actor.
        version: Version of this package at the engine.
    """

    device: Device
    start_timeout_s: float
    sys_path: list[str]
    folder: str
    version: str


def _polls(method: _Method) -> _Method:
    """Put a method in the concurrency group of calls that wait, as `ray.method` would, without importing Ray.

    An option at each call would not work through Ray Client.
    """
    method.__ray_concurrency_group__ = POLLS  # type: ignore[attr-defined]
    return method


class Host:
    """Actor that keeps worker processes on one device. `poll` has a thread of its own.

    All other calls share one.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        """Take the device that Ray has given this process.

        Raises:
            WorkerError: The node cannot serve this run; the message says why.
        """
        os.environ.pop(RAY_TOKEN, None)  # Ray has read it; jobs need not see it
        self._settings = settings = converted(data, HostSettings)
        _check(settings)
        # Jobs search modules where the engine does, as far as the folders exist here, without the folders added by
        # Ray.
        there = [entry for entry in settings.sys_path if Path(entry).exists()]
        sys.path[:] = list(dict.fromkeys([*there, *search_path()]))
        if settings.folder and Path(settings.folder).is_dir():
            os.chdir(settings.folder)
        self._device = _device(settings.device)
        self._level = read_levels([self._device]).get(self._device.uuid or "")
        self._begun = False
        self._reaper = Reaper()
        self._worker: LocalWorker | None = None
        self._life = -1
        self._ready_by = math.inf
        self._lock = threading.Lock()

    @_polls
    def begin(self, life: int) -> None:
        """Start a worker process.

        Called by the thread that polls: the process ends with the thread that starts it.

        Args:
            life: Number of the worker, for later calls.
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
    def poll(self, life: int) -> tuple[list[messages.FromWorker], str]:
        """Wait a moment for messages of the worker, and return them; at its end also the end of its log."""
        worker = self._worker
        if worker is None or life != self._life:
            return [messages.WorkerExited(exit_code=None)], ""
        heard: list[messages.FromWorker] = []
        wait(worker.sources(), max(0.0, min(_POLL_S, self._ready_by - time.monotonic())))
        with self._lock:
            worker.receive(heard.append)
            if any(isinstance(message, messages.WorkerReady) for message in heard):
                self._ready_by = math.inf
            elif time.monotonic() >= self._ready_by:
                self._ready_by = math.inf
                worker.kill()
        news = [
            structs.replace(message, node=_node()) if isinstance(message, messages.WorkerReady) else message
            for message in heard
        ]
        return news, worker.last_words() if _is_over(news) else ""

    def act(self, life: int, action: str, *words: Any) -> None:
        """Call the method of `Worker` with this name on that worker, if it is still there."""
        with self._lock:
            if self._worker is not None and life == self._life:
                getattr(self._worker, action)(*words)
                self._worker.flush()


def _is_over(news: Sequence[messages.FromWorker]) -> bool:
    return any(isinstance(message, messages.WorkerExited) for message in news)


def _check(settings: HostSettings) -> None:
    """Check that this node can serve the run."""
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


def search_path() -> list[str]:
    """Return the module search path of this process, without the folders that Ray has added."""
    spec = importlib.util.find_spec("ray")
    ray = Path(spec.origin).parent if spec and spec.origin else Path(os.devnull)
    return [entry or str(Path.cwd()) for entry in sys.path if ray not in (Path(entry), *Path(entry).parents)]


def _device(device: Device) -> Device:
    if device.kind == "cpu":
        return device
    gpus = find_gpus(os.environ)
    if not gpus:
        mask = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        raise WorkerError(f"Ray has given a worker the GPU '{mask}' of this node, and the driver knows none there")
    return gpus[0]


def _node() -> str:
    """Describe the node that this process is on."""
    if (ray := sys.modules.get("ray")) is None:  # a test's setting
        return ""
    return f"node {ray.get_runtime_context().get_node_id()[:8]} ({ray.util.get_node_ip_address()})"


# -- the cluster -------------------------------------------------------------------------------------------------


@dataclass
class RaySite:
    """Ray cluster on which the workers of a pool live.

    Attributes:
        settings: Address and settings of the cluster.
        resources: Ray resources of each slot.
        devices: Device of each slot, so that those of a multi-GPU job are on one node; others may come later.
        together: Whether there are multi-GPU jobs; then the slots of a node form a placement group.
        ray: The Ray library, once the site is open.
    """

    settings: RayConfig
    resources: Mapping[str, float]
    devices: Sequence[Device]
    together: bool = False
    ray: Any = None
    _actors: dict[int, Any] = field(default_factory=dict)
    _groups: dict[int, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> None:
        """Join the cluster.

        Raises:
            WorkerError: Joining failed; the message says why.
        """
        self.ray = join(self.settings)

    def actor(self, index: int, settings: dict[str, Any]) -> tuple[Any, bool]:
        """Return the actor of a slot, and whether it is new: then it may have to wait for its resources."""
        with self._lock:
            if is_new := index not in self._actors:
                options = {_OPTIONS[name]: value for name, value in self.resources.items() if name in _OPTIONS}
                others = {name: value for name, value in self.resources.items() if name not in _OPTIONS}
                made = self.ray.remote(
                    max_restarts=0,
                    max_task_retries=0,
                    concurrency_groups={POLLS: 1},
                    **{"num_cpus": 0, "num_gpus": 0, **options},
                    resources=others,
                    **self._within(index),
                )(Host)
                self._actors[index] = made.remote(settings)
            return self._actors[index], is_new

    def _within(self, index: int) -> dict[str, Any]:
        if not self.together:
            return {}
        nodes, util = [device.node for device in self.devices], importlib.import_module("ray.util")
        if (node := nodes[index]) not in self._groups:
            bundles = [dict(self.resources)] * nodes.count(node)
            self._groups[node] = util.placement_group(bundles, strategy="STRICT_PACK")
        strategy = importlib.import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        bundle = nodes[:index].count(node)
        return {"scheduling_strategy": strategy(self._groups[node], placement_group_bundle_index=bundle)}

    def drop(self, index: int, actor: Any) -> None:
        """End an actor, or what is left of it; a new one is created on request."""
        with self._lock:
            if self._actors.get(index) is actor:
                del self._actors[index]
        with suppress(Exception):  # Ray has many kinds of errors for actors that are already gone
            self.ray.kill(actor)

    def release(self, index: int, actor: Any) -> None:
        """Let others have the resources of a slot; those of a placement group once its last slot is released."""
        self.drop(index, actor)
        node = self.devices[index].node
        with self._lock:
            in_use = any(self.devices[other].node == node for other in self._actors)
            group = None if in_use else self._groups.pop(node, None)
        if group is not None:
            _remove(group)

    def __exit__(self, *_: object) -> None:
        """End everything that this engine has on the cluster."""
        leaving = threading.Thread(target=self._leave, name="ray shutdown", daemon=True)
        leaving.start()
        leaving.join(_SHUTDOWN_S)
        if leaving.is_alive():
            atexit.unregister(self.ray.shutdown)  # which would wait equally long again

    def _leave(self) -> None:
        for index, actor in list(self._actors.items()):
            self.drop(index, actor)
        for group in self._groups.values():
            _remove(group)
        self._groups.clear()
        with suppress(Exception):
            self.ray.shutdown()


def _remove(group: Any) -> None:
    with suppress(Exception):  # as in `drop`
        importlib.import_module("ray.util").remove_placement_group(group)


def library() -> Any:
    """Import Ray, which reads its environment once, at import.

    Raises:
        WorkerError: It is not installed.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise WorkerError(f"execution.backend=ray needs Ray, which cannot be imported: {error}") from error


def endpoint_of(address: str) -> tuple[str, int] | None:
    """Return host and port from `execution.ray.address`, as far as it gives both."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:  # not a valid port
        return None


def join(settings: RayConfig) -> Any:
    """Connect to an existing cluster as a driver, unless this process is one already; return the Ray library.

    Raises:
        WorkerError: There is no cluster, or it needs another token.
    """
    ray, address = library(), settings.address
    if ray.is_initialized():
        return ray
    env = dict(settings.runtime_env)
    paths = [str(Path(pipeline.__file__).parents[1]), *filter(None, [env.get("env_vars", {}).get("PYTHONPATH")])]
    env["env_vars"] = {**env.get("env_vars", {}), "PYTHONPATH": os.pathsep.join(paths)}
    try:
        if endpoint := endpoint_of(address):  # Ray would wait there for minutes, ignoring Ctrl-C
            socket.create_connection(endpoint, _CONNECT_S).close()
        with _own_signals():
            ray.init(
                address=address,
                namespace=f"pipeline-{secrets.token_hex(8)}",
                runtime_env=env,
                log_to_driver=False,
                configure_logging=False,
            )
    except Exception as error:  # Ray has no common class of errors for this
        why = " ".join(str(error).split())[:500] or type(error).__name__
        raise WorkerError(
            f"execution.ray.address={address}: Ray cannot be joined there ({why}). See that the address is right "
            f"and that {RAY_TOKEN}, or ~/.ray/auth_token, is the token of that cluster"
        ) from error
    return ray


def places_of(there: Mapping[str, float], taken: Mapping[str, float]) -> int:
    """Return how many workers fit on a node."""
    return min((int(there.get(name, 0) / amount) for name, amount in taken.items() if amount), default=0)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore our signal handlers: Ray installs one for SIGTERM that would end the engine at once."""
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
    """Say how a worker was lost, and whether its machine was, so that neither job nor device is at fault.

    Jobs run in a child process of the actor, and the actor reports its end. A job does not cause the end of the
    actor.

    Args:
        error: The exception of a call to its actor.
    """
    text = str(error).strip()
    if getattr(error, "actor_init_failed", False):
        last = text.splitlines()[-1].strip()  # an exception of the constructor
        return f"its node cannot serve: {last.partition('WorkerError: ')[2] or last}", False
    return f"Ray has lost its actor or node: {' '.join(text.split())[:300] or type(error).__name__}", True


class RayWorker(Worker):
    """A worker process owned by an actor of a Ray cluster."""

    def __init__(self, index: int, site: RaySite, settings: Mapping[str, Any]) -> None:
        """Describe a worker.

        Args:
            index: Index of its slot in the pool.
            site: The cluster.
            settings: Settings of its host.
        """
        super().__init__(index)
        self._site = site
        self._settings = dict(settings)
        self._life = next(_lives)
        self._actor: Any = None
        self._up = self._over = self._unwanted = False
        self._reading, self._writing = -1, -1
        self._inbox: deque[messages.FromWorker] = deque()
        self._pipe = threading.Lock()
        self._words = ""
        self._kill: threading.Timer | None = None

    def start(self) -> None:
        """Create an actor and have it start a process, without waiting for either."""
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        os.set_blocking(self._reading, False)
        self._actor, is_new = self._site.actor(self.index, self._settings)
        if is_new:
            self._tell(messages.WorkerWaits())
        threading.Thread(target=self._follow, name=f"ray worker {self.index}", daemon=True).start()

    # -- its own thread ----------------------------------------------------------------------------------------

    def _follow(self) -> None:
        try:
            self._answer("begin")
            self._up = True
            if self._unwanted:
                self._act("kill")
            news: list[messages.FromWorker] = []
            while not _is_over(news):
                news, self._words = self._answer("poll")
                self._tell(*news)
        except Exception as error:  # Ray's own errors share no base class with those of the network below it
            self._site.drop(self.index, self._actor)
            how, elsewhere = loss_of(error)
            self._words = "".join(f"\n    {line}" for line in str(error).strip().splitlines()[-15:])
            self._tell(messages.WorkerExited(exit_code=None, how=how, elsewhere=elsewhere))

    def _tell(self, *news: messages.FromWorker) -> None:
        with self._pipe:
            self._inbox.extend(news)
            if news and not self._over:
                with suppress(BlockingIOError):  # the pipe is full, so it is already readable
                    os.write(self._writing, b".")

    # -- the pool's thread -------------------------------------------------------------------------------------

    def send(self, job: messages.RunJob) -> None:
        """Send a job; a failure shows in the calls that wait for answers."""
        self._act("send", job)

    def sources(self) -> Sequence[int]:
        """Return the descriptor that becomes readable when messages have arrived."""
        return [] if self._reading < 0 else [self._reading]

    def receive(self, deliver: Deliver) -> None:
        """Deliver the messages that have arrived."""
        with suppress(BlockingIOError):
            os.read(self._reading, 1 << 12)
        while self._inbox and not self._over:
            message = self._inbox.popleft()
            if isinstance(message, messages.WorkerExited):
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
        """Have the process write its stacks to the job's log."""
        self._act("show_stacks")

    def ask_to_stop(self) -> None:
        """Send `Shutdown`; if no node has started the worker yet, end it at once."""
        if self._up:
            self._act("ask_to_stop")
        else:
            self.kill()

    def terminate(self) -> None:
        """Send SIGTERM to the process and its group."""
        self._act("terminate")

    def kill(self) -> None:
        """Send SIGKILL to the process and its group; without an answer, end the actor with all its processes."""
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
        # If no node has started it yet, or none answers, nobody would ever see its end.
        self._tell(messages.WorkerExited(exit_code=None, how="its actor was given up", elsewhere=True))

    def release(self) -> None:
        """End the actor, so that Ray gives its resources to others."""
        self._site.release(self.index, self._actor)

    def last_words(self) -> str:
        """Return the end of the worker's own log, or what Ray says of its actor."""
        return self._words

    # -- calls -------------------------------------------------------------------------------------------------

    def _act(self, action: str, *words: Any) -> None:
        with suppress(Exception):  # as above: the thread that waits for answers reports it
            self._actor.act.remote(self._life, action, *words)

    def _answer(self, method: str) -> Any:
        return self._site.ray.get(getattr(self._actor, method).remote(self._life))


# -- backend -----------------------------------------------------------------------------------------------------
# What a run may ask of a Ray cluster, the devices of the cluster, and the pool on them.


def check_address(settings: RayConfig) -> None:
    """Refuse an address that cannot be a Ray address.

    Raises:
        ConfigError: The address is invalid.
    """
    if settings.address != AUTO and endpoint_of(settings.address) is None:
        raise ConfigError(f"execution.ray.address={settings.address}: must be auto, host:port or ray://host:port")


def check_environment(settings: RayConfig) -> None:
    """Have the installed Ray check the environment of workers, without a cluster.

    Raises:
        ConfigError: Ray refuses it, or does not know one of its keys.
        WorkerError: Ray cannot be imported.
    """
    if not (runtime_env := settings.runtime_env):
        return
    library()
    made: Any = importlib.import_module("ray.runtime_env").RuntimeEnv
    try:
        made(**runtime_env)
    except Exception as error:  # any exception of Ray's checks
        why = " ".join(str(error).split())[:300]
        raise ConfigError(f"execution.ray.runtime_env={runtime_env}: Ray says: {why}") from error
    names = {name.lstrip("_") for name in made.known_fields} | set(made.known_fields)
    # Ray accepts any name. A plugin has a key of its own, which only the nodes know.
    if (unknown := sorted(set(runtime_env) - names)) and not os.environ.get("RAY_RUNTIME_ENV_PLUGINS"):
        raise ConfigError(
            f"execution.ray.runtime_env.{unknown[0]}: Ray has no such setting. Known: {sorted(names)}"
        )


def cluster_devices(
    choice: DeviceChoice, execution: ExecutionConfig, threads: int, num_gpus: int | None
) -> list[Device]:
    """Return one device for each worker. Afterwards this process is a driver of the cluster.

    Args:
        choice: Kind of device.
        execution: The cluster, the number of workers, and the resources of each.
        threads: Threads of a worker on a CPU slot.
        num_gpus: Number of GPUs; all if None.

    Raises:
        WorkerError: The cluster cannot be reached.
        DeviceError: The cluster lacks the resources of a worker.
    """
    ray = join(execution.ray)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    gpus = _find_gpus(ray, nodes) if choice is not DeviceChoice.cpu else []
    if choice is DeviceChoice.cuda and not gpus:
        raise DeviceError("device=cuda: no node of the Ray cluster has a GPU that its driver knows")
    taken = _taken(execution.ray, threads, gpus=bool(gpus))
    if not (counts := room_of(nodes, taken)):
        raise DeviceError(
            f"no node of the Ray cluster has what a worker takes, {taken}; they have "
            f"{[{name: node['Resources'].get(name, 0) for name in taken} for node in nodes]}. See "
            "execution.ray.resources"
        )
    number = execution.workers or num_gpus or sum(counts)
    # All GPUs count as the smallest one, as Ray decides which of them a worker gets.
    least = min(gpus, key=lambda gpu: gpu.memory_total_bytes, default=cpu_slots(1)[0])
    like = replace(least, uuid=None, slice_index=None)
    return [replace(like, index=index, node=node) for index, node in enumerate(nodes_of(counts, number))]


def _taken(settings: RayConfig, threads: int, *, gpus: bool) -> Mapping[str, float]:
    """Return the Ray resources that each worker takes."""
    return settings.resources or ({"GPU": 1.0} if gpus else {"CPU": float(threads)})


def room_of(nodes: Sequence[Mapping[str, Any]], taken: Mapping[str, float]) -> list[int]:
    """Return how many workers each node has room for, whoever uses it now, without nodes that have none."""
    return [count for node in nodes if (count := places_of(node["Resources"], taken))]


def check_room(
    execution: ExecutionConfig, threads: int, devices: Sequence[Device], begun: Sequence[Device], *, together: bool
) -> None:
    """Refuse devices that a cluster cannot have, however long one waits.

    Args:
        execution: The cluster, and the resources of a worker.
        threads: Threads of a worker on a CPU slot.
        devices: All that a run is to have.
        begun: Those that it began with, which nodes to come may have.
        together: Whether devices of one node number must be on one node.

    Raises:
        DeviceError: The cluster lacks room for them.
    """
    taken = _taken(execution.ray, threads, gpus=begun[0].kind == "cuda")
    counts = room_of([node for node in join(execution.ray).nodes() if node["Alive"]], taken)
    if len(devices) > max(sum(counts), len(begun)):
        raise DeviceError(
            f"the run would have {len(devices)} devices of {dict(taken)}, and the Ray cluster has room for "
            f"{sum(counts)} in all"
        )
    of_node = Counter(device.node for device in devices)
    most = max([*counts, *Counter(device.node for device in begun).values()])
    if together and max(of_node.values()) > most:
        raise DeviceError(
            "devices that come at once are on one node, as this run has jobs of several, and no node of the Ray "
            f"cluster has room for more than {most}"
        )


def nodes_of(counts: Sequence[int], number: int) -> list[int]:
    """Return the node of each worker, large nodes first; nodes that may join count as large as the largest."""
    sizes = sorted(counts, reverse=True)
    nodes: list[int] = []
    while len(nodes) < number:
        node = nodes[-1] + 1 if nodes else 0
        size = sizes[node] if node < len(sizes) else sizes[0]
        nodes += [node] * min(size, number - len(nodes))
    return nodes


def _find_gpus(ray: Any, nodes: Sequence[Mapping[str, Any]]) -> list[Device]:
    """Query the drivers of the nodes for their GPUs; Ray does not know how much memory a GPU has."""
    strategy = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    ask = ray.remote(num_cpus=0, num_gpus=0, max_retries=0)(_gpus_here)
    probes = [
        ask.options(scheduling_strategy=strategy(node["NodeID"], soft=False)).remote()
        for node in nodes
        if node["Resources"].get("GPU")
    ]
    try:
        gpus = [gpu for answer in ray.get(probes, timeout=_PROBE_S) for gpu in json.loads(answer)]
    except Exception as error:  # as in `join`
        raise WorkerError(f"the nodes of the Ray cluster do not tell their GPUs: {error}") from error
    return [converted(gpu, Device) for gpu in gpus]


def _gpus_here() -> str:
    return json.dumps([asdict(device) for device in read_machine().devices.values()])


def ray_pool(
    execution: ExecutionConfig,
    devices: Sequence[Device],
    settings: ProcessSettings,
    width: int = 1,
) -> Pool:
    """Return the pool of a run; nothing starts yet.

    Args:
        execution: The cluster, and deadlines.
        devices: One device for each worker; those that come later are appended.
        settings: Common settings of the worker processes.
        width: Number of devices of the widest job.
    """
    ray = execution.ray
    taken = _taken(ray, settings.threads, gpus=devices[0].kind == "cuda")
    site = RaySite(ray, taken, devices, together=width > 1)
    host = HostSettings(
        **asdict(settings),
        device=devices[0],
        start_timeout_s=execution.start_timeout_s,
        sys_path=search_path(),
        folder="" if "working_dir" in ray.runtime_env else str(Path.cwd()),
        version=pipeline.__version__,
    )

    def make(index: int, _reaper: Reaper) -> RayWorker:
        return RayWorker(index, site, asdict(replace(host, device=devices[index])))

    return Pool(make, len(devices), start_timeout_s=None, stop_grace_s=execution.stop_grace_s, site=site)
