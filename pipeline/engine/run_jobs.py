"""Jobs on devices: a pool of workers, a journal, and the engine between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.config.schema import Backend, ExecutionConfig
from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.layout import make_layout
from pipeline.engine.devices.memory_reclaim import read_levels, wait_until_all_free
from pipeline.engine.events import Event
from pipeline.engine.journal import Journal
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.loop import Outcome, run_plan
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store.measured import read_peaks
from pipeline.engine.store.store import Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.timings import Timings
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
    on_event: Callable[[Event], None] = lambda _: None,
    on_tick: Callable[[], None] = lambda: None,
    on_stop: Callable[[str], None] = lambda _: None,
    signals: StopSignals | None = None,
) -> Outcome:
    """Run jobs of a plan on the given devices; the journal and the jobs' logs go to `run_dir`."""
    execution = execution or ExecutionConfig()
    layout = make_layout(devices, execution)
    # A worker that is this very process still holds its memory when the run is over.
    levels = {} if execution.backend is Backend.inline else read_levels(devices)
    pool = make_pool(
        execution,
        devices,
        threads=threads,
        log_dir=run_dir / "workers",
        portable=portable,
        layout=layout,
        levels=levels,
    )
    journal = Journal(run_dir / "journal.jsonl")
    timings = Timings(RunFolder(run_dir).timings, plan)
    wanted = set(plan.jobs if missing is None else missing)

    def tell(event: Event) -> None:
        timings.take(event)
        on_event(event)

    try:
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
            on_event=tell,
            on_tick=on_tick,
            on_stop=on_stop,
            signals=signals,
        )
    finally:
        journal.close()
        # The devices go to others once this run gives up its lease.
        for words in wait_until_all_free(devices, levels, free_timeout_s(execution)):
            log.warning("%s", words)
