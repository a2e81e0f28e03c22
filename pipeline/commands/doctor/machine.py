"""Checks of a machine: the driver, torch beside it, what is visible, who is on the GPUs, limits and ports."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.commands.doctor.facts import Facts
from pipeline.engine.devices.inventory import NOTHING, VISIBLE, Device, read_mask, visible_gpus
from pipeline.engine.devices.worker_env import is_of_launcher
from pipeline.errors import DeviceError
from pipeline.terminal.console import Check, failed, passed, warned

GPU_IN_USE = 0.1
FREE_DISK_GIB = 2
SHM_GIB = 1
WORKER_MEMORY_GIB = 0.7
_SHM = "/dev/shm"  # noqa: S108 - the name of the check


def machine_checks(facts: Facts) -> Iterator[Check]:
    """All of them."""
    for check in (
        *(_driver, _mask, _torch, _mig, _nodes, _gpu_memory, _leases),
        *(_ranks, _cpus, _memory, _shm, _disks, _ports),
    ):
        yield check(facts)


def _visible(facts: Facts) -> list[Device]:
    """What the environment shows; none where it is wrong, which another check says."""
    if facts.environment.get(VISIBLE, "0").strip() in NOTHING:
        return []
    try:
        return visible_gpus(facts.machine, facts.environment)
    except DeviceError:
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
    if mask is None:
        return passed(name, "not set: every GPU is visible")
    shown = f"{VISIBLE}={mask}"
    if mask.strip() in NOTHING:
        if not uuids:
            return passed(name, f"{shown}: no GPU, and there is none")
        return warned(name, f"{shown} hides all {len(uuids)} GPUs", f"`unset {VISIBLE}`, unless you mean the CPU")
    if facts.driver_error or not uuids:
        return warned(name, f"{shown}, but no GPU can be listed", "unset it; see the check of the driver")
    seen = read_mask(mask, uuids, facts.machine.slices)
    if seen.fault:
        return failed(
            name,
            f"{shown}: {seen.fault}. CUDA says nothing of it and shows {len(seen.uuids)} GPUs",
            f"give numbers from 0 to {len(uuids) - 1}, each once, with commas between",
        )
    try:
        visible = visible_gpus(facts.machine, facts.environment)
    except DeviceError as error:
        return failed(name, str(error), "`python -m pipeline gpus` lists what there is")
    return passed(name, f"{shown}: {', '.join(gpu.label for gpu in visible)}")


def _torch(facts: Facts) -> Check:
    """Torch sees the GPUs that the driver lists."""
    name, torch, visible = "torch and driver", facts.torch, _visible(facts)
    runs = ".".join(map(str, facts.driver_cuda or "?"))
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
    if not torch.available:
        said = f": {' '.join(torch.error.split())}" if torch.error else ""
        return failed(
            name,
            f"torch {torch.version} for CUDA {torch.cuda} cannot use the GPUs, the driver runs CUDA up to "
            f"{runs}{said}",
            "update the driver or install a torch for an older CUDA, if that is newer; else see `nvidia-smi`",
        )
    if torch.count != len(visible) and all(gpu.slice_index is None for gpu in visible):
        return failed(
            name,
            f"torch sees {torch.count} GPUs, NVML {len(visible)}",
            "a cgroup or container hides some: compare `nvidia-smi -L` inside and outside of it",
        )
    return passed(name, f"torch {torch.version} for CUDA {torch.cuda} sees {torch.count}")


def _mig(facts: Facts) -> Check:
    """What MIG means for runs."""
    split = [str(place) for place, uuid in enumerate(facts.machine.uuids) if uuid in facts.machine.split]
    if not split:
        return passed("MIG", "no GPU is split")
    slices = sum(gpu.slice_index is not None for gpu in facts.machine.devices.values())
    return warned(
        "MIG",
        f"GPU {', '.join(split)} is split into {slices} slices: each takes one worker, no training has several",
        "have slices made, `sudo nvidia-smi mig -cgi ... -C`, or end MIG mode: `sudo nvidia-smi -mig 0`",
    )


def _nodes(facts: Facts) -> Check:
    """Every GPU that is listed can be opened."""
    name, total = "/dev/nvidia*", len(facts.machine.uuids)
    closed = [f"{path}: {why}" for path, why in facts.nodes.items() if why]
    if closed or 0 < len(facts.nodes) < total:
        return warned(
            name,
            ", ".join(closed) or f"NVML lists {total} GPUs, but only {', '.join(facts.nodes)} are here",
            "a container, a job's cgroup or a group forbids them: ask for those GPUs when it is started "
            "(--gpus all), or leave them out by distributed.gpu_ids",
        )
    return passed(name, f"{len(facts.nodes)} can be opened")


def _gpu_memory(facts: Facts) -> Check:
    """No other program holds much of the GPUs that a run would use."""
    name, gpus = "GPU memory", _visible(facts)
    use = {gpu: facts.machine.usage[gpu.uuid or ""] for gpu in gpus}
    share = {gpu: one.used_bytes / one.total_bytes for gpu, one in use.items()}
    seen = ", ".join(f"{gpu.label}: {part:.0%} in use" for gpu, part in share.items()) or "no GPU"
    busy = [gpu for gpu, part in share.items() if part > GPU_IN_USE and gpu.uuid not in facts.held]
    if not busy:
        return passed(name, seen)
    pids = sorted({process.pid for gpu in busy for process in use[gpu].processes or ()})
    free = ",".join(str(place) for place, gpu in enumerate(gpus) if gpu not in busy)
    choose = f"use the others: distributed.gpu_ids=[{free}]" if free else "use device=cpu"
    who = f" by processes {', '.join(map(str, pids))}" if pids else ""
    return warned(name, seen + who, f"stop what runs there, or {choose}")


def _leases(facts: Facts) -> Check:
    """Which GPUs other runs of this user hold."""
    labels = {gpu.uuid: gpu.label for gpu in facts.machine.devices.values()}
    held = [f"{labels[uuid]}: {holder}" for uuid, holder in facts.held.items() if uuid in labels]
    if held and len(held) == len(labels):
        return warned(
            "leases", "; ".join(held), "wait for them with execution.wait_for_devices=true, or use device=cpu"
        )
    return passed("leases", "; ".join(held) or "no GPU is held by another run")


def _ranks(facts: Facts) -> Check:
    """No variable claims that this process is one of several; Slurm's are checked apart."""
    own = ("MASTER_PORT", "MASTER_ADDR")
    found = sorted(
        n for n in facts.environment if is_of_launcher(n) and not n.startswith("SLURM_") and n not in own
    )
    if not found:
        return passed("leaked ranks", "no RANK, WORLD_SIZE or the like")
    return warned(
        "leaked ranks",
        f"{', '.join(f'{key}={facts.environment[key]}' for key in found)}: a script of yours would wait for ranks "
        "that nobody starts, or take itself for the only one",
        f"`unset {' '.join(found)}`, unless a launcher started this. Runs and `pipeline launch` drop them",
    )


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
        return passed(_SHM, "not on this system" if size is None else f"{size / 2**30:.2f} GiB")
    return warned(
        _SHM,
        f"{size / 2**30:.2f} GiB: data loaders with num_workers > 0 die with a bus error, and NCCL cannot start",
        "start the container with --shm-size=8g or --ipc=host; else num_workers: 0 and NCCL_SHM_DISABLE=1",
    )


def _disks(facts: Facts) -> Check:
    """Outputs and temporary files have room."""
    seen = ", ".join(f"{folder} has {free / 2**30:.1f} GiB free" for folder, free in facts.disks.items())
    if min(facts.disks.values()) < FREE_DISK_GIB * 2**30:
        return warned(
            "disks", seen, "make room (`python -m pipeline store gc`), or set output_dir or TMPDIR elsewhere"
        )
    return passed("disks", seen)


def _ports(facts: Facts) -> Check:
    """Processes of one training can meet."""
    given = facts.environment.get("MASTER_PORT")
    if given is None:
        return passed("ports", "free ones are found")
    remedy = "`unset MASTER_PORT`: free ones are found; or set another"
    if not (given.isdigit() and 0 < int(given) < 1 << 16):
        return failed("ports", f"MASTER_PORT={given} is no port", remedy)
    if int(given) in facts.busy_ports:
        said = f"MASTER_PORT={given} is in use{facts.busy_ports[int(given)]}: a training would die"
        return failed("ports", f"{said} with 'address already in use'", remedy)
    return passed("ports", f"MASTER_PORT={given} is free")
