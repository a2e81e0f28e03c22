"""Checks of the installation: the interpreter, packages, configuration, imports, and where outputs go."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

from pipeline.commands.doctor.facts import TorchFacts
from pipeline.commands.doctor.machine import WORKER_MEMORY_GIB
from pipeline.config.install import conf_dir, install_command
from pipeline.config.load import config_from_plain, load_config
from pipeline.config.plain import to_plain
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import usable_cores
from pipeline.engine.devices.select import choose_devices
from pipeline.engine.store.store import Store
from pipeline.errors import PipelineError
from pipeline.machine.memory import memory_available_bytes
from pipeline.terminal.console import Check, failed, passed, warned

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
_SEVERAL = ("algos", "dataset", "model")
"""Groups of which a request may choose several files."""


def check_python() -> Check:
    """The interpreter and the operating system are ones that workers run on."""
    seen = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < MINIMUM_PYTHON:
        return failed("python", seen, "install Python 3.11 or newer and make the environment with it")
    if not sys.platform.startswith("linux"):
        return warned("python", seen, "only Linux is tested; use it for long runs")
    return passed("python", seen)


def check_packages() -> Check:
    """Every package that a worker imports is installed."""
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        remedy = f"run `{install_command()}` in this environment"
        return failed("packages", f"missing: {', '.join(missing)}", remedy)
    return passed("packages", ", ".join(found[:4]))


def check_devices() -> Check:
    """GPUs as the driver lists them, or CPU slots where there are none."""
    devices = choose_devices(DeviceChoice.auto, None)
    if devices[0].kind == "cpu":
        memory = memory_available_bytes() / 2**30
        seen = (
            f"no GPU; {usable_cores()} usable cores, {memory:.1f} GiB of memory free: {len(devices)} CPU workers"
        )
        if memory < WORKER_MEMORY_GIB:
            return warned("devices", seen, f"free some memory: a worker takes {WORKER_MEMORY_GIB} GiB")
        return passed("devices", seen)
    names = ", ".join(f"{gpu.index}: {gpu.name} ({gpu.memory_total_bytes / 2**30:.0f} GiB)" for gpu in devices)
    return passed("devices", f"{len(devices)} GPUs: {names}")


def check_config() -> Check:
    """The configuration reaches a worker as plain data and is rebuilt there unchanged, for every group."""
    groups: dict[str, list[str]] = {}
    for path in sorted(conf_dir().glob("*/*.yaml")):
        groups.setdefault(path.parent.name, []).append(f"{path.parent.name}={path.stem}")
    count = sum(map(len, groups.values()))
    # As much at once as a request may choose, as composing takes a fifth of a second however much that is.
    several = [choice for group in _SEVERAL for choice in groups.pop(group, [])]
    for together in (several, *zip_longest(*groups.values())):
        chosen = [choice for choice in together if choice]
        if not _survives(chosen):
            wrong = next((choice for choice in chosen if not _survives([choice])), " ".join(chosen))
            file = f"conf/{wrong.replace('=', '/')}.yaml"
            return failed("config", f"{wrong} changes on the way", f"look at {file}")
    return passed("config", f"{count} group options survive the way to a worker")


def _survives(chosen: list[str]) -> bool:
    names: dict[str, list[str]] = {}
    for group, _, name in (choice.partition("=") for choice in chosen):
        names.setdefault(group, []).append(name)
    overrides = [
        f"{group}=[{','.join(several)}]" if group in _SEVERAL else f"{group}={several[0]}"
        for group, several in names.items()
    ]
    config = load_config(["experiment.name=check", *overrides])
    return config_from_plain(json.loads(json.dumps(to_plain(config)))) == config


def check_store(output_dir: Path) -> Check:
    """Outputs can be written and renamed."""
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output_dir) as folder:
            store = Store(Path(folder))
            key = "0" * 40
            unfinished = store.begin(store.scratch("check"), key, 1)
            (unfinished / "file").write_text("x")
            store.commit(key, unfinished, {})
            if not store.has(key):
                return failed("store", "a written file reads back changed", "use another disk")
    except (OSError, PipelineError) as error:
        return failed("store", str(error), "set output_dir to a folder that you can write to")
    return passed("store", f"{output_dir} is writable")


def check_imports(torch: TorchFacts) -> Check:
    """A fresh process can import what a worker imports."""
    if torch.failure:
        return failed("imports", torch.failure, f"run `{install_command()}` again")
    return passed("imports", f"torch {torch.version}, transformers {torch.transformers}")
