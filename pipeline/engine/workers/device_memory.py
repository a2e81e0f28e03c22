"""What a process holds of its device, through torch where a job has imported it; this module does not.

    peak = what tensors took at most since the job began, and a little more  +  the CUDA context

Torch's allocator reserves more where nobody else wants it, garbage of earlier batches above all. It can do
without, as a job beside others is held to what is set aside for it. So the lower of the two counts.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

CONTEXT_MB = 800
"""CUDA context and loaded kernels of a process, 0.3 to 0.8 GB by GPU and libraries, which torch does not count."""
FRAGMENTS = 1.25
"""What the allocator needs at least, as a multiple of what tensors take."""
_MB = 2**20


def begin_measuring(device: str) -> None:
    """Forget the peak of the job before, and give back what is left of it, which would count for the next."""
    cuda = _cuda(device)
    if cuda is not None:
        cuda.empty_cache()
        cuda.reset_peak_memory_stats(device)


def peak_mb(device: str) -> int | None:
    """MiB held at most since `begin_measuring`; 0 where the GPU was not touched, None on a CPU."""
    if not device.startswith("cuda"):
        return None
    cuda = _cuda(device)
    if cuda is None:
        return 0
    reserved, used = int(cuda.max_memory_reserved(device)), int(cuda.max_memory_allocated(device))
    return min(reserved, int(FRAGMENTS * used)) // _MB + CONTEXT_MB


def held_mb(device: str) -> int:
    """MiB held now."""
    cuda = _cuda(device)
    return 0 if cuda is None else int(cuda.memory_reserved(device)) // _MB + CONTEXT_MB


def limit(device: str, mb: int) -> None:
    """Hold this process to a part of its device, its CUDA context included, so that neighbours have theirs.

    Args:
        device: ``cpu`` or ``cuda``.
        mb: MiB; 0 sets no limit.
    """
    cuda = _cuda(device)
    if cuda is not None:
        whole = int(cuda.get_device_properties(device).total_memory)
        share = max(mb - CONTEXT_MB, 1) * _MB / whole if mb else 1.0
        cuda.set_per_process_memory_fraction(min(1.0, share), cuda.current_device())  # "cuda" has no index


def give_back(device: str) -> None:
    """Let other processes have what nothing here refers to any more."""
    cuda = _cuda(device)
    if cuda is not None:
        gc.collect()
        cuda.empty_cache()


def _cuda(device: str) -> Any:
    """`torch.cuda` where this process has a context, else None: asking for more would make one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
        return None
    return torch.cuda
