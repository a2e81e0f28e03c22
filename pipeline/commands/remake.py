"""A trained model while somebody takes it away: held so that no run removes it, and made again where one has.

What is made again is removed afterwards, as it was before.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from pipeline.commands.disk_room import score_of
from pipeline.commands.request import Request, prepare
from pipeline.commands.run import leased, notes_of
from pipeline.commands.run_messages import logged_to
from pipeline.commands.sharing import bring_model
from pipeline.config.schema import Backend
from pipeline.engine.run_folder import STAMP_FORMAT, RunFolder
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store.gc import held_by_runs
from pipeline.engine.store.removal import remove_weights, tell_needs
from pipeline.engine.store.store import REMOVED, Scratch, Store
from pipeline.errors import ConfigError, StoreError
from pipeline.files import remove_tree
from pipeline.plan.graph import Job, Plan
from pipeline.plan.pending import missing_jobs
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.format import jobs, shown_path
from pipeline.runs.trained import Trained, find_trained
from pipeline.terminal.console import say

AGAIN = "again"
"""Folder of a run with what became of jobs that were run to make its weights again."""


@contextmanager
def held_model(run: LoadedRun, chain: str | None, number: int | None, console: Console) -> Iterator[Trained]:
    """A model that a run has trained, with its weights, while the block lasts.

    Args:
        run: The run.
        chain: Which of its chains, as `find_trained` takes it.
        number: After which round; None for the last.
        console: Told what has to be made again.

    Raises:
        PipelineError: There is no such model, or it cannot be made again.
    """
    with ExitStack() as stack:
        fetched = stack.enter_context(_emptied(run.store))
        found = find_trained(
            run, chain, number, also_gone=True, bring=lambda found: bring_model(found, fetched, console)
        )
        scratch = _held(run.store, found, stack)
        if run.store.problem(found.job.key, checksums=False) is not None:
            stack.enter_context(_made_again(found, scratch, console))
        yield found


@contextmanager
def _emptied(store: Store) -> Iterator[Path]:
    """A folder for what is fetched, made when needed."""
    folder = store.scratch(f"fetch-{secrets.token_hex(4)}-{os.getpid()}")
    try:
        yield folder
    finally:
        remove_tree(folder)


def _held(store: Store, found: Trained, stack: ExitStack) -> Path:
    """Tell runs that the model is being read; the folder of who does."""
    scratch = Scratch(store.scratch(f"export-{secrets.token_hex(4)}-{os.getpid()}"))
    stack.callback(scratch.close)
    with suppress(OSError, StoreError):  # a store that may only be read: nobody removes anything there
        scratch.open()
        tell_needs(store, scratch.path, [found.job.key])
    return scratch.path


@contextmanager
def _made_again(found: Trained, scratch: Path, console: Console) -> Iterator[None]:
    store, key = found.run.store, found.job.key
    request = _request_of(found)
    target = next((job for job in request.plan.jobs.values() if job.key == key), None)
    if target is None:
        raise ConfigError(
            f"{found.job.id}: its weights are gone, and its run would make others now: the code, the data or "
            "a model has changed since. `python -m pipeline why` says what. Run the experiment again"
        )
    plan = request.plan.up_to([target.id])
    with store.in_use(found.run.folder.path.parent.parent), notes_of(request) as verified:
        missing = missing_jobs(
            plan,
            lambda key: verified.problem(key) is None,
            lambda key: verified.problem(key) in (None, REMOVED),
            whole=[target.id],
        )
        again = [job for job_id in missing if (job := plan.jobs[job_id]).weights]
        gone = [job for job in again if store.is_removed(job.key)]
        tell_needs(store, scratch, {job.key for job in again})
        try:
            _run(request, plan, missing, found, console)
            yield
        finally:
            _remove_again(found, gone, scratch)


def _request_of(found: Trained) -> Request:
    config, run = found.config, found.run
    config.output_dir, config.execution.store = str(run.folder.path.parent.parent), str(run.store.root)
    config.execution.backend = Backend.local  # a few jobs for who looks from here
    return prepare(config)


def _run(request: Request, plan: Plan, missing: list[str], found: Trained, console: Console) -> None:
    folder = RunFolder(found.run.folder.path / AGAIN / f"{datetime.now():{STAMP_FORMAT}}_{secrets.token_hex(4)}")
    folder.path.mkdir(parents=True)
    say(
        console,
        f"{found.job.id}: its weights are gone; running {jobs(len(missing))} to make them again. Log:",
        copy=shown_path(folder.log),
    )
    config = request.config
    with leased(config, console) as lease, logged_to(folder.log), StopSignals() as signals:
        outcome = run_jobs(
            plan,
            request.store,
            lease.devices,
            folder.path,
            execution=config.execution,  # in workers also where the run had none: their arithmetic is the same
            threads=config.system.cpu_threads,
            portable=config.system.portable,
            missing=missing,
            signals=signals,
        )
    if problem := _problem(outcome):
        raise StoreError(f"{found.job.id}: its weights were not made again: {problem}. Log: {folder.log}")


def _problem(outcome: Outcome) -> str:
    if outcome.interrupted or outcome.halted:
        return outcome.halted or f"interrupted by {outcome.interrupted}"
    return next((f"{job_id}: {reason}" for job_id, reason in outcome.failures()), "")


def _remove_again(found: Trained, gone: list[Job], scratch: Path) -> None:
    """Remove what was made again, unless another experiment needs or holds it by now."""
    store, experiment, keys = found.run.store, found.run.folder.path.parent, {job.key for job in gone}

    def is_free(key: str) -> bool:
        return key not in held_by_runs(store, [experiment.parent], experiment, keys, partial(score_of, store))

    with suppress(StoreError):
        tell_needs(store, scratch, [])
        for job in gone:
            remove_weights(store, job.key, job.weights, "execution.keep", scratch, partial(is_free, job.key))
