"""What is asked for by ``sweep run``, with or without ``--wandb``: a file, words behind it, and devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console

from pipeline.commands.launch import parse_ids
from pipeline.config.schema import DeviceChoice
from pipeline.errors import ConfigError
from pipeline.sweeps.agents.pool import AgentPool, choose_pool, count_gpus
from pipeline.sweeps.agents.strategies import AgentPlan, fit_agents, plan_agents, split_words
from pipeline.sweeps.reading.file import read_sweep
from pipeline.sweeps.searching.searches import most_trials
from pipeline.sweeps.spec import Sweep
from pipeline.terminal.console import say


@dataclass(frozen=True, kw_only=True)
class DevicesAsked:
    """The devices that were asked for; see `choose_pool`."""

    device: DeviceChoice = DeviceChoice.auto
    agents: int | None = None
    each: int | None = None
    ids: Sequence[int] | None = None

    def pool(self, sweep: Sweep) -> AgentPool:
        """The devices.

        Raises:
            PipelineError: They cannot be had, or would do for no trial.
        """
        return choose_pool(
            self.device, agents=self.agents, each=self.each, ids=self.ids, otherwise=sweep.options.num_gpus
        )


def chosen(device: DeviceChoice, agents: int | None, each: int | None, gpu_list: str | None) -> DevicesAsked:
    """From the options of a command.

    Raises:
        ConfigError: The list is none.
    """
    ids = None if gpu_list is None else parse_ids(gpu_list, "--gpu-list")
    return DevicesAsked(device=device, agents=agents, each=each, ids=ids)


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """What a user has typed.

    Attributes:
        file: The sweep file.
        words: A strategy and its numbers, then settings of every trial.
        output_dir: Folder of all runs and sweeps.
        where: On which devices.
        name: Of the sweep; "" for that in the file.
        count: The most trials: of the sweep, or with W&B those that are run here. None for no bound.
        grace_s: Seconds that a trial has to end once it was told to.
        dry_run: Whether to tell what would be done, and begin nothing.
    """

    file: Path
    words: Sequence[str] = ()
    output_dir: Path
    where: DevicesAsked
    name: str = ""
    count: int | None = None
    grace_s: int = 30
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class SweepDecision:
    """What that comes to.

    Attributes:
        sweep: The file with the settings of the command line.
        overrides: These settings.
        where: As asked for, or as a strategy says.
        count: Likewise.
    """

    sweep: Sweep
    overrides: Sequence[str]
    where: DevicesAsked
    count: int | None


def decide(request: SweepRequest, console: Console, *checks: Callable[[Sweep], None]) -> SweepDecision | None:
    """Read the file, and do what a strategy says; None where a person does not want what it comes to.

    Args:
        request: What is asked for.
        console: Where the plan of a strategy is told.
        checks: Called with the sweep; they raise if it cannot be run.

    Raises:
        ConfigError: The request is wrong.
    """
    strategy, overrides = split_words(request.words)
    sweep = read_sweep(request.file, name=request.name, overrides=overrides)
    for check in checks:
        check(sweep)
    where, count = request.where, request.count
    if strategy:
        plan = _planned(strategy, sweep, where)
        bounds = [each for each in (count, plan.total) if each is not None]
        where, count = replace(where, agents=plan.at_once, each=plan.devices), min(bounds, default=None)
        if not _agreed(plan, where, console, asks=not request.dry_run):
            return None
    return SweepDecision(sweep=sweep, overrides=overrides, where=where, count=count)


def _planned(strategy: Sequence[str], sweep: Sweep, where: DevicesAsked) -> AgentPlan:
    """What a strategy means on the devices that there are.

    Raises:
        ConfigError: There is no such strategy, or its agents do not fit.
    """
    if where.agents is not None or where.each is not None:
        raise ConfigError(
            f"{' '.join(strategy)}: a strategy says how many agents and devices there are; leave out --agents and "
            "--gpus-per-agent"
        )
    plan = plan_agents(strategy, most_trials(sweep))
    there = count_gpus(where.device, where.ids)
    return replace(plan, at_once=plan.agents) if there is None else fit_agents(plan, there)


def _agreed(plan: AgentPlan, where: DevicesAsked, console: Console, *, asks: bool) -> bool:
    """Tell a plan before anything starts; whether it may, where a person is to be asked."""
    for line in plan.lines("GPU" if count_gpus(where.device, where.ids) else "CPU slot"):
        say(console, line)
    return not (asks and plan.confirm and console.is_interactive) or typer.confirm("Begin?")
