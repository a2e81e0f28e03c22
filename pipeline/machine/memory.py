"""Memory: what is free on this machine, and how much of a GPU's a process can fill."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USABLE_SHARE = 0.9
_RESERVE_BYTES = 10**9


def memory_available_bytes() -> int:
    """Memory of the machine that can be taken now without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


def own_memory_bytes() -> tuple[int, int]:
    """Address space and resident memory of this process."""
    # As psutil does it, but without its import, for which each grader would have to wait.
    pages = Path("/proc/self/statm").read_text().split()
    size = os.sysconf("SC_PAGE_SIZE")
    return int(pages[0]) * size, int(pages[1]) * size


def usable_bytes(free_bytes: int) -> int:
    """Return the usable part of free GPU memory: some is fragmented, some goes to CUDA and NCCL."""
    return max(0, int(USABLE_SHARE * free_bytes) - _RESERVE_BYTES)


# -- garbage -----------------------------------------------------------------------------------------------------
# Python's search for garbage in cycles, put off while many objects are made of which none is garbage.


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect no garbage inside: each search goes through all objects so far, in vain."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def imported_for_good() -> Iterator[None]:
    """Exclude everything that is imported inside from garbage collection, now and later.

    Modules as large as torch and transformers make hundreds of thousands of objects, none of which go.
    """
    with no_garbage_collection():
        try:
            yield
        finally:
            gc.freeze()
