"""What a run tells of its GPUs while it goes on, and when it is over."""

from __future__ import annotations

import logging

import pytest

from pipeline.engine.workers.messages import GpuLoad
from pipeline.runs.progress import LiveRun
from pipeline.runs.report.screen import GpuLog
from pipeline.runs.run_view import WorkerView
from tests.doubles.live import live_run


def status(elapsed_s: float, *loads: GpuLoad | None) -> LiveRun:
    workers = (WorkerView(index=index, device=f"device {index}", gpu=load) for index, load in enumerate(loads))
    return live_run(workers=workers, elapsed_s=elapsed_s)


def note(gpus: GpuLog, elapsed_s: float, *loads: GpuLoad | None) -> None:
    gpus.update(status(elapsed_s, *loads).view, elapsed_s)


def load(number: int, used_gb: float, utilization: int | None) -> GpuLoad:
    return GpuLoad(
        label=f"GPU {number}", used_bytes=int(used_gb * 1e9), total_bytes=80 * 10**9, utilization=utilization
    )


def test_the_log_has_a_summary_each_minute_and_an_average_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    gpus = GpuLog()
    with caplog.at_level(logging.INFO, "pipeline"):
        note(gpus, 1, None, None)
        note(gpus, 5, load(0, 45.23, 90), load(1, 42.18, None))
        note(gpus, 30, load(0, 48.5, 70), load(1, 1.0, None))
        note(gpus, 66, load(0, 2, 20), load(1, 1.0, None))
        gpus.conclude()
    assert [record.message for record in caplog.records] == [
        "GPU Memory Summary:\n  GPU 0: 45.23 GB used, 80.00 GB total\n  GPU 1: 42.18 GB used, 80.00 GB total",
        "GPU utilization: GPU 0 90 %, GPU 1 not told",
        "GPU Memory Summary:\n  GPU 0: 2.00 GB used, 80.00 GB total\n  GPU 1: 1.00 GB used, 80.00 GB total",
        "GPU utilization: GPU 0 20 %, GPU 1 not told",
        "GPU utilization over the run: GPU 0 60 % on average, at most 48.50 GB used; "
        "GPU 1 not told, at most 42.18 GB used",
    ]
