"""Which run of an experiment a chain or a job means: the newest that has it, as the last may have had others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.runs.by_name import NoSuchName, find_job
from pipeline.runs.index import choose_run, runs_of
from pipeline.runs.loaded import LoadedRun, load_planned
from pipeline.runs.trained import has_chain


def run_of_chain(output_dir: Path, name: str, chain: str | None, stamp: str | None = None) -> LoadedRun:
    """The newest run that trains a chain; the newest of all where none does, so that it says what there is.

    Args:
        output_dir: Folder of all runs.
        name: The experiment.
        chain: As `find_trained` takes it.
        stamp: Timestamp of a run, which is then the only one.
    """
    return _newest_that(output_dir, name, stamp, lambda run: has_chain(run, chain))


def run_of_job(output_dir: Path, name: str, job: str, stamp: str | None = None) -> LoadedRun:
    """The newest run that has a job, likewise."""
    return _newest_that(output_dir, name, stamp, lambda run: _has_job(run, job))


def _newest_that(output_dir: Path, name: str, stamp: str | None, has: Callable[[LoadedRun], bool]) -> LoadedRun:
    newest = load_planned(choose_run(output_dir, name, stamp))
    if stamp is None and not has(newest):
        for folder in reversed(runs_of(output_dir, name)):
            with suppress(PipelineError):  # an older one may lack its plan
                if has(older := load_planned(folder)):
                    return older
    return newest


def _has_job(run: LoadedRun, job: str) -> bool:
    try:
        find_job(run.plan.jobs, job)
    except NoSuchName:
        return False
    except PipelineError:
        return True  # several fit, which is told
    return True


def told_of_older(output_dir: Path, run: LoadedRun) -> str:
    """What to say of a run that is not the newest of its experiment; "" of one that is."""
    if choose_run(output_dir, run.name).stamp == run.stamp:
        return ""
    return f"of run {run.stamp}, the newest of {run.name} that has it"
