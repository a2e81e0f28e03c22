"""What the checks look at, read from the system once. Everything here may be missing on some machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.engine.devices.inventory import Machine, read_machine, usable_cores
from pipeline.engine.devices.lease import holders
from pipeline.engine.devices.nvml import NoDriver, session, text
from pipeline.errors import DeviceError
from pipeline.machine.memory import memory_available_bytes

_TORCH_TIMEOUT_S = 300
_ASK_TORCH = """
import gc, json, sys, warnings
gc.disable()  # nothing that is imported is garbage, and looking for some takes a fifth of the time
import pipeline.cli
engine_imports_torch = "torch" in sys.modules
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import torch, transformers, pipeline.learning.algos.stage_entry
    from pipeline.learning.algos.registry import known_algorithms
    count = torch.cuda.device_count()
    available = torch.cuda.is_available()
    error, uuids = "", []
    if available:
        try:
            uuids = [str(torch.cuda.get_device_properties(place).uuid) for place in range(count)]
        except Exception as failure:
            error = str(failure)
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "available": available, "count": count,
    "architectures": torch.cuda.get_arch_list() if available else [],
    "uuids": uuids, "error": error or "; ".join(str(one.message) for one in said if "CUDA" in str(one.message)),
    "transformers": transformers.__version__, "algorithms": list(known_algorithms()),
    "engine_imports_torch": engine_imports_torch,
}))
gc.freeze()  # nor does it end sooner for going through all of it
"""


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    """What torch says in a process of its own.

    Attributes:
        version: Of torch.
        cuda: Of the CUDA it was built for; None for a build without.
        available: Whether it can use a GPU.
        count: GPUs that it sees.
        architectures: What its kernels were compiled for, as ``sm_90``.
        uuids: Of the GPUs in its order, without ``GPU-``; empty where it does not tell.
        error: What it complained about.
        transformers: Version of transformers.
        algorithms: Names of the algorithms that can be imported.
        engine_imports_torch: Whether it was there once the engine's modules were.
        failure: Why it could not be asked at all.
    """

    version: str = ""
    cuda: str | None = None
    available: bool = False
    count: int = 0
    architectures: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    error: str = ""
    transformers: str = ""
    algorithms: tuple[str, ...] = ()
    engine_imports_torch: bool = False
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a machine is like, as far as it tells.

    Attributes:
        environment: Variables of this process.
        machine: GPUs as NVML lists them.
        driver_error: Why the driver does not answer.
        driver: Its version.
        driver_cuda: Newest CUDA that it runs, as (12, 8).
        held: UUID -> which run holds it.
        nodes: Files such as /dev/nvidia0 -> why they cannot be opened; empty where they can.
        torch: What torch says.
        cores: Cores that this process may run on.
        cpu_quota: Cores' worth of time that its cgroup allows.
        memory_bytes: Memory that can be taken now.
        memory_limit_bytes: What its cgroup allows on top of what is in use.
        shm_bytes: Size of /dev/shm.
        disks: Folder -> bytes free.
        inodes: Folder -> files that can still be made; None where there is no such limit.
        host_resolves: Whether the machine's own name leads to an address.
        busy_ports: Port -> who listens there.
        loopback_error: Why no port can be opened on 127.0.0.1.
        srun: Whether Slurm's `srun` is installed.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    driver_error: str = ""
    driver: str = ""
    driver_cuda: tuple[int, int] | None = None
    held: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    torch: TorchFacts = field(default_factory=TorchFacts)
    cores: int = 1
    cpu_quota: float | None = None
    memory_bytes: int = 0
    memory_limit_bytes: int | None = None
    shm_bytes: int | None = None
    disks: Mapping[str, int] = field(default_factory=dict)
    inodes: Mapping[str, int | None] = field(default_factory=dict)
    host_resolves: bool = True
    busy_ports: Mapping[int, str] = field(default_factory=dict)
    loopback_error: str = ""
    srun: bool = False


def read_facts(output_dir: Path) -> Facts:
    """Ask the system.

    Args:
        output_dir: Where runs are going to be; made if missing.
    """
    environment = dict(os.environ)
    machine, driver_error = _machine()
    driver, driver_cuda = _driver()
    folders = [output_dir, Path(tempfile.gettempdir())]
    return Facts(
        environment=environment,
        machine=machine,
        driver_error=driver_error,
        driver=driver,
        driver_cuda=driver_cuda,
        held=_held(machine),
        nodes=_nodes(Path("/dev")),
        torch=ask_torch(),
        cores=usable_cores(),
        cpu_quota=cpu_quota(_cgroup()),
        memory_bytes=memory_available_bytes(),
        memory_limit_bytes=memory_left(_cgroup()),
        shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,  # noqa: S108
        disks={str(folder): shutil.disk_usage(_existing(folder)).free for folder in folders},
        inodes={str(folder): _inodes(_existing(folder)) for folder in folders},
        host_resolves=_resolves(),
        busy_ports=_busy_ports(environment),
        loopback_error=_loopback_error(),
        srun=shutil.which("srun") is not None,
    )


def ask_torch() -> TorchFacts:
    """Ask torch in a fresh process, which may open CUDA contexts and ends with them."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TORCH_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return TorchFacts(failure=f"importing torch took longer than {_TORCH_TIMEOUT_S} s")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return TorchFacts(failure=last[0])
    fields: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    return TorchFacts(**plain)


def _machine() -> tuple[Machine, str]:
    try:
        return read_machine(), ""
    except DeviceError as error:
        return Machine(), str(error)


def _driver() -> tuple[str, tuple[int, int] | None]:
    try:
        with session() as nvml:
            number = int(nvml.nvmlSystemGetCudaDriverVersion())
            return text(nvml.nvmlSystemGetDriverVersion()), (number // 1000, number % 1000 // 10)
    except (NoDriver, DeviceError):
        return "", None


def _held(machine: Machine) -> dict[str, str]:
    try:
        return {uuid: str(holder) for uuid, holder in holders(list(machine.devices.values())).items()}
    except DeviceError:
        return {}


def _nodes(folder: Path) -> dict[str, str]:
    """GPUs' files: a container may show them and a cgroup forbid them."""
    found = {}
    for path in sorted(folder.glob("nvidia[0-9]*")):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            found[str(path)] = ""
        except OSError as error:
            found[str(path)] = error.strerror or str(error)
    return found


def _cgroup() -> Path:
    """The folder of this process's cgroup, or the root of the hierarchy inside a container."""
    root = Path("/sys/fs/cgroup")
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::") and (root / line[3:].lstrip("/")).is_dir():
                return root / line[3:].lstrip("/")
    return root


def cpu_quota(folder: Path) -> float | None:
    """Cores' worth of time that a cgroup allows, the least of it and those above; None for no limit."""
    limits = []
    for one in _with_parents(folder):
        with suppress(OSError, ValueError):
            allowed, period = (one / "cpu.max").read_text().split()
            if allowed != "max":
                limits.append(int(allowed) / int(period))
        with suppress(OSError, ValueError):
            allowed = (one / "cpu/cpu.cfs_quota_us").read_text().strip()
            if int(allowed) > 0:
                limits.append(int(allowed) / int((one / "cpu/cpu.cfs_period_us").read_text()))
    return min(limits, default=None)


def memory_left(folder: Path) -> int | None:
    """Bytes that a cgroup and those above still allow; None for no limit."""
    left = []
    for one in _with_parents(folder):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
        ):
            with suppress(OSError, ValueError):
                allowed = int((one / limit).read_text())
                if allowed < 1 << 60:  # version 1 writes a huge number for no limit
                    left.append(max(0, allowed - int((one / used).read_text())))
    return min(left, default=None)


def _with_parents(folder: Path) -> list[Path]:
    top = Path("/sys/fs/cgroup")
    return [folder, *(parent for parent in folder.parents if parent == top or top in parent.parents)]


def _existing(folder: Path) -> Path:
    return next(one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir())


def _inodes(folder: Path) -> int | None:
    found = os.statvfs(folder)
    return found.f_favail if found.f_files else None


def _resolves() -> bool:
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return False
    return True


def _loopback_error() -> str:
    try:
        socket.create_server(("127.0.0.1", 0)).close()
    except OSError as error:
        return str(error)
    return ""


def _busy_ports(environment: Mapping[str, str]) -> dict[int, str]:
    """Who has the ports that programs take unasked: torchrun's default, and the one that was set."""
    from pipeline.engine.launch.run import listener

    given = environment.get("MASTER_PORT", "")
    wanted = {29500, *([int(given)] if given.isdigit() and int(given) < 1 << 16 else [])}
    busy = {}
    for port in sorted(wanted):
        try:
            socket.create_server(("", port)).close()
        except OSError:
            busy[port] = listener(port) or " by a program of somebody else"
    return busy
