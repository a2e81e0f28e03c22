"""From the configuration to a pool of workers on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pipeline
from pipeline.config.ray import LOCAL
from pipeline.config.schema import ExecutionConfig
from pipeline.engine.devices.inventory import Device
from pipeline.engine.workers.pool import Pool
from pipeline.engine.workers.process import ProcessSettings
from pipeline.engine.workers.ray.host import HostSettings, search_path
from pipeline.engine.workers.ray.site import RaySite
from pipeline.engine.workers.ray.worker import RayWorker
from pipeline.engine.workers.reaper import Reaper


def ray_pool(
    execution: ExecutionConfig,
    devices: Sequence[Device],
    settings: ProcessSettings,
    width: int = 1,
    joining: int = 0,
) -> Pool:
    """Describe the pool of a run; nothing starts yet.

    Args:
        execution: Which cluster, and deadlines.
        devices: One for each worker.
        settings: What its processes have in common.
        width: Devices that the widest job takes.
        joining: How many of the devices, the last ones, are still to join the cluster.
    """
    ray = execution.ray
    gpus = [device for device in devices if device.kind == "cuda"]
    taken = {"GPU": 1.0} if gpus else {"CPU": float(settings.threads)}
    site = RaySite(
        ray,
        ray.resources or taken,
        [device.node for device in devices],
        together=width > 1 and ray.address != LOCAL,
        joining=joining,
        visible=[device.uuid or str(device.index) for device in gpus] if ray.address == LOCAL else (),
    )
    told = HostSettings(
        device=devices[0],
        threads=settings.threads,
        portable=settings.portable,
        heartbeat_s=settings.heartbeat_s,
        log_dir=str(settings.log_dir.absolute()),
        free_timeout_s=settings.free_timeout_s,
        start_timeout_s=execution.start_timeout_s,
        sys_path=search_path(),
        folder="" if "working_dir" in ray.runtime_env else str(Path.cwd()),
        version=pipeline.__version__,
        name_nodes=ray.address != LOCAL,
    )

    def make(index: int, _reaper: Reaper) -> RayWorker:
        return RayWorker(index, site, asdict(replace(told, device=devices[index])))

    return Pool(
        make, len(devices), start_timeout_s=None, stop_grace_s=execution.stop_grace_s, site=site, joining=joining
    )
