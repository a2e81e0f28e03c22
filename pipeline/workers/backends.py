"""From the configuration to a pool: which kind of worker, on which devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.config.schema import Backend, ExecutionConfig
from pipeline.devices.inventory import Device
from pipeline.devices.layout import Layout, plain_layout
from pipeline.workers.inline import InlineWorker
from pipeline.workers.pool import MakeWorker, Pool
from pipeline.workers.process import LocalWorker, ProcessSettings


def make_pool(
    execution: ExecutionConfig,
    devices: Sequence[Device],
    *,
    threads: int,
    log_dir: Path,
    layout: Layout | None = None,
) -> Pool:
    """Describe the pool of a run; nothing starts yet.

    Args:
        execution: Backend and deadlines.
        devices: The devices; the inline backend uses the first alone.
        threads: Threads of each worker for numerical libraries.
        log_dir: Folder for what worker processes write outside of jobs.
        layout: How many workers each device has, and which; one each if None.
    """
    inline = execution.backend is Backend.inline
    layout = layout or plain_layout(1 if inline else len(devices))
    devices = [devices[layout.device_of(worker)] for worker in range(layout.workers)]
    make = (
        inline_workers(execution, devices, threads)
        if inline
        else local_workers(execution, devices, threads, log_dir)
    )
    return Pool(
        make,
        layout.workers,
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
