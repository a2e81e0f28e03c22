"""Checks of what a process inherits: ranks of an outer launcher, and masks of a container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.commands.doctor.facts import Facts
from pipeline.engine.devices.mask import VISIBLE
from pipeline.engine.devices.worker_env import is_of_launcher
from pipeline.terminal.check import Check, passed, warned

CONTAINER_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_NO_GPU = ("void", "none", "")


def check_ranks(facts: Facts) -> Check:
    """No variable claims that this process is one of several."""
    found = leaked_ranks(facts.environment)
    name = "leaked ranks"
    if not found:
        return passed(name, "no RANK, WORLD_SIZE or the like")
    world = facts.environment.get("WORLD_SIZE", "1")
    waits = f": a script of yours would wait for {world} processes" if world.isdigit() and int(world) > 1 else ""
    if facts.environment.get("WORLD_SIZE") == "1":
        waits = ": frameworks take it for a sign that somebody else starts the ranks, and train on one GPU"
    return warned(
        name,
        f"{', '.join(f'{key}={facts.environment[key]}' for key in found)}{waits}",
        f"`unset {' '.join(found)}`, unless a launcher started this. Runs and `pipeline launch` drop them",
    )


def leaked_ranks(environment: Mapping[str, str]) -> list[str]:
    """Variables of a launcher, other than Slurm's, which are checked apart, and a port that the user may set."""
    return sorted(
        name
        for name in environment
        if is_of_launcher(name) and not name.startswith("SLURM_") and name not in ("MASTER_PORT", "MASTER_ADDR")
    )


def check_container(facts: Facts) -> Check:
    """The masks of a container and of CUDA are not both applied, the second in the numbers of the first."""
    name, outer = "container masks", facts.environment.get(CONTAINER_VISIBLE)
    if outer is None:
        return passed(name, f"{CONTAINER_VISIBLE} is not set")
    if outer in _NO_GPU:
        if facts.machine.uuids or facts.nodes:
            return passed(name, f"{CONTAINER_VISIBLE}={outer} has no effect: GPUs are here all the same")
        return warned(
            name,
            f"{CONTAINER_VISIBLE}={outer or '(empty)'} keeps every GPU out of this container",
            "start it with --gpus all, or `-e NVIDIA_VISIBLE_DEVICES=all`, unless you mean to run on the CPU",
        )
    inner = facts.environment.get(VISIBLE)
    here = len(facts.machine.uuids)
    if inner is not None and inner == outer and outer != "all" and inner[:1].isdigit():
        renumbered = f"here they are 0 to {here - 1}" if here else "here they are numbered from 0"
        return warned(
            name,
            f"{CONTAINER_VISIBLE} and {VISIBLE} are both {outer}, but {renumbered}",
            f"`unset {VISIBLE}` inside: the container has chosen already",
        )
    granted = len(outer.split(","))
    if outer != "all" and here and granted != here:
        return warned(
            name,
            f"{CONTAINER_VISIBLE}={outer} grants {granted} GPUs, but NVML lists {here}",
            "the runtime ignores it: start the container with --gpus, or restrict the run by distributed.gpu_ids",
        )
    return passed(name, f"{CONTAINER_VISIBLE}={outer}")


def environment_checks(facts: Facts) -> Iterator[Check]:
    """All of them."""
    yield check_ranks(facts)
    yield check_container(facts)
