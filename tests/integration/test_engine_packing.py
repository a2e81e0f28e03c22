"""Several jobs on one GPU, and GPUs of different sizes: the real engine and workers on a described machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.schema import RetryConfig
from pipeline.engine.devices.inventory import Device, find_gpus
from pipeline.engine.run_jobs import read_peaks, update_peaks
from pipeline.engine.scheduler.state import JobStatus
from pipeline.plan.graph import Job
from tests.doubles import fake_nvml
from tests.doubles.engine import Engine, job

GIB = 1024
Gpus = Callable[..., list[Device]]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gpus:
    """Describe GPUs of some sizes, and find them."""

    def describe(*sizes_gib: int) -> list[Device]:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
        described = [fake_nvml.gpu(index, total_gib=size) for index, size in enumerate(sizes_gib)]
        fake_nvml.use(monkeypatch, tmp_path, {"gpus": described})
        return find_gpus()

    return describe


def takes(
    name: str, needs: list[str] | None = None, *, kind: str = "k", said: int | None = None, **payload: Any
) -> Job:
    return job(name, "take_memory", needs or [], memory_kind=kind, memory_mb=said, payload=payload)


def gpu_of(engine: Engine) -> Mapping[str, int]:
    """Job -> number of the GPU on which it was started last."""
    workers = {event["worker"]: int(event["device"][4:12], 16) for event in engine.events("WorkerStarted")}
    return {event["job"]: workers[event["worker"]] for event in engine.events("JobStarted")}


def order(engine: Engine, *names: str) -> list[tuple[str, str]]:
    """Events of these names with their jobs, as they came."""
    return [(event["event"], event["job"]) for event in engine.journal if event["event"] in names]


def meeting(tmp_path: Path) -> str:
    (tmp_path / "meeting").mkdir()
    return str(tmp_path / "meeting")


def test_small_jobs_run_at_once_on_two_gpus(engine: Engine, gpus: Gpus, tmp_path: Path) -> None:
    where = meeting(tmp_path)
    jobs = [takes(f"j{number}", meeting=where, meets=4) for number in range(4)]
    outcome = engine.run(*jobs, devices=gpus(80, 80), jobs_per_device=2)
    assert set(outcome.jobs.values()) == {JobStatus.done}
    assert [event for event, _ in order(engine, "JobStarted", "JobFinished")] == ["JobStarted"] * 4 + [
        "JobFinished"
    ] * 4
    assert sorted(gpu_of(engine).values()) == [0, 0, 1, 1]
    assert "shared: True, GPU-0000000" in engine.log("j0")
    assert {event["device"][-14:] for event in engine.events("WorkerStarted")} == {
        f", place {place} of 2" for place in (1, 2)
    }
    assert outcome.makespan is not None
    assert "on 4 places)" in str(outcome.makespan)


def test_the_first_job_of_a_kind_is_measured_alone(engine: Engine, gpus: Gpus, tmp_path: Path) -> None:
    where, devices = meeting(tmp_path), gpus(140)
    jobs = [takes("first", peak_mb=25 * GIB)]
    jobs += [takes(f"j{number}", peak_mb=20 * GIB, meeting=where, meets=3) for number in range(3)]
    outcome = engine.run(*jobs, devices=devices, jobs_per_device="auto")
    assert set(outcome.jobs.values()) == {JobStatus.done}
    events = order(engine, "JobStarted", "JobFinished")
    assert events[:2] == [("JobStarted", "first"), ("JobFinished", "first")]
    assert [event for event, _ in events[2:5]] == ["JobStarted"] * 3
    assert "shared: False" in engine.log("first")
    assert engine.events("JobFinished", "first")[0]["peak_mb"] == 25 * GIB
    assert outcome.peaks_mb == {"k": 25 * GIB}
    # A later run of the same store knows it, and measures nothing.
    update_peaks(engine.store.root, outcome.peaks_mb)
    again = [takes(f"again{number}", meeting=where, meets=7) for number in range(4)]
    outcome = engine.run(*again, devices=devices, jobs_per_device="auto", peaks=read_peaks(engine.store.root))
    assert set(outcome.jobs.values()) == {JobStatus.done}
    assert [event for event, _ in order(engine, "JobStarted", "JobFinished")][:4] == ["JobStarted"] * 4


def test_memory_that_runs_out_beside_others_costs_no_attempt(engine: Engine, gpus: Gpus, tmp_path: Path) -> None:
    where = meeting(tmp_path)
    jobs = [takes("calm", meeting=where, meets=1), job("greedy", "run_out_beside_others", memory_kind="g")]
    outcome = engine.run(
        *jobs, devices=gpus(80), jobs_per_device=2, retry=RetryConfig(out_of_memory=1, wait_s=0.05)
    )
    assert set(outcome.jobs.values()) == {JobStatus.done}
    (failed,) = engine.events("AttemptFailed")
    assert (failed["job"], failed["kind"], failed["retry"]) == ("greedy", "out_of_memory", True)
    assert "it shared the device; the next attempt does not" in failed["reason"]
    assert "shared: False" in engine.log("greedy", attempt=2)


def test_packing_does_not_change_what_is_stored(engine: Engine, gpus: Gpus, tmp_path: Path) -> None:
    devices = gpus(80)
    jobs = [job(f"j{number}", "write", [f"j{number - 3}"] if number >= 3 else []) for number in range(12)]
    engine.run(*jobs, devices=devices)
    packed = Engine(tmp_path / "packed")
    packed.run(*jobs, devices=devices, jobs_per_device=2)
    assert packed.files() == engine.files()
    assert packed.leftovers() == []
