"""What `sweep run` would do, with nothing begun."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from pipeline.errors import ConfigError
from pipeline.runs.report.format import count as counted
from pipeline.slurm.script import shell_word
from pipeline.sweeps.agents.orders import Orders
from pipeline.sweeps.agents.pool import AgentPool
from pipeline.sweeps.agents.programs import as_typed
from pipeline.sweeps.agents.turn import devices_needed
from pipeline.sweeps.folder import sweep_folder
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.searching.search import Search
from pipeline.sweeps.searching.searches import most_trials
from pipeline.sweeps.spec import Sweep
from pipeline.sweeps.trials import Trial
from pipeline.sweeps.values import in_words
from pipeline.terminal.console import say


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
