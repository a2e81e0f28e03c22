"""Running sweeps: ``sweep run``, ``agent``, ``stop``, ``cancel``, ``pause`` and ``resume``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console

from pipeline.commands.launch import parse_ids
from pipeline.commands.run_messages import INTERRUPTED
from pipeline.commands.sweep_look import conclude
from pipeline.config.schema import DeviceChoice
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, StoreError
from pipeline.runs.report.format import count as counted
from pipeline.sweeps.agents import halting
from pipeline.sweeps.agents.agent import Agent, Bounds
from pipeline.sweeps.agents.beginning import begin_sweep
from pipeline.sweeps.agents.halting import Word
from pipeline.sweeps.agents.own_runs import check_own
from pipeline.sweeps.agents.pool import Pool, check_fits, choose_pool, count_gpus
from pipeline.sweeps.agents.strategies import AgentPlan, fit_agents, plan_agents, split_words
from pipeline.sweeps.agents.turn import ready, too_large
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.reading.command import check_program
from pipeline.sweeps.reading.file import read_sweep
from pipeline.sweeps.recorded import RecordedSweep, choose_sweep
from pipeline.sweeps.report.live import told_on
from pipeline.sweeps.searching.search import Search
from pipeline.sweeps.searching.searches import make_search, most_trials
from pipeline.sweeps.spec import Sweep
from pipeline.sweeps.trials import TrialState
from pipeline.terminal.console import say

FAILED = 1


@dataclass(frozen=True, kw_only=True)
class Where:
    """The devices that were asked for; see `choose_pool`."""

    device: DeviceChoice = DeviceChoice.auto
    agents: int | None = None
    each: int | None = None
    ids: Sequence[int] | None = None

    def pool(self, sweep: Sweep) -> Pool:
        """The devices.

        Raises:
            PipelineError: They cannot be had, or would do for no trial.
        """
        return choose_pool(
            self.device, agents=self.agents, each=self.each, ids=self.ids, otherwise=sweep.options.num_gpus
        )


def chosen(device: DeviceChoice, agents: int | None, each: int | None, gpu_list: str | None) -> Where:
    """From the options of a command.

    Raises:
        ConfigError: The list is none.
    """
    return Where(device=device, agents=agents, each=each, ids=None if gpu_list is None else parse_ids(gpu_list))


def run(
    file: Path,
    words: Sequence[str],
    output_dir: Path,
    console: Console,
    where: Where,
    *,
    name: str = "",
    count: int | None = None,
    grace_s: int = 30,
) -> int:
    """Begin a sweep, or go on with it, and work on it until nothing is left; the exit code.

    Args:
        file: The sweep file.
        words: A strategy and its numbers, then settings of every trial.
        output_dir: Folder of all runs.
        console: Where it is told.
        where: On which devices.
        name: Of the sweep; "" for that of the file.
        count: The most trials of the sweep; None for no bound.
        grace_s: Seconds that a trial has to end.

    Raises:
        PipelineError: The request is wrong. Nothing was started.
    """
    strategy, overrides = split_words(words)
    sweep = read_sweep(file, name=name, overrides=overrides)
    check_own(sweep)
    check_program(sweep)
    if strategy:
        plan = planned(strategy, sweep, where)
        where, count = by_plan(plan, where, count)
        if not agreed(plan, where, console):
            return 0
    pool, search = where.pool(sweep), make_search(sweep)
    for note in (*sweep.notes, check_fits(sweep, pool)):
        if note:
            say(console, note)
    folder = begin_sweep(sweep, file, output_dir, overrides=overrides, count=count)
    return work(sweep, folder, pool, Bounds(grace_s=grace_s), search, console)


def by_plan(plan: AgentPlan, where: Where, count: int | None) -> tuple[Where, int | None]:
    """The devices of a plan, and the most trials; the smaller number where one was given."""
    bounds = [each for each in (count, plan.total) if each is not None]
    return replace(where, agents=plan.at_once, each=plan.devices), min(bounds, default=None)


def agreed(plan: AgentPlan, where: Where, console: Console) -> bool:
    """Tell a plan before anything starts; whether it may, where a person is to be asked."""
    for line in plan.lines("GPU" if count_gpus(where.device, where.ids) else "CPU slot"):
        say(console, line)
    return not (plan.confirm and console.is_interactive) or typer.confirm("Begin?")


def planned(strategy: Sequence[str], sweep: Sweep, where: Where) -> AgentPlan:
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


def agent(
    name: str,
    output_dir: Path,
    console: Console,
    where: Where,
    *,
    count: int | None = None,
    grace_s: int = 30,
) -> int:
    """Join a sweep that was begun; the exit code.

    Raises:
        PipelineError: There is none, or its devices cannot be had.
    """
    folder = choose_sweep(output_dir.absolute(), name)
    view = RecordedSweep(folder).view
    if view.halted == "finished":
        say(console, f"sweep {name} is finished: nothing is left for an agent")
        return 0
    if view.halted in ("stopped", "cancelled"):
        raise ConfigError(
            f"sweep {name} is {view.halted}: {view.reason}. `python -m pipeline sweep resume {name}` lets it go on"
        )
    sweep = read_sweep(folder.file, name=name, overrides=view.overrides)
    sweep = replace(sweep, folder=Path(view.folder or sweep.folder))
    pool = where.pool(sweep)
    if note := check_fits(sweep, pool):
        say(console, note)
    return work(sweep, folder, pool, Bounds(own=count, grace_s=grace_s), make_search(sweep), console)


def tell(name: str, output_dir: Path, word: Word, console: Console) -> None:
    """Tell a sweep to stop, to be given up, to pause or to go on.

    Raises:
        PipelineError: There is none, or it makes no sense now.
    """
    say(console, halting.tell(choose_sweep(output_dir.absolute(), name), word))


def work(sweep: Sweep, folder: SweepFolder, pool: Pool, bounds: Bounds, search: Search, console: Console) -> int:
    """Be an agent of a sweep; the exit code: 0 all well, 1 some failed, 130 and 143 interrupted."""
    with StopSignals() as signals, told_on(console, folder) as told:
        one = Agent(sweep, folder, pool, bounds, search, told)
        try:
            one.run(signals)
        except StoreError as error:
            say(console, f"error: {error}. Mend that, then run the same command.", "red")
            return FAILED
    return _conclude(folder, sweep, one.interrupted, console, len(pool.devices))


def _conclude(folder: SweepFolder, sweep: Sweep, interrupted: str, console: Console, devices: int) -> int:
    conclude(folder, console)
    view = RecordedSweep(folder).view
    if interrupted:
        return INTERRUPTED[interrupted]
    left = too_large(ready(view, sweep.options.max_attempts), devices)
    if left and not view.halted:
        say(console, f"left: {counted(len(left), 'trial')} that need more devices than the {devices} here")
        return FAILED
    return FAILED if view.having(TrialState.failed) or view.halted == "stopped" else 0
