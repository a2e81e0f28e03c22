"""Memory: what is free on this machine, and how much of a GPU's a process can fill."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

USABLE_SHARE = 0.9
_RESERVE_BYTES = 10**9


def memory_available_bytes() -> int:
    """Memory of the machine that can be taken now without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


def own_memory_bytes() -> tuple[int, int]:
    """Address space and resident memory of this process."""
    with suppress(FileNotFoundError):
        # As psutil does it on Linux, but without its import, for which each grader would have to wait.
        pages = Path("/proc/self/statm").read_text().split()
        size = os.sysconf("SC_PAGE_SIZE")
        return int(pages[0]) * size, int(pages[1]) * size
    import psutil

    found = psutil.Process().memory_info()
    return int(found.vms), int(found.rss)


def usable_bytes(free_bytes: int) -> int:
    """What a process can fill of free GPU memory: some is fragmented, some goes to CUDA and NCCL."""
    return max(0, int(USABLE_SHARE * free_bytes) - _RESERVE_BYTES)
