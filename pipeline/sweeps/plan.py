"""Choose the devices that the trials of a sweep are packed onto."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import Device, cpu_slots, find_gpus
from pipeline.engine.devices.select import DeviceRequest, candidates
from pipeline.errors import ConfigError
from pipeline.runs.report.format import count
from pipeline.sweeps.file import NUM_GPUS, Sweep


@dataclass(frozen=True, kw_only=True)
class AgentPool:
    """Devices of an agent.

    Attributes:
        devices: The devices, the best first.
        places: UUID -> position in the visible set.
        at_once: The most trials at the same time.
        per_trial: Devices of a trial, where that is no parameter.
    """

    devices: Sequence[Device]
    places: Mapping[str, int]
    at_once: int
    per_trial: int = 1

    @property
    def kind(self) -> str:
        """Return the word for one of the devices."""
        return "GPU" if self.devices[0].kind == "cuda" else "CPU slot"


def agent_pool(
    sweep: Sweep,
    device: DeviceChoice = DeviceChoice.auto,
    *,
    agents: int | None = None,
    per_trial: int | None = None,
    ids: Sequence[int] | None = None,
) -> AgentPool:
    """Choose the devices that trials are packed onto. Nothing is taken yet.

    Args:
        sweep: The sweep.
        device: Kind of the devices.
        agents: Trials at the same time; None for as many as there are devices for.
        per_trial: Devices of each trial, where the file does not say it.
        ids: Exactly these GPUs, as positions in the visible set.

    Raises:
        DeviceError: There are not so many, or none such; or the driver does not work.
        ConfigError: They cannot be.
    """
    share = per_trial or sweep.options.num_gpus
    if ids is not None and device is DeviceChoice.cpu:
        raise ConfigError("--gpu-list is for GPUs: leave it out with --device cpu")
    without = device is DeviceChoice.auto and not find_gpus(os.environ)
    if ids is None and (without or device is DeviceChoice.cpu):
        slots = cpu_slots((agents or 1) * share)
        return AgentPool(devices=slots, places={}, at_once=agents or 1, per_trial=share)
    request = DeviceRequest(
        device=DeviceChoice.cuda,
        num_gpus=None if agents is None or ids is not None else agents * share,
        gpu_ids=ids,
        names=("--agents times --gpus-per-agent", "--gpu-list"),
        without="--device cpu",
    )
    devices = candidates(request, os.environ)
    every = agents is None and ids is None
    chosen = list(devices.order if every else devices.devices[: devices.count])
    places = {gpu.uuid or "": position for position, gpu in enumerate(devices.order)}
    return AgentPool(devices=chosen, places=places, at_once=agents or len(chosen), per_trial=share)


def most_devices(sweep: Sweep, per_trial: int | None = None) -> tuple[int, int]:
    """Return the fewest and the most devices that a trial of a sweep may need.

    Args:
        sweep: The sweep.
        per_trial: Devices of a trial from the command line, unless a parameter; None for those in the file.
    """
    if (parameter := sweep.parameters.get(NUM_GPUS)) is None:
        return (per_trial or sweep.options.num_gpus,) * 2
    block = parameter.given
    values = block.get("values") or [block[key] for key in ("value", "min", "max") if key in block]
    return min(values), max(values)


def check_fits(sweep: Sweep, pool: AgentPool) -> str:
    """Check that the devices do for some trials; return a note on the others for the user, or "".

    Raises:
        ConfigError: They would do for none.
    """
    least, most = most_devices(sweep, pool.per_trial)
    there = f"and there are {count(len(pool.devices), pool.kind)} for this sweep"
    if least > len(pool.devices):
        raise ConfigError(f"every trial needs {count(least, pool.kind)} or more, {there}: see --agents")
    if most > len(pool.devices):
        return f"some trials need {count(most, pool.kind)}, {there}: these are left for an agent with more"
    return ""
