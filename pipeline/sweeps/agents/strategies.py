"""How many agents run a sweep, with how many devices and trials each: what a strategy and its numbers mean.

    sweep run FILE 4 2            4 agents with 2 devices each
    sweep run FILE balanced 27 2  27 trials, shared by agents with 2 devices each

Pure: words in, a plan out, which is printed before anything starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from pipeline.errors import ConfigError
from pipeline.runs.report.format import count

LARGEST = 10_000
"""Of any of the numbers: agents, devices, trials."""
_FEW, _MANY = 10, 30
_SMALL_SHARE, _LARGE_SHARE = 3, 5


@dataclass(frozen=True, kw_only=True)
class AgentPlan:
    """Who runs the trials of a sweep.

    Attributes:
        strategy: Name of the strategy.
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
    def agents(self) -> int:
        """How many."""
        return len(self.trials)

    @property
    def total(self) -> int | None:
        """The most trials that are begun in all; None for no bound."""
        return sum(self.trials) if None not in self.trials else None  # type: ignore[arg-type]

    def lines(self, kind: str = "GPU") -> list[str]:
        """The plan in words, for a person to read before it starts.

        Args:
            kind: What one device is called.
        """
        held = f"{count(self.at_once or self.agents, 'agent')} x {count(self.devices, kind)}"
        return [
            f"strategy  {self.strategy}",
            f"agents    {self.agents:,}, each with {count(self.devices, kind)}",
            f"trials    {self._shares()}",
            f"at once   {held} = {count((self.at_once or self.agents) * self.devices, kind)}"
            + ("" if self.at_once in (0, self.agents) else "; the other agents wait for theirs"),
        ]

    def _shares(self) -> str:
        if self.endless:
            return "until it is stopped (Ctrl-C, `sweep stop`, the time limit of a job)"
        if self.total is None:
            return "until none is left to try"
        sizes = sorted({size for size in self.trials if size is not None}, reverse=True)
        return f"{self.total:,} at most, {' or '.join(f'{size:,}' for size in sizes)} by each agent"


# -- the strategies --------------------------------------------------------------------------------------------


def _simple(*, agents: int = 1, devices: int = 1, each: int = 1) -> AgentPlan:
    """So many agents, each with as many trials."""
    return AgentPlan(strategy="simple", devices=devices, trials=(each,) * agents)


def _balanced(*, trials: int, devices: int = 2) -> AgentPlan:
    """An agent for each of up to 10 trials, for every 3 of up to 30, for every 5 of more."""
    share = 1 if trials <= _FEW else _SMALL_SHARE if trials <= _MANY else _LARGE_SHARE
    return AgentPlan(strategy="balanced", devices=devices, trials=_split(trials, -(-trials // share)))


def _spread(*, trials: int) -> AgentPlan:
    """An agent with one device for each trial; asks first."""
    return AgentPlan(strategy="spread", devices=1, trials=(1,) * trials, confirm=True)


def _efficient(*, trials: int, agents: int = 9) -> AgentPlan:
    """The trials in equal parts for so many agents with one device each; the last has what remains."""
    return AgentPlan(strategy="efficient", devices=1, trials=_split(trials, agents))


def _auto(*, agents: int = 8, devices: int = 1) -> AgentPlan:
    """So many agents until nothing is left to try; for a search that ends."""
    return AgentPlan(strategy="auto", devices=devices, trials=(None,) * agents)


def _explore(*, agents: int = 4, each: int = 5, devices: int = 1) -> AgentPlan:
    """So many agents with as many trials each; for a search that goes on for ever, as random and bayes do."""
    return AgentPlan(strategy="explore", devices=devices, trials=(each,) * agents)


def _continuous(*, agents: int = 2, devices: int = 2) -> AgentPlan:
    """So many agents until they are stopped, as by the time limit of a job."""
    return AgentPlan(strategy="continuous", devices=devices, trials=(None,) * agents, endless=True)


def _split(trials: int, agents: int) -> tuple[int, ...]:
    """Equal parts, rounded up; the last has what remains. No part is empty, so there may be fewer of them."""
    share = -(-trials // agents)
    whole, rest = divmod(trials, share)
    return (share,) * whole + ((rest,) if rest else ())


STRATEGIES: Mapping[str, Callable[..., AgentPlan]] = {
    "simple": _simple,
    "balanced": _balanced,
    "spread": _spread,
    "efficient": _efficient,
    "auto": _auto,
    "explore": _explore,
    "continuous": _continuous,
}
"""Name -> what plans the agents; its arguments, in their order, are the numbers that may follow the name."""


# -- from words ------------------------------------------------------------------------------------------------


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell a strategy with its numbers from the settings behind it.

    Returns:
        The words up to the first setting (``key=value``, or ``~key``), and the rest.
    """
    first = next((at for at, word in enumerate(words) if "=" in word or word.startswith(("~", "+"))), len(words))
    return list(words[:first]), list(words[first:])


def plan_agents(words: Sequence[str], search_size: int | None) -> AgentPlan:
    """What a strategy means.

    Args:
        words: Its name and numbers, as ``balanced 27 2``; or two numbers alone: agents, and devices of each.
        search_size: How many trials the search has before it ends; None where it never does. It is also the
            number of trials where a strategy needs one and none is given.

    Raises:
        ConfigError: There is no such strategy, or a number is missing, too many or out of range.
    """
    if not words:
        raise ConfigError(f"no strategy is given. {usage()}")
    if words[0][:1].isdigit() or words[0].startswith("-"):
        return _by_numbers(words, endless=search_size is None)
    name, *given = words
    if name not in STRATEGIES:
        near = get_close_matches(name, STRATEGIES, n=1, cutoff=0.5)
        raise ConfigError(f"there is no strategy '{name}'.{f' Did you mean {near[0]}?' if near else ''} {usage()}")
    numbers = _named_numbers(name, given)
    if "trials" in _defaults(name) and "trials" not in numbers:
        numbers["trials"] = _size(name, search_size)
    plan = STRATEGIES[name](**numbers)
    if plan.total is None and not plan.endless and search_size is None:
        raise ConfigError(
            f"strategy {name} goes on until nothing is left to try, and this search never ends. Give the file a "
            "run_cap, bound it by --count, or take explore (so many trials each) or continuous (until stopped)"
        )
    return plan


def fit_agents(plan: AgentPlan, devices: int, kind: str = "GPU") -> AgentPlan:
    """How many of its agents have devices at once, of those that there are.

    Args:
        plan: The plan.
        devices: How many there are.
        kind: What one is called.

    Raises:
        ConfigError: One agent needs more than there are.
    """
    if plan.devices > devices:
        raise ConfigError(
            f"strategy {plan.strategy}: each agent needs {count(plan.devices, kind)}, and there "
            f"{'is' if devices == 1 else 'are'} {devices}. Give its agents fewer"
        )
    return replace(plan, at_once=min(plan.agents, devices // plan.devices))


def usage() -> str:
    """Every strategy with its numbers, a line for each."""
    lines = ["Give AGENTS DEVICES (as in `4 2`), or one of:"]
    for name, plan in STRATEGIES.items():
        numbers = " ".join(
            f"[{_SHOWN[each]}]" if default is None else f"[{_SHOWN[each]}={default}]"
            for each, default in _defaults(name).items()
        )
        lines.append(f"  {name} {numbers}: {_about(plan)}")
    return "\n".join(lines)


_SHOWN = {"agents": "AGENTS", "devices": "DEVICES", "each": "TRIALS_EACH", "trials": "TRIALS"}


def _by_numbers(words: Sequence[str], *, endless: bool) -> AgentPlan:
    """Agents and devices of each, until nothing is left to try."""
    if len(words) > 2:
        raise ConfigError(f"{' '.join(words)}: two numbers at most, agents and devices of each, as in `4 2`")
    agents, devices = [_number(word) for word in (*words, "1")][:2]
    return AgentPlan(strategy="agents", devices=devices, trials=(None,) * agents, endless=endless)


def _named_numbers(name: str, given: Sequence[str]) -> dict[str, int]:
    names = list(_defaults(name))
    if len(given) > len(names):
        raise ConfigError(
            f"strategy {name} takes {count(len(names), 'number')} at most "
            f"({' '.join(_SHOWN[each] for each in names)}), and is given {len(given)}: {' '.join(given)}"
        )
    return {each: _number(word) for each, word in zip(names, given, strict=False)}


def _defaults(name: str) -> dict[str, int | None]:
    """The numbers of a strategy with their defaults; None where it is the size of the search."""
    return {
        each.name: None if each.default is inspect.Parameter.empty else each.default
        for each in inspect.signature(STRATEGIES[name]).parameters.values()
    }


def _size(name: str, search_size: int | None) -> int:
    if search_size is None:
        raise ConfigError(
            f"strategy {name} shares out a number of trials, and this search never ends: give the number, as in "
            f"`{name} 27`, or the file a run_cap"
        )
    return min(search_size, LARGEST)


def _number(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < len(str(LARGEST)) + 2 and 1 <= int(word) <= LARGEST):
        raise ConfigError(f"'{word[:20]}': the numbers of a strategy are whole ones from 1 to {LARGEST:,}")
    return int(word)


def _about(plan: Callable[..., AgentPlan]) -> str:
    return (plan.__doc__ or "").strip().rstrip(".")
