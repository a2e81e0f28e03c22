"""Checks of GPUs: the driver, torch beside it, what is visible, and who is on them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipeline.commands.doctor.facts import Facts
from pipeline.engine.devices.inventory import Device, Machine, visible_gpus
from pipeline.engine.devices.mask import NOTHING, VISIBLE, read_mask
from pipeline.errors import DeviceError
from pipeline.terminal.check import Check, failed, passed, warned

GPU_IN_USE = 0.1
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)[af]?$")


def check_driver(facts: Facts) -> Check:
    """The driver answers, and for every GPU."""
    name = "driver"
    if facts.driver_error:
        return failed(name, facts.driver_error, "reboot if it was updated; until then use device=cpu")
    if facts.machine.broken:
        seen = "; ".join(
            f"GPU {place}: {facts.machine.broken[uuid]}"
            for place, uuid in enumerate(facts.machine.uuids)
            if uuid in facts.machine.broken
        )
        return warned(name, seen, "see `dmesg | grep -i xid`, then have it reset or reboot; runs leave it out")
    if not facts.machine.uuids:
        if facts.nodes:
            return failed(
                name,
                f"{', '.join(facts.nodes)} are there, but the driver's library libnvidia-ml.so.1 is not",
                "start the container with --gpus all, or NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            )
        return passed(name, "no NVIDIA driver: runs use CPU slots")
    version = f"{facts.driver}, CUDA up to {_dotted(facts.driver_cuda)}" if facts.driver_cuda else facts.driver
    return passed(name, f"NVIDIA {version}; {len(facts.machine.uuids)} GPUs")


def check_mask(facts: Facts) -> Check:
    """CUDA_VISIBLE_DEVICES means what it seems to."""
    name, mask = VISIBLE, facts.environment.get(VISIBLE)
    if mask is None:
        return passed(name, "not set: every GPU is visible")
    shown = f"{VISIBLE}={mask}"
    if mask.strip() in NOTHING:
        if not facts.machine.uuids:
            return passed(name, f"{shown or 'empty'}: no GPU, and there is none")
        return warned(
            name,
            f"{shown} hides all {len(facts.machine.uuids)} GPUs",
            "`unset CUDA_VISIBLE_DEVICES`, unless you mean to run on the CPU",
        )
    if facts.driver_error or not facts.machine.uuids:
        return warned(name, f"{shown}, but no GPU can be listed", "unset it; see the check of the driver")
    seen = read_mask(mask, facts.machine.uuids, facts.machine.slices)
    if seen.fault:
        return failed(
            name,
            f"{shown}: {seen.fault}. CUDA says nothing of it and shows {len(seen.uuids)} GPUs",
            f"give numbers from 0 to {len(facts.machine.uuids) - 1}, each once, with commas between",
        )
    try:
        visible = visible_gpus(facts.machine, facts.environment)
    except DeviceError as error:
        return failed(name, str(error), "`python -m pipeline gpus` lists what there is")
    return passed(name, f"{shown}: {', '.join(gpu.label for gpu in visible)}")


def check_torch_gpus(facts: Facts) -> Check:
    """Torch sees the GPUs that the driver lists, and has kernels for them."""
    name, torch = "torch and driver", facts.torch
    visible = _visible(facts)
    if torch.failure:
        return failed(name, torch.failure, "see the check of imports")
    if not visible:
        return passed(name, "no GPU is visible, nothing to compare")
    if torch.cuda is None:
        return failed(
            name,
            f"torch {torch.version} was built without CUDA, but there are {len(visible)} GPUs",
            "install the CUDA build: `pip install torch --index-url https://download.pytorch.org/whl/cu128`",
        )
    if not torch.available or torch.error:
        return failed(name, _why_unusable(facts), _newer_driver_or_older_torch(facts))
    whole = [gpu for gpu in visible if gpu.slice_index is None]
    lacking = _without_kernels(facts, whole)
    if lacking:
        return failed(
            name,
            f"torch {torch.version} has kernels for {', '.join(torch.architectures)}, none for {lacking}",
            "install a torch build for that GPU, see https://pytorch.org/get-started",
        )
    if len(whole) == len(visible) and torch.count != len(visible):
        return failed(
            name,
            f"torch sees {torch.count} GPUs, NVML {len(visible)}",
            "a cgroup or container hides some: compare `nvidia-smi -L` inside and outside of it",
        )
    return passed(name, f"torch {torch.version} for CUDA {torch.cuda} sees {torch.count}")


def _why_unusable(facts: Facts) -> str:
    torch = facts.torch
    driver = (
        f"the driver runs CUDA up to {_dotted(facts.driver_cuda)}" if facts.driver_cuda else "see `nvidia-smi`"
    )
    said = f": {' '.join(torch.error.split())}" if torch.error else ""
    return f"torch {torch.version} for CUDA {torch.cuda} cannot use the GPUs, {driver}{said}"


def _newer_driver_or_older_torch(facts: Facts) -> str:
    built = facts.torch.cuda or ""
    major = int(built.partition(".")[0]) if built.partition(".")[0].isdigit() else 0
    if facts.driver_cuda and major > facts.driver_cuda[0]:
        wheel = f"cu{facts.driver_cuda[0]}{facts.driver_cuda[1]}"
        return f"update the driver, or install a torch for CUDA {_dotted(facts.driver_cuda)} ({wheel}) or older"
    return "run `nvidia-smi`; if it works, start a fresh shell without LD_LIBRARY_PATH and try again"


def _without_kernels(facts: Facts, gpus: list[Device]) -> str:
    """GPUs for which torch has neither kernels nor an intermediate form that can be compiled for them."""
    matches = [match for text in facts.torch.architectures if (match := _ARCHITECTURE.match(text))]
    built = [(match[1], (int(match[2]), int(match[3]))) for match in matches]
    if not built:
        return ""
    lacking = []
    for gpu in gpus:
        has = facts.machine.usage[gpu.uuid or ""].compute_capability
        fits = has is None or any(
            (kind == "sm" and one[0] == has[0] and one[1] <= has[1]) or (kind == "compute" and one <= has)
            for kind, one in built
        )
        if not fits and has:
            lacking.append(f"{gpu.label} (sm_{has[0]}{has[1]})")
    return ", ".join(lacking)


def check_order(facts: Facts) -> Check:
    """Torch and NVML number the GPUs alike."""
    name = "order of GPUs"
    visible = [gpu for gpu in _visible(facts) if gpu.slice_index is None]
    names = {gpu.name for gpu in visible}
    theirs = [uuid.removeprefix("GPU-") for uuid in facts.torch.uuids]
    ours = [(gpu.uuid or "").removeprefix("GPU-") for gpu in visible]
    remedy = "`export CUDA_DEVICE_ORDER=PCI_BUS_ID`, so that numbers mean what nvidia-smi shows; workers have it"
    if theirs and sorted(theirs) == sorted(ours) and theirs != ours:
        return warned(name, "torch numbers GPUs in another order than nvidia-smi", remedy)
    if len(names) > 1 and facts.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return warned(name, f"mixed GPUs ({', '.join(sorted(names))}): CUDA puts the fastest first", remedy)
    return passed(name, "torch and NVML agree" if theirs else "nothing to compare")


def check_gpu_memory(facts: Facts) -> Check:
    """No other program holds much of the GPUs that a run would use."""
    name, gpus = "GPU memory", _visible(facts)
    if not gpus:
        return passed(name, "no GPU, nothing to check")
    use = {gpu: facts.machine.usage[gpu.uuid or ""] for gpu in gpus}
    share = {gpu: one.used_bytes / one.total_bytes for gpu, one in use.items()}
    seen = ", ".join(f"{gpu.label}: {part:.0%} in use" for gpu, part in share.items())
    busy = [gpu for gpu, part in share.items() if part > GPU_IN_USE and gpu.uuid not in facts.held]
    if busy:
        pids = {process.pid for gpu in busy for process in use[gpu].processes or ()}
        who = f" by processes {', '.join(map(str, sorted(pids)))}" if pids else ""
        free = ",".join(str(gpus.index(gpu)) for gpu in gpus if gpu not in busy)
        choose = f"use the others: distributed.gpu_ids=[{free}]" if free else "use device=cpu"
        return warned(name, seen + who, f"stop what runs there, or {choose}")
    return passed(name, seen)


def check_leases(facts: Facts) -> Check:
    """Which GPUs other runs of this user hold."""
    labels = {gpu.uuid: gpu.label for gpu in facts.machine.devices.values()}
    held = [f"{labels[uuid]}: {holder}" for uuid, holder in facts.held.items() if uuid in labels]
    if held and len(held) == len(labels):
        return warned(
            "leases", "; ".join(held), "wait for them with execution.wait_for_devices=true, or use device=cpu"
        )
    return passed("leases", "; ".join(held) or "no GPU is held by another run")


def check_mig(facts: Facts) -> Check:
    """What MIG means for runs."""
    slices = [gpu for gpu in facts.machine.devices.values() if gpu.slice_index is not None]
    split = [str(place) for place, uuid in enumerate(facts.machine.uuids) if uuid in facts.machine.split]
    if not split:
        return passed("MIG", "no GPU is split")
    if not slices:
        return warned(
            "MIG",
            f"GPU {', '.join(split)} is in MIG mode without a slice, so nothing can run on it",
            "have slices made: `sudo nvidia-smi mig -cgi ... -C`, or MIG mode ended: `sudo nvidia-smi -mig 0`",
        )
    return warned(
        "MIG",
        f"GPU {', '.join(split)} is split into {len(slices)} slices: each takes one worker",
        "one training cannot use several slices (DDP, FSDP); end MIG mode for that: `sudo nvidia-smi -mig 0`",
    )


def check_nodes(facts: Facts) -> Check:
    """Every GPU that is listed can be opened, and the other way round."""
    name = "/dev/nvidia*"
    closed = {path: why for path, why in facts.nodes.items() if why}
    if closed:
        seen = ", ".join(f"{path}: {why}" for path, why in closed.items())
        whose = "the job's cgroup" if "SLURM_JOB_ID" in facts.environment else "the container, a cgroup or a group"
        return warned(
            name, seen, f"{whose} forbids them: ask for those GPUs when it is started, or use the others"
        )
    total = len(facts.machine.uuids)
    if facts.nodes and total > len(facts.nodes):
        return warned(
            name,
            f"NVML lists {total} GPUs, but only {', '.join(facts.nodes)} are here",
            "pass the missing ones to the container (--gpus all), or leave them out by distributed.gpu_ids",
        )
    return passed(name, f"{len(facts.nodes)} can be opened" if facts.nodes else "none")


def gpu_checks(facts: Facts) -> Iterator[Check]:
    """All of them."""
    for check in (
        check_driver,
        check_mask,
        check_torch_gpus,
        check_order,
        check_mig,
        check_nodes,
        check_gpu_memory,
        check_leases,
    ):
        yield check(facts)


def _visible(facts: Facts) -> list[Device]:
    return visible_or_none(facts.machine, facts)


def visible_or_none(machine: Machine, facts: Facts) -> list[Device]:
    """What the environment shows; none where it is wrong, which another check says."""
    if facts.environment.get(VISIBLE, "0").strip() in NOTHING:
        return []
    try:
        return visible_gpus(machine, facts.environment)
    except DeviceError:
        return []


def _dotted(version: tuple[int, int] | None) -> str:
    return ".".join(map(str, version)) if version else "?"
