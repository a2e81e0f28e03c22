"""Find the devices that this machine has and may use. Asks the driver through NVML, never through CUDA.

Opening a CUDA context here would take memory on every GPU and freeze their visibility for this process, so the
engine neither imports torch nor touches the CUDA runtime.
"""

import importlib
import logging
import os
import platform
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline import arithmetic
from pipeline.errors import DeviceError, JobError

VISIBLE = "CUDA_VISIBLE_DEVICES"
NOTHING = ("", "-1", "NoDevFiles")
"""Values that hide every GPU on purpose; Slurm sets the last one."""


def read_mask(mask: str | None, gpus: Sequence[str], slices: Sequence[str] = ()) -> list[str]:
    """Return the UUIDs of the devices that CUDA_VISIBLE_DEVICES shows, in the order in which CUDA numbers them.

    Args:
        mask: The value of the variable; None if it is not set.
        gpus: UUIDs of the GPUs in PCI bus order.
        slices: UUIDs of MIG slices.

    Raises:
        DeviceError: CUDA would silently ignore a part of the value; the message says which.
    """
    if mask is None or mask.strip() in NOTHING:
        return [] if mask is not None else [*gpus, *slices]
    entries = mask.split(",")
    kind = next((prefix for prefix in ("GPU-", "MIG-") if mask.startswith(prefix)), "")
    chosen: list[str] = []
    for entry in entries:
        if kind:  # as in CUDA, all entries are numbers, or all are names (or prefixes of names) of one kind
            fits = [uuid for uuid in (*gpus, *slices) if uuid.startswith(entry) and entry.startswith(kind)]
        else:
            number = int(entry) if re.fullmatch(r"\s*[0-9]{1,9}\s*", entry, re.ASCII) else len(gpus)
            fits = list(gpus[number : number + 1])
        if len(fits) != 1 or fits[0] in chosen:
            what = ("names no GPU of this machine", "is given twice", "matches several GPUs")[min(len(fits), 2)]
            raise DeviceError(f"'{entry}' {what}")
        chosen += fits
    return chosen


# -- nvml --------------------------------------------------------------------------------------------------------
# All access to the NVIDIA driver goes through NVML (nvidia-ml-py), opened for each query and closed again. NVML
# answers without a CUDA context, sees all use of a device by any process, and knows nothing of
# CUDA_VISIBLE_DEVICES.


TEST_HOOK = "PIPELINE_TEST_NVML"
"""For tests only: ``module:argument``. The result of `module.load(argument)` replaces the module `pynvml`."""


class NoDriver(Exception):  # noqa: N818 - an answer, not a fault
    """Raised when this machine has no NVIDIA driver, or no library to query it with."""


@contextmanager
def session() -> Iterator[Any]:
    """Open NVML and close it again.

    Yields:
        The module `pynvml`, initialised.

    Raises:
        NoDriver: There is no driver.
        DeviceError: There is a driver but it does not work, or it fails inside the block.
    """
    try:
        nvml = _binding()
    except ImportError as error:
        raise NoDriver("the package nvidia-ml-py is not installed") from error
    try:
        nvml.nvmlInit()
        try:
            yield nvml
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            raise NoDriver(str(error)) from error
        raise DeviceError(
            f"the NVIDIA driver does not answer: {str(error).rstrip('.')}. See what `nvidia-smi` says, or go on "
            "without GPUs by device=cpu."
        ) from error


def _binding() -> Any:
    hook = os.environ.get(TEST_HOOK)
    if hook:
        module, _, argument = hook.partition(":")
        return importlib.import_module(module).load(argument)
    import pynvml

    return pynvml


log = logging.getLogger("pipeline")


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU, a MIG slice of one, or a CPU slot.

    Attributes:
        kind: GPU, MIG slice or CPU slot.
        index: Number of the GPU in PCI bus order, or of the slot.
        uuid: UUID of the GPU, which does not depend on the order of devices; None for a CPU slot, and for a GPU
            that Ray chooses.
        name: Product name.
        memory_total_bytes: Total memory, used or not; for a CPU slot the memory of the whole machine.
        slice_index: Number of the MIG slice on its GPU; None for a whole GPU.
        node: Number of the machine that holds the device, where a run has several machines.
    """

    kind: Literal["cuda", "cpu"]
    index: int
    uuid: str | None
    name: str
    memory_total_bytes: int
    slice_index: int | None = None
    node: int = 0

    @property
    def label(self) -> str:
        """Short name for messages: ``GPU 0``, ``GPU 0 slice 1`` or ``cpu slot 0``."""
        if self.kind == "cpu":
            return f"cpu slot {self.index}"
        return f"GPU {self.index}" + ("" if self.slice_index is None else f" slice {self.slice_index}")


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU; its memory is unknown inside most containers."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """Current use of a GPU by all processes together.

    Attributes:
        used_bytes: Memory in use on the whole device, by all processes.
        free_bytes: Memory that can be allocated now.
        total_bytes: Total memory.
        utilization: Share of time with a kernel running, in percent; None where the driver does not tell (MIG).
        processes: Processes that compute on the GPU; None where the driver does not tell.
        compute_capability: CUDA compute capability, such as (9, 0).
    """

    used_bytes: int
    free_bytes: int
    total_bytes: int
    utilization: int | None = None
    processes: tuple[GpuProcess, ...] | None = ()
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """All GPUs of a machine, regardless of CUDA_VISIBLE_DEVICES.

    Attributes:
        uuids: UUIDs of all GPUs in PCI bus order, including those that cannot be used as a whole.
        devices: UUID -> usable device: a whole GPU or a MIG slice.
        usage: UUID -> its current use.
        split: UUIDs of the GPUs in MIG mode.
        broken: UUID (or a placeholder) of a GPU that does not answer -> the reason.
    """

    uuids: tuple[str, ...] = ()
    devices: Mapping[str, Device] = field(default_factory=dict)
    usage: Mapping[str, GpuUsage] = field(default_factory=dict)
    split: frozenset[str] = frozenset()
    broken: Mapping[str, str] = field(default_factory=dict)


def find_gpus(environ: Mapping[str, str] | None = None) -> list[Device]:
    """Return the GPUs that this process may use, numbered as by CUDA; without a driver the list is empty.

    Args:
        environ: Environment in which CUDA_VISIBLE_DEVICES is looked up; `os.environ` if None.

    Raises:
        DeviceError: CUDA_VISIBLE_DEVICES names a GPU that does not exist, or the driver does not work.
    """
    return look(environ)[0]


def look(environ: Mapping[str, str] | None = None) -> tuple[list[Device], Machine]:
    """Return the visible GPUs, and the whole machine.

    Where every GPU is hidden, none is queried and both are empty.
    """
    environ = os.environ if environ is None else environ
    if environ.get(VISIBLE, "0").strip() in NOTHING:
        return [], Machine()
    machine = read_machine()
    return visible_gpus(machine, environ), machine


def visible_gpus(machine: Machine, environ: Mapping[str, str]) -> list[Device]:
    """Return the GPUs of a machine that an environment leaves visible.

    Each MIG slice in a mask counts as a device of its own, one for each worker, although CUDA would show a single
    process only the first slice.

    Raises:
        DeviceError: CUDA would silently ignore a part of the mask, or the mask names a device that cannot be used.
    """
    mask = environ.get(VISIBLE)
    try:
        slices = [uuid for uuid, device in machine.devices.items() if device.slice_index is not None]
        shown = read_mask(mask, machine.uuids, slices)
    except DeviceError as error:
        raise DeviceError(
            f"{VISIBLE}={mask}: entry {error}. There is: {_listed(machine)}. Correct or unset it."
        ) from error
    if mask is None:
        return list(machine.devices.values())
    return [_usable(machine, uuid, mask) for uuid in shown]


def _usable(machine: Machine, uuid: str, mask: str) -> Device:
    if uuid in machine.devices:
        return machine.devices[uuid]
    index = machine.uuids.index(uuid)
    if uuid in machine.split:
        slices = ",".join(gpu.uuid or "" for gpu in machine.devices.values() if gpu.slice_index is not None)
        raise DeviceError(
            f"{VISIBLE}={mask}: GPU {index} is in MIG mode, so CUDA would show one slice of it. Name slices by "
            f"UUID: {VISIBLE}={slices or '(it has none yet: see `nvidia-smi mig`)'}."
        )
    raise DeviceError(f"{VISIBLE}={mask}: GPU {index} does not work: {machine.broken.get(uuid)}. Leave it out.")


def _listed(machine: Machine) -> str:
    return ", ".join(f"{device.index} ({device.uuid})" for device in machine.devices.values()) or "no GPU"


def read_machine() -> Machine:
    """Query the driver for all GPUs and their current use.

    Raises:
        DeviceError: There is a driver but it does not work.
    """
    try:
        with session() as nvml:
            return _read_all(nvml)
    except NoDriver:
        return Machine()


def read_usage(device: Device) -> GpuUsage:
    """Return the current use of one GPU.

    Raises:
        DeviceError: The driver does not answer, or does not know the GPU any more.
    """
    try:
        with session() as nvml:
            return _usage(nvml, nvml.nvmlDeviceGetHandleByUUID(device.uuid))
    except NoDriver as error:
        raise DeviceError(f"{device.label} cannot be asked: {error}") from error


def _read_all(nvml: Any) -> Machine:
    uuids: list[str] = []
    devices: dict[str, Device] = {}
    usage: dict[str, GpuUsage] = {}
    split: set[str] = set()
    broken: dict[str, str] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            whole = _describe(nvml, handle, index, uuid)
            slices = _slices(nvml, handle, whole) if _in_mig_mode(nvml, handle) else None
            use = _usage(nvml, handle)
        except nvml.NVMLError as error:
            # One GPU that fell off the bus must not hide the others.
            broken[f"broken-{index}"] = str(error).rstrip(".")
            uuids.append(f"broken-{index}")
            log.warning("GPU %d is left out: %s", index, error)
            continue
        uuids.append(uuid)
        if slices is None:
            devices[uuid], usage[uuid] = whole, use
            continue
        split.add(uuid)
        for device, slice_usage in slices:
            assert device.uuid is not None
            devices[device.uuid], usage[device.uuid] = device, slice_usage
    return Machine(uuids=tuple(uuids), devices=devices, usage=usage, split=frozenset(split), broken=broken)


def _describe(nvml: Any, handle: Any, index: int, uuid: str, slice_index: int | None = None) -> Device:
    return Device(
        kind="cuda",
        index=index,
        uuid=uuid,
        name=nvml.nvmlDeviceGetName(handle),
        memory_total_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        slice_index=slice_index,
    )


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    current = _optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _slices(nvml: Any, handle: Any, whole: Device) -> list[tuple[Device, GpuUsage]]:
    slices = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue  # slots are numbered for the finest partition, so most are empty
        device = _describe(nvml, part, whole.index, nvml.nvmlDeviceGetUUID(part), index)
        slices.append((device, _usage(nvml, part)))
    return slices


def _usage(nvml: Any, handle: Any) -> GpuUsage:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    processes = _optional(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    capability = _optional(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return GpuUsage(
        used_bytes=int(memory.total) - int(memory.free),
        free_bytes=int(memory.free),
        total_bytes=int(memory.total),
        utilization=_optional(nvml, lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        processes=None
        if processes is None
        else tuple(GpuProcess(process.pid, process.usedGpuMemory) for process in processes),
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
    )


def _optional(nvml: Any, ask: Callable[[], Any]) -> Any:
    # Cards, drivers, containers and MIG slices may not report this value, each with an error of its own.
    try:
        return ask()
    except nvml.NVMLError_GpuIsLost:
        raise
    except nvml.NVMLError:
        return None


def refuse_slices(devices: Sequence[Device]) -> None:
    """Refuse several devices for one process if one is a MIG slice: CUDA shows a process no other beside it.

    Raises:
        DeviceError: One is a slice.
    """
    if len(devices) > 1 and any(device.slice_index is not None for device in devices):
        labels = ", ".join(device.label for device in devices)
        raise DeviceError(
            f"{labels}: CUDA shows a process one MIG slice and nothing else. Take one, or whole GPUs."
        )


def cpu_slots(count: int) -> list[Device]:
    """Return `count` CPU slots of this machine."""
    import psutil

    total = int(psutil.virtual_memory().total)
    name = platform.processor() or platform.machine()
    return [
        Device(kind="cpu", index=index, uuid=None, name=name, memory_total_bytes=total) for index in range(count)
    ]


def usable_cores() -> int:
    """Return the number of cores this process may use: fewer than all under taskset, cgroups or Slurm."""
    return len(os.sched_getaffinity(0))


# -- memory reclaim ----------------------------------------------------------------------------------------------
# Check whether the memory of a GPU is free again after a process that used it has ended.
#
#     level = memory in use - memory that the driver accounts to live processes
#
# The level is read before a run starts its first worker on the GPU. Memory above that level later was left by a
# process that has ended. The driver usually frees it at once, but that can take seconds, and if a process is stuck
# in the driver the memory is never freed. Inside most containers the driver reports no usable process ids or no
# memory per process; then the level is all memory in use.


FREE_TIMEOUT_S = 30.0
"""Seconds to wait for memory to be freed. The driver clears a dead process well within this time, even one with
all memory of a large GPU and much pinned host memory; memory still in use after it is never freed."""
SLACK_BYTES = 512 * 2**20
"""A GPU counts as free up to this far above its level. A display or the driver itself varies by about as much, and
every estimate of what fits leaves a larger margin."""
POLL_S = 0.2


def lives(pid: int) -> bool:
    """Return whether a process is alive on this machine, or in this container."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def read_levels(devices: Sequence[Device]) -> dict[str, int]:
    """Return UUID -> level in bytes for the GPUs that answer. CPU slots have no level."""
    levels = {}
    for device in devices:
        if device.kind == "cuda" and device.uuid:
            try:
                level = unaccounted_bytes(read_usage(device))
            except DeviceError:
                continue
            levels[device.uuid] = level
    return levels


def unaccounted_bytes(usage: GpuUsage) -> int:
    """Return the bytes in use that belong to no live process. A process of unknown size counts as nothing."""
    return usage.used_bytes - sum(
        process.memory_bytes or 0 for process in usage.processes or () if lives(process.pid)
    )


def leftover(device: Device, level_bytes: int) -> str:
    """Say how much memory ended processes still hold on a GPU; "" for none.

    Args:
        device: The GPU.
        level_bytes: The level from `read_levels`.
    """
    try:
        seen = read_usage(device)
    except DeviceError as error:
        return f"{device.label}: whether its memory is free cannot be told: {error}"
    now = unaccounted_bytes(seen)
    if now <= level_bytes + SLACK_BYTES:
        return ""
    gone = [process for process in seen.processes or () if not lives(process.pid)]
    who = ", ".join(map(_words, gone)) or "the driver does not say who"
    return (
        f"{device.label}: {_mb(now - level_bytes)} are still taken after the process that had them ended ({who})"
    )


def wait_until_free(
    devices: Sequence[Device],
    levels: Mapping[str, int],
    timeout_s: float,
    enough: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Wait until the memory that ended processes held on some GPUs is free.

    Args:
        devices: The GPUs; those without a level count as free.
        levels: The levels from `read_levels`.
        timeout_s: Seconds to wait at most, for all of them together.
        enough: Called while waiting; ends the wait when it returns True because nobody needs the devices any more.

    Returns:
        A message for each GPU that was not free in time.
    """
    end = time.monotonic() + timeout_s
    pairs = [(device, levels[device.uuid]) for device in devices if device.uuid and device.uuid in levels]
    while (leftovers := [(words, pair) for pair in pairs if (words := leftover(*pair))]) and not enough():
        if time.monotonic() >= end:
            return [f"{words}, and did not come back within {timeout_s:g} s" for words, _ in leftovers]
        pairs = [pair for _, pair in leftovers]
        time.sleep(POLL_S)
    return []


def _words(process: GpuProcess) -> str:
    amount = "memory" if process.memory_bytes is None else _mb(process.memory_bytes)
    return f"process {process.pid}, which does not run here, has {amount}"


def _mb(number: int) -> str:
    return f"{number / 2**20:.0f} MB"


# -- worker env --------------------------------------------------------------------------------------------------
# The environment that makes a worker see one device, applied before the process starts. CUDA reads these
# variables when it is first touched, and libraries that size their thread pools read theirs at import.
# Setting them inside a running worker would be too late.


THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

FIXED = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Without a fixed workspace size cuBLAS may choose different kernels from one call to the next.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTHONUNBUFFERED": "1",
}
ON_GPUS = {
    # cuDNN's attention, torch's default on H100 and H200, makes a plan for each length: for every decoding step.
    "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
    # Batches of changing lengths fragment memory.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}
"""Variables for workers on GPUs; values already in the environment win."""
_ALLOCATOR = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}

LOOPBACK = "127.0.0.1"
ON_LOOPBACK = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo")
"""Variables for ranks that are all on this machine: no other machine may reach the sockets on which they listen.
"""

# A launcher such as torchrun, srun or mpirun may have started this process. A program that inherits its ranks
# would wait for others that do not exist.
RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    # Lightning takes SLURM_NTASKS for the number of ranks that somebody else has started.
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS"),
)
# For processes that have the machine to themselves: with these variables several workers would pin themselves to
# the same core, and the number of threads changes the order of additions.
_OF_THREADS = (
    *("OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET"),
    *("OMP_DYNAMIC", "OMP_THREAD_LIMIT", "MKL_DYNAMIC", "MKL_DOMAIN_NUM_THREADS", "MKL_NUM_STRIPES"),
)
RANK_PREFIXES = ("MASTER_", "TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MV2_COMM_WORLD_")


def is_of_launcher(name: str) -> bool:
    """Return whether a variable tells a process its rank, or the address where a launcher's ranks meet."""
    settings = name.startswith("PMIX_MCA_")  # Open MPI images set these in every process
    return name in RANK_VARIABLES or (name.startswith(RANK_PREFIXES) and not settings)


_OF_WANDB_RUN = (
    *("WANDB_RUN_ID", "WANDB_SWEEP_", "WANDB_NAME", "WANDB_RUN_NAME"),
    *("WANDB_SERVICE", "WANDB__SERVICE", "WANDB_RESUME", "WANDB_FORK_FROM"),
)


def is_of_other_run(name: str) -> bool:
    """Return whether a variable ties every ``wandb.init`` to one run, or gives all runs one name."""
    return name.startswith(_OF_WANDB_RUN)


def worker_environment(
    device: Device,
    threads: int,
    base_env: Mapping[str, str],
    *,
    portable: bool = False,
) -> dict[str, str]:
    """Return the complete environment of a worker.

    Args:
        device: The worker's device.
        threads: Threads for numerical libraries.
        base_env: The environment to inherit.
        portable: Whether results are the same on every processor, see `pipeline.arithmetic`.
    """
    # Models of transformers raise errors where docstrings are missing; libraries warn about settings of their
    # users.
    dropped = {*_OF_THREADS, *arithmetic.UNASKED, "PYTHONOPTIMIZE", "PYTHONWARNINGS"}
    env = {name: value for name, value in base_env.items() if not (is_of_launcher(name) or name in dropped)}
    env = arithmetic.pinned(env, *(arithmetic.PINS if portable else ("numpy",)))
    env.update(FIXED)
    if device.kind == "cuda":  # what the user has set takes precedence
        own = {"PYTORCH_ALLOC_CONF"} if _ALLOCATOR & env.keys() else set()
        env = {**{name: value for name, value in ON_GPUS.items() if name not in own}, **env}
    env.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    # A UUID rather than an index: it means the same GPU in any order and with any other GPUs hidden.
    env["CUDA_VISIBLE_DEVICES"] = (device.uuid or str(device.index)) if device.kind == "cuda" else ""
    return env


def rank_environment(
    base_env: Mapping[str, str], visible: Sequence[str], *, rank: int, master_port: int
) -> dict[str, str]:
    """Return the complete environment of one rank of a multi-GPU job, as `init_process_group` reads it.

    Args:
        base_env: The environment of the worker that starts the ranks.
        visible: CUDA_VISIBLE_DEVICES of each rank's worker; every rank sees all of these devices, in rank order.
        rank: Number of the rank.
        master_port: Port where the ranks meet.
    """
    return {
        **ON_LOOPBACK,
        **base_env,
        "CUDA_VISIBLE_DEVICES": ",".join(name for name in visible if name),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(len(visible)),
        "LOCAL_WORLD_SIZE": str(len(visible)),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(master_port),
    }


@contextmanager
def held_port(wanted: int | None) -> Iterator[int]:
    """Hold a TCP port of this machine for ranks to meet at, so that no other program gets it meanwhile.

    The port is bound but nothing listens on it. So the system does not hand it out, but a program that asks for it
    by number with SO_REUSEADDR, as torch's store does, may still listen on it.

    Args:
        wanted: The port that the user asks for, or None for a free one.

    Raises:
        JobError: The port is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("", wanted or 0))
        except OSError as error:
            raise JobError(
                f"distributed.master_port={wanted} is taken ({error.strerror}). Choose another one, or null for "
                "one that is free"
            ) from error
        yield int(holder.getsockname()[1])


def describe_device(device: Device, env: Mapping[str, str]) -> str:
    """Describe the device of a process with this environment: ``GPU-... as cuda:0``, ``cpu slot 3, 1 thread``."""
    if device.kind == "cuda":
        return f"{env['CUDA_VISIBLE_DEVICES']} as cuda:0"
    threads = int(env[THREAD_VARIABLES[0]])
    return f"{device.label}, {threads} thread{'s' if threads != 1 else ''}"
