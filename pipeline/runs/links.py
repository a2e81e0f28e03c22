"""Links in the folder of a run to what earlier runs left: stored outputs, and the folders with their logs.

    jobs/<id>/output      the stored output
    jobs/<id>/made_in     the job's folder in the run that made it, with its logs
    jobs                  where nothing is left to run: all of this as an earlier run has it

Written with the texts of paths: for 20,000 jobs as many `Path` objects would take longer than the links.
"""
# ruff: noqa: PTH102, PTH103, PTH115, PTH211

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Job

OUTPUT, MADE_IN = "output", "made_in"
_LOG = "log.txt"
_LOOKED_AT = 5


def link_all(run: RunFolder, store: Store, jobs: Sequence[Job], earlier: Sequence[RunFolder] = ()) -> None:
    """Let a run that has nothing to do show the outputs of all of its jobs; see `link_stored`."""
    with suppress(OSError):
        if earlier and all(_shows(f"{earlier[-1].jobs}/{job.id}", job) for job in jobs):
            # One link instead of thousands: nothing will be written below it.
            os.symlink(os.path.relpath(os.path.realpath(earlier[-1].jobs), os.path.realpath(run.path)), run.jobs)
            return
    link_stored(run, store, jobs, earlier)


def link_stored(run: RunFolder, store: Store, jobs: Iterable[Job], earlier: Sequence[RunFolder] = ()) -> None:
    """Give jobs a folder with a link to their stored output, and one to their folder in the run that made it.

    What a worker makes in this run it links itself. Links are for people only, so a failure costs nothing; they
    are relative, so that experiments can be moved together with their store.

    Args:
        run: The run.
        store: Where the outputs are.
        jobs: Jobs whose outputs are stored.
        earlier: Runs of the same experiment before this one, oldest first; the last few are looked at.
    """
    root = os.path.relpath(os.path.realpath(store.root), os.path.realpath(run.jobs))
    looked_at = [(f"{old.jobs}", old.jobs.resolve().parent.name) for old in reversed(earlier[-_LOOKED_AT:])]
    parents: set[str] = set()
    for job in jobs:
        own, up = f"{run.jobs}/{job.id}", "../" * (job.id.count("/") + 1)
        with suppress(OSError):
            _make(own, parents)
            os.symlink(f"{up}{root}/{job.key[:2]}/{job.key}", f"{own}/{OUTPUT}")
            found = (_made_in(folder, stamp, job) for folder, stamp in looked_at)
            if stamp := next(filter(None, found), ""):
                os.symlink(f"{up}../../{stamp}/jobs/{job.id}", f"{own}/{MADE_IN}")


def _make(folder: str, parents: set[str]) -> None:
    parent = folder.rpartition("/")[0]
    if parent not in parents:
        os.makedirs(parent, exist_ok=True)
        parents.add(parent)
    with suppress(FileExistsError):
        os.mkdir(folder)


def _shows(folder: str, job: Job) -> bool:
    """Whether a job's folder in an earlier run leads to the output that has the job's key now."""
    try:
        return os.readlink(f"{folder}/{OUTPUT}").rpartition("/")[2] == job.key
    except OSError:
        return False


def _made_in(jobs: str, stamp: str, job: Job) -> str:
    """The run that made a job's output, as far as the folder of an earlier run's jobs tells; else ""."""
    folder = f"{jobs}/{job.id}"
    if not _shows(folder, job):
        return ""
    try:
        if os.path.lexists(f"{folder}/{_LOG}"):
            return stamp
        return os.readlink(f"{folder}/{MADE_IN}").split("/")[-2 - len(job.id.split("/"))]
    except (OSError, IndexError):
        return ""
