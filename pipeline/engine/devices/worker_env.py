"""The environment that makes a worker see one device, applied before the process starts.

CUDA reads these variables when it is first touched, and libraries that size their thread pools read theirs at
import. Setting them inside a running worker would be too late.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline import arithmetic
from pipeline.engine.devices.inventory import Device
from pipeline.errors import JobError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

FIXED = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Without a fixed workspace cuBLAS may pick other kernels from one call to the next.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTHONUNBUFFERED": "1",
}
ON_GPUS = {
    # cuDNN's attention, which torch prefers on H100 and H200, makes a plan for each length: every decoding step.
    "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
    # Batches of ever other lengths leave gaps that no other batch fits into.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}
"""Of workers on GPUs, where the environment does not say otherwise."""
_KERNELS = "TORCHINDUCTOR_CACHE_DIR"
_ALLOCATOR = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}

LOOPBACK = "127.0.0.1"
ON_LOOPBACK = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo") if sys.platform == "linux" else {}
"""For ranks that are all on this machine: nobody else is to reach the sockets that they listen at."""

# A launcher such as torchrun, srun or mpirun may have started this process. A program that inherits its ranks
# would wait for others that do not exist.
RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    # Lightning takes SLURM_NTASKS for the number of ranks that somebody else has started.
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_GTIDS",
)
# Said of a process that has the machine to itself: each of several workers would take the same core as all others,
# and additions would go in the order of another number of threads.
_OF_THREADS = (
    *("OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET"),
    *("OMP_DYNAMIC", "OMP_THREAD_LIMIT", "MKL_DYNAMIC", "MKL_DOMAIN_NUM_THREADS", "MKL_NUM_STRIPES"),
)
RANK_PREFIXES = ("MASTER_", "TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MV2_COMM_WORLD_")


def is_of_launcher(name: str) -> bool:
    """Whether a variable tells a process its rank, or where the ranks of a launcher meet."""
    settings = name.startswith("PMIX_MCA_")  # which images of Open MPI have in every process
    return name in RANK_VARIABLES or (name.startswith(RANK_PREFIXES) and not settings)


def worker_environment(
    device: Device,
    threads: int,
    base_env: Mapping[str, str],
    *,
    portable: bool = False,
) -> dict[str, str]:
    """The whole environment of a worker.

    Args:
        device: Its device.
        threads: Threads for numerical libraries.
        base_env: The environment it inherits.
        portable: Whether it computes as on every processor, see `pipeline.arithmetic`.
    """
    # Models of transformers raise errors without docstrings; and libraries warn of what their users have set.
    dropped = {*_OF_THREADS, *arithmetic.UNASKED, "PYTHONOPTIMIZE", "PYTHONWARNINGS"}
    if _KERNELS in base_env and not _can_hold_files(base_env[_KERNELS]):
        dropped.add(_KERNELS)  # torch makes it for trainings that compile nothing too
    env = {name: value for name, value in base_env.items() if not (is_of_launcher(name) or name in dropped)}
    env = arithmetic.pinned(env, *(arithmetic.PINS if portable else ("numpy",)))
    env.update(FIXED)
    if device.kind == "cuda":
        env = _tuned(env)
    env.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    # A UUID rather than an index: it means the same GPU whatever the order and whatever else is hidden.
    env["CUDA_VISIBLE_DEVICES"] = (device.uuid or str(device.index)) if device.kind == "cuda" else ""
    return env


def _can_hold_files(folder: str) -> bool:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _tuned(env: Mapping[str, str]) -> dict[str, str]:
    """With what torch is told of GPUs; what a user has said of the same goes first."""
    own = {"PYTORCH_ALLOC_CONF"} if _ALLOCATOR & env.keys() else set()
    return {**{name: value for name, value in ON_GPUS.items() if name not in own}, **env}


def rank_environment(
    base_env: Mapping[str, str], visible: Sequence[str], *, rank: int, master_port: int
) -> dict[str, str]:
    """The whole environment of one process of a job that needs several devices: what `init_process_group` reads.

    Args:
        base_env: That of the worker that starts them.
        visible: What each rank's worker sees of CUDA; all is visible to all ranks, in their order.
        rank: Which process.
        master_port: Where they meet.
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
    """A TCP port of this machine for ranks to meet at, which no other program is given meanwhile.

    The port is bound and never listened at: that keeps it from being handed out, while a program that asks for it
    by number and sets SO_REUSEADDR, as the store of torch does, may still listen there.

    Args:
        wanted: The port that the user asks for, or None for a free one.

    Raises:
        JobError: It is taken.
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
    """What a process with this environment works on, in words: ``GPU-... as cuda:0``, ``cpu slot 3, 1 thread``."""
    if device.kind == "cuda":
        return f"{env['CUDA_VISIBLE_DEVICES']} as cuda:0"
    threads = int(env[THREAD_VARIABLES[0]])
    return f"{device.label}, {threads} thread{'s' if threads != 1 else ''}"
