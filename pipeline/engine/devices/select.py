"""Which devices a run uses: GPUs one per worker, else CPU slots; looked at, or leased."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.config.schema import DeviceChoice, DistributedConfig
from pipeline.engine.devices.inventory import (
    NOTHING,
    VISIBLE,
    Device,
    GpuUsage,
    Machine,
    cpu_slots,
    read_machine,
    usable_cores,
    visible_gpus,
)
from pipeline.engine.devices.lease import LeaseSet
from pipeline.errors import DeviceError
from pipeline.machine.memory import memory_available_bytes

# -- resolve -----------------------------------------------------------------------------------------------------
# From what was asked for to devices, within what the environment shows. Numbers of GPUs are positions in the
# visible set, as torch counts them: with CUDA_VISIBLE_DEVICES=4,5,6,7 the ids 0 and 2 are the machine's GPUs
# 4 and 6.


# -- ranking -----------------------------------------------------------------------------------------------------
# The best GPUs for a job among several: filters first, then an order. A pure function over what NVML said.
# The order is nvitop's: most free memory, lowest utilisation, highest number, which leaves GPU 0 to people.


_ALIKE_BYTES = 2**30
"""GPUs whose free memory differs by less are equally free: a display takes some MB of one of them."""


def rank(devices: Sequence[Device], usage: Mapping[str, GpuUsage]) -> list[Device]:
    """All of them, the best first."""
    places = {device: place for place, device in enumerate(devices)}

    def badness(device: Device) -> tuple[int, int, int]:
        use = usage[device.uuid or ""]
        return (-(use.free_bytes // _ALIKE_BYTES), use.utilization or 0, -places[device])

    return sorted(devices, key=badness)


def pick(
    devices: Sequence[Device], usage: Mapping[str, GpuUsage], count: int | None = None, min_free_bytes: int = 0
) -> list[Device]:
    """Choose the best GPUs.

    Args:
        devices: To choose from, in the order in which they are numbered.
        usage: UUID -> what it is doing.
        count: How many; None takes all that pass.
        min_free_bytes: Memory that must be free.

    Returns:
        The chosen ones in the order of `devices`.

    Raises:
        DeviceError: Fewer pass than `count`, or none.
    """
    free = {device: usage[device.uuid or ""].free_bytes for device in devices}
    passing = [device for device in rank(devices, usage) if free[device] >= min_free_bytes]
    wanted = 1 if count is None else count
    if len(passing) < wanted:
        seen = ", ".join(f"{device.label} has {free[device] / 2**30:.1f} GiB free" for device in devices)
        raise DeviceError(
            f"{wanted} GPU{'s' if wanted != 1 else ''} asked for, but {len(passing)} of {len(devices)} will do"
            + (f": {seen}" if seen else "")
            + ". Ask for fewer, or for less of each; `python -m pipeline gpus` shows all."
        )
    return [device for device in devices if device in passing[:count]]


WORKER_MEMORY_BYTES = int(0.7 * 2**30)
"""What a CPU worker takes once torch and transformers are imported and a small model is loaded."""


@dataclass(frozen=True, kw_only=True)
class DeviceRequest:
    """What is asked for; a field that leaves it open is None.

    Attributes:
        device: Which kind; `auto` is GPUs where there are any.
        num_gpus: How many GPUs.
        gpu_ids: Exactly these, as positions in the visible set.
        names: How the user knows `num_gpus` and `gpu_ids`, for messages.
        without: What the user says for a run without GPUs, for messages.
    """

    device: DeviceChoice = DeviceChoice.auto
    num_gpus: int | None = None
    gpu_ids: Sequence[int] | None = None
    names: tuple[str, str] = ("num_gpus", "gpu_ids")
    without: str = "device=cpu"


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Devices that would do, the best first, and how many of them are wanted.

    Attributes:
        devices: In order of preference.
        count: How many of them.
        order: The visible set, in whose order those that are chosen go to workers.
    """

    devices: tuple[Device, ...]
    count: int
    order: tuple[Device, ...]

    def best(self) -> list[Device]:
        """Those that one would take if all were free."""
        return self.sorted(self.devices[: self.count])

    def sorted(self, devices: Sequence[Device]) -> list[Device]:
        """Devices in the order in which the environment lists them."""
        return sorted(devices, key=self.order.index)


def candidates(
    request: DeviceRequest,
    environment: Mapping[str, str],
    *,
    workers: int | None = None,
) -> Candidates:
    """The devices of a run, one per worker, and what would do as well: another run may hold some of the best.

    Args:
        request: What is asked for.
        environment: Where CUDA_VISIBLE_DEVICES is looked up.
        workers: How many workers are wanted; None for one on each device.

    Raises:
        DeviceError: The request cannot be met; says what was asked for and what there is.
    """
    if workers is not None and workers < 1:
        raise DeviceError(f"execution.workers={workers}: at least one worker is needed")
    _check_numbers(request)
    wants_gpus = request.num_gpus is not None or request.gpu_ids is not None
    if request.device is DeviceChoice.cpu:
        return _slots(workers)
    hidden = environment.get(VISIBLE, "0").strip() in NOTHING
    machine = Machine() if hidden else read_machine()
    visible = [] if hidden else visible_gpus(machine, environment)
    if not visible:
        if wants_gpus or request.device is DeviceChoice.cuda:
            raise DeviceError(_no_gpu(request, environment))
        return _slots(workers)
    return _gpus(request, visible, machine.usage, environment, workers)


def _gpus(
    request: DeviceRequest,
    visible: Sequence[Device],
    usage: Mapping[str, GpuUsage],
    environment: Mapping[str, str],
    workers: int | None,
) -> Candidates:
    if request.gpu_ids is not None:
        asked = f"{request.names[1]}={list(request.gpu_ids)}"
        devices = gpus_of_ids(request.gpu_ids, visible, environment, asked)
    else:
        devices = rank(visible, usage)
    wanted = request.num_gpus if request.num_gpus is not None else len(devices)
    if wanted > len(devices):
        raise DeviceError(
            f"{request.names[0]}={wanted}, but there are {len(visible)} usable GPUs: "
            f"{_listed(visible, environment)}. Use {request.names[0]}={len(visible)} or less, or "
            f"{request.without}."
        )
    if workers is not None and workers > wanted:
        raise DeviceError(
            f"execution.workers={workers}, but there are {wanted} usable GPUs and each worker needs one of "
            f"its own. Use execution.workers={wanted} or less, or device=cpu."
        )
    return Candidates(devices=tuple(devices), count=workers or wanted, order=tuple(visible))


def gpus_of_ids(
    ids: Sequence[int], visible: Sequence[Device], environment: Mapping[str, str], asked: str = ""
) -> list[Device]:
    """The GPUs at some positions of the visible set.

    Args:
        ids: The positions.
        visible: The visible set.
        environment: Says whether it is a part of the machine's.
        asked: How messages name what was asked for; ``gpu_ids=[...]`` if left out.

    Raises:
        DeviceError: A position does not exist, or is given twice.
    """
    asked = asked or f"gpu_ids={list(ids)}"
    unknown = sorted({number for number in ids if not 0 <= number < len(visible)})
    if unknown:
        raise DeviceError(
            f"{asked}: there is no GPU {', '.join(map(str, unknown))}. "
            + (f"Ids are {_listed(visible, environment)}." if visible else "This process sees no GPU at all.")
        )
    if len(set(ids)) != len(ids):
        raise DeviceError(f"{asked} names a GPU twice")
    return [visible[number] for number in ids]


def _check_numbers(request: DeviceRequest) -> None:
    count, ids = request.num_gpus, request.gpu_ids
    count_name, ids_name = request.names
    if count is not None and count < 1:
        raise DeviceError(
            f"{count_name}={count}: must be at least 1. For a run without GPUs use {request.without}."
        )
    if ids is not None and not ids:
        raise DeviceError(
            f"{ids_name}=[] names no GPU. For a run without GPUs use {request.without}; null leaves it open."
        )
    if count is not None and ids is not None and count != len(ids):
        raise DeviceError(
            f"{count_name}={count}, but {ids_name}={list(ids)} names {len(ids)}: "
            "make them agree, or give one alone."
        )


def _no_gpu(request: DeviceRequest, environment: Mapping[str, str]) -> str:
    if request.gpu_ids is not None:
        asked = f"{request.names[1]}={list(request.gpu_ids)}"
    elif request.num_gpus is not None:
        asked = f"{request.names[0]}={request.num_gpus}"
    else:
        asked = "device=cuda"
    mask = environment.get(VISIBLE)
    why = "NVML found none" if mask is None else f"{VISIBLE}={mask!r} hides them, or NVML found none"
    return f"{asked}, but there is no usable GPU: {why}. Check `nvidia-smi`, or use {request.without}."


def _listed(visible: Sequence[Device], environment: Mapping[str, str]) -> str:
    if environment.get(VISIBLE) is None and all(gpu.index == place for place, gpu in enumerate(visible)):
        return f"0 to {len(visible) - 1}" if len(visible) > 1 else "0"
    pairs = ", ".join(f"{place} ({gpu.label})" for place, gpu in enumerate(visible))
    return f"{pairs}, counted within what CUDA_VISIBLE_DEVICES shows"


def _slots(count: int | None) -> Candidates:
    """CPU slots: so many, or one per core while the memory lasts."""
    devices = cpu_slots(count or max(1, min(usable_cores(), memory_available_bytes() // WORKER_MEMORY_BYTES)))
    return Candidates(devices=tuple(devices), count=len(devices), order=tuple(devices))


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
    return candidates(asked, os.environ, workers=workers)
