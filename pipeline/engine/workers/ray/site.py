"""A Ray cluster as the engine uses it: joined or started, watched, with one actor for each place of the pool.

Ray decides on which node an actor lives; it starts none of them anew, as what is tried again is decided here.
Actors belong to the job that the engine is to Ray, so they end with it, whatever becomes of it. What the engine
cannot do without is looked at by a thread: Ray's library says nothing of it, and ends the engine after a minute.

local     the head (GCS) and the one node (raylet): nothing starts them again, so the first refusal is the end
cluster   the head, which others may start again: Ray waits a minute for it, and this half as long

A head that takes connections and says nothing, as one that is stopped, is waited for: what runs does not need it.
"""

from __future__ import annotations

import errno
import importlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from pipeline.config.schema import AUTO, CLIENT, LOCAL, RayConfig
from pipeline.engine.workers.ray.host import POLLS, RAY_TOKEN, Host
from pipeline.engine.workers.reaper import Reaper
from pipeline.errors import WorkerError
from pipeline.machine import descendants

_OBJECT_STORE_BYTES = 80 << 20
"""Messages are small and are never put there: the least that Ray takes, which it sets aside in memory."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_ANSWER_S = 2.0
_CONNECT_S = 5.0
_LOOK_S = 2.0
_SILENT_S = 8.0
"""So long a head may say nothing before anybody is told: a busy machine may keep it from answering."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How HTTP/2 begins, which all of Ray's servers speak: they tell their settings before they ask for a token."""
_RAY_WAITS = "RAY_gcs_rpc_server_reconnect_timeout_s"
_OWN = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""What this machine lacks itself, which says nothing of another."""
_NODES_S = 3.0
"""How often it is asked which nodes there are, where more may join."""
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass
class RaySite:
    """Where the workers of a pool live.

    Attributes:
        settings: Which cluster.
        resources: What each place takes of it.
        nodes: Of each place, the node on which the devices of a job are to lie together.
        together: Whether there are such jobs: then the places of a node are a placement group.
        joining: How many places, the last ones, nobody asks Ray for before nodes have joined that have room.
        visible: GPUs of this machine that a cluster started here may use, as CUDA_VISIBLE_DEVICES names them.
    """

    settings: RayConfig
    resources: Mapping[str, float]
    nodes: Sequence[int]
    together: bool = False
    joining: int = 0
    visible: Sequence[str] = ()
    _ray: Any = None
    _joined: bool = False
    _actors: dict[int, Any] = field(default_factory=dict)
    _groups: dict[int, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _joined_more: threading.Condition = field(default_factory=threading.Condition)
    _present: int = 0
    _closed: threading.Event = field(default_factory=threading.Event)
    _folder: Path | None = None
    _reaper: Reaper | None = None
    _watch: Watch | None = None
    _processes: set[descendants.Process] = field(default_factory=set)

    def open(self, reaper: Reaper) -> None:
        """Join the cluster, or start one.

        Raises:
            WorkerError: That fails, in words.
        """
        self._reaper = reaper
        self._ray = library(self.settings)
        try:
            with _own_signals():
                if self.settings.address == LOCAL:
                    self._start_local()
                else:
                    join(self._ray, self.settings)
                self._joined = True
                _quieten()
                self._watch = Watch(self._ray, self.settings.address)
                threading.Thread(target=self._watch.keep_looking, name="ray watch", daemon=True).start()
                self._present = len(self.nodes) - self.joining
                if self.joining:
                    threading.Thread(target=self._watch_nodes, name="ray nodes", daemon=True).start()
        except Exception as error:
            self.close()
            raise cannot_join(self.settings.address, error) from error

    def _start_local(self) -> None:
        # Sockets lie in it, whose paths may have some hundred characters; TMPDIR may be long.
        self._folder = Path(tempfile.mkdtemp(prefix="ppl-ray-", dir="/tmp"))
        if self._reaper:
            self._reaper.watch_path(self._folder)
        total = {name: value * len(self.nodes) for name, value in self.resources.items()}
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(self.visible)} if self.visible else {}
        before = descendants.below(os.getpid())
        # As on systems where it knows no clusters: else Ray listens at all interfaces, whatever it is told.
        constants = "ray._private.ray_constants.ENABLE_RAY_CLUSTER"
        with patch.dict(os.environ, seen), patch(constants, new=False):
            self._ray.init(
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
        # What Ray's own processes have started outlasts them by a minute, and a head that is gone ends nobody.
        self._processes = descendants.below(os.getpid()) - before
        if self._reaper:
            self._reaper.watch_processes(self._processes)

    @property
    def lost(self) -> str:
        """Why no worker can live here any more, in words, or ""."""
        return self._watch.lost if self._watch else ""

    @property
    def notice(self) -> str:
        """That the cluster says nothing, in a line for a screen, or ""."""
        return self._watch.notice if self._watch else ""

    def _watch_nodes(self) -> None:
        while not self._closed.wait(_NODES_S):
            with suppress(Exception):  # Ray has errors of many kinds for a head that is away for a moment
                room = sum(
                    places_of(one["Resources"], self.resources) for one in self._ray.nodes() if one["Alive"]
                )
                with self._joined_more:
                    self._present = present_with(self.nodes, self._present, room, whole=self.together)
                    self._joined_more.notify_all()

    def has_node(self, place: int, wait_s: float = 0.0) -> bool:
        """Whether a place is one that Ray can be asked for, waited for so long at most."""
        with self._joined_more:
            return self._joined_more.wait_for(lambda: place < self._present, wait_s)

    def _group(self, node: int) -> Any:
        """The places of a node, asked for as one, which Ray puts on one machine once there is such a machine."""
        util = importlib.import_module("ray.util")
        known = self._groups.get(node)
        # Hosts that have not heard of this engine for long have given it back.
        if known is None or util.placement_group_table(known).get("state") == "REMOVED":
            bundles = [dict(self.resources)] * self.nodes.count(node)
            self._groups[node] = util.placement_group(bundles, strategy="STRICT_PACK")
        return self._groups[node]

    @property
    def ray(self) -> Any:
        """The library, once the site is open."""
        return self._ray

    def actor(self, place: int, told: dict[str, Any]) -> Any:
        """The actor of a place, which may have to wait until the cluster has what it takes."""
        with self._lock:
            if place not in self._actors:
                options = {_OPTIONS[name]: value for name, value in self.resources.items() if name in _OPTIONS}
                others = {name: value for name, value in self.resources.items() if name not in _OPTIONS}
                made = self._ray.remote(
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
        group = self._group(self.nodes[place])
        strategy = importlib.import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        bundle = list(self.nodes[:place]).count(self.nodes[place])
        return {"scheduling_strategy": strategy(group, placement_group_bundle_index=bundle)}

    def drop(self, place: int, actor: Any) -> None:
        """End an actor, or what is left of it; another takes its place when one is asked for."""
        with self._lock:
            if self._actors.get(place) is actor:
                del self._actors[place]
        if self.lost:  # what is asked of Ray now is waited for in vain
            return
        with suppress(Exception):  # Ray has errors of many kinds for what is gone already
            self._ray.kill(actor)

    def why_lost(self, node: str) -> str:
        """How a node was lost, in words, or "" where it seems to be there. It is asked rather than Ray.

        Ray takes a node for lost a quarter of a minute after its raylet has ended, and the actors have by then.

        Args:
            node: Its id.
        """
        try:
            found = next((one for one in self._ray.nodes() if one["NodeID"] == node), None)
        except Exception:  # Ray has errors of many kinds for a head that is gone
            return ""
        if found is None or not found["Alive"]:
            return "its node was lost"
        if self.settings.address.startswith(CLIENT):
            return ""  # nodes may be out of reach from here, and well
        try:
            with socket.create_connection((found["NodeManagerAddress"], found["NodeManagerPort"]), _ANSWER_S):
                return ""
        except OSError:
            return "its node was lost: the raylet there, Ray's own process, takes no connections"

    def close(self) -> None:
        """End what this engine has on the cluster; one that was started here ends."""
        self._closed.set()
        if self._watch:
            self._watch.closed.set()
            self._watch.look()
        if self._watch is not None and self._watch.is_silent:
            _ask_nothing()
        else:
            self._give_back()
        if self._joined:
            with _own_signals(), suppress(Exception):
                self._ray.shutdown()
            self._joined = False
        descendants.end(lambda: descendants.alive(self._processes))
        if self._reaper:
            self._reaper.forget_processes(self._processes)
        self._processes = set()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._reaper:
                self._reaper.forget_path(self._folder)
            self._folder = None

    def _give_back(self) -> None:
        for place, actor in list(self._actors.items()):
            self.drop(place, actor)
        for group in () if self.lost else self._groups.values():
            with suppress(Exception):  # as in `drop`
                importlib.import_module("ray.util").remove_placement_group(group)
        self._groups.clear()


def _ask_nothing() -> None:
    """Have Ray let go of its cluster without taking leave of the head, for whose answer it would wait for ever."""
    worker: Any = importlib.import_module("ray._private.worker").global_worker
    for name in ("gcs_error_subscriber", "gcs_log_subscriber", "listener_thread", "logger_thread"):
        vars(worker).pop(name, None)


def _quieten() -> None:
    """Ray tells on the terminal of workers that died, whatever it was told of logs; the engine tells it itself."""
    module: Any = importlib.import_module("ray._private.worker")
    if hasattr(module, "print_to_stdstream"):
        module.print_to_stdstream = lambda *_, **__: None


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
        WorkerError: Nothing answers there. Ray's library would wait for minutes, deaf to Ctrl-C.
    """
    if ray.is_initialized():
        return
    address = (os.environ.get("RAY_ADDRESS") or AUTO) if settings.address == AUTO else settings.address
    if "://" not in address:  # this machine's last one for `auto`, its own address for loopback
        address = importlib.import_module("ray._private.services").canonicalize_bootstrap_address(address)
    if (endpoint := endpoint_of(str(address))) is not None:
        try:
            with socket.create_connection(endpoint, _CONNECT_S) as connection:
                if not _answers(connection, _CONNECT_S):
                    raise TimeoutError("what is there does not answer as Ray does")
        except OSError as error:
            raise WorkerError(f"{address}: {error.strerror or error}") from error
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


def present_with(nodes: Sequence[int], present: int, room: int, *, whole: bool) -> int:
    """How many places can be asked for now, of which earlier ones were already.

    Args:
        nodes: Of each place, its node.
        present: How many could before.
        room: How many find room in the cluster as it is.
        whole: Whether the places of a node come together or not at all.
    """
    while present < len(nodes):
        size = nodes[present:].count(nodes[present]) if whole else 1
        if present + size > room:
            break
        present += size
    return present


class Watch:
    """Looks at what a run cannot do without, which takes connections as long as it is there.

    Attributes:
        lost: What has ended, in words, or "".
        is_silent: Whether something that is there did not answer when it was looked at last.
        closed: Set when nothing is to be looked at any more.
    """

    def __init__(self, ray: Any, address: str) -> None:
        """Describe a watch; nothing is looked at yet.

        Args:
            ray: The library, of which this process is a driver.
            address: As `execution.ray.address`.
        """
        self.lost, self.is_silent, self.closed = "", False, threading.Event()
        head = endpoint_of(address if address.startswith(CLIENT) else ray.get_runtime_context().gcs_address)
        self._needed = {"its head": head} if head else {}
        self._patience_s = 0.0
        if address == LOCAL:
            for node in ray.nodes():
                self._needed["its raylet"] = node["NodeManagerAddress"], node["NodeManagerPort"]
        else:  # the half of what Ray takes before it ends this process
            self._patience_s = float(os.environ.get(_RAY_WAITS) or 60) / 2
        self._there_s = dict.fromkeys(self._needed, time.monotonic())
        self._answered_s = time.monotonic()

    def keep_looking(self) -> None:
        """Look until something is lost, or it is closed."""
        while not self.lost and not self.closed.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Look once."""
        silent = False
        for name, endpoint in self._needed.items():
            try:
                with socket.create_connection(endpoint, _ANSWER_S) as connection:
                    self._there_s[name] = time.monotonic()
                    silent |= not _answers(connection, _ANSWER_S)
            except OSError as error:
                away_s = time.monotonic() - self._there_s[name]
                patient = error.errno not in _OWN and away_s >= self._patience_s
                if patient if self._patience_s else isinstance(error, ConnectionRefusedError):
                    self.lost = f"Ray is lost: {name} takes no connections at {endpoint[0]}:{endpoint[1]}"
        self.is_silent = silent
        if not silent:
            self._answered_s = time.monotonic()

    @property
    def notice(self) -> str:
        """That something has said nothing for a while, in a line for a screen; else ""."""
        if not self.is_silent or time.monotonic() - self._answered_s < _SILENT_S:
            return ""
        return "Ray does not answer: what runs goes on, and workers of a machine that is lost are not replaced"


def _answers(connection: socket.socket, within_s: float) -> bool:
    """Whether what has taken a connection says something in time."""
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return True  # certificates are Ray's to read
    try:
        connection.settimeout(within_s)
        connection.sendall(_HELLO)
        connection.recv(1)
    except TimeoutError:
        return False
    except OSError:  # it is ending, as the next look is going to find
        pass
    return True


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
