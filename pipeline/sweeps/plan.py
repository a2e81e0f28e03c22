"""Who runs the trials of a sweep: the devices that an agent has, and what a strategy and its numbers mean.

sweep run FILE 4 2            4 agents with 2 devices each
sweep run FILE balanced 27 2  27 trials, shared by agents with 2 devices each
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import Device, cpu_slots, find_gpus
from pipeline.engine.devices.select import DeviceRequest, candidates
from pipeline.errors import ConfigError, unknown_name
from pipeline.runs.report.format import count
from pipeline.sweeps.file import NUM_GPUS, Sweep

LARGEST = 10_000
"""Of any of the numbers: agents, devices, trials."""


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


@dataclass(frozen=True, kw_only=True)
class DevicesAsked:
    """The devices that were asked for.

    Attributes:
        device: Which kind.
        agents: How many trials at the same time; None for as many as there are devices for.
        each: Devices of each trial, where the file does not say it.
        ids: Exactly these GPUs, as positions in the visible set.
    """

    device: DeviceChoice = DeviceChoice.auto
    agents: int | None = None
    each: int | None = None
    ids: Sequence[int] | None = None

    def gpus(self) -> int | None:
        """How many GPUs there are to choose from; None where trials run on the CPU.

        Raises:
            DeviceError: The driver does not work, or CUDA_VISIBLE_DEVICES names what is not there.
        """
        if self.device is DeviceChoice.cpu:
            return None
        found = len(find_gpus(os.environ))
        if not found and self.device is DeviceChoice.auto:
            return None
        return found if self.ids is None else len(self.ids)

    def pool(self, sweep: Sweep) -> AgentPool:
        """The devices that trials are packed onto. Nothing is taken yet.

        Raises:
            DeviceError: There are not so many, or none such.
            ConfigError: They cannot be.
        """
        share = self.each or sweep.options.num_gpus
        if self.ids is not None and self.device is DeviceChoice.cpu:
            raise ConfigError("--gpu-list is for GPUs: leave it out with --device cpu")
        if self.ids is None and self.gpus() is None:
            agents = self.agents or 1
            return AgentPool(devices=cpu_slots(agents * share), places={}, at_once=agents, each=share)
        asked = DeviceRequest(
            device=DeviceChoice.cuda,
            num_gpus=None if self.agents is None or self.ids is not None else self.agents * share,
            gpu_ids=self.ids,
            names=("--agents times --gpus-per-agent", "--gpu-list"),
            without="--device cpu",
        )
        found = candidates(asked, os.environ)
        every = self.agents is None and self.ids is None
        chosen = list(found.order if every else found.devices[: found.count])
        places = {each.uuid or "": place for place, each in enumerate(found.order)}
        return AgentPool(devices=chosen, places=places, at_once=self.agents or len(chosen), each=share)


def most_devices(sweep: Sweep, each: int | None = None) -> tuple[int, int]:
    """The fewest and the most devices that a trial of a sweep may need.

    Args:
        sweep: The sweep.
        each: Where that is no parameter, as the command line says; None for as the file says.
    """
    if (parameter := sweep.parameters.get(NUM_GPUS)) is None:
        return (each or sweep.options.num_gpus,) * 2
    given = parameter.given
    values = given.get("values") or [given[key] for key in ("value", "min", "max") if key in given]
    return min(values), max(values)


def check_fits(sweep: Sweep, pool: AgentPool) -> str:
    """See that the devices would do for some of the trials; what a user should know of the others, or "".

    Raises:
        ConfigError: They would do for none.
    """
    least, most = most_devices(sweep, pool.each)
    there = f"and there are {count(len(pool.devices), pool.kind)} for this sweep"
    if least > len(pool.devices):
        raise ConfigError(f"every trial needs {count(least, pool.kind)} or more, {there}: see --agents")
    if most > len(pool.devices):
        return f"some trials need {count(most, pool.kind)}, {there}: these are left for an agent with more"
    return ""


# -- strategies --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AgentPlan:
    """What a strategy comes to.

    Attributes:
        strategy: Its name.
        devices: Of each agent: GPUs, or CPU slots where there are none.
        trials: Of each agent the most that it begins; None for as many as there are.
        at_once: Agents that have devices at the same time; the others wait for theirs.
        endless: Whether it goes on until somebody stops it, however long the search goes on.
    """

    strategy: str
    devices: int
    trials: tuple[int | None, ...]
    at_once: int
    endless: bool

    @property
    def total(self) -> int | None:
        """The most trials that are begun in all; None for no bound."""
        return sum(each or 0 for each in self.trials) or None

    def lines(self, kind: str) -> list[str]:
        """The plan in words, for a person to read before it starts; `kind` is what a device is called."""
        shares = "until none is left to try"
        if self.endless:
            shares = "until it is stopped (Ctrl-C, `sweep stop`, the time limit of a job)"
        elif self.total:
            sizes = sorted({size or 0 for size in self.trials}, reverse=True)
            shares = f"{self.total:,} at most, {' or '.join(f'{size:,}' for size in sizes)} by each agent"
        waiting = "; the other agents wait for theirs" if self.at_once < len(self.trials) else ""
        return [
            f"strategy  {self.strategy}",
            f"agents    {len(self.trials):,}, each with {count(self.devices, kind)}",
            f"trials    {shares}",
            f"at once   {count(self.at_once, 'agent')} = {count(self.at_once * self.devices, kind)}{waiting}",
        ]


STRATEGIES: Mapping[str, Mapping[str, int | None]] = {
    "simple": {"agents": 1, "devices": 1, "trials_each": 1},
    "balanced": {"trials": None, "devices": 2},
    "spread": {"trials": None},
    "efficient": {"trials": None, "agents": 9},
    "auto": {"agents": 8, "devices": 1},
    "explore": {"agents": 4, "trials_each": 5, "devices": 1},
    "continuous": {"agents": 2, "devices": 2},
}
"""Name -> the numbers that may follow it, in their order, with their defaults; None for the size of the search."""
USAGE = "Give AGENTS DEVICES (as in `4 2`), or a strategy with its numbers:" + "".join(
    "\n  " + " ".join([name, *(f"[{each.upper()}]" for each in numbers)]) for name, numbers in STRATEGIES.items()
)


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell a strategy with its numbers from the settings (``KEY=VALUE``, ``~KEY``) behind it."""
    first = next((at for at, word in enumerate(words) if "=" in word or word.startswith(("~", "+"))), len(words))
    return list(words[:first]), list(words[first:])


def plan_agents(words: Sequence[str], search_size: int | None, gpus: int | None = None) -> AgentPlan:
    """Tell what a strategy means.

    Args:
        words: Its name and numbers, as ``balanced 27 2``; or two numbers alone: agents, and devices of each.
        search_size: How many trials the search has before it ends; None where it never does. It is also the
            number of trials where a strategy needs one and none is given.
        gpus: How many there are; None for as many devices as all agents need.

    Raises:
        ConfigError: There is no such strategy, a number is missing, too many or out of range, or one agent needs
            more GPUs than there are.
    """
    name, given = ("agents", list(words)) if words[0][:1].isdigit() else (words[0], list(words[1:]))
    known: Mapping[str, Mapping[str, int | None]] = {"agents": {"agents": 1, "devices": 1}, **STRATEGIES}
    if name not in known or words[0] == "agents":
        raise ConfigError(f"{unknown_name('strategy', words[0], STRATEGIES)} {USAGE}")
    numbers = {each: search_size if default is None else default for each, default in known[name].items()}
    if len(given) > len(numbers):
        raise ConfigError(f"{' '.join(words)}: too many numbers, {len(numbers)} at most. {USAGE}")
    for each, word in zip(list(numbers), given, strict=False):
        if not (word.isascii() and word.isdigit() and len(word) < 6 and 1 <= int(word) <= LARGEST):
            raise ConfigError(f"'{word[:20]}': the numbers of a strategy are whole ones from 1 to {LARGEST:,}")
        numbers[each] = int(word)
    if search_size is None and (name == "auto" or None in numbers.values()):
        raise ConfigError(f"strategy {name}: this search never ends: give a number of trials or a run_cap")
    trials, agents, devices = (
        min(numbers.get("trials") or 0, LARGEST),
        numbers.get("agents"),
        numbers.get("devices"),
    )
    if name in ("balanced", "spread"):
        agents = -(-trials // (1 if name == "spread" or trials <= 10 else 3 if trials <= 30 else 5))
    agents, devices = agents or 1, devices or 1
    shares: tuple[int | None, ...] = (numbers.get("trials_each"),) * agents
    if trials:  # equal parts, rounded up; the last has what remains, and none is empty
        share = -(-trials // agents)
        shares = (share,) * (trials // share) + ((trials % share,) if trials % share else ())
    if gpus is not None and devices > gpus:
        raise ConfigError(f"strategy {name}: each agent needs {count(devices, 'GPU')}, and there are {gpus}")
    return AgentPlan(
        strategy=name,
        devices=devices,
        trials=shares,
        at_once=len(shares) if gpus is None else min(len(shares), gpus // devices),
        endless=name == "continuous" or (name == "agents" and search_size is None),
    )
