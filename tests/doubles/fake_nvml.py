"""A stand-in for `pynvml` that answers from a description, with the error classes of the real one.

A process uses it where PIPELINE_TEST_NVML is ``tests.doubles.fake_nvml:<path of a JSON file>``. The file is read
at every opening, so a test changes what the driver says by writing it anew:

    {"gpus": [{"name": "NVIDIA H200", "total_gib": 141, "used_gib": 0, "utilization": 0,
               "processes": [[4711, 12.5]], "uuid": "GPU-...", "capability": [9, 0],
               "error": "GPU_IS_LOST", "slices": [{"total_gib": 17, "uuid": "MIG-..."}]}],
     "driver": "570.86.15", "cuda": [12, 8], "installed": true, "error": "LIB_RM_VERSION_MISMATCH",
     "taken": "<folder>", "container": false}

`error` of a GPU is raised when it is asked for, that of the file when NVML is opened. In the folder `taken` lies a
file for each process that has called `take`: it has that memory, dead or alive, until the file is removed. In a
container nobody is told which processes there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pynvml

from pipeline.engine.devices.inventory import lives

if TYPE_CHECKING:  # the processes that tests start need no pytest
    import pytest

VARIABLE = "PIPELINE_TEST_NVML"


def gpu(index: int, **changed: Any) -> dict[str, Any]:
    """The description of one GPU: an idle H200 unless told otherwise."""
    return {
        "name": "NVIDIA H200",
        "uuid": f"GPU-{index:08x}-aaaa-bbbb-cccc-000000000000",
        "total_gib": 140,
        "capability": [9, 0],
        **changed,
    }


def mig_slice(index: int, **changed: Any) -> dict[str, Any]:
    """The description of one MIG slice."""
    uuid = f"MIG-{index:08x}-aaaa-bbbb-cccc-000000000000"
    return {"uuid": uuid, "total_gib": 17, "instances": [7 + index, 0], **changed}


MACHINES: dict[str, dict[str, Any]] = {
    "one": {"gpus": [gpu(0)]},
    "two": {"gpus": [gpu(0), gpu(1)]},
    "eight": {"gpus": [gpu(index) for index in range(8)]},
    "mixed": {
        "gpus": [
            gpu(0, name="NVIDIA RTX A4000", total_gib=16, capability=[8, 6]),
            gpu(1, name="NVIDIA A100-SXM4-80GB", total_gib=80, capability=[8, 0]),
            gpu(2, name="NVIDIA A100-SXM4-80GB", total_gib=80, capability=[8, 0]),
            gpu(3, name="NVIDIA RTX A4000", total_gib=16, capability=[8, 6]),
        ]
    },
    "busy": {
        "gpus": [
            gpu(0, used_gib=3, utilization=5, processes=[[100, 3.0]]),
            gpu(1, used_gib=130, utilization=98, processes=[[101, 130.0]]),
            gpu(2),
            gpu(3, used_gib=40, utilization=0, processes=[[102, None]]),
        ]
    },
    "mig": {"gpus": [gpu(0, slices=[mig_slice(0), mig_slice(1, used_gib=5)]), gpu(1)]},
    "lost": {"gpus": [gpu(0), gpu(1, error="GPU_IS_LOST"), gpu(2)]},
    "mismatch": {"error": "LIB_RM_VERSION_MISMATCH"},
    "no driver": {"error": "LIBRARY_NOT_FOUND"},
    "not loaded": {"error": "DRIVER_NOT_LOADED"},
    "not installed": {"installed": False},
}
"""Machines by what is special about them."""


def write(path: Path, machine: dict[str, Any]) -> str:
    """Write a description; returns the value for the variable."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(machine))
    temporary.replace(path)
    return f"{__name__}:{path}"


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, machine: str | dict[str, Any]) -> Path:
    """Make this process, and those it starts, ask a fake driver; returns the file with its description."""
    path = folder / "nvml.json"
    monkeypatch.setenv(VARIABLE, write(path, MACHINES[machine] if isinstance(machine, str) else machine))
    return path


def load(path: str) -> Any:
    """What the hook calls."""
    machine = json.loads(Path(path).read_text())
    if not machine.get("installed", True):
        raise ImportError("No module named 'pynvml'")
    return _Nvml(machine)


def take(folder: Path, uuid: str, gib: float) -> None:
    """Have this process hold memory of a GPU; it stays taken until a test calls `give_back`."""
    path = folder / f"{os.getpid()}.json"
    temporary = folder / f".{os.getpid()}"
    temporary.write_text(json.dumps({"uuid": uuid, "gib": gib}))
    temporary.replace(path)


def give_back(folder: Path) -> None:
    """What the driver does with the memory of processes that have ended, at once or late."""
    for path in folder.glob("*.json"):
        if not lives(int(path.stem)):
            path.unlink()


class _Nvml:
    """The calls that are used, and through `__getattr__` the constants and errors of the real module."""

    def __init__(self, machine: dict[str, Any]) -> None:
        self._machine = machine
        self._open = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            raise AssertionError(f"the fake has no {name}")
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        if error := self._machine.get("error"):
            _fail(error)
        self._open += 1

    def nvmlShutdown(self) -> None:
        if not self._open:
            _fail("UNINITIALIZED")
        self._open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self._machine.get("driver", "570.86.15"))

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        major, minor = self._machine.get("cuda", [12, 8])
        return int(major * 1000 + minor * 10)

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        gpus = self._gpus()
        if not 0 <= index < len(gpus):
            _fail("INVALID_ARGUMENT")
        return _answering(gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[str, Any]:
        for one in self._everything():
            if one["uuid"] == uuid:
                return _answering(one)
        return _fail("NOT_FOUND")

    def nvmlDeviceGetUUID(self, handle: dict[str, Any]) -> str:
        return str(handle["uuid"])

    def nvmlDeviceGetName(self, handle: dict[str, Any]) -> str:
        return str(handle.get("name", "NVIDIA H200 MIG 1g.18gb"))

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> Any:
        total, used = (int(handle.get(key, 0) * 2**30) for key in ("total_gib", "used_gib"))
        used += sum(int(gib * 2**30) for _, gib in self._taken(handle))
        # Reserved memory: the real call counts it as neither used nor free.
        reserved = int(handle.get("reserved_gib", 0) * 2**30)
        return SimpleNamespace(total=total, used=used, free=total - used - reserved)

    def nvmlDeviceGetUtilizationRates(self, handle: dict[str, Any]) -> Any:
        if "instances" in handle:
            _fail("NOT_SUPPORTED")
        return SimpleNamespace(gpu=handle.get("utilization", 0), memory=0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: dict[str, Any]) -> list[Any]:
        if "processes_error" in handle:
            _fail(handle["processes_error"])
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if gib is None else int(gib * 2**30))
            for pid, gib in [
                *handle.get("processes", []),
                *([] if self._machine.get("container") else self._taken(handle)),
            ]
        ]

    def nvmlDeviceGetCudaComputeCapability(self, handle: dict[str, Any]) -> tuple[int, int]:
        major, minor = handle.get("capability", [9, 0])
        return major, minor

    def nvmlDeviceGetMigMode(self, handle: dict[str, Any]) -> list[int]:
        if "instances" in handle or handle.get("mig_supported") is False:
            _fail("NOT_SUPPORTED")
        return [int("slices" in handle)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: dict[str, Any]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: dict[str, Any], index: int) -> dict[str, Any]:
        slices = handle["slices"]
        return slices[index] if index < len(slices) else _fail("NOT_FOUND")

    def _taken(self, handle: dict[str, Any]) -> list[tuple[int, float]]:
        found = []
        for path in Path(self._machine["taken"]).glob("*.json") if "taken" in self._machine else ():
            with suppress(FileNotFoundError):  # given back this moment
                one = json.loads(path.read_text())
                if one["uuid"] == handle["uuid"]:
                    found.append((int(path.stem), one["gib"]))
        return found

    def _gpus(self) -> list[dict[str, Any]]:
        if not self._open:
            _fail("UNINITIALIZED")
        return list(self._machine["gpus"])

    def _everything(self) -> Iterable[dict[str, Any]]:
        for one in self._gpus():
            yield one
            yield from one.get("slices", [])


def _answering(one: dict[str, Any]) -> dict[str, Any]:
    if error := one.get("error"):
        _fail(error)
    return one


def _fail(error: str) -> Any:
    raise pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{error}"))
