"""From the configuration to a pool: which kind of worker, on which devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.config.schema import Backend, ExecutionConfig
from pipeline.devices.inventory import Device
from pipeline.workers.inline import InlineWorker
from pipeline.workers.pool import MakeWorker, Pool
from pipeline.workers.process import LocalWorker, ProcessSettings


def make_pool(execution: ExecutionConfig, devices: Sequence[Device], *, threads: int, log_dir: Path) -> Pool:
    """Describe the pool of a run; nothing starts yet.

    Args:
        execution: Backend and deadlines.
        devices: One per worker; the inline backend uses the first alone.
        threads: Threads of each worker for numerical libraries.
        log_dir: Folder for what worker processes write outside of jobs.
    """
    inline = execution.backend is Backend.inline
    make = (
        inline_workers(execution, devices, threads)
        if inline
        else local_workers(execution, devices, threads, log_dir)
    )
    return Pool(
        make,
        1 if inline else len(devices),
        start_timeout_s=execution.start_timeout_s,
        stop_grace_s=execution.stop_grace_s,
    )


def inline_workers(execution: ExecutionConfig, devices: Sequence[Device], threads: int) -> MakeWorker:
    """Makes the one worker that is this process."""
    return lambda index, _reaper: InlineWorker(index, devices[index], threads, execution.stop_grace_s)


def local_workers(
    execution: ExecutionConfig, devices: Sequence[Device], threads: int, log_dir: Path
) -> MakeWorker:
    """Makes worker processes."""
    settings = ProcessSettings(threads=threads, heartbeat_s=execution.heartbeat_s, log_dir=log_dir)
    return lambda index, reaper: LocalWorker(index, devices[index], settings, reaper)
