"""Which devices a run uses: GPUs one per worker, else CPU slots; looked at, or leased."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from pipeline.config.schema import DeviceChoice, DistributedConfig
from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.lease import LeaseSet
from pipeline.engine.devices.resolve import Candidates, DeviceRequest, Inventory, candidates

_NAMES = ("distributed.num_gpus", "distributed.gpu_ids")


def choose_devices(
    choice: DeviceChoice,
    workers: int | None,
    distributed: DistributedConfig | None = None,
    *,
    cli: DeviceRequest | None = None,
    environ: Mapping[str, str] | None = None,
    inventory: Inventory | None = None,
) -> list[Device]:
    """One device per worker, as a run would get them if no other held any. Nothing is taken.

    Args:
        choice: Which kind.
        workers: How many, or None for every GPU, or for as many CPU slots as cores and memory allow.
        distributed: Which GPUs the configuration asks for.
        cli: What the command line says, which goes before the configuration.
        environ: Where CUDA_VISIBLE_DEVICES is looked up; `os.environ` if None.
        inventory: What there is; this machine if None.

    Raises:
        DeviceError: The request cannot be met.
    """
    return _candidates(choice, workers, distributed, cli, environ, inventory).best()


def lease_devices(
    choice: DeviceChoice,
    workers: int | None,
    distributed: DistributedConfig | None = None,
    *,
    wait: bool = False,
    experiment: str = "",
    cli: DeviceRequest | None = None,
    environ: Mapping[str, str] | None = None,
    inventory: Inventory | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> LeaseSet:
    """One device per worker, held until the lease is given back or this process ends.

    Args:
        choice: As for `choose_devices`, like the others.
        workers: How many.
        distributed: Which GPUs.
        wait: Queue for those that others hold.
        experiment: Whose run this is, for the messages of others.
        cli: What the command line says.
        environ: Environment.
        inventory: What there is.
        on_wait: Told once who is waited for.

    Raises:
        DeviceError: The request cannot be met, or other runs hold what it needs.
    """
    found = _candidates(choice, workers, distributed, cli, environ, inventory)
    lease = LeaseSet.acquire(found.devices, wait=wait, count=found.count, experiment=experiment, on_wait=on_wait)
    lease.devices = found.sorted(lease.devices)
    return lease


def _candidates(
    choice: DeviceChoice,
    workers: int | None,
    distributed: DistributedConfig | None,
    cli: DeviceRequest | None,
    environ: Mapping[str, str] | None,
    inventory: Inventory | None,
) -> Candidates:
    distributed = distributed or DistributedConfig()
    config = DeviceRequest(device=choice, num_gpus=distributed.num_gpus, gpu_ids=distributed.gpu_ids, names=_NAMES)
    return candidates(
        cli or DeviceRequest(),
        config,
        os.environ if environ is None else environ,
        inventory or Inventory(),
        workers=workers,
    )
