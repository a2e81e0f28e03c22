"""The command that runs an experiment: what it holds meanwhile, the store, devices and notes; or a dry run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pipeline import arithmetic
from pipeline.commands.request import (
    Request,
    Stored,
    check_room,
    look_up,
    on_cluster,
    prepare,
    print_plan,
    said_of_best,
)
from pipeline.commands.sharing import look_up_shared, looked_at, sharing, tell_looked_at
from pipeline.config.schema import Backend, Config, StageChoice
from pipeline.config.user_code import brought_torch
from pipeline.engine.devices.lease import LeaseSet
from pipeline.engine.devices.select import lease_devices
from pipeline.engine.keeper import keys_of_weights
from pipeline.engine.scheduler.dispatch import check_runnable
from pipeline.engine.store.gc import remove_dead_claims
from pipeline.engine.store.measured import read_peaks
from pipeline.engine.store.removal import tell_needs
from pipeline.engine.store.store import Scratch, remove_leftovers
from pipeline.engine.store.verified import Verified
from pipeline.errors import ConfigError, StoreError
from pipeline.plan.models import fetched_models
from pipeline.plan.rewards import try_rewards
from pipeline.runs.notes import warnings_of_rows
from pipeline.terminal.console import say


def run_experiment(
    config: Config,
    console: Console,
    *,
    label: str = "",
    given: Sequence[str] = (),
    command: Sequence[str] = (),
    on_begin: Callable[[Path], None] | None = None,
) -> int:
    """Carry out a request, or print its plan where it says `dry_run`.

    Args:
        config: The request.
        console: Where results and warnings go.
        label: What tells this run from others of the same command; heads its tables.
        given: Settings of the command line; those without effect are warned of.
        command: Words of a command that repeats the run, for its reader.
        on_begin: Told the run's folder once it is there.

    Returns:
        The exit code: 0 every job done, 1 some failed, 130 or 143 interrupted.

    Raises:
        PipelineError: The request is wrong. Nothing was started.
    """
    request = prepare(config, given, lambda text: say(console, text))
    request = replace(request, label=label, command=tuple(command), on_begin=on_begin)
    _check_arithmetic(request)
    if best := said_of_best(config):
        request = replace(request, warnings=(*request.warnings, best))
    config, store, peaks = request.config, request.store, read_peaks(request.store.root)
    _warn(request.warnings, console)
    if config.dry_run:
        _show_plan(request, peaks, console)
        return 0
    from pipeline.commands.carry_out import (
        carry_out,  # what a dry run has no use for: scheduler, workers, trackers
    )

    # A run that is refused leaves no folder of a store; where there is one, what it holds is looked at first.
    is_new = config.execution.shared_store is None and not os.path.exists(store.root)  # noqa: PTH110 - Path.exists may raise
    if is_new:
        nothing = Stored(missing=list(request.plan.jobs), damaged={})
        check_room(request, nothing)
        request = _tried(request, nothing, console)
    with (
        store.in_use(Path(config.output_dir)),
        notes_of(request) as verified,
        sharing(request, verified, console) as request,
    ):
        with suppress(StoreError):  # where nothing can be locked or written, no run removes anything either
            tell_needs(store, verified.folder, keys_of_weights(request.plan.jobs.values()))
        stored = look_up_shared(request, verified, console)
        if not stored.missing:
            return carry_out(_tried(request, stored, console), stored, verified, console)
        check_room(request, stored)
        request = request if is_new else _tried(request, stored, console)
        check_runnable(request.plan, request.layout, set(request.plan.jobs) - set(stored.missing), peaks)
        # Those of a cluster are Ray's to give.
        with LeaseSet(request.devices, {}) if on_cluster(config) else leased(config, console) as lease:
            return carry_out(replace(request, devices=lease.devices), stored, verified, console)


def _show_plan(request: Request, peaks: Mapping[str, int], console: Console) -> None:
    """What a dry run does: it only looks; all that it writes is a picture."""
    there = looked_at(request.config, console)
    stored = look_up(request, lambda key: request.store.problem(key, checksums=False), there or ())
    _tried(request, stored, console)
    check_runnable(request.plan, request.layout, set(request.plan.jobs) - set(stored.missing), peaks)
    print_plan(request, stored, console)
    if there is not None:
        tell_looked_at(stored, console)


def _check_arithmetic(request: Request) -> None:
    """See that jobs which run in this process find its arithmetic pinned.

    Raises:
        ConfigError: A library that has to know was imported before.
    """
    config = request.config
    if not config.system.portable or request.execution.backend is not Backend.inline or config.dry_run:
        return
    if late := arithmetic.imported_unpinned():
        remedy = "Start it by run_parallel.py, call pipeline.pin('numpy', 'torch') first"
        if "torch" in late and (modules := brought_torch()):
            remedy = (
                f"It was {' and '.join(modules)} that imported torch, or something that does: move such imports "
                "into the methods that need them"
            )
        raise ConfigError(
            f"system.portable=true with system.use_parallel_execution=false: this process imported "
            f"{' and '.join(late)} before, for the processor's own instructions. {remedy}, or set "
            "system.portable=false"
        )


@contextmanager
def notes_of(request: Request) -> Iterator[Verified]:
    """Where a run notes which outputs it found good; first what runs that are gone have left there is removed."""
    store = request.store
    experiment = request.config.experiment.name.replace("/", "-")
    name = f"{experiment}-verified-{secrets.token_hex(4)}-{os.getpid()}"
    scratch = Scratch(store.scratch(name))
    try:
        # A store that may only be read: then there are no notes, and nothing is removed.
        with suppress(OSError, StoreError):
            scratch.open()
            remove_leftovers(store.root, scratch.path)
            remove_dead_claims(store)
        yield Verified(store, scratch.path)
    finally:
        scratch.close()


def _tried(request: Request, stored: Stored, console: Console) -> Request:
    """Call rewards once before they are first needed, and look at files and for models before they are read.

    What an earlier run was told of rows that are stored is told again.

    Raises:
        ConfigError: One cannot work with its dataset, a row lacks what it needs, or a model is not to be had.
    """
    preparing = request.config.stage is StageChoice.prepare  # who prepares asks whether the rest can use the rows
    if not stored.missing and not preparing:
        return request
    # What the machines of a cluster have in their caches is not known here.
    needed = [] if on_cluster(request.config) else request.needed_models(stored.missing)
    fetched = fetched_models(request.config, needed)
    warned = warnings_of_rows(request.store, request.plan.jobs.values())
    used = sorted(request.config.datasets) if preparing else request.used_datasets(stored.missing)
    tried = try_rewards(request.config, used, lambda said: _warn([said], console))
    warnings = tuple(dict.fromkeys([*fetched, *warned, *tried]))
    _warn(warnings, console)
    return replace(request, warnings=(*request.warnings, *warnings))


def _warn(warnings: Sequence[str], console: Console) -> None:
    for warning in warnings:
        say(console, f"warning: {warning}", "bold")


def leased(config: Config, console: Console) -> LeaseSet:
    """Take the devices of a run, so that no other run of this user does meanwhile.

    Raises:
        DeviceError: Others hold what it needs.
    """
    return lease_devices(
        config.device,
        config.execution.workers,
        config.distributed,
        wait=config.execution.wait_for_devices,
        experiment=config.experiment.name,
        on_wait=lambda text: say(console, text),
    )
