"""Which devices a run uses: GPUs one per worker, else CPU slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.config.schema import DeviceChoice
from pipeline.devices.inventory import Device, cpu_slots, find_gpus, memory_available_bytes, usable_cores
from pipeline.errors import DeviceError

WORKER_MEMORY_BYTES = int(0.7 * 2**30)
"""What a CPU worker takes once torch and transformers are imported and a small model is loaded."""


def choose_devices(
    choice: DeviceChoice,
    workers: int | None,
    *,
    gpus: Callable[[], Sequence[Device]] = find_gpus,
    cores: Callable[[], int] = usable_cores,
    memory_bytes: Callable[[], int] = memory_available_bytes,
) -> list[Device]:
    """One device per worker.

    Args:
        choice: Which kind.
        workers: How many, or None for every GPU, or for as many CPU slots as cores and memory allow.
        gpus: Finds GPUs; not asked when the choice is `cpu`.
        cores: Counts usable cores.
        memory_bytes: Memory available now.

    Raises:
        DeviceError: There are no or too few GPUs, or no worker was asked for.
    """
    if workers is not None and workers < 1:
        raise DeviceError(f"execution.workers={workers}: at least one worker is needed")
    found = [] if choice is DeviceChoice.cpu else list(gpus())
    if not found:
        if choice is DeviceChoice.cuda:
            raise DeviceError(
                "device=cuda, but there is no usable GPU: NVML found none, or CUDA_VISIBLE_DEVICES hides them. "
                "Check `nvidia-smi`, or use device=auto or device=cpu."
            )
        return cpu_slots(workers or default_slots(cores(), memory_bytes()))
    if workers is not None and workers > len(found):
        raise DeviceError(
            f"execution.workers={workers}, but there are {len(found)} usable GPUs and each worker needs one of "
            f"its own. Use execution.workers={len(found)} or less, or device=cpu."
        )
    return found[:workers]


def default_slots(cores: int, memory_bytes: int) -> int:
    """CPU workers that fit: one per core while the memory lasts, at least one."""
    return max(1, min(cores, memory_bytes // WORKER_MEMORY_BYTES))
