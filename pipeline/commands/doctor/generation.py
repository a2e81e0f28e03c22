"""Proof that every worker generates the same text on a device of its own, through the real engine."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.commands.doctor.arithmetic import FINGERPRINT, judge
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.select import choose_devices
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job
from pipeline.terminal.check import Check, failed, passed, warned


def check_generation(workers: int | None = None, *, prompts: int = 16, new_tokens: int = 32) -> Iterator[Check]:
    """Every worker generates the same text on a device of its own, through the real engine.

    On CPUs one of them, which has all imported by then, computes the fingerprint of arithmetic as well.
    """
    devices = choose_devices(DeviceChoice.auto, workers)
    payload = {"prompts": prompts, "new_tokens": new_tokens, "seed": 0}
    jobs = [_probe(index, payload) for index in range(len(devices))]
    on_cpu = devices[0].kind == "cpu"
    afterwards = [replace(FINGERPRINT, inputs={"after": tuple(job.key for job in jobs)})] if on_cpu else []
    plan = Plan([*jobs, *afterwards], [(job.id, last.id) for last in afterwards for job in jobs])
    with tempfile.TemporaryDirectory(prefix="pipeline-check-") as folder:
        store = Store(Path(folder) / "store")
        outcome = run_jobs(plan, store, devices, Path(folder), portable=on_cpu)
        reports = {job.id: _read_report(store, job) for job in jobs if store.has(job.key)}
        lost = [job.id for job in jobs if job.id not in reports]
        if lost and outcome.interrupted:
            said = f"{outcome.interrupted} came before it was done"
            yield failed("parallel generation", said, "run this again")
            return
        if lost:
            detail = f"{len(lost)} of {len(jobs)} workers failed: {outcome.reason(lost[0])}"
            yield failed("parallel generation", detail, "the reason above says what to repair")
            return
        arithmetic = [judge(store, outcome)] if on_cpu else []
    yield _which_device(devices, list(reports.values()))
    yield _same_text(list(reports.values()))
    yield _memory(list(reports.values()))
    yield from arithmetic


def _probe(index: int, payload: dict[str, Any]) -> Job:
    return Job(
        id=f"probe/{index}",
        key=f"{index:040d}",
        entry="pipeline.learning.generation.probe:probe",
        payload=payload,
        samples=int(payload["prompts"]),
    )


def _read_report(store: Store, job: Job) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((store.path(job.key) / "probe.json").read_bytes())
    return report


def _which_device(devices: list[Device], reports: list[dict[str, Any]]) -> Check:
    name = "parallel generation"
    seen = "; ".join(f"pid {report['pid']} on {_place(report)}" for report in reports)
    pids = {report["pid"] for report in reports}
    if len(pids) != len(reports) or os.getpid() in pids:
        return failed(name, seen, "jobs shared a process; look for a wrapper that changes how python starts")
    if devices[0].kind == "cuda":
        if {report["visible"] for report in reports} != {device.uuid for device in devices}:
            return failed(name, seen, "two workers saw one GPU; look for a wrapper that sets CUDA_VISIBLE_DEVICES")
        if any(report["visible_gpus"] != 1 for report in reports):
            return failed(name, seen, "torch does not see the GPU; compare `nvidia-smi` with torch.version.cuda")
    return passed(name, seen)


def _place(report: dict[str, Any]) -> str:
    if report["device"] == "cpu":
        return f"cpu, {report['threads']} thread" + ("s" if report["threads"] != 1 else "")
    return f"{report['visible']} ({report['device']})"


def _same_text(reports: list[dict[str, Any]]) -> Check:
    tokens = sum(report["tokens"] for report in reports)
    if len({report["text"] for report in reports}) > 1:
        seen = "workers generated different text from the same seed"
        return warned("same results", seen, "mixed GPU models round differently: keep a run on one kind")
    return passed("same results", f"{tokens:,} tokens, the same text from every worker")


def _memory(reports: list[dict[str, Any]]) -> Check:
    used = ", ".join(f"{report['memory_bytes'] / 2**30:.2f} GiB" for report in reports)
    return passed("memory in use", f"peak per worker: {used}")
