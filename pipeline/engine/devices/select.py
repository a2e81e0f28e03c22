"""Which devices a run uses: GPUs one per worker, else CPU slots; looked at, or leased."""

from __future__ import annotations

import os
from collections.abc import Callable

from pipeline.config.schema import DeviceChoice, DistributedConfig
from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.lease import LeaseSet
from pipeline.engine.devices.resolve import Candidates, DeviceRequest, Inventory, candidates


def choose_devices(
    choice: DeviceChoice,
    workers: int | None,
    distributed: DistributedConfig | None = None,
) -> list[Device]:
    """One device per worker, as a run would get them if no other held any. Nothing is taken.

    Args:
        choice: Which kind.
        workers: How many, or None for every GPU, or for as many CPU slots as cores and memory allow.
        distributed: Which GPUs the configuration asks for.

    Raises:
        DeviceError: The request cannot be met.
    """
    return _candidates(choice, workers, distributed).best()


def declared_gpus(
    choice: DeviceChoice, workers: int | None, distributed: DistributedConfig
) -> list[Device] | None:
    """GPUs as the configuration declares them, whatever this machine has; None where it does not.

    Args:
        choice: Which kind.
        workers: How many, or None for every GPU.
        distributed: How many GPUs there are to be, of how much memory.
    """
    asked = distributed.num_gpus or (1 if choice is DeviceChoice.cuda else 0)
    memory_gib = distributed.gpu_memory_gib
    if choice is DeviceChoice.cpu or not asked or memory_gib is None or distributed.ids is not None:
        return None
    if (workers or 1) > asked:
        return None
    name, total = distributed.gpu_name or "GPU", int(memory_gib * 2**30)
    return [
        Device(kind="cuda", index=index, uuid=None, name=name, memory_total_bytes=total)
        for index in range(workers or asked)
    ]


def lease_devices(
    choice: DeviceChoice,
    workers: int | None,
    distributed: DistributedConfig | None = None,
    *,
    wait: bool = False,
    experiment: str = "",
    on_wait: Callable[[str], None] | None = None,
) -> LeaseSet:
    """One device per worker, held until the lease is given back or this process ends.

    Args:
        choice: As for `choose_devices`, like the others.
        workers: How many.
        distributed: Which GPUs.
        wait: Queue for those that others hold.
        experiment: Whose run this is, for the messages of others.
        on_wait: Told once who is waited for.

    Raises:
        DeviceError: The request cannot be met, or other runs hold what it needs.
    """
    found = _candidates(choice, workers, distributed)
    lease = LeaseSet.acquire(found.devices, wait=wait, count=found.count, experiment=experiment, on_wait=on_wait)
    lease.devices = found.sorted(lease.devices)
    return lease


def _candidates(choice: DeviceChoice, workers: int | None, distributed: DistributedConfig | None) -> Candidates:
    distributed = distributed or DistributedConfig()
    ids = "gpu_ids" if distributed.gpu_list is None else "gpu_list"
    asked = DeviceRequest(
        device=choice,
        num_gpus=distributed.num_gpus,
        gpu_ids=distributed.ids,
        names=("distributed.num_gpus", f"distributed.{ids}"),
    )
    return candidates(asked, os.environ, Inventory(), workers=workers)
