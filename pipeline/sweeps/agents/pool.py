"""The devices of an agent, chosen among those that this process sees."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import Device, cpu_slots, find_gpus
from pipeline.engine.devices.select import DeviceRequest, candidates
from pipeline.errors import ConfigError
from pipeline.runs.report.format import count
from pipeline.sweeps.agents.turn import NUM_GPUS, devices_needed
from pipeline.sweeps.space import Choice, Constant, WholeUniform
from pipeline.sweeps.spec import Sweep

_NAMES = ("--agents times --gpus-per-agent", "--gpu-list")


@dataclass(frozen=True, kw_only=True)
class AgentPool:
    """What an agent works on.

    Attributes:
        devices: Its devices, the best first.
        places: UUID -> position in the visible set.
        at_once: The most trials at the same time.
        each: Devices of a trial, where that is no parameter.
    """

    devices: Sequence[Device]
    places: Mapping[str, int]
    at_once: int
    each: int = 1

    @property
    def kind(self) -> str:
        """What one of its devices is called."""
        return "GPU" if self.devices[0].kind == "cuda" else "CPU slot"


def count_gpus(
    device: DeviceChoice, ids: Sequence[int] | None = None, environ: Mapping[str, str] | None = None
) -> int | None:
    """How many GPUs there are to choose from; None where trials run on the CPU.

    Args:
        device: As for `choose_pool`, like the others.
        ids: Which.
        environ: Where CUDA_VISIBLE_DEVICES is looked up.

    Raises:
        DeviceError: The driver does not work, or the variable names what is not there.
    """
    if device is DeviceChoice.cpu:
        return None
    found = find_gpus(os.environ if environ is None else environ)
    if not found and device is DeviceChoice.auto:
        return None
    return len(found) if ids is None else len(ids)


def needs_of(sweep: Sweep) -> tuple[int, int] | None:
    """The fewest and the most devices that a trial of a sweep may need; None where that is not known."""
    parameter = sweep.parameters.get(NUM_GPUS)
    if parameter is None:
        return None
    match parameter.distribution:
        case Constant(value):
            values = [value]
        case Choice(values):
            values = list(values)
        case WholeUniform(least, most):
            values = [least, most]
        case _:
            return None
    numbers = [devices_needed({NUM_GPUS: value}, 1) for value in values]
    return min(numbers), max(numbers)


def check_fits(sweep: Sweep, pool: AgentPool) -> str:
    """See that the devices would do for some of the trials.

    Returns:
        What a user should know of the others; "" where they do for all.

    Raises:
        ConfigError: They would do for none.
    """
    least, most = needs_of(sweep) or (pool.each, pool.each)
    verb = "is" if len(pool.devices) == 1 else "are"
    there = f"there {verb} {count(len(pool.devices), pool.kind)} for this sweep"
    if least > len(pool.devices):
        more = "--agents and --gpus-per-agent say how many" if pool.kind == "GPU" else "--agents says how many"
        raise ConfigError(f"every trial needs {count(least, pool.kind)} or more, and {there}: {more}")
    if most > len(pool.devices):
        return (
            f"some trials need {count(most, pool.kind)}, and {there}: these are left for an agent with more "
            f"(`python -m pipeline sweep agent {sweep.name}` elsewhere)"
        )
    return ""


def choose_pool(
    device: DeviceChoice,
    *,
    agents: int | None = None,
    each: int | None = None,
    ids: Sequence[int] | None = None,
    otherwise: int = 1,
    environ: Mapping[str, str] | None = None,
) -> AgentPool:
    """The devices that trials are packed onto. Nothing is taken yet.

    Args:
        device: Which kind.
        agents: How many trials at the same time; None for as many as there are devices for.
        each: Devices of each trial, where the file does not say it.
        ids: Exactly these GPUs, as positions in the visible set.
        otherwise: Devices of a trial as the file says.
        environ: Where CUDA_VISIBLE_DEVICES is looked up.

    Raises:
        DeviceError: There are not so many, or none such.
        ConfigError: A number is out of its range.
    """
    for name, number in (("--agents", agents), ("--gpus-per-agent", each)):
        if number is not None and number < 1:
            raise ConfigError(f"{name} {number}: at least 1")
    environ = os.environ if environ is None else environ
    share = each or otherwise
    visible = [] if device is DeviceChoice.cpu else find_gpus(environ)
    if not visible and device is DeviceChoice.auto and ids is None:
        device = DeviceChoice.cpu
    if device is DeviceChoice.cpu:
        if ids is not None:
            raise ConfigError("--gpu-list is for GPUs: leave it out with --device cpu")
        return AgentPool(devices=cpu_slots((agents or 1) * share), places={}, at_once=agents or 1, each=share)
    asked = DeviceRequest(
        device=DeviceChoice.cuda,
        num_gpus=None if agents is None or ids is not None else agents * share,
        gpu_ids=ids,
        names=_NAMES,
        without="--device cpu",
    )
    found = candidates(asked, environ)
    chosen = list(found.devices[: found.count] if agents is not None or ids is not None else found.order)
    places = {each.uuid or "": place for place, each in enumerate(found.order)}
    return AgentPool(devices=chosen, places=places, at_once=agents or len(chosen), each=share)
