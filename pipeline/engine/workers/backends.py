"""From the configuration to a pool: which kind of worker, on which devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config.schema import Backend, ExecutionConfig
from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.layout import Layout, plain_layout
from pipeline.engine.devices.memory_reclaim import FREE_TIMEOUT_S
from pipeline.engine.workers.inline import InlineWorker
from pipeline.engine.workers.messages import WorkerReady
from pipeline.engine.workers.pool import Pool
from pipeline.engine.workers.process import LocalWorker, ProcessSettings
from pipeline.engine.workers.protocol import Worker
from pipeline.engine.workers.reaper import Reaper
from pipeline.engine.workers.spares import MakeWorker, Spares
from pipeline.machine.memory import memory_available_bytes

_LEAST_BYTES = 1 << 29
"""What a worker that computes with torch holds at least, before any has told what it holds."""
_SPARE_ROOM = 3
"""Times the memory of the largest worker that must be free: one process more, and what workers still grow by."""


def make_pool(
    execution: ExecutionConfig,
    devices: Sequence[Device],
    *,
    threads: int,
    log_dir: Path,
    portable: bool = False,
    levels: Mapping[str, int] | None = None,
    layout: Layout | None = None,
    spares: int = 0,
    entries: Sequence[str] = (),
    width: int = 1,
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
        spares: Processes that wait beside them, where all devices are CPU slots.
        entries: Of the jobs that these get warm for.
        width: Devices that the widest job takes.
    """
    inline = execution.backend is Backend.inline
    layout = layout or plain_layout(1 if inline else len(devices))
    if execution.backend is Backend.ray:
        from pipeline.engine.workers.ray.backend import ray_pool  # most runs have no use for it

        return ray_pool(
            execution, devices, _settings(execution, threads, log_dir, portable), width, layout.joining
        )
    devices = [devices[layout.device_of(worker)] for worker in range(layout.workers)]
    make = (
        inline_workers(execution, devices, threads, portable)
        if inline
        else local_workers(
            execution, devices, threads, log_dir, (levels or {}) if layout.slots == 1 else {}, portable
        )
    )
    waiting = None
    if spares and not inline and all(device.kind == "cpu" for device in devices):
        waiting = _spares(spares, devices, _settings(execution, threads, log_dir, portable), entries)
    return Pool(
        make,
        layout.workers,
        start_timeout_s=execution.start_timeout_s,
        stop_grace_s=execution.stop_grace_s,
        spares=waiting,
    )


def _spares(number: int, devices: Sequence[Device], settings: ProcessSettings, entries: Sequence[str]) -> Spares:
    """Any of these serves on any CPU slot: nothing in its environment tells one from another."""

    def make(index: int, reaper: Reaper) -> LocalWorker:
        return LocalWorker(index, devices[0], settings, reaper, entries=entries)

    def settle(worker: Worker, index: int) -> WorkerReady:
        assert isinstance(worker, LocalWorker)
        return worker.take_place(index, devices[index])

    def have_room(rss_bytes: int) -> bool:
        return memory_available_bytes() >= _SPARE_ROOM * max(rss_bytes, _LEAST_BYTES)

    return Spares(number, make, settle, have_room)


def free_timeout_s(execution: ExecutionConfig) -> float:
    """Seconds to wait for the memory that a process had: the next one is killed if it is not ready in time."""
    return min(FREE_TIMEOUT_S, execution.start_timeout_s / 2)


def _settings(execution: ExecutionConfig, threads: int, log_dir: Path, portable: bool) -> ProcessSettings:
    return ProcessSettings(
        threads=threads,
        portable=portable,
        heartbeat_s=execution.heartbeat_s,
        log_dir=log_dir,
        free_timeout_s=free_timeout_s(execution),
    )


def inline_workers(
    execution: ExecutionConfig, devices: Sequence[Device], threads: int, portable: bool
) -> MakeWorker:
    """Makes the one worker that is this process."""
    return lambda index, reaper: InlineWorker(
        index, devices[index], threads, execution.stop_grace_s, reaper, portable
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
    settings = _settings(execution, threads, log_dir, portable)
    begun: set[int] = set()

    def make(index: int, reaper: Reaper) -> LocalWorker:
        level = levels.get(devices[index].uuid or "") if index in begun else None
        begun.add(index)
        return LocalWorker(index, devices[index], settings, reaper, level)

    return make
