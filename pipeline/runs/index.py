"""Runs on disk: which there are, what they recorded, and whether the engine of one still lives."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import yaml

from pipeline.engine.events import LINE, read_event, whole_lines
from pipeline.engine.run_folder import RunFolder, find_run
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError, PlanError, StoreError, unknown_name
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.locks import LocksUnsupportedError, lock
from pipeline.plan.graph import Plan
from pipeline.plan.job import ANY
from pipeline.plan.recorded import LIMIT, RecordedPlan, parse_plan
from pipeline.runs.live_run import LiveRun
from pipeline.runs.origin import read_origin
from pipeline.runs.run_view import RunView

MAX_LISTED = 20
_TAIL_BYTES = 1 << 16
_STARTING_S = 10.0
"""Seconds that an engine may take from making its folder to the first line of its journal."""


# -- which there are -------------------------------------------------------------------------------------------


def experiments(output_dir: Path) -> list[str]:
    """Names of the experiments that have a run.

    Raises:
        ConfigError: There is no such folder.
    """
    if not output_dir.is_dir():
        raise ConfigError(f"there is no folder {output_dir}. Give the output_dir of your runs as --output-dir.")
    return sorted(path.parent.name for path in output_dir.glob("*/latest") if path.is_dir())


def runs_of(output_dir: Path, name: str) -> list[RunFolder]:
    """All runs of an experiment, oldest first.

    Raises:
        ConfigError: There is none.
    """
    known = experiments(output_dir)
    if name not in known:
        if not known:
            raise ConfigError(f"there are no runs in {output_dir}.")
        raise ConfigError(f"no run of '{name}' in {output_dir}: " + unknown_name("experiment", name, known))
    found = [RunFolder(path) for path in (output_dir / name).iterdir() if path.is_dir()]
    return sorted((run for run in found if run.begun), key=lambda run: (run.begun, run.path))


def choose_run(output_dir: Path, name: str, stamp: str | None = None) -> RunFolder:
    """The newest run of an experiment, or the one of that timestamp; the begin of a timestamp will do.

    Raises:
        ConfigError: There is none, or there are several.
    """
    runs = runs_of(output_dir, name)
    if stamp is None:
        return find_run(output_dir, name)
    exact = [run for run in runs if run.stamp == stamp]
    fitting = exact or [run for run in runs if run.stamp.startswith(stamp)]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(run.stamp for run in (fitting or runs)[-MAX_LISTED:])
    if fitting:
        raise ConfigError(f"'{stamp}' fits several runs of {name}: {listed}. Give more of it.")
    raise ConfigError(f"{name} has no run '{stamp}'. There are: {listed}.")


def newest_of_several(folder: RunFolder) -> str | None:
    """What to say where a run was taken because it is the newest, and is one of a multirun; None of others."""
    group = read_origin(folder.path).group
    if not group:
        return None
    runs = runs_of(folder.path.parent.parent, folder.experiment)
    several = sum(read_origin(run.path).group == group for run in runs)
    if several < 2:
        return None
    return (
        f"run {folder.stamp}, the newest of {several} runs of this multirun; `python -m pipeline compare "
        f"{folder.experiment}` shows all, --run another"
    )


# -- what one recorded -----------------------------------------------------------------------------------------


class RecordedRun:
    """One run: its plan, its journal so far, its engine.

    Attributes:
        folder: Where it is.
        view: What the journal told up to the last `refresh`.
    """

    def __init__(self, folder: RunFolder, *, glance: bool = False) -> None:
        """Read what there is.

        Args:
            folder: Where it is.
            glance: Leave out the plan, and of a finished run all but the ends of its journal: total counts only.

        Raises:
            PlanError: The plan cannot be read.
            StoreError: The journal cannot be read.
        """
        self.folder = folder
        self._journal = _JournalReader(folder.journal)
        self.view = RunView() if glance else RunView(self.plan.jobs.values(), self.plan.stored)
        self._take = self.view.take
        ends = list(_ends(folder.journal)) if glance else []
        if ends and ends[-1].get("event") == "RunFinished":
            self.view.feed(ends)
        else:
            self.refresh()

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.folder.experiment

    @property
    def stamp(self) -> str:
        """The timestamp that names the run."""
        return self.folder.stamp

    @cached_property
    def plan(self) -> RecordedPlan:
        """The plan.

        Raises:
            PlanError: The file is missing or is no plan.
        """
        try:
            return parse_plan(read_plain(self.folder.plan, LIMIT, follow=True))
        except FileNotFoundError:
            raise PlanError(
                f"{self.folder.path} has no plan.json: its run ended, or is still, before anything was started"
            ) from None
        except (OSError, ForeignDataError, PlanError) as error:
            raise PlanError(f"cannot read {self.folder.plan}: {error}") from error

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration as plain data; empty where it cannot be read."""
        try:
            loaded = yaml.safe_load(read_plain(self.folder.config, follow=True))
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            return {}
        return loaded if isinstance(loaded, dict) else {}

    @cached_property
    def store(self) -> Store:
        """Where its outputs go."""
        execution = self.config.get("execution")
        chosen = execution.get("store") if isinstance(execution, dict) else None
        default = self.folder.path.parent.parent / ".store"
        return Store((Path(chosen) if isinstance(chosen, str) and chosen else default).absolute())

    @property
    def unreadable(self) -> int:
        """How many lines of the journal are no events, as far as it was read."""
        return self._journal.unreadable

    def refresh(self) -> None:
        """Take what the journal has got since the last time."""
        for event in self._journal.new_events():
            self._take(event)

    def followed(self) -> LiveRun:
        """How far it is and how long it will still take, which `refresh` keeps up to date from now on.

        Raises:
            PlanError: The plan cannot be read.
            StoreError: The journal cannot be read.
        """
        live = LiveRun(Plan(self.plan.jobs.values(), self.plan.edges), self.plan.stored)
        self.view, self._take, self._journal = live.view, live.take, _JournalReader(self.folder.journal)
        self.refresh()
        return live

    def engine_runs(self) -> bool | None:
        """Whether the process that carries it out lives; None where nobody can tell.

        A running engine holds a lock on its journal, which the kernel gives back when the process ends, however it
        ends. Where the file system has no locks the recorded process is looked up, on its own machine only.
        """
        if self.view.finished is not None:
            return False
        if self.view.started is None and self._is_new():
            # Not looked at yet: an engine that is about to lock its journal must find it free.
            return True
        try:
            with open_plain(self.folder.journal, follow=True) as file:
                return not lock(file.fileno(), shared=True, wait=False)
        except FileNotFoundError:
            return False
        except LocksUnsupportedError:
            return self._process_runs()
        except OSError:
            return None

    def _is_new(self) -> bool:
        return time.time() - self.folder.path.stat().st_mtime < _STARTING_S

    def _process_runs(self) -> bool | None:
        view = self.view
        if view.pid is None or view.started is None or view.host != socket.gethostname():
            return None
        try:
            # A process that began after the run has only been given the same number.
            return psutil.Process(view.pid).create_time() <= view.started + 1
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return None

    def state(self) -> str:
        """The run in one word, see `RunView.state`."""
        return self.view.state(self.engine_runs())

    def logs(self, job_id: str) -> dict[int, Path]:
        """Number of attempt -> its log, of the attempts that have one."""
        return logs_of(self.folder, job_id)

    def set_aside(self, job_id: str) -> Path | None:
        """Where an output of a job's key is kept that was found damaged, the last one; None where none was."""
        key = self.plan.jobs[job_id].key
        found = [path for path in (self.store.root / ".aside").glob(f"{key}.*") if path.suffix[1:].isdigit()]
        return max(found, key=lambda path: int(path.suffix[1:]), default=None)


def logs_of(folder: RunFolder, job_id: str) -> dict[int, Path]:
    """Number of attempt -> its log, of the attempts at a job in this run that have one."""
    found: dict[int, Path] = {}
    if folder.jobs.is_symlink():
        return found  # nothing ran: it shows those of an earlier run, see `links`
    try:
        paths = list(folder.job(job_id).iterdir())
    except (OSError, ValueError):  # there are none; a journal may name a job as no folder can be named
        return {}
    for path in paths:
        if match := re.fullmatch(r"log(?:\.(\d{1,9}))?\.txt", path.name):
            found[int(match[1] or 1)] = path
    return dict(sorted(found.items()))


class _JournalReader:
    """Reads the events of a journal as they come. A line without its end is left for the next time."""

    def __init__(self, path: Path) -> None:
        self.unreadable = 0
        self._path = path
        self._offset = 0

    def new_events(self) -> Iterator[dict[str, Any]]:
        try:
            with open_plain(self._path, follow=True) as file:
                file.seek(self._offset)
                for line in whole_lines(file):
                    self._offset = file.tell()
                    try:
                        yield read_event(line)
                    except ForeignDataError:
                        self.unreadable += 1
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror or error}") from error


def _ends(path: Path) -> Iterator[dict[str, Any]]:
    """The first and the last event of a journal."""
    try:
        with open_plain(path, follow=True) as file:
            first = file.readline(LINE + 1)
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines(keepends=True)
        yield read_event(first)
        if lines and lines[-1].endswith(b"\n"):
            yield read_event(lines[-1])
    except (OSError, ForeignDataError):
        return  # it is read from end to end then, which says what is wrong


# -- jobs by name ----------------------------------------------------------------------------------------------


def find_job(job_ids: Iterable[str], given: str) -> str:
    """The job that a user means: by its id, a part of it, or a pattern with ``*``; also by its chain.

    Args:
        job_ids: Ids of all jobs.
        given: What the user wrote. Ids that end with it go before ids that contain it.

    Raises:
        ConfigError: No job fits, or several do; says which are near or which they are.
    """
    known = list(job_ids)
    # Ids of jobs that depend on no seed have no part for it; names of their chains do.
    without = "/".join(part for part in given.strip("/").split("/") if part != ANY)
    of_chain = without and not _fitting(known, given.strip("/")) and _fitting(known, without)
    return find_named(known, without if of_chain else given, "job")


def find_named(names: Iterable[str], given: str, what: str) -> str:
    """As `find_job`, of other names that are made alike.

    Args:
        names: All of them.
        given: What the user wrote.
        what: What they name, for messages: ``job``.

    Raises:
        ConfigError: None fits, or several do; says which are near or which they are.
    """
    known = list(names)
    wanted = given.strip("/")
    if wanted in known:
        return wanted
    fitting = _fitting(known, wanted)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ConfigError(f"'{given}' fits {len(fitting)} {what}s; give more of it:\n" + listed(fitting))
    near = _near(known, wanted)
    raise ConfigError(f"no {what} fits '{given}'." + (" Nearest:\n" + listed(near) if near else ""))


def _fitting(known: list[str], wanted: str) -> list[str]:
    if any(sign in wanted for sign in "*?["):
        return [job_id for job_id in known if fnmatchcase(job_id, wanted) or fnmatchcase(job_id, f"*{wanted}")]
    ending = [job_id for job_id in known if f"/{job_id}".endswith(f"/{wanted}")]
    return ending or [job_id for job_id in known if wanted in job_id]


def _near(known: list[str], wanted: str) -> list[str]:
    # Compared with the ends of the ids that have as many parts: an id shortened at its front is what people write.
    parts = wanted.count("/") + 1
    by_end: dict[str, str] = {}
    for job_id in known:
        by_end.setdefault("/".join(job_id.split("/")[-parts:]), job_id)
    return [by_end[end] for end in get_close_matches(wanted, by_end, n=5, cutoff=0.5)]


def listed(names: list[str]) -> str:
    """The first of some names, a line for each."""
    lines = [f"  {name}" for name in names[:MAX_LISTED]]
    if len(names) > MAX_LISTED:
        lines.append(f"  and {len(names) - MAX_LISTED} more")
    return "\n".join(lines)
