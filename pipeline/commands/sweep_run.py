"""Running sweeps: ``sweep run``, ``agent``, ``stop``, ``cancel``, ``pause`` and ``resume``."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from pipeline.commands.exits import INTERRUPTED_BY
from pipeline.commands.sweep_look import conclude
from pipeline.commands.sweep_request import DevicesAsked, SweepRequest, decide
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, StoreError, WorkerError
from pipeline.runs.report.format import count as counted
from pipeline.slurm.script import shell_word
from pipeline.sweeps.agents import halting
from pipeline.sweeps.agents.agent import Agent, Bounds
from pipeline.sweeps.agents.beginning import begin_sweep
from pipeline.sweeps.agents.halting import SweepOrder
from pipeline.sweeps.agents.once import untested
from pipeline.sweeps.agents.orders import Orders
from pipeline.sweeps.agents.own_runs import is_own
from pipeline.sweeps.agents.pool import AgentPool, check_fits
from pipeline.sweeps.agents.programs import as_typed
from pipeline.sweeps.agents.turn import devices_needed, ready, too_large
from pipeline.sweeps.folder import SweepFolder, sweep_folder
from pipeline.sweeps.reading.command import check_program
from pipeline.sweeps.reading.file import read_sweep
from pipeline.sweeps.reading.script import check_script, script_notes
from pipeline.sweeps.recorded import RecordedSweep, choose_sweep
from pipeline.sweeps.report.live import told_on
from pipeline.sweeps.searching.search import Search
from pipeline.sweeps.searching.searches import make_search, most_trials
from pipeline.sweeps.spec import Sweep
from pipeline.sweeps.trials import Trial, TrialState
from pipeline.sweeps.values import in_words
from pipeline.terminal.console import say

# -- sweep dry run -----------------------------------------------------------------------------------------------
# What `sweep run` would do, with nothing begun.


def show(
    sweep: Sweep, pool: AgentPool, search: Search, most: int | None, output_dir: Path, console: Console
) -> None:
    """Tell how many trials there would be, how many at a time, and what the next one would run.

    Args:
        sweep: The sweep.
        pool: Its devices.
        search: Chooses the next trial.
        most: The most trials that were asked for; None for no bound.
        output_dir: Folder of all runs and sweeps.
        console: Where it is told.

    Raises:
        ConfigError: The next trial needs more devices than there are.
    """
    folder = sweep_folder(output_dir.absolute(), sweep.name)
    before = list(RecordedSweep(folder).view.trials.values()) if folder.begun else []
    bounds = [each for each in (most, most_trials(sweep)) if each is not None]
    trials = f"{counted(min(bounds), 'trial')} at most" if bounds else "trials until it is stopped"
    so_far = f", {len(before):,} of them begun" if before else ""
    say(
        console,
        f"sweep {sweep.name}: {sweep.method.value}, {trials}{so_far}; {pool.at_once} at a time on "
        f"{counted(len(pool.devices), pool.kind)}",
    )
    chosen = search.ask(before)
    if chosen is None or (bounds and len(before) >= min(bounds)):
        say(console, "no new trial is left to try")
    else:
        trial = Trial(number=len(before), parameters=chosen, num_gpus=devices_needed(chosen, pool.each))
        if trial.num_gpus > len(pool.devices):
            needs = counted(trial.num_gpus, pool.kind)
            raise ConfigError(f"trial {trial.number} needs {needs}, and there are {len(pool.devices)}")
        words = Orders(sweep, folder, pool, grace_s=1).trial(trial, 1, pool.devices[: trial.num_gpus]).words
        say(console, f"trial {trial.number} with {counted(trial.num_gpus, pool.kind)}: {in_words(chosen)}")
        say(console, f"it would run, in {sweep.folder}:")
        say(console, " ", copy=" ".join(map(shell_word, as_typed(words))))
    say(console, "nothing was begun, as --dry-run asks")


FAILED = 1


def run(request: SweepRequest, console: Console) -> int:
    """Begin a sweep, or go on with it, and work on it until nothing is left; the exit code.

    Raises:
        PipelineError: The request is wrong. Nothing was started.
    """
    decided = decide(request, console, check_program, check_script, _check_settings)
    if decided is None:
        return 0
    sweep = decided.sweep
    pool, search = decided.where.pool(sweep), make_search(sweep)
    for note in (*sweep.notes, *script_notes(sweep, os.environ), check_fits(sweep, pool)):
        if note:
            say(console, note)
    if request.dry_run:
        show(sweep, pool, search, decided.count, request.output_dir, console)
        return 0
    folder = begin_sweep(
        sweep,
        request.file,
        request.output_dir,
        overrides=decided.overrides,
        count=decided.count,
        say=partial(say, console),
    )
    return work(sweep, folder, pool, Bounds(grace_s=request.grace_s), search, console)


def _check_settings(sweep: Sweep) -> None:
    if is_own(sweep):
        from pipeline.commands.sweep_settings import check_settings  # and Hydra, which other programs do without

        check_settings(sweep)


def agent(
    name: str,
    output_dir: Path,
    console: Console,
    where: DevicesAsked,
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
    if view.halted in ("stopped", "cancelled"):
        raise ConfigError(
            f"sweep {name} is {view.halted}: {view.reason}. `python -m pipeline sweep resume {name}` lets it go on"
        )
    sweep = read_sweep(folder.file, name=name, overrides=view.overrides)
    sweep = replace(sweep, folder=Path(view.folder or sweep.folder))
    if view.halted == "finished" and untested(sweep, view) is None:
        say(console, f"sweep {name} is finished: nothing is left for an agent")
        return 0
    pool = where.pool(sweep)
    if note := check_fits(sweep, pool):
        say(console, note)
    return work(sweep, folder, pool, Bounds(own=count, grace_s=grace_s), make_search(sweep), console)


def tell(name: str, output_dir: Path, word: SweepOrder, console: Console) -> None:
    """Tell a sweep to stop, to be given up, to pause or to go on.

    Raises:
        PipelineError: There is none, or it makes no sense now.
    """
    say(console, halting.tell(choose_sweep(output_dir.absolute(), name), word, partial(say, console)))


def work(
    sweep: Sweep, folder: SweepFolder, pool: AgentPool, bounds: Bounds, search: Search, console: Console
) -> int:
    """Be an agent of a sweep; the exit code: 0 all well, 1 some failed, 130 and 143 interrupted."""
    with StopSignals() as signals, told_on(console, folder) as told:
        one = Agent(sweep, folder, pool, bounds, search, told)
        try:
            one.run(signals)
        except (StoreError, WorkerError) as error:
            say(console, f"error: {error}. Mend that, then run the same command.", "red")
            return FAILED
    return _conclude(folder, sweep, one.interrupted, console, len(pool.devices))


def _conclude(folder: SweepFolder, sweep: Sweep, interrupted: str, console: Console, devices: int) -> int:
    conclude(folder, console)
    view = RecordedSweep(folder).view
    if interrupted:
        return INTERRUPTED_BY[interrupted]
    left = too_large(ready(view, sweep.options.max_attempts), devices)
    if left and not view.halted:
        say(console, f"left: {counted(len(left), 'trial')} that need more devices than the {devices} here")
        return FAILED
    return FAILED if view.having(TrialState.failed) or view.halted == "stopped" else 0
