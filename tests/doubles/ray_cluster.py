"""A Ray cluster of several nodes on this machine: each has a raylet of its own, and as many slots as it says."""

import importlib
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

_LEAST = {"object_store_memory": 80 << 20}


def environment() -> dict[str, str]:
    """What drivers need to join; Ray reads it when it is imported."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_AUTO_CONNECT": "0",
        "RAY_AUTH_MODE": "token",
        # All nodes see the memory of this machine, and what others here take of it is no fault of theirs.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),
    }


@dataclass
class RayCluster:
    """A head that has nothing, and nodes with slots.

    Attributes:
        made: Ray's own object.
        folder: Where its processes write.
    """

    made: Any
    folder: str
    common: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where drivers join."""
        return str(self.made.address)

    @property
    def nodes(self) -> list[Any]:
        """Those that have slots."""
        return list(self.made.worker_nodes)

    def add(self, **resources: float) -> Any:
        """Have a node join."""
        return self.made.add_node(**resources, **self.common)

    def kill_raylet(self, node: Any) -> None:
        """Have Ray's own process of a node killed."""
        os.kill(raylet(node), signal.SIGKILL)

    def processes(self, node: Any) -> list[int]:
        """All that a node runs, its raylet first."""
        family = psutil.Process(raylet(node)).children(recursive=True)
        return [raylet(node), *(process.pid for process in family)]

    def kill_node(self, node: Any) -> None:
        """Have all die at once that is on a node, as when it loses power."""
        for pid in self.processes(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def actors(self, node: Any) -> list[psutil.Process]:
        """Its actors."""
        found = []
        for process in psutil.Process(raylet(node)).children():
            with suppress(psutil.Error):
                if process.cmdline()[:1] == ["ray::Host"] or process.name().startswith("ray::Host"):
                    found.append(process)
        return found


def raylet(node: Any) -> int:
    """The process that is a node to Ray."""
    return int(node.all_processes["raylet"][0].process.pid)


@contextmanager
def ray_cluster(nodes: int, **resources: float) -> Iterator[RayCluster]:
    """A cluster whose nodes have so much each. The environment must be that of `environment` by then."""
    cluster = importlib.import_module("ray.cluster_utils").Cluster
    folder = tempfile.mkdtemp(prefix="ppl-ray-", dir="/tmp")
    Path("/tmp/ray").mkdir(exist_ok=True)  # where it notes its address
    common = {**_LEAST, "temp_dir": folder}
    made = cluster(True, head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, **common})
    found = RayCluster(made, folder, common)
    try:
        for _ in range(nodes):
            found.add(**resources)
        yield found
    finally:
        importlib.import_module("ray").shutdown()  # where this process has joined it as well
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
