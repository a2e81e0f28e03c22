"""Who runs the trials of a sweep: the devices that an agent has, and what a strategy and its numbers mean.

sweep run FILE 4 2            4 agents with 2 devices each
sweep run FILE balanced 27 2  27 trials, shared by agents with 2 devices each
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
        endless: Whether it goes on until somebody stops it, however long the search goes on.
        confirm: Whether a person is asked before it starts.
        at_once: Agents that have devices at the same time; the others wait for theirs.
    """

    strategy: str
    devices: int
    trials: tuple[int | None, ...]
    endless: bool = False
    confirm: bool = False
    at_once: int = 0

    @property
    def total(self) -> int | None:
        """The most trials that are begun in all; None for no bound."""
        known = [each for each in self.trials if each is not None]
        return sum(known) if len(known) == len(self.trials) else None

    def lines(self, kind: str) -> list[str]:
        """The plan in words, for a person to read before it starts; `kind` is what a device is called."""
        shares = "until none is left to try"
        if self.endless:
            shares = "until it is stopped (Ctrl-C, `sweep stop`, the time limit of a job)"
        elif self.total:
            sizes = sorted({size for size in self.trials if size is not None}, reverse=True)
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
_FEW, _MANY = 10, 30
USAGE = "Give AGENTS DEVICES (as in `4 2`), or a strategy with its numbers:" + "".join(
    "\n  " + " ".join([name, *(f"[{each.upper()}]" for each in numbers)]) for name, numbers in STRATEGIES.items()
)


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell a strategy with its numbers from the settings (``KEY=VALUE``, ``~KEY``) behind it."""
    first = next((at for at, word in enumerate(words) if "=" in word or word.startswith(("~", "+"))), len(words))
    return list(words[:first]), list(words[first:])


def plan_agents(words: Sequence[str], search_size: int | None) -> AgentPlan:
    """Tell what a strategy means.

    Args:
        words: Its name and numbers, as ``balanced 27 2``; or two numbers alone: agents, and devices of each.
        search_size: How many trials the search has before it ends; None where it never does. It is also the
            number of trials where a strategy needs one and none is given.

    Raises:
        ConfigError: There is no such strategy, or a number is missing, too many or out of range.
    """
    if words[0][:1].isdigit():
        name, given, numbers = "agents", list(words), {"agents": 1, "devices": 1}
    else:
        name, *given = words
        if name not in STRATEGIES:
            raise ConfigError(f"{unknown_name('strategy', name, STRATEGIES)} {USAGE}")
        numbers = {each: search_size if default is None else default for each, default in STRATEGIES[name].items()}  # type: ignore[misc]
    if len(given) > len(numbers):
        raise ConfigError(
            f"{' '.join(words)}: {count(len(numbers), 'number')} at most ({', '.join(numbers)}). {USAGE}"
        )
    for each, word in zip(list(numbers), given, strict=False):
        if not (word.isascii() and word.isdigit() and len(word) < 6 and 1 <= int(word) <= LARGEST):
            raise ConfigError(f"'{word[:20]}': the numbers of a strategy are whole ones from 1 to {LARGEST:,}")
        numbers[each] = int(word)
    if numbers.get("trials", 0) is None:
        raise ConfigError(
            f"strategy {name} shares out a number of trials, and this search never ends: give the number"
        )
    trials, agents = min(numbers.get("trials", 0), LARGEST), numbers.get("agents", 1)
    if name == "balanced":
        agents = -(-trials // (1 if trials <= _FEW else 3 if trials <= _MANY else 5))
    elif name == "spread":
        agents = trials
    shares: tuple[int | None, ...] = (numbers.get("trials_each"),) * agents
    if "trials" in numbers:  # equal parts, rounded up; the last has what remains, and none is empty
        share = -(-trials // agents)
        shares = (share,) * (trials // share) + ((trials % share,) if trials % share else ())
    endless = name == "continuous" or (name == "agents" and search_size is None)
    if name == "auto" and search_size is None:
        raise ConfigError(
            "strategy auto goes on until nothing is left to try, and this search never ends. Give the file a "
            "run_cap, or "
            "take explore (so many trials each) or continuous (until stopped)"
        )
    return AgentPlan(
        strategy=name, devices=numbers.get("devices", 1), trials=shares, endless=endless, confirm=name == "spread"
    )


def fit_agents(plan: AgentPlan, devices: int | None) -> AgentPlan:
    """See how many of its agents have devices at once, of so many GPUs; None for as many as there are agents.

    Raises:
        ConfigError: One agent needs more than there are.
    """
    if devices is not None and plan.devices > devices:
        there = f"there {'is' if devices == 1 else 'are'} {devices}"
        raise ConfigError(f"strategy {plan.strategy}: each agent needs {count(plan.devices, 'GPU')}, and {there}")
    many = len(plan.trials)
    return replace(plan, at_once=many if devices is None else min(many, devices // plan.devices))
