"""Checks of the machine around the GPUs: limits of cgroups, shared memory, disks, ports."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.commands.doctor.facts import Facts
from pipeline.terminal.check import Check, failed, passed, warned

FREE_DISK_GIB = 2
FREE_FILES = 10_000
SHM_GIB = 1
WORKER_MEMORY_GIB = 0.7
_TORCHRUN_PORT = 29500
_SHM = "/dev/shm"  # noqa: S108 - the name of the check


def check_cpus(facts: Facts) -> Check:
    """Cores that are shown are cores that can be used."""
    quota = facts.cpu_quota
    if quota is not None and quota < facts.cores - 0.5:
        slots = max(1, int(quota))
        return warned(
            "CPU limit",
            f"{facts.cores} cores are shown, but the cgroup allows the time of {quota:g}",
            f"set execution.workers={slots} on the CPU, and OMP_NUM_THREADS={slots} for programs of your own",
        )
    return passed("CPU limit", f"{facts.cores} usable cores")


def check_memory(facts: Facts) -> Check:
    """A worker fits into what may be taken."""
    limit = facts.memory_limit_bytes
    left = min(facts.memory_bytes, limit) if limit is not None else facts.memory_bytes
    whose = "the cgroup" if limit is not None and limit <= facts.memory_bytes else "the machine"
    seen = f"{left / 2**30:.1f} GiB can be taken, by the limit of {whose}"
    if left < WORKER_MEMORY_GIB * 2**30:
        return warned("memory limit", seen, f"free some, or ask for more: a worker takes {WORKER_MEMORY_GIB} GiB")
    if limit is not None and limit < facts.cores * WORKER_MEMORY_GIB * 2**30 and limit < facts.memory_bytes:
        fits = max(1, int(limit / (WORKER_MEMORY_GIB * 2**30)))
        return warned(
            "memory limit",
            f"{seen}, for {facts.cores} cores",
            f"set execution.workers={fits} on the CPU, or ask for more (Slurm: --mem)",
        )
    return passed("memory limit", seen)


def check_shm(facts: Facts) -> Check:
    """Shared memory has room for data loaders and NCCL."""
    if facts.shm_bytes is None:
        return passed(_SHM, "not on this system")
    seen = f"{facts.shm_bytes / 2**30:.2f} GiB"
    if facts.shm_bytes < SHM_GIB * 2**30:
        return warned(
            _SHM,
            f"{seen}: data loaders with num_workers > 0 die with a bus error, and NCCL cannot start",
            "start the container with --shm-size=8g or --ipc=host; else num_workers: 0 and NCCL_SHM_DISABLE=1",
        )
    return passed(_SHM, seen)


def check_disks(facts: Facts) -> Check:
    """Outputs and temporary files have room."""
    for folder, free in facts.disks.items():
        if free < FREE_DISK_GIB * 2**30:
            return warned(
                "disks",
                f"{folder} has {free / 2**30:.1f} GiB free",
                "make room (`python -m pipeline store gc`), or set output_dir or TMPDIR to another disk",
            )
    for folder, files in facts.inodes.items():
        if files is not None and files < FREE_FILES:
            return warned("disks", f"{folder} takes {files} more files", "remove files you do not need there")
    seen = ", ".join(f"{folder}: {free / 2**30:.0f} GiB free" for folder, free in facts.disks.items())
    return passed("disks", seen)


def check_ports(facts: Facts) -> Check:
    """Processes of one training can meet."""
    if facts.loopback_error:
        return failed(
            "ports",
            f"no port can be opened on 127.0.0.1: {facts.loopback_error}",
            "bring up the loopback interface: `ip link set lo up`",
        )
    given = facts.environment.get("MASTER_PORT")
    if given is not None and not (given.isdigit() and 0 < int(given) < 1 << 16):
        return failed("ports", f"MASTER_PORT={given} is no port", "`unset MASTER_PORT`: free ones are found")
    if given is not None and int(given) in facts.busy_ports:
        return failed(
            "ports",
            f"MASTER_PORT={given} is in use{facts.busy_ports[int(given)]}: a training would die with "
            "'address already in use'",
            "`unset MASTER_PORT`: free ones are found; or set another",
        )
    if not facts.host_resolves:
        return warned(
            "ports",
            "this machine's name has no address, which gloo looks up",
            "`export GLOO_SOCKET_IFNAME=lo` (one machine), or add the name to /etc/hosts",
        )
    if _TORCHRUN_PORT in facts.busy_ports:
        return passed(
            "ports",
            f"{_TORCHRUN_PORT}, torchrun's own, is in use{facts.busy_ports[_TORCHRUN_PORT]}; "
            "`python -m pipeline launch` takes a free one",
        )
    return passed("ports", "free ones are found")


def host_checks(facts: Facts) -> Iterator[Check]:
    """All of them."""
    for check in (check_cpus, check_memory, check_shm, check_disks, check_ports):
        yield check(facts)
