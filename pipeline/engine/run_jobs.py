"""Jobs on devices: a pool of workers, a journal, and the engine between them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from pipeline.config.schema import Backend, ExecutionConfig
from pipeline.engine.devices.inventory import Device, read_levels, wait_until_free
from pipeline.engine.devices.layout import make_layout
from pipeline.engine.journal import Journal, Listener
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.loop import run_plan
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store.measured import read_peaks
from pipeline.engine.store.shared import SharedStore
from pipeline.engine.store.store import Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.backends import free_timeout_s, make_pool
from pipeline.plan.graph import Plan

log = logging.getLogger("pipeline")


def run_jobs(
    plan: Plan,
    store: Store,
    devices: Sequence[Device],
    run_dir: Path,
    *,
    execution: ExecutionConfig | None = None,
    threads: int = 1,
    portable: bool = False,
    missing: Sequence[str] | None = None,
    verified: Verified | None = None,
    listener: Listener | None = None,
    signals: StopSignals | None = None,
    shared: SharedStore | None = None,
) -> Outcome:
    """Run jobs of a plan on the given devices; the journal and the jobs' logs go to `run_dir`."""
    execution = execution or ExecutionConfig()
    levels = _levels(devices, execution)
    wanted = set(plan.jobs if missing is None else missing)
    layout = make_layout(devices, execution)
    pool = make_pool(
        execution,
        devices,
        threads=threads,
        log_dir=run_dir / "workers",
        portable=portable,
        layout=layout,
        levels=levels,
        width=max((plan.jobs[job_id].devices for job_id in wanted), default=1),
    )
    try:
        with closing(Journal(RunFolder(run_dir).journal)) as journal:
            return run_plan(
                plan,
                stored=set(plan.jobs) - wanted,
                store=store,
                pool=pool,
                journal=journal,
                run_dir=run_dir,
                settings=execution,
                verified=verified,
                layout=layout,
                peaks=read_peaks(store.root),
                listener=listener,
                signals=signals,
                shared=shared,
            )
    finally:
        _wait_for_memory(devices, levels, execution)


def _levels(devices: Sequence[Device], execution: ExecutionConfig) -> dict[str, int]:
    """Memory in use before the run, to which it is to come back."""
    # A worker that is this very process holds its memory for longer; that of other machines is read there.
    return read_levels(devices) if execution.backend is Backend.local else {}


def _wait_for_memory(devices: Sequence[Device], levels: Mapping[str, int], execution: ExecutionConfig) -> None:
    """The devices go to others once this run gives up its lease."""
    for words in wait_until_free(devices, levels, free_timeout_s(execution)):
        log.warning("%s", words)
