"""From the configuration to a pool: which kind of worker, on which devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config.schema import Backend, ExecutionConfig
from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.layout import Layout, plain_layout
from pipeline.engine.devices.memory_reclaim import FREE_TIMEOUT_S
from pipeline.engine.workers.inline import InlineWorker
from pipeline.engine.workers.pool import MakeWorker, Pool
from pipeline.engine.workers.process import LocalWorker, ProcessSettings
from pipeline.engine.workers.reaper import Reaper


def make_pool(
    execution: ExecutionConfig,
    devices: Sequence[Device],
    *,
    threads: int,
    log_dir: Path,
    portable: bool = False,
    levels: Mapping[str, int] | None = None,
    layout: Layout | None = None,
) -> Pool:
    """Describe the pool of a run; nothing starts yet.

    Args:
        execution: Backend and deadlines.
        devices: The devices; the inline backend uses the first alone.
        threads: Threads of each worker for numerical libraries.
        log_dir: Folder for what worker processes write outside of jobs.
        portable: Whether workers compute as on every processor.
        levels: UUID of a GPU -> memory in use before the run, to which it must come back before another process
            takes the place of one that ended. Not looked at where several workers share a GPU: in a container the
            driver's process ids tell nothing, and what a neighbour has taken would look left over.
        layout: How many workers each device has, and which; one each if None.
    """
    inline = execution.backend is Backend.inline
    layout = layout or plain_layout(1 if inline else len(devices))
    devices = [devices[layout.device_of(worker)] for worker in range(layout.workers)]
    make = (
        inline_workers(execution, devices, threads, portable)
        if inline
        else local_workers(
            execution, devices, threads, log_dir, (levels or {}) if layout.slots == 1 else {}, portable
        )
    )
    return Pool(
        make,
        layout.workers,
        start_timeout_s=execution.start_timeout_s,
        stop_grace_s=execution.stop_grace_s,
    )


def free_timeout_s(execution: ExecutionConfig) -> float:
    """Seconds to wait for the memory that a process had: the next one is killed if it is not ready in time."""
    return min(FREE_TIMEOUT_S, execution.start_timeout_s / 2)


def inline_workers(
    execution: ExecutionConfig, devices: Sequence[Device], threads: int, portable: bool
) -> MakeWorker:
    """Makes the one worker that is this process."""
    return lambda index, reaper: InlineWorker(
        index, devices[index], threads, execution.stop_grace_s, reaper, portable, execution.untried_on_gpu
    )


def local_workers(
    execution: ExecutionConfig,
    devices: Sequence[Device],
    threads: int,
    log_dir: Path,
    levels: Mapping[str, int],
    portable: bool,
) -> MakeWorker:
    """Makes worker processes. Each but the first of a place waits for the memory of its device."""
    settings = ProcessSettings(
        threads=threads,
        portable=portable,
        untried_on_gpu=execution.untried_on_gpu,
        heartbeat_s=execution.heartbeat_s,
        log_dir=log_dir,
        free_timeout_s=free_timeout_s(execution),
    )
    begun: set[int] = set()

    def make(index: int, reaper: Reaper) -> LocalWorker:
        level = levels.get(devices[index].uuid or "") if index in begun else None
        begun.add(index)
        return LocalWorker(index, devices[index], settings, reaper, level)

    return make
