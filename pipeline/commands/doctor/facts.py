"""What the checks look at, read from the system once; each of it may be missing on some machine."""

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

from pipeline.engine.devices.inventory import Machine, NoDriver, read_machine, session, text, usable_cores
from pipeline.engine.devices.lease import holders
from pipeline.errors import DeviceError
from pipeline.machine.memory import memory_available_bytes

_TORCH_TIMEOUT_S = 300
_ASK_TORCH = """
import gc, json, warnings
gc.disable()  # nothing that is imported is garbage, and looking for some takes a fifth of the time
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import torch, transformers, pipeline.learning.algos.stage_entry
    count = torch.cuda.device_count()
    available = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "available": available, "count": count,
    "error": "; ".join(str(one.message) for one in said if "CUDA" in str(one.message)),
    "transformers": transformers.__version__,
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
        error: What it complained about.
        transformers: Version of transformers.
        failure: Why it could not be asked at all.
    """

    version: str = ""
    cuda: str | None = None
    available: bool = False
    count: int = 0
    error: str = ""
    transformers: str = ""
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
        busy_ports: Port -> who listens there.
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
    busy_ports: Mapping[int, str] = field(default_factory=dict)


def read_facts(output_dir: Path) -> Facts:
    """Ask the system.

    Args:
        output_dir: Where runs are going to be; made if missing.
    """
    environment = dict(os.environ)
    machine, held, driver_error, driver, driver_cuda = Machine(), {}, "", "", None
    try:
        machine = read_machine()
        held = {uuid: str(holder) for uuid, holder in holders(list(machine.devices.values())).items()}
        with session() as nvml:
            number = int(nvml.nvmlSystemGetCudaDriverVersion())
            driver, driver_cuda = text(nvml.nvmlSystemGetDriverVersion()), (number // 1000, number % 1000 // 10)
    except NoDriver:
        pass
    except DeviceError as error:
        driver_error = str(error)
    folders = [output_dir, Path(tempfile.gettempdir())]
    return Facts(
        environment=environment,
        machine=machine,
        driver_error=driver_error,
        driver=driver,
        driver_cuda=driver_cuda,
        held=held,
        nodes=_nodes(Path("/dev")),
        torch=ask_torch(),
        cores=usable_cores(),
        cpu_quota=cpu_quota(_cgroup()),
        memory_bytes=memory_available_bytes(),
        memory_limit_bytes=memory_left(_cgroup()),
        shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,  # noqa: S108
        disks={str(folder): shutil.disk_usage(_existing(folder)).free for folder in folders},
        busy_ports=_busy_ports(environment),
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
    return TorchFacts(**json.loads(done.stdout.splitlines()[-1]))


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
    for one in (folder, *folder.parents):
        with suppress(OSError, ValueError):
            allowed, period = map(int, (one / "cpu.max").read_text().split())
            limits.append(allowed / period)
    return min(limits, default=None)


def memory_left(folder: Path) -> int | None:
    """Bytes that a cgroup and those above still allow; None for no limit."""
    left = []
    for one in (folder, *folder.parents):
        with suppress(OSError, ValueError):
            allowed, used = (int((one / f"memory.{name}").read_text()) for name in ("max", "current"))
            left.append(max(0, allowed - used))
    return min(left, default=None)


def _existing(folder: Path) -> Path:
    return next(one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir())


def _busy_ports(environment: Mapping[str, str]) -> dict[int, str]:
    """Who has the port that was set."""
    from pipeline.engine.launch.run import listener

    given = environment.get("MASTER_PORT", "")
    try:
        if given.isdigit() and int(given) < 1 << 16:
            socket.create_server(("", int(given))).close()
    except OSError:
        return {int(given): listener(int(given)) or " by a program of somebody else"}
    return {}
