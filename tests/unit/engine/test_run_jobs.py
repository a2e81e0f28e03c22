"""How many workers wait beside those that work."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.schema import AUTO, ExecutionConfig
from pipeline.engine.devices.inventory import Device, cpu_slots
from pipeline.engine.run_jobs import spares_of
from pipeline.engine.store.measured import update_durations
from pipeline.plan.durations import Durations
from pipeline.plan.summary import WORKER_LOAD

GPU = [Device(kind="cuda", index=0, name="H", uuid="GPU-1", memory_total_bytes=1)]


@pytest.mark.parametrize(
    ("spares", "devices", "seconds", "start_s", "number"),
    [
        (AUTO, cpu_slots(2), [1.0] * 1000, 4.0, 1),
        (AUTO, cpu_slots(2), [1.0] * 1000 + [99.0] * 999, 4.0, 1),
        (AUTO, cpu_slots(2), [5.0] * 1000, 4.0, 0),
        (AUTO, cpu_slots(2), [5.0] * 1000, 6.0, 1),
        (AUTO, cpu_slots(2), [1.0] * 10, 4.0, 0),
        (AUTO, cpu_slots(2), [], 4.0, 0),
        (AUTO, GPU, [1.0] * 1000, 4.0, 0),
        (0, cpu_slots(2), [1.0] * 1000, 4.0, 0),
        (3, cpu_slots(2), [99.0], 4.0, 3),
    ],
    ids=[
        "short",
        "most are",
        "long",
        "starts are longer",
        "little work",
        "none",
        "gpu",
        "switched off",
        "asked for",
    ],
)
def test_a_spare_waits_where_jobs_are_shorter_than_a_start(
    tmp_path: Path, spares: int | str, devices: list[Device], seconds: list[float], start_s: float, number: int
) -> None:
    update_durations(tmp_path, Durations(seconds={WORKER_LOAD: start_s}))
    assert spares_of(ExecutionConfig(spares=spares), devices, seconds, tmp_path) == number
