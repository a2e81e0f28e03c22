"""What a process sees of the machine that it runs on."""

import ctypes
import sys
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def listening(*pids: int) -> list[str]:
    """The addresses at which processes, by default this one, listen for others; without ports, sorted."""
    found = set()
    for pid in pids or (None,):
        for connection in psutil.Process(pid).net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.add(connection.laddr.ip)
    return sorted(found)


def own_memory() -> int:
    """Bytes that this process has written to memory of its own, and not let go of; files do not count."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is the machine's again
    told = Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()
    return int(told[0]) << 10


def adopt_no_orphans() -> None:
    """Undo what a command does that adopts orphans where it runs in the process of the tests.

    What later tests leave is then init's again: processes that have ended, and that nobody here waits for, would
    be among the children of this one for good.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)


def is_living(pid: int) -> bool:
    """Whether a process has not ended; it may do so while it is looked at."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
