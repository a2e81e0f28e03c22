"""``sweep run FILE --wandb``: the search is W&B's, and its agents run on devices that they have leased."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rich.console import Console

from pipeline.commands.exits import INTERRUPTED_BY
from pipeline.commands.start import settle
from pipeline.commands.sweep_request import SweepRequest, decide
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError
from pipeline.runs.report.format import count as counted
from pipeline.sweeps.agents.own_runs import is_own
from pipeline.sweeps.agents.pool import AgentPool
from pipeline.sweeps.folder import SweepFolder, sweep_folder
from pipeline.sweeps.online.at_wandb import as_uploaded, created, most_devices, shares
from pipeline.sweeps.online.slots import OnlineSlots, Patience, Slot
from pipeline.sweeps.online.wandb_file import wandb_config
from pipeline.sweeps.spec import Sweep
from pipeline.terminal.console import say

FAILED = 1
KEPT = "wandb.json"
"""In the sweep's folder: its id, entity, project and path at W&B."""


def run_online(request: SweepRequest, console: Console, *, patience: Patience | None = None) -> int:
    """Create a sweep at W&B, or go on with it, and run its trials; the exit code.

    Args:
        request: What is asked for.
        console: Where it is told.
        patience: How long slots wait for trials, where there are none.

    Returns:
        0 where W&B had no trial left, 1 where its agents fail, 130 or 143 after a signal.

    Raises:
        PipelineError: The request is wrong, or W&B does not create the sweep. Nothing was started.
    """
    if request.dry_run:
        raise ConfigError("--dry-run with --wandb: W&B would choose the trials. Leave one of them out")
    decided = decide(request, console, _refuse_own)
    if decided is None:
        return 0
    sweep, where = decided.sweep, decided.where
    share = most_devices(sweep, where.each)
    pool = replace(where, each=share).pool(sweep)
    folder = sweep_folder(request.output_dir.absolute(), sweep.name)
    slots = _slots(pool, share, folder)
    online, new = created(as_uploaded(wandb_config(sweep), sweep, share), folder.path / KEPT)
    say(console, f"{'created' if new else 'going on with'} the sweep at W&B:", copy=online.path)
    say(console, f"{counted(len(slots), 'agent')} with {counted(share, pool.kind)} each")
    told = partial(say, console)
    work = OnlineSlots(
        sweep,
        online,
        slots,
        pool.places,
        told,
        limit=decided.count,
        grace_s=request.grace_s,
        patience=patience,
    )
    with StopSignals() as signals:
        interrupted = work.run(signals)
        say(console, f"{counted(work.trials, 'trial')} run; what they have reached is at W&B")
        code = INTERRUPTED_BY[interrupted] if interrupted else FAILED if work.gave_up else 0
        settle(code)
    return code


def _refuse_own(sweep: Sweep) -> None:
    if is_own(sweep):
        raise ConfigError(
            "run_parallel.py is searched on this machine: leave out --wandb. tracking.report_to=[wandb] among the "
            "parameters has each of its runs tracked there"
        )


def _slots(pool: AgentPool, share: int, folder: SweepFolder) -> list[Slot]:
    """Places for agents, each with its share of the devices."""
    parts = shares(pool.devices, share, pool.at_once)
    if not parts:
        there = f"there {'is' if len(pool.devices) == 1 else 'are'} {len(pool.devices)}"
        raise ConfigError(f"trials of this sweep need {counted(share, pool.kind)}, and {there}")
    return [
        Slot(devices=devices, place=folder.path / "slots" / f"{number:02d}")
        for number, devices in enumerate(parts, 1)
    ]
