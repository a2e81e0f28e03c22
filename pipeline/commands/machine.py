"""What may be wrong with a machine: what the system says of it, read once, and pure checks of that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.engine.devices.inventory import (
    NOTHING,
    VISIBLE,
    Device,
    Machine,
    NoDriver,
    read_machine,
    session,
    usable_cores,
    visible_gpus,
)
from pipeline.engine.devices.lease import holders
from pipeline.errors import DeviceError
from pipeline.machine.memory import memory_available_bytes
from pipeline.terminal.console import Check, failed, passed, warned

GPU_IN_USE = 0.1
SHM_GIB = 1
WORKER_MEMORY_GIB = 0.7
_SHM = Path("/dev/shm")  # noqa: S108 - looked at alone
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
        driver: Its version, and the newest CUDA that it runs, as in ``570.86.15 (CUDA up to 12.8)``.
        held: UUID -> which run holds it.
        nodes: Files such as /dev/nvidia0.
        torch: What torch says.
        cores: Cores that this process may run on.
        cpu_quota: Cores' worth of time that its cgroup allows.
        memory_bytes: Memory that can be taken now.
        memory_limit_bytes: What its cgroup allows on top of what is in use.
        shm_bytes: Size of /dev/shm.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    driver_error: str = ""
    driver: str = ""
    held: Mapping[str, str] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    torch: TorchFacts = field(default_factory=TorchFacts)
    cores: int = 1
    cpu_quota: float | None = None
    memory_bytes: int = 0
    memory_limit_bytes: int | None = None
    shm_bytes: int | None = None


# -- facts -------------------------------------------------------------------------------------------------------


def read_facts() -> Facts:
    """Ask the system."""
    machine, held, driver_error, driver = Machine(), {}, "", ""
    try:
        machine = read_machine()
        held = {uuid: str(holder) for uuid, holder in holders(list(machine.devices.values())).items()}
        with session() as nvml:
            number = int(nvml.nvmlSystemGetCudaDriverVersion())
            cuda = f"CUDA up to {number // 1000}.{number % 1000 // 10}"
            driver = f"{nvml.nvmlSystemGetDriverVersion()} ({cuda})"
    except NoDriver:
        pass
    except DeviceError as error:
        driver_error = str(error)
    return Facts(
        environment=dict(os.environ),
        machine=machine,
        driver_error=driver_error,
        driver=driver,
        held=held,
        nodes=sorted(map(str, Path("/dev").glob("nvidia[0-9]*"))),
        torch=ask_torch(),
        cores=usable_cores(),
        cpu_quota=cpu_quota(_cgroup()),
        memory_bytes=memory_available_bytes(),
        memory_limit_bytes=memory_left(_cgroup()),
        shm_bytes=shutil.disk_usage(_SHM).total if _SHM.is_dir() else None,
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


# -- checks ------------------------------------------------------------------------------------------------------


def machine_checks(facts: Facts) -> Iterator[Check]:
    """All of them."""
    for check in (_driver, _mask, _torch, _gpu_memory, _cpus, _memory, _shm):
        yield check(facts)


def _visible(facts: Facts) -> list[Device]:
    """What the environment shows; none where it is wrong, which another check says."""
    with suppress(DeviceError):
        return visible_gpus(facts.machine, facts.environment)
    return []


def _driver(facts: Facts) -> Check:
    """The driver answers, and for every GPU."""
    name = "driver"
    if facts.driver_error:
        return failed(name, facts.driver_error, "reboot if it was updated; until then use device=cpu")
    if broken := facts.machine.broken:
        places = {uuid: place for place, uuid in enumerate(facts.machine.uuids)}
        seen = "; ".join(f"GPU {places[uuid]}: {why}" for uuid, why in broken.items())
        return warned(name, seen, "see `dmesg | grep -i xid`, then have it reset or reboot; runs leave it out")
    if not facts.machine.uuids and facts.nodes:
        return failed(
            name,
            f"{', '.join(facts.nodes)} are there, but the driver's library libnvidia-ml.so.1 is not",
            "start the container with --gpus all, or NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    if not facts.machine.uuids:
        return passed(name, "no NVIDIA driver, or no GPU was passed into this container: runs use CPU slots")
    return passed(name, f"NVIDIA {facts.driver}; {len(facts.machine.uuids)} GPUs")


def _mask(facts: Facts) -> Check:
    """CUDA_VISIBLE_DEVICES means what it seems to."""
    name, mask, uuids = VISIBLE, facts.environment.get(VISIBLE), facts.machine.uuids
    if mask is None or not uuids:
        return passed(name, "not set: every GPU is visible" if mask is None else f"{mask}: no GPU is there")
    shown = f"{VISIBLE}={mask}"
    if mask.strip() in NOTHING:
        return warned(name, f"{shown} hides all {len(uuids)} GPUs", f"`unset {VISIBLE}`, unless you mean the CPU")
    try:
        visible = visible_gpus(facts.machine, facts.environment)
    except DeviceError as error:
        return failed(name, str(error), f"give numbers from 0 to {len(uuids) - 1}, each once, with commas between")
    return passed(name, f"{shown}: {', '.join(gpu.label for gpu in visible)}")


def _torch(facts: Facts) -> Check:
    """Torch sees the GPUs that the driver lists."""
    name, torch, visible = "torch and driver", facts.torch, _visible(facts)
    if torch.failure:
        return failed(name, torch.failure, "see the check of imports")
    if not visible:
        return passed(name, "no GPU is visible, nothing to compare")
    if torch.cuda is None:
        return failed(
            name,
            f"torch {torch.version} was built without CUDA, but there are {len(visible)} GPUs",
            "install the CUDA build, see https://pytorch.org/get-started",
        )
    seen = f"torch {torch.version} for CUDA {torch.cuda} sees {torch.count} GPUs"
    if not torch.available:
        said = f": {' '.join(torch.error.split())}" if torch.error else ""
        return failed(
            name,
            f"{seen} and cannot use them; driver: {facts.driver}{said}",
            "update the driver or install a torch for an older CUDA, if that is newer; else see `nvidia-smi`",
        )
    if torch.count != len(visible) and all(gpu.slice_index is None for gpu in visible):
        return failed(
            name,
            f"{seen}, NVML {len(visible)}",
            "a cgroup or container hides some: compare `nvidia-smi -L` inside and outside of it",
        )
    return passed(name, seen)


def _gpu_memory(facts: Facts) -> Check:
    """No other program holds much of the GPUs that a run would use."""
    name, gpus = "GPU memory", _visible(facts)
    use = {gpu: facts.machine.usage[gpu.uuid or ""] for gpu in gpus}
    share = {gpu: one.used_bytes / one.total_bytes for gpu, one in use.items()}
    held = {gpu: f", held by {facts.held[gpu.uuid or '']}" if gpu.uuid in facts.held else "" for gpu in gpus}
    seen = "; ".join(f"{gpu.label}: {part:.0%} in use{held[gpu]}" for gpu, part in share.items()) or "no GPU"
    busy = [gpu for gpu, part in share.items() if part > GPU_IN_USE and not held[gpu]]
    if not busy:
        return passed(name, seen)
    pids = sorted({process.pid for gpu in busy for process in use[gpu].processes or ()})
    free = ",".join(str(place) for place, gpu in enumerate(gpus) if gpu not in busy)
    choose = f"use the others: distributed.gpu_ids=[{free}]" if free else "use device=cpu"
    who = f" by processes {', '.join(map(str, pids))}" if pids else ""
    return warned(name, seen + who, f"stop what runs there, or {choose}")


def _cpus(facts: Facts) -> Check:
    """Cores that are shown are cores that can be used."""
    quota = facts.cpu_quota
    if quota is None or quota >= facts.cores - 0.5:
        return passed("CPU limit", f"{facts.cores} usable cores")
    slots = max(1, int(quota))
    return warned(
        "CPU limit",
        f"{facts.cores} cores are shown, but the cgroup allows the time of {quota:g}",
        f"set execution.workers={slots} on the CPU, and OMP_NUM_THREADS={slots} for programs of your own",
    )


def _memory(facts: Facts) -> Check:
    """A worker fits into what may be taken."""
    limit, worker = facts.memory_limit_bytes, WORKER_MEMORY_GIB * 2**30
    of_cgroup = limit is not None and limit < facts.memory_bytes
    left = limit if limit is not None and of_cgroup else facts.memory_bytes
    seen = f"{left / 2**30:.1f} GiB can be taken, by the limit of {'the cgroup' if of_cgroup else 'the machine'}"
    if left < (facts.cores if of_cgroup else 1) * worker:
        return warned(
            "memory limit",
            f"{seen}, for {facts.cores} cores; a worker takes {WORKER_MEMORY_GIB} GiB",
            f"set execution.workers={max(1, int(left / worker))} on the CPU, or ask for more (Slurm: --mem)",
        )
    return passed("memory limit", seen)


def _shm(facts: Facts) -> Check:
    """Shared memory has room for data loaders and NCCL."""
    size = facts.shm_bytes
    if size is None or size >= SHM_GIB * 2**30:
        return passed(str(_SHM), "not on this system" if size is None else f"{size / 2**30:.2f} GiB")
    return warned(
        str(_SHM),
        f"{size / 2**30:.2f} GiB: data loaders with num_workers > 0 die with a bus error, and NCCL cannot start",
        "start the container with --shm-size=8g or --ipc=host; else num_workers: 0 and NCCL_SHM_DISABLE=1",
    )
