"""Which stored outputs the runs on disk refer to: the keys in the ``plan.json`` of every run folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pipeline.engine.run_folder import STAMP_FORMAT, RunFolder
from pipeline.errors import StoreError
from pipeline.foreign import read_json_file
from pipeline.plan.recorded import LIMIT

_OF_A_RUN = {"jobs", "workers"}


@dataclass(frozen=True, kw_only=True)
class RunReference:
    """A run folder and what it refers to.

    Attributes:
        folder: The folder.
        started: When it began, and its number among those of the same second.
        keys: Keys of all its jobs.
    """

    folder: RunFolder
    started: tuple[datetime, int]
    keys: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class _Job:
    key: str


@dataclass(frozen=True, kw_only=True)
class _Plan:
    jobs: list[_Job]


def find_runs(output_dirs: Iterable[Path], store: Path) -> list[RunReference]:
    """Read the plan of every run in some folders, however deep inside; the oldest first.

    Args:
        output_dirs: The folders; one that does not exist has no runs.
        store: Folder that is not searched.

    Raises:
        StoreError: A plan or a folder cannot be read, so that it is not known what its run needs.
    """
    seen = {os.path.realpath(store)}
    found = [run for output_dir in output_dirs for run in _run_folders(output_dir, seen)]
    return sorted(map(_read, map(RunFolder, found)), key=lambda run: (run.started, run.folder.path))


def newest_runs(runs: Iterable[RunReference], number: int) -> list[RunReference]:
    """The last so many runs of every experiment."""
    by_experiment: dict[Path, list[RunReference]] = {}
    for run in sorted(runs, key=lambda run: (run.started, run.folder.path)):
        by_experiment.setdefault(run.folder.path.parent, []).append(run)
    return [run for group in by_experiment.values() for run in group[max(0, len(group) - number) :]]


def runs_since(runs: Iterable[RunReference], moment: datetime) -> list[RunReference]:
    """The runs that began at a moment or later."""
    return [run for run in runs if run.started[0] >= moment]


def _run_folders(output_dir: Path, seen: set[str]) -> Iterator[Path]:
    # Links are followed, since an experiment may have been moved to another disk; but no folder is read twice.
    for folder, inside, files in os.walk(os.path.realpath(output_dir), onerror=_refuse, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inside.clear()
            continue
        seen.add(real)
        if "plan.json" in files or "plan.json" in inside:  # a folder of that name is a plan that cannot be read
            yield Path(real)
            inside[:] = [name for name in inside if name not in _OF_A_RUN]


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise StoreError(
            f"cannot read {error.filename} ({error.strerror}), so what its runs need is unknown"
        ) from error


def _read(folder: RunFolder) -> RunReference:
    path = folder.plan
    try:
        keys = frozenset(job.key for job in read_json_file(path, _Plan, LIMIT, follow=True, infinite=True).jobs)
        written = datetime.fromtimestamp(path.stat().st_mtime)
    except (OSError, ValueError) as error:
        raise StoreError(
            f"cannot read {path} ({error}), so what its run needs is unknown. Remove the run's folder if it is of "
            "no use"
        ) from error
    return RunReference(folder=folder, started=_named_time(folder) or (written, 1), keys=keys)


def _named_time(folder: RunFolder) -> tuple[datetime, int] | None:
    """The time in the name of a run's folder, which copying it does not change."""
    if folder.begun is None:
        return None
    try:
        return datetime.strptime(folder.begun[0], STAMP_FORMAT), folder.begun[1]
    except ValueError:
        return None
