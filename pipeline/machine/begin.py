"""The first act of a process that `children` has started. No worker has to load that module to start."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.machine.descendants import die_with_parent

NOTICES = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
"""What asks a process to save and end. Slurm sends it to every process of a job."""


@contextmanager
def held_back(numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Processes that are started meanwhile get these signals once they `begin`, by when they can take them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin(death: signal.Signals = signal.SIGKILL) -> dict[str, Any]:
    """Have this process end with its parent and find modules where that does; how it was started leaves no trace.

    Args:
        death: The signal by which this process is to end.

    Returns:
        The settings that `command` was given, and those of a `Child`.
    """
    # Ray's own processes hold back what tells a job of Slurm to end, and so would what they start.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    settings: dict[str, Any] = json.loads(sys.argv[1])
    die_with_parent(settings.pop("parent_pid"), death)
    sys.path[:] = settings.pop("sys_path")
    if (told := settings.pop("told", None)) is not None:
        with os.fdopen(told, "rb") as file:
            settings |= json.load(file)
    return settings
