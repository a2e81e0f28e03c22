"""The way in: a plan, a store and a pool become one run, which is carried out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from pipeline.config.schema import Barrier, ExecutionConfig, Keep
from pipeline.engine.devices.layout import Layout, plain_layout
from pipeline.engine.journal import Journal
from pipeline.engine.listener import Listener
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.loop import Loop
from pipeline.engine.scheduler.memory_needs import Needs
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.outside import Outside
from pipeline.engine.scheduler.run import Run
from pipeline.engine.scheduler.runnable import check_runnable
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.store.scratch import Scratch
from pipeline.engine.store.shared.session import Session
from pipeline.engine.store.store import Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.pool import Pool
from pipeline.plan.graph import Plan


def run_plan(
    plan: Plan,
    *,
    stored: Collection[str],
    store: Store,
    pool: Pool,
    journal: Journal,
    run_dir: Path,
    settings: ExecutionConfig,
    verified: Verified | None = None,
    layout: Layout | None = None,
    peaks: Mapping[str, int] | None = None,
    listener: Listener | None = None,
    signals: StopSignals | None = None,
    shared: Session | None = None,
    elsewhere: Collection[str] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Carry out a plan. When this returns or raises, no worker lives and nothing unfinished is left.

    Args:
        plan: The plan.
        stored: Ids of the jobs that need not run.
        store: Where outputs go.
        pool: Not started yet.
        journal: Gets every change of state.
        run_dir: Folder of the run: logs of the jobs, links to their outputs.
        settings: Barrier, retries, models a worker keeps.
        verified: What was found good while planning; None where nothing was looked at.
        layout: On which devices the workers of the pool are; one on each if None.
        peaks: Memory that jobs took in earlier runs, by `Job.memory_kind`.
        listener: Told what happens.
        signals: Those of the caller, who holds them longer than jobs run; one that came already ends the run.
        shared: The store that other machines share, if there is one.
        elsewhere: Ids of jobs that are stored there alone, and that this run needs: they are fetched.
        clock: Monotonic seconds.

    Raises:
        PlanError: The plan cannot be carried out by this engine.
        WorkerError: Workers cannot be started.
    """
    scratch = _scratch_of(run_dir, store)
    verified = verified or Verified(store, scratch.path / "verified")
    outside = Outside(
        pool=pool,
        store=store,
        journal=journal,
        verified=verified,
        scratch=scratch,
        listener=listener or Listener(),
        clock=clock,
        shared=shared,
    )
    layout = layout or plain_layout(pool.size)
    check_runnable(plan, layout, {*stored, *elsewhere}, peaks)
    state = _state_of(plan, stored, settings, Needs(layout, peaks), layout)
    run = _run_of(state, settings, run_dir, store.root, scratch.path, verified.folder)
    signals = signals or StopSignals()
    return Loop(run=run, outside=outside, scratch=scratch, signals=signals, elsewhere=elsewhere).carry_out()


def _scratch_of(run_dir: Path, store: Store) -> Scratch:
    # The process id keeps apart two runs that were started in the same second.
    return Scratch(store.scratch(f"{run_dir.parent.name}-{run_dir.name}-{os.getpid()}"))


def _state_of(
    plan: Plan, stored: Collection[str], settings: ExecutionConfig, needs: Needs, layout: Layout
) -> RunState:
    return RunState(
        plan,
        stored,
        layout.workers,
        barrier=settings.barrier,
        models_in_memory=settings.models_in_memory,
        device_failures=settings.retry.device_failures,
        layout=layout,
        needs=needs,
        # A barrier has the rows of a round before the next one.
        rows_early=(settings.keep, settings.priority, settings.barrier) == (Keep.all, None, Barrier.none),
    )


def _run_of(
    state: RunState, settings: ExecutionConfig, run_dir: Path, store: Path, scratch: Path, verified: Path
) -> Run:
    # Workers are told where these are, and may have another working directory.
    return Run(
        state=state,
        settings=settings,
        folder=RunFolder(run_dir.absolute()),
        store=str(store.absolute()),
        scratch=str(scratch.absolute()),
        verified=str(verified.absolute()),
    )
