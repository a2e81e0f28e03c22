"""Which devices this machine has and may use. Asks the driver through NVML, never through CUDA.

Opening a CUDA context here would take memory on every GPU and freeze their visibility for this process, so the
engine neither imports torch nor touches the CUDA runtime.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.errors import DeviceError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU or a CPU slot.

    Attributes:
        kind: What it is.
        index: Number of the GPU in PCI bus order, or of the slot.
        uuid: The GPU's own name, which no reordering changes; None for a CPU slot.
        name: Product name.
        memory_total_bytes: All its memory, used or not; for a CPU slot that of the whole machine.
    """

    kind: Literal["cuda", "cpu"]
    index: int
    uuid: str | None
    name: str
    memory_total_bytes: int

    @property
    def label(self) -> str:
        """Short name for messages: ``GPU 0`` or ``cpu slot 0``."""
        return f"GPU {self.index}" if self.kind == "cuda" else f"cpu slot {self.index}"


def find_gpus(environ: Mapping[str, str] | None = None) -> list[Device]:
    """The GPUs that this process may use, in PCI bus order. No driver means no GPUs, not an error.

    Args:
        environ: Where to look for an inherited CUDA_VISIBLE_DEVICES; `os.environ` if None.

    Raises:
        DeviceError: CUDA_VISIBLE_DEVICES names a GPU that does not exist.
    """
    visible = (os.environ if environ is None else environ).get(VISIBLE)
    if visible is not None and visible.strip() in ("", "-1"):
        return []
    return visible_gpus(_nvml_gpus(), visible)


def visible_gpus(gpus: list[Device], visible: str | None) -> list[Device]:
    """Keep those that a value of CUDA_VISIBLE_DEVICES names, in its order.

    Args:
        gpus: All GPUs of the machine.
        visible: Comma-separated indices or UUID prefixes; None keeps all, "" and "-1" none.

    Raises:
        DeviceError: An entry names no GPU, several, or one that was named before.
    """
    if visible is None:
        return gpus
    if visible.strip() in ("", "-1"):
        return []
    kept: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        gpu = _named(gpus, entry, visible)
        if gpu in kept:
            raise DeviceError(f"{VISIBLE}={visible} names {gpu.label} twice")
        kept.append(gpu)
    return kept


def _named(gpus: list[Device], entry: str, visible: str) -> Device:
    if entry.isdecimal():
        found = [gpu for gpu in gpus if gpu.index == int(entry)]
    else:
        found = [gpu for gpu in gpus if entry and gpu.uuid and gpu.uuid.startswith(entry)]
    if len(found) == 1:
        return found[0]
    have = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "no GPU"
    what = "matches several GPUs" if found else "names no GPU of this machine"
    raise DeviceError(f"{VISIBLE}={visible}: entry '{entry}' {what}. There is: {have}. Correct or unset it.")


def _nvml_gpus() -> list[Device]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        with _nvml(pynvml):
            return [_describe(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        # Most often NVMLError_LibraryNotFound: a machine without a driver.
        return []


@contextmanager
def _nvml(pynvml: Any) -> Any:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _describe(pynvml: Any, index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Device(
        kind="cuda",
        index=index,
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_total_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    )


def _text(value: str | bytes) -> str:
    # Releases of the binding before 11.5 return bytes.
    return value.decode() if isinstance(value, bytes) else value


def cpu_slots(count: int) -> list[Device]:
    """So many CPU slots of this machine."""
    total = memory_total_bytes()
    name = platform.processor() or platform.machine()
    return [
        Device(kind="cpu", index=index, uuid=None, name=name, memory_total_bytes=total) for index in range(count)
    ]


def usable_cores() -> int:
    """Cores that this process may run on; fewer than the machine has under taskset, cgroups or Slurm."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def memory_total_bytes() -> int:
    """Memory of the machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def memory_available_bytes() -> int:
    """Memory that can be taken now without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)
