"""GPU selection for scripts: plain functions over ids and megabytes. Free of torch.

An id is a position in what CUDA_VISIBLE_DEVICES shows at the moment of the call, as torch counts; it is turned
into a UUID at once. Memory is that of the whole device as NVML sees it, whoever uses it; MB are 2**20 bytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from pipeline.engine.devices import inventory
from pipeline.engine.devices.inventory import Device, GpuUsage, find_gpus, refuse_slices
from pipeline.engine.devices.select import gpus_of_ids, pick, rank
from pipeline.errors import DeviceError
from pipeline.machine.memory import usable_bytes

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "auto_select_gpus_for_model",
    "get_available_gpus",
    "get_gpu_info",
    "get_gpu_memory_usage",
    "get_optimal_device",
    "print_gpu_info",
    "select_gpus",
    "set_visible_gpus",
    "setup_gpu_environment",
]


def _refuse_if_cuda_is_in_use() -> None:
    # CUDA reads its variables once, when it is first touched; after that a change has no effect.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise DeviceError(
            "CUDA is in use in this process, so its GPUs can no longer be chosen: do it before the first CUDA "
            f"call, or set {inventory.VISIBLE} before the program starts"
        )


_MB = 2**20
_GB = 10**9


class GpuInfo(TypedDict):
    """Facts on a GPU from `get_gpu_info`; memory in MB, None for what the driver does not tell."""

    id: int
    index: int
    uuid: str
    name: str
    compute_capability: str | None
    memory_total: int
    memory_used: int
    memory_free: int
    utilization: int | None


def get_available_gpus() -> list[int]:
    """Return the ids of the GPUs that this process may use: ``[0, 1, ...]``, empty without any.

    Raises:
        DeviceError: CUDA_VISIBLE_DEVICES names what does not exist, or the driver does not work.
    """
    return list(range(len(find_gpus())))


def get_gpu_info() -> list[GpuInfo]:
    """Return the description and current use of each GPU.

    Raises:
        DeviceError: As `get_available_gpus`.
    """
    visible, machine = inventory.look()
    return [_info(number, gpu, machine.usage[gpu.uuid or ""]) for number, gpu in enumerate(visible)]


def get_gpu_memory_usage(gpu_id: int) -> tuple[int, int, float]:
    """Memory in use by anyone, all of it, both in MB, and the share in percent.

    Raises:
        DeviceError: There is no such GPU.
    """
    (gpu,) = gpus_of_ids([gpu_id], find_gpus(), os.environ, f"gpu_id={gpu_id}")
    use = inventory.read_usage(gpu)
    return use.used_bytes // _MB, use.total_bytes // _MB, 100 * use.used_bytes / use.total_bytes


def select_gpus(
    gpu_ids: Sequence[int] | None = None,
    num_gpus: int | None = None,
    min_memory_mb: int | None = None,
) -> list[int]:
    """Return the ids of GPUs that meet every condition.

    Args:
        gpu_ids: Choose among these; all of them are taken unless `num_gpus` says fewer.
        num_gpus: Number of GPUs, the idlest first, of equals the highest ids; None for all that pass.
        min_memory_mb: Memory that must be free, whoever takes the rest.

    Returns:
        Ids in rising order, or in that of `gpu_ids`; empty where nothing was asked and there is no GPU.

    Raises:
        DeviceError: Ids that do not exist, or fewer GPUs than asked for. Says what is wrong with each.
    """
    visible, machine = inventory.look()
    among = visible if gpu_ids is None else gpus_of_ids(gpu_ids, visible, os.environ)
    if not visible and num_gpus is None and min_memory_mb is None:
        return []
    chosen = pick(
        among,
        machine.usage,
        count=num_gpus if gpu_ids is None or num_gpus is not None else len(among),
        min_free_bytes=(min_memory_mb or 0) * _MB,
    )
    return [visible.index(gpu) for gpu in chosen]


def set_visible_gpus(gpu_ids: Sequence[int]) -> None:
    """Make CUDA, in this process and those it starts, see these GPUs alone, numbered from 0 in this order.

    Args:
        gpu_ids: Positions in what is visible now; empty hides every GPU.

    Raises:
        DeviceError: Ids that do not exist, CUDA is in use already, or it could not show these together.
    """
    _refuse_if_cuda_is_in_use()
    devices = gpus_of_ids(gpu_ids, find_gpus(), os.environ) if gpu_ids else []
    refuse_slices(devices)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ[inventory.VISIBLE] = ",".join(device.uuid or "" for device in devices)


def get_optimal_device(gpu_ids: Sequence[int] | None = None) -> str:
    """Return the device to compute on, as accepted by ``torch.device`` and ``model.to``.

    Args:
        gpu_ids: Ids given to `set_visible_gpus`. CUDA numbers the GPUs that it shows from 0, so the answer is
            ``cuda:0`` whichever these were. None takes the idlest of all that are visible.
    """
    visible, machine = inventory.look()
    if not visible or (gpu_ids is not None and not gpu_ids):
        return "cpu"
    return "cuda:0" if gpu_ids is not None else f"cuda:{visible.index(rank(visible, machine.usage)[0])}"


def auto_select_gpus_for_model(model_size_gb: float, safety_margin: float = 1.5) -> list[int]:
    """Return the ids of the fewest GPUs that hold a model, the idlest first.

    Args:
        model_size_gb: Memory for everything, in 10**9 bytes. Training with Adam takes 8 to 9 times the 16-bit
            weights; ``python -m pipeline gpus fit`` reckons it from the model's configuration.
        safety_margin: Factor for what comes on top.

    Raises:
        DeviceError: It does not fit even if spread over all of them; says how much is missing.
    """
    visible, machine = inventory.look()
    need = model_size_gb * safety_margin * _GB
    ranked = rank(visible, machine.usage)
    for count in range(1, len(ranked) + 1):
        # Spread evenly, so the fullest of them decides.
        smallest = min(usable_bytes(machine.usage[gpu.uuid or ""].free_bytes) for gpu in ranked[:count])
        if smallest * count >= need:
            return sorted(visible.index(gpu) for gpu in ranked[:count])
    have = sum(usable_bytes(machine.usage[gpu.uuid or ""].free_bytes) for gpu in visible) / _GB
    raise DeviceError(
        f"a model of {model_size_gb:g} GB needs {need / _GB:.0f} GB with a margin of {safety_margin:g}, but "
        f"{len(visible)} GPUs have {have:.0f} GB usable. Free some, offload to the CPU, train adapters (LoRA), or "
        "take a smaller model."
    )


def print_gpu_info(gpu_ids: Sequence[int] | None = None, console: Console | None = None) -> None:
    """Print a line for each GPU.

    Args:
        gpu_ids: GPUs to print; None for all.
        console: Console to print to; standard output if None.

    Raises:
        DeviceError: Ids that do not exist.
    """
    if console is None:
        from pipeline.terminal.console import make_console

        console = make_console()
    visible, machine = inventory.look()
    if gpu_ids is not None:
        gpus_of_ids(gpu_ids, visible, os.environ)
    if not visible:
        console.print("No CUDA GPUs available", highlight=False)
        return
    console.print(f"Available GPUs: {len(visible)}", highlight=False)
    for number, gpu in enumerate(visible):
        if gpu_ids is None or number in gpu_ids:
            console.print(_line(number, gpu, machine.usage[gpu.uuid or ""]), markup=False, highlight=False)


def setup_gpu_environment(
    gpu_ids: Sequence[int] | None = None, num_gpus: int | None = None, console: Console | None = None
) -> str:
    """Choose GPUs, make this process see them alone, say which, and name the device to compute on.

    Args:
        gpu_ids: Exactly these; None leaves it open.
        num_gpus: Number of GPUs, the idlest first; None takes all.
        console: Console to print to; standard output if None.

    Returns:
        ``cuda:0``, or ``cpu`` where there is no GPU and none was asked for.

    Raises:
        DeviceError: The request cannot be met, or CUDA is in use already.
    """
    _refuse_if_cuda_is_in_use()
    chosen = select_gpus(gpu_ids, num_gpus)
    print_gpu_info(chosen, console)
    set_visible_gpus(chosen)
    return get_optimal_device(chosen)


def _info(number: int, gpu: Device, use: GpuUsage) -> GpuInfo:
    capability = use.compute_capability
    return GpuInfo(
        id=number,
        index=gpu.index,
        uuid=gpu.uuid or "",
        name=gpu.name,
        compute_capability=".".join(map(str, capability)) if capability else None,
        memory_total=use.total_bytes // _MB,
        memory_used=use.used_bytes // _MB,
        memory_free=use.free_bytes // _MB,
        utilization=use.utilization,
    )


def _line(number: int, gpu: Device, use: GpuUsage) -> str:
    info = _info(number, gpu, use)
    share = 100 * use.used_bytes / use.total_bytes
    capability = f", Compute {info['compute_capability']}" if info["compute_capability"] else ""
    memory = f"{info['memory_total']} MB total, {info['memory_used']} MB used ({share:.1f}%)"
    where = "" if gpu.index == number and gpu.slice_index is None else f" = the machine's {gpu.label}"
    return f"GPU {number}{where}: {gpu.name} ({memory}{capability})"
