"""A device is handed on when the memory of whoever had it is free: real workers, a driver that frees it late."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from pipeline.config.schema import ExecutionConfig
from pipeline.engine.devices import inventory
from pipeline.engine.devices.inventory import Device, find_gpus
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.scheduler.state import JobStatus
from pipeline.engine.workers.messages import GpuLoad
from pipeline.runs.run_view import RunView
from tests.doubles import fake_nvml
from tests.doubles.engine import Engine, job, plan_of


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that says which processes hold memory."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = tmp_path / "taken"
    folder.mkdir()
    fake_nvml.use(monkeypatch, tmp_path, {**fake_nvml.MACHINES["two"], "taken": str(folder)})
    return folder


def gpus(count: int = 2) -> list[Device]:
    return find_gpus()[:count]


class Driver:
    """Frees what dead processes held only some snapshots after the engine has begun to replace a worker.

    What ends after that is freed at once.
    """

    def __init__(self, taken: Path, snapshots: int = 5) -> None:
        self.taken = taken
        self.left = snapshots
        self.freed_at = 0.0

    def watch(self, view: RunView) -> None:
        if any(worker.state == "starting" for worker in view.workers.values()) and list(self.taken.glob("*.json")):
            self.left -= 1
        if self.left <= 0:
            fake_nvml.give_back(self.taken)
            self.freed_at = self.freed_at or time.time()


def test_the_next_worker_is_ready_once_the_memory_is_free(
    engine: Engine, taken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {**fake_nvml.MACHINES["one"], "taken": str(taken), "container": True}
    fake_nvml.use(monkeypatch, tmp_path, machine)
    driver = Driver(taken)
    dies_once = job("a", "take_gpu_memory", payload={"taken": str(taken), "deaths": 1})
    outcome = engine.run(dies_once, devices=gpus(1), watcher=driver.watch)
    assert outcome.jobs["a"] is JobStatus.done
    first, second = engine.events("WorkerStarted")
    (failed,) = engine.events("AttemptFailed")
    assert first["time"] < failed["time"] < driver.freed_at <= second["time"]
    assert not engine.events("DeviceQuarantined")


def test_a_device_whose_memory_stays_taken_is_given_up_and_the_others_go_on(
    engine: Engine, taken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inventory, "FREE_TIMEOUT_S", 1.0)
    flag = tmp_path / "go"

    def watch(view: RunView) -> None:
        if any(worker.state == "quarantined" for worker in view.workers.values()):
            flag.touch()

    with caplog.at_level(logging.WARNING, "pipeline"):
        outcome = engine.run(
            job("a", "take_gpu_memory", payload={"taken": str(taken), "deaths": 1}, seconds=9.0),
            job("b", "wait_for_file", payload={"file": str(flag)}, seconds=5.0),
            *(job(f"c{index}", "nothing", ["b"]) for index in range(3)),
            devices=gpus(), watcher=watch,
        )  # fmt: skip
    assert set(outcome.jobs.values()) == {JobStatus.done}
    (failed,), (given_up,) = engine.events("AttemptFailed"), engine.events("DeviceQuarantined")
    assert given_up["worker"] == failed["worker"]
    pid = next(e["pid"] for e in engine.events("WorkerStarted") if e["worker"] == failed["worker"])
    said = (
        f"GPU {failed['worker']}: 20480 MB are still taken after the process that had them ended (process {pid}, "
        "which does not run here, has 20480 MB), and did not come back within 1 s"
    )
    assert given_up["reason"] == said
    assert sum(said in record.message for record in caplog.records) == 1
    later = engine.journal[engine.journal.index(given_up) :]
    ran = [event["worker"] for event in later if event["event"] == "JobStarted"]
    assert len(ran) >= 3
    assert failed["worker"] not in ran


def test_what_ranks_held_is_free_before_their_devices_are_used(engine: Engine, taken: Path) -> None:
    driver = Driver(taken)
    dies_once = {"taken": str(taken), "rank": 1, "deaths": 1}
    outcome = engine.run(
        job("gang", "take_gpu_memory", devices=2, payload=dies_once, seconds=9.0),
        *(job(name, "write", ["gang"]) for name in ("a", "b")),
        devices=gpus(), watcher=driver.watch,
    )  # fmt: skip
    assert set(outcome.jobs.values()) == {JobStatus.done}
    # All that runs after the ranks runs in processes that were ready when the memory was free.
    later = engine.journal[engine.journal.index(engine.events("AttemptFailed", "gang")[0]) :]
    ready = [event for event in later if event["event"] == "WorkerStarted"]
    assert {event["worker"] for event in ready} >= {0, 1}
    assert all(event["time"] >= driver.freed_at > 0 for event in ready)
    assert all(event["time"] >= driver.freed_at for event in later if event["event"] == "JobStarted")
    assert not engine.events("DeviceQuarantined")


def test_a_run_that_is_over_tells_what_it_leaves_behind(
    engine: Engine, taken: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inventory, "FREE_TIMEOUT_S", 0.5)
    engine.run_dir.mkdir(parents=True)
    plan = plan_of(job("a", "take_gpu_memory", payload={"taken": str(taken)}))
    with caplog.at_level(logging.WARNING, "pipeline"):
        outcome = run_jobs(plan, engine.store, gpus(1), engine.run_dir, execution=ExecutionConfig())
    assert outcome.jobs["a"] is JobStatus.done
    (warned,) = [record.message for record in caplog.records]
    assert warned.startswith("GPU 0: 20480 MB are still taken after the process that had them ended")


def test_workers_tell_what_their_gpus_do(engine: Engine, taken: Path, tmp_path: Path) -> None:
    flag, seen = tmp_path / "go", dict[str, GpuLoad]()

    def watch(view: RunView) -> None:
        for worker in view.workers.values():
            if worker.gpu:
                seen[worker.gpu.label] = worker.gpu
        if len(seen) == 2:
            flag.touch()

    engine.run(
        job("a", "wait_for_file", payload={"file": str(flag)}), devices=gpus(), watcher=watch, heartbeat_s=0.1
    )
    assert seen["GPU 1"] == GpuLoad(label="GPU 1", used_bytes=0, total_bytes=140 * 2**30, utilization=0)
    assert sorted(seen) == ["GPU 0", "GPU 1"]
