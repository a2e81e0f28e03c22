"""Jobs on devices: a pool of workers, a journal, and the engine between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from pipeline.config.schema import AUTO, Backend, ExecutionConfig
from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.layout import make_layout, with_joining
from pipeline.engine.devices.memory_reclaim import read_levels, wait_until_all_free
from pipeline.engine.events import Event
from pipeline.engine.journal import Journal
from pipeline.engine.listener import Listener
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.loop import run_plan
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store.measured import read_durations, read_peaks
from pipeline.engine.store.shared.session import Session
from pipeline.engine.store.store import Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.timings import Timings
from pipeline.engine.workers.backends import free_timeout_s, make_pool
from pipeline.plan.graph import WORKER_LOAD_S, Plan
from pipeline.plan.summary import WORKER_LOAD

log = logging.getLogger("pipeline")


_WORTH_STARTS = 20
"""Times the start of a worker that the work left must take, for one more to be started that may not be needed."""


def spares_of(
    execution: ExecutionConfig, devices: Sequence[Device], seconds: Collection[float], store: Path
) -> int:
    """How many workers wait beside those that work.

    Args:
        execution: Says so, or `auto`.
        devices: What jobs run on.
        seconds: Estimates of the jobs.
        store: Root of the store, where it is noted what starts took.
    """
    if execution.spares != AUTO:
        return int(execution.spares)
    if not seconds or any(device.kind != "cpu" for device in devices):
        return 0
    start_s = read_durations(store).seconds.get(WORKER_LOAD, WORKER_LOAD_S)
    return int(median(seconds) < start_s and sum(seconds) >= _WORTH_STARTS * start_s)


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
    joining: int = 0,
    verified: Verified | None = None,
    listener: Listener | None = None,
    signals: StopSignals | None = None,
    shared: Session | None = None,
    elsewhere: Sequence[str] = (),
) -> Outcome:
    """Run jobs of a plan on the given devices; the journal and the jobs' logs go to `run_dir`.

    Of `joining` devices more, which may join a cluster meanwhile, no more are waited for than there are jobs.
    Those in `elsewhere` are fetched from the store that is shared with other machines.
    """
    execution, listener = execution or ExecutionConfig(), listener or Listener()
    levels = _levels(devices, execution)
    wanted = set(plan.jobs if missing is None else missing)
    joining = max(0, min(joining, len(wanted) - len(devices)))
    layout = make_layout(devices := with_joining(devices, joining), execution, joining=joining)
    pool = make_pool(
        execution,
        devices,
        threads=threads,
        spares=spares_of(execution, devices, [plan.jobs[job_id].seconds for job_id in wanted], store.root),
        entries=sorted({plan.jobs[job_id].entry for job_id in wanted}),
        log_dir=run_dir / "workers",
        portable=portable,
        layout=layout,
        levels=levels,
        width=max((plan.jobs[job_id].devices for job_id in wanted), default=1),
    )
    folder = RunFolder(run_dir)
    try:
        with closing(Journal(folder.journal)) as journal, closing(Timings(folder.timings, plan)) as timings:
            return run_plan(
                plan,
                stored=set(plan.jobs) - wanted - set(elsewhere),
                store=store,
                pool=pool,
                journal=journal,
                run_dir=run_dir,
                settings=execution,
                verified=verified,
                layout=layout,
                peaks=read_peaks(store.root),
                listener=replace(listener, on_event=partial(_tell, timings, listener.on_event)),
                signals=signals,
                shared=shared,
                elsewhere=elsewhere,
            )
    finally:
        _wait_for_memory(devices, levels, execution)


def _levels(devices: Sequence[Device], execution: ExecutionConfig) -> dict[str, int]:
    """Memory in use before the run, to which it is to come back."""
    # A worker that is this very process holds its memory for longer; that of other machines is read there.
    return read_levels(devices) if execution.backend is Backend.local else {}


def _tell(timings: Timings, on_event: Callable[[Event], object], event: Event) -> None:
    timings.take(event)
    on_event(event)


def _wait_for_memory(devices: Sequence[Device], levels: Mapping[str, int], execution: ExecutionConfig) -> None:
    """The devices go to others once this run gives up its lease."""
    for words in wait_until_all_free(devices, levels, free_timeout_s(execution)):
        log.warning("%s", words)
