"""Proofs by the real engine: workers with a device each generate the same text; arithmetic is that of the docs."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline import arithmetic
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import Device, cpu_slots
from pipeline.engine.devices.select import choose_devices
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Job, Plan
from pipeline.terminal.console import Check, failed, passed, warned

DOCUMENTED = "88aef758bcc24248"
MADE_WITH = {"numpy": "2.4.6", "torch": "2.13.0", "transformers": "5.23.0"}
"""What the fingerprint is of; docs/arithmetic.md says the same."""
_NAME = "arithmetic"
FINGERPRINT = Job(
    id="fingerprint", key="f" * 40, entry="pipeline.learning.training.fingerprint:job", payload={}, samples=1
)


def check_arithmetic() -> Iterator[Check]:
    """Train and decode in a worker with portable arithmetic, and compare with the docs.

    Where there is no GPU a worker that has proven parallel generation has done that, too.
    """
    if choose_devices(DeviceChoice.auto, None)[0].kind == "cpu":
        return
    with tempfile.TemporaryDirectory(prefix="pipeline-check-") as folder:
        store = Store(Path(folder) / "store")
        outcome = run_jobs(Plan([FINGERPRINT], []), store, cpu_slots(1), Path(folder), portable=True)
        yield judge(store, outcome)


def judge(store: Store, outcome: Outcome) -> Check:
    """Compare the fingerprint that a run has left with the docs."""
    if not store.has(FINGERPRINT.key):
        return failed(_NAME, f"no fingerprint: {outcome.reason(FINGERPRINT.id)}", "the reason says what to repair")
    found = json.loads((store.path(FINGERPRINT.key) / "fingerprint.json").read_bytes())["fingerprint"]
    return compare(found, {name: version(name).partition("+")[0] for name in MADE_WITH}, platform.machine())


def compare(found: str, versions: Mapping[str, str], machine: str) -> Check:
    """Judge a fingerprint.

    Args:
        found: Of this machine.
        versions: Of the packages in `MADE_WITH`.
        machine: As `platform.machine` names it.
    """
    if found == DOCUMENTED:
        return passed(_NAME, f"fingerprint {found}, the same as documented")
    others = [
        f"{name} {versions[name]} (there {used})" for name, used in MADE_WITH.items() if versions[name] != used
    ]
    if others:
        why, remedy = f"other versions: {', '.join(others)}", "install with `-c constraints.txt` for the same"
    elif not arithmetic.covers(machine):
        why, remedy = f"{machine} is no x86-64 processor", "compare with runs on such machines only"
    else:
        why = f"for a reason that is not known, on {arithmetic.processor()}"
        remedy = "compare with runs on such processors only, and please report it"
    detail = f"fingerprint {found} differs from {DOCUMENTED}: results here are not byte for byte those of the docs"
    return warned(_NAME, f"{detail} ({why})", remedy)


def check_generation(workers: int | None = None, *, prompts: int = 16, new_tokens: int = 32) -> Iterator[Check]:
    """Every worker generates the same text on a device of its own, through the real engine.

    On CPUs one of them, which has all imported by then, computes the fingerprint of arithmetic as well.
    """
    devices = choose_devices(DeviceChoice.auto, workers)
    payload = {"prompts": prompts, "new_tokens": new_tokens, "seed": 0}
    jobs = [
        Job(
            id=f"probe/{index}",
            key=f"{index:040d}",
            entry="pipeline.learning.generation.probe:probe",
            payload=payload,
            samples=prompts,
        )
        for index in range(len(devices))
    ]
    on_cpu = devices[0].kind == "cpu"
    afterwards = [replace(FINGERPRINT, inputs={"after": tuple(job.key for job in jobs)})] if on_cpu else []
    plan = Plan([*jobs, *afterwards], [(job.id, last.id) for last in afterwards for job in jobs])
    with tempfile.TemporaryDirectory(prefix="pipeline-check-") as folder:
        store = Store(Path(folder) / "store")
        outcome = run_jobs(plan, store, devices, Path(folder), portable=on_cpu)
        files = [store.path(job.key) / "probe.json" for job in jobs if store.has(job.key)]
        reports = [json.loads(file.read_bytes()) for file in files]
        lost = [job.id for job in jobs if not store.has(job.key)]
        if lost and outcome.interrupted:
            said = f"{outcome.interrupted} came before it was done"
            yield failed("parallel generation", said, "run this again")
            return
        if lost:
            detail = f"{len(lost)} of {len(jobs)} workers failed: {outcome.reason(lost[0])}"
            yield failed("parallel generation", detail, "the reason above says what to repair")
            return
        judged = [judge(store, outcome)] if on_cpu else []
    yield _which_device(devices, reports)
    yield _same_text(reports)
    used = ", ".join(f"{report['memory_bytes'] / 2**30:.2f} GiB" for report in reports)
    yield passed("memory in use", f"peak per worker: {used}")
    yield from judged


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
