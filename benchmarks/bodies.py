"""What the jobs of the benchmarks do, and a reward. Apart from them, so that a worker imports next to nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


def nothing(_work: Any = None) -> None:
    """Do nothing."""


def sleep(work: Any) -> None:
    """Stand in for a job that keeps its device busy for so long."""
    time.sleep(work.payload["seconds"])


def nap() -> None:
    """Be at work while another worker dies."""
    time.sleep(0.3)


def die(where: str) -> None:
    """Note the time, and die."""
    Path(where).write_text(repr(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(work: Any) -> None:
    """Die in the first attempt."""
    if work.attempt == 1:
        die(work.payload["where"])


def make_files(folder: str, begin: int, end: int) -> float:
    """Make and remove the names that the engine does for so many outputs; returns processor seconds."""
    root, start = Path(folder), time.process_time()
    for number in range(begin, end):
        key, job = f"{number:040x}", root / "jobs" / str(number)
        claim, unfinished = root / "claims" / key, root / "unfinished" / key
        claim.hardlink_to(root / "lock")
        job.mkdir()
        (job / "log.txt").touch()
        unfinished.mkdir()
        (unfinished / "manifest.json").write_bytes(bytes(300))
        unfinished.rename(root / "store" / key)
        (job / "output").symlink_to(f"../../store/{key}")
        with (root / "costs" / key[-2:]).open("ab", buffering=0) as costs:
            costs.write(bytes(100))
        claim.unlink()
    return time.process_time() - start


def odd(completions: list[str], **_: Any) -> list[float]:
    """A reward that about half of random texts have."""
    return [float(len(text) % 2) for text in completions]
