"""What a run may ask of a Ray cluster, what that has for its workers, and the pool of them."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pipeline
from pipeline.config.schema import AUTO, LOCAL, DeviceChoice, ExecutionConfig, RayConfig
from pipeline.engine.devices.inventory import Device, cpu_slots, read_machine
from pipeline.engine.workers.pool import Pool
from pipeline.engine.workers.process import ProcessSettings
from pipeline.engine.workers.ray.host import HostSettings, search_path
from pipeline.engine.workers.ray.site import (
    RaySite,
    RayWorker,
    cannot_join,
    endpoint_of,
    join,
    library,
    places_of,
)
from pipeline.engine.workers.reaper import Reaper
from pipeline.errors import ConfigError, DeviceError
from pipeline.foreign import converted

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
        device=devices[0],
        threads=settings.threads,
        portable=settings.portable,
        heartbeat_s=settings.heartbeat_s,
        log_dir=str(settings.log_dir.absolute()),
        free_timeout_s=settings.free_timeout_s,
        start_timeout_s=execution.start_timeout_s,
        sys_path=search_path(),
        folder="" if "working_dir" in ray.runtime_env else str(Path.cwd()),
        version=pipeline.__version__,
        name_nodes=ray.address != LOCAL,
    )

    def make(index: int, _reaper: Reaper) -> RayWorker:
        return RayWorker(index, site, asdict(replace(told, device=devices[index])))

    return Pool(make, len(devices), start_timeout_s=None, stop_grace_s=execution.stop_grace_s, site=site)
