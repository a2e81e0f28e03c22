"""Running sweeps: ``sweep run``, ``agent``, ``stop``, ``cancel``, ``pause`` and ``resume``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pipeline.commands.run_messages import INTERRUPTED
from pipeline.commands.sweep_look import conclude
from pipeline.config.schema import DeviceChoice
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, StoreError
from pipeline.sweeps import halting
from pipeline.sweeps.agent import Agent, Bounds
from pipeline.sweeps.beginning import begin_sweep
from pipeline.sweeps.file import read_sweep
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.halting import Word
from pipeline.sweeps.pool import Pool, choose_pool
from pipeline.sweeps.recorded import RecordedSweep, choose_sweep
from pipeline.sweeps.report.live import told_on
from pipeline.sweeps.search import Search
from pipeline.sweeps.searches import make_search
from pipeline.sweeps.spec import Sweep
from pipeline.sweeps.trials import TrialState
from pipeline.terminal.console import say

FAILED = 1


def run(
    file: Path,
    overrides: Sequence[str],
    output_dir: Path,
    console: Console,
    *,
    name: str = "",
    device: DeviceChoice = DeviceChoice.auto,
    agents: int | None = None,
    each: int | None = None,
    ids: Sequence[int] | None = None,
    count: int | None = None,
    grace_s: int = 30,
) -> int:
    """Begin a sweep, or go on with it, and work on it until nothing is left; the exit code.

    Raises:
        PipelineError: The request is wrong. Nothing was started.
    """
    sweep = read_sweep(file, name=name, overrides=overrides)
    pool = choose_pool(device, agents=agents, each=each, ids=ids, otherwise=sweep.options.num_gpus)
    for note in sweep.notes:
        say(console, note)
    search = make_search(sweep)
    folder = begin_sweep(sweep, file, output_dir, overrides=overrides, count=count)
    return work(sweep, folder, pool, Bounds(grace_s=grace_s), search, console)


def agent(
    name: str,
    output_dir: Path,
    console: Console,
    *,
    device: DeviceChoice = DeviceChoice.auto,
    agents: int | None = None,
    each: int | None = None,
    ids: Sequence[int] | None = None,
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
    pool = choose_pool(device, agents=agents, each=each, ids=ids, otherwise=sweep.options.num_gpus)
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
    return _conclude(folder, one.interrupted, console)


def _conclude(folder: SweepFolder, interrupted: str, console: Console) -> int:
    conclude(folder, console)
    view = RecordedSweep(folder).view
    if interrupted:
        return INTERRUPTED[interrupted]
    return FAILED if view.having(TrialState.failed) or view.halted == "stopped" else 0
