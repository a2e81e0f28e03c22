"""What a Ray cluster that is there has for the workers of a run; asked before anything of the run is started."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipeline.config.schema import DeviceChoice, ExecutionConfig
from pipeline.engine.devices.inventory import Device, cpu_slots, read_machine
from pipeline.engine.workers.ray.places import places_of
from pipeline.engine.workers.ray.reach import cannot_join
from pipeline.engine.workers.ray.site import join, library
from pipeline.errors import DeviceError, WorkerError
from pipeline.foreign import converted

_PROBE_S = 120.0


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
    except Exception as error:  # Ray has no common class of errors for this
        raise WorkerError(cannot_join(execution.ray.address, error)) from error
    gpus = _find_gpus(ray, nodes) if choice is not DeviceChoice.cpu else []
    if choice is DeviceChoice.cuda and not gpus:
        raise DeviceError("device=cuda: no node of the Ray cluster has a GPU that its driver knows")
    taken = execution.ray.resources or ({"GPU": 1.0} if gpus else {"CPU": float(threads)})
    counts = [count for node in nodes if (count := places_of(node["Resources"], taken))]
    if not counts:
        total = Counter[str]()
        for node in nodes:
            total.update({name: node["Resources"].get(name, 0) for name in taken})
        raise DeviceError(
            f"no node of the Ray cluster has what a worker takes, {_words(taken)}; all of them have "
            f"{_words(total)}. See execution.ray.resources"
        )
    number = execution.workers or num_gpus or sum(counts)
    like = _smallest(gpus) if gpus else cpu_slots(1)[0]
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
    try:
        told = [found for answer in ray.get(asked, timeout=_PROBE_S) for found in json.loads(answer)]
        return [converted(found, Device) for found in told]
    except Exception as error:
        raise WorkerError(f"the nodes of the Ray cluster do not say which GPUs they have: {error}") from error


def _gpus_here() -> str:
    return json.dumps([asdict(device) for device in read_machine().devices.values()])


def _smallest(gpus: Sequence[Device]) -> Device:
    """What every GPU of the cluster is taken for, as Ray decides which of them a worker gets."""
    least = min(gpus, key=lambda gpu: gpu.memory_total_bytes)
    return replace(least, uuid=None, slice_index=None)


def _words(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in amounts.items())
