"""Memory: what is free on this machine, and how much of a GPU's a process can fill."""

from __future__ import annotations

USABLE_SHARE = 0.9
_RESERVE_BYTES = 10**9


def memory_available_bytes() -> int:
    """Memory of the machine that can be taken now without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


def usable_bytes(free_bytes: int) -> int:
    """What a process can fill of free GPU memory: some is fragmented, some goes to CUDA and NCCL."""
    return max(0, int(USABLE_SHARE * free_bytes) - _RESERVE_BYTES)
