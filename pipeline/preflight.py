"""Checks of a machine before the first run: plain functions, each with a verdict and what to do about it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.config.load import conf_dir, config_from_plain, load_config, to_plain
from pipeline.config.schema import DeviceChoice
from pipeline.devices.inventory import Device, find_gpus, memory_available_bytes, read_usage, usable_cores
from pipeline.devices.select import choose_devices
from pipeline.errors import PipelineError
from pipeline.experiment import run_jobs
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job
from pipeline.results.store import Store

MINIMUM_PYTHON = (3, 11)
PACKAGES = (
    "torch",
    "transformers",
    "hydra-core",
    "omegaconf",
    "networkx",
    "safetensors",
    "tokenizers",
    "rich",
)
WORKER_MEMORY_GIB = 0.7
FREE_DISK_GIB = 2
GPU_IN_USE = 0.1


class Verdict(Enum):
    """How a check ended."""

    PASS = "green"
    WARN = "yellow"
    FAIL = "red"


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: What was checked.
        verdict: How it ended.
        detail: What was seen.
        remedy: What to do; empty where it passed.
    """

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def check_python() -> Check:
    """The interpreter and the operating system are ones that workers run on."""
    seen = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < MINIMUM_PYTHON:
        return Check("python", Verdict.FAIL, seen, "install Python 3.11 or newer and make the environment with it")
    if not sys.platform.startswith("linux"):
        return Check("python", Verdict.WARN, seen, "only Linux is tested; use it for long runs")
    return Check("python", Verdict.PASS, seen)


def check_packages() -> Check:
    """Every package that a worker imports is installed."""
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        remedy = "run `pip install -c constraints.txt -e .` in this environment"
        return Check("packages", Verdict.FAIL, f"missing: {', '.join(missing)}", remedy)
    return Check("packages", Verdict.PASS, ", ".join(found[:4]))


def check_devices() -> Check:
    """GPUs as the driver lists them, or CPU slots where there are none."""
    devices = choose_devices(DeviceChoice.auto, None)
    if devices[0].kind == "cpu":
        memory = memory_available_bytes() / 2**30
        seen = (
            f"no GPU; {usable_cores()} usable cores, {memory:.1f} GiB of memory free: {len(devices)} CPU workers"
        )
        if memory < WORKER_MEMORY_GIB:
            return Check(
                "devices", Verdict.WARN, seen, f"free some memory: a worker takes {WORKER_MEMORY_GIB} GiB"
            )
        return Check("devices", Verdict.PASS, seen)
    names = ", ".join(f"{gpu.index}: {gpu.name} ({gpu.memory_total_bytes / 2**30:.0f} GiB)" for gpu in devices)
    return Check("devices", Verdict.PASS, f"{len(devices)} GPUs: {names}")


def check_gpu_memory() -> Check:
    """No other program holds much memory of the GPUs that a run would use."""
    gpus = find_gpus()
    if not gpus:
        return Check("GPU memory", Verdict.PASS, "no GPU, nothing to check")
    used = {gpu.index: read_usage(gpu).used_bytes / gpu.memory_total_bytes for gpu in gpus}
    seen = ", ".join(f"GPU {index}: {share:.0%} in use" for index, share in used.items())
    busy = [index for index, share in used.items() if share > GPU_IN_USE]
    if busy:
        free = ",".join(str(index) for index in used if index not in busy)
        remedy = f"stop what runs there (`nvidia-smi` names it), or set CUDA_VISIBLE_DEVICES={free}"
        return Check("GPU memory", Verdict.WARN, seen, remedy)
    return Check("GPU memory", Verdict.PASS, seen)


def check_config() -> Check:
    """The configuration reaches a worker as plain data and is rebuilt there unchanged, for every group."""
    choices = [f"{path.parent.name}={path.stem}" for path in sorted(conf_dir().glob("*/*.yaml"))]
    for choice in choices:
        config = load_config(["experiment.name=check", choice])
        if config_from_plain(json.loads(json.dumps(to_plain(config)))) != config:
            return Check("config", Verdict.FAIL, f"{choice} changes on the way", f"look at conf/{choice}.yaml")
    return Check("config", Verdict.PASS, f"{len(choices)} group options survive the way to a worker")


def check_imports() -> Check:
    """The engine does without torch, and a fresh process can import what a worker imports."""
    engine = "import sys, pipeline.cli; print('torch' in sys.modules)"
    worker = (
        "import torch, transformers, pipeline.algos.run; from pipeline.algos.registry import known_algorithms; "
        "print(torch.__version__, transformers.__version__, *known_algorithms())"
    )
    answers = []
    for code in (engine, worker):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            return Check("imports", Verdict.FAIL, last[0], "run `pip install -c constraints.txt -e .` again")
        answers.append(done.stdout.split())
    if answers[0] != ["False"]:
        return Check("imports", Verdict.FAIL, "the engine imports torch", "report this: it must not")
    torch, transformers, *algorithms = answers[1]
    return Check("imports", Verdict.PASS, f"torch {torch}, transformers {transformers}; {', '.join(algorithms)}")


def check_store(output_dir: Path) -> Check:
    """Outputs can be written, renamed and have room."""
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output_dir) as folder:
            store = Store(Path(folder))
            key = "0" * 40
            unfinished = store.begin(store.scratch("check"), key, 1)
            (unfinished / "file").write_text("x")
            store.commit(key, unfinished, {})
            if not store.has(key):
                return Check("store", Verdict.FAIL, "a written file reads back changed", "use another disk")
    except (OSError, PipelineError) as error:
        return Check("store", Verdict.FAIL, str(error), "set output_dir to a folder that you can write to")
    free = shutil.disk_usage(output_dir).free / 2**30
    seen = f"{output_dir} is writable, {free:.0f} GiB free"
    if free < FREE_DISK_GIB:
        return Check("store", Verdict.WARN, seen, "make room, or set output_dir to another disk")
    return Check("store", Verdict.PASS, seen)


def check_generation(workers: int | None = None, *, prompts: int = 16, new_tokens: int = 32) -> Iterator[Check]:
    """Every worker generates the same text on a device of its own, through the real engine."""
    devices = choose_devices(DeviceChoice.auto, workers)
    payload = {"prompts": prompts, "new_tokens": new_tokens, "seed": 0}
    jobs = [_probe(index, payload) for index in range(len(devices))]
    with tempfile.TemporaryDirectory(prefix="pipeline-check-") as folder:
        store = Store(Path(folder) / "store")
        outcome = run_jobs(Plan(jobs, []), store, devices, Path(folder))
        reports = {job.id: _read_report(store, job) for job in jobs if store.has(job.key)}
        failed = [job.id for job in jobs if job.id not in reports]
        if failed:
            detail = f"{len(failed)} of {len(jobs)} workers failed: {outcome.reason(failed[0])}"
            yield Check("parallel generation", Verdict.FAIL, detail, "the reason above says what to repair")
            return
    yield _which_device(devices, list(reports.values()))
    yield _same_text(list(reports.values()))
    yield _memory(list(reports.values()))


def _probe(index: int, payload: dict[str, Any]) -> Job:
    return Job(
        id=f"probe/{index}",
        key=f"{index:040d}",
        entry="pipeline.generation.probe:probe",
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
        return Check(
            name,
            Verdict.FAIL,
            seen,
            "jobs shared a process; look for a wrapper that changes how python starts",
        )
    if devices[0].kind == "cuda":
        if {report["visible"] for report in reports} != {device.uuid for device in devices}:
            return Check(
                name,
                Verdict.FAIL,
                seen,
                "two workers saw one GPU; look for a wrapper that sets CUDA_VISIBLE_DEVICES",
            )
        if any(report["visible_gpus"] != 1 for report in reports):
            return Check(
                name,
                Verdict.FAIL,
                seen,
                "torch does not see the GPU; compare `nvidia-smi` with torch.version.cuda",
            )
    return Check(name, Verdict.PASS, seen)


def _place(report: dict[str, Any]) -> str:
    if report["device"] == "cpu":
        return f"cpu, {report['threads']} thread" + ("s" if report["threads"] != 1 else "")
    return f"{report['visible']} ({report['device']})"


def _same_text(reports: list[dict[str, Any]]) -> Check:
    tokens = sum(report["tokens"] for report in reports)
    if len({report["text"] for report in reports}) > 1:
        seen = "workers generated different text from the same seed"
        return Check(
            "same results", Verdict.WARN, seen, "mixed GPU models round differently: keep a run on one kind"
        )
    return Check("same results", Verdict.PASS, f"{tokens:,} tokens, the same text from every worker")


def _memory(reports: list[dict[str, Any]]) -> Check:
    used = ", ".join(f"{report['memory_bytes'] / 2**30:.2f} GiB" for report in reports)
    return Check("memory in use", Verdict.PASS, f"peak per worker: {used}")


def run_checks(output_dir: Path) -> Iterator[Check]:
    """Every check in order; one that raises has failed."""
    simple: list[Callable[[], Check]] = [
        check_python,
        check_packages,
        check_devices,
        check_gpu_memory,
        check_config,
        check_imports,
        lambda: check_store(output_dir),
    ]
    for check in simple:
        yield from _guarded(lambda check=check: iter([check()]), getattr(check, "__name__", "store"))  # type: ignore[misc]
    yield from _guarded(check_generation, "parallel generation")


def _guarded(check: Callable[[], Iterator[Check]], name: str) -> Iterator[Check]:
    try:
        yield from check()
    except Exception as error:
        shown = name.removeprefix("check_").replace("_", " ")
        yield Check(
            shown, Verdict.FAIL, f"{type(error).__name__}: {error}", "the message above says what to repair"
        )


def main(output_dir: Path = Path("outputs")) -> int:
    """Print every check as it ends; 1 if any failed."""
    console = Console()
    checks = []
    for check in run_checks(output_dir):
        checks.append(check)
        console.print(
            f"[{check.verdict.value}]{check.verdict.name}[/]  [bold]{check.name}[/]: ",
            end="",
            highlight=False,
        )
        console.print(check.detail, markup=False, highlight=False)
        if check.remedy:
            console.print(f"      try: {check.remedy}", markup=False, highlight=False)
    failed = sum(check.verdict is Verdict.FAIL for check in checks)
    warned = sum(check.verdict is Verdict.WARN for check in checks)
    verdict = "This machine is ready." if not failed else "Repair what failed, then run this again."
    console.print(f"\n{len(checks) - failed - warned} passed, {warned} warned, {failed} failed. {verdict}")
    return 1 if failed else 0
