"""A run on disk: found by its name, with everything that it left, read on demand.

If the run is still going on or was killed, its results are those stored so far. This module does not write, import
torch, or trust a file. Missing files give empty results; an unreadable file raises a `PipelineError`, or is left
out where many files are combined.
"""

import logging
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import yaml

from pipeline.config.plain import value_at
from pipeline.config.schema import EvaluationConfig
from pipeline.engine.journal import JournalReader
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError, PlanError, known_names
from pipeline.files import LocksUnsupportedError, lock, open_plain
from pipeline.foreign import LARGEST_FILE, RESOLVED, ForeignDataError, converted, read_plain, read_resolved
from pipeline.outputs import formats
from pipeline.outputs.manifest import why_removed
from pipeline.plan.graph import ANY, Job
from pipeline.plan.recorded import LIMIT, Become, RecordedPlan, parse_plan
from pipeline.runs.cost import FILE as COMPUTE
from pipeline.runs.cost import Compute, compute_of, read_compute, results_of
from pipeline.runs.origin import FILE, Origin, read_origin
from pipeline.runs.progress import Progress, read_progress
from pipeline.runs.record import Results, grouped, log_problem, place_of, read_results, reading
from pipeline.runs.report.format import command
from pipeline.runs.run_view import AttemptView, JobView, RunView, Span

_STARTING_S = 10.0
"""Seconds that an engine may take from creating its folder to the first line of its journal."""


def _process_runs(view: RunView) -> bool | None:
    """Return whether the recorded process lives, on its own machine only; None if unknown."""
    if view.pid is None or view.started is None or view.host != socket.gethostname():
        return None
    try:
        # A process that began after the run only has the same id.
        return psutil.Process(view.pid).create_time() <= view.started + 1
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return None


log = logging.getLogger("pipeline")


class LoadedRun:
    """A run as its folder tells it. Each part is read when it is first asked for.

    Attributes:
        folder: Folder of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        """Read nothing yet."""
        self.folder = folder
        self._progress: Progress | None = None

    def __repr__(self) -> str:
        return f"LoadedRun({self.folder.path})"

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.folder.experiment

    @property
    def stamp(self) -> str:
        """The timestamp that names the run."""
        return self.folder.stamp

    def refresh(self) -> None:
        """Read again a run in progress: its journal from the last position, and its results completely."""
        if "view" in self.__dict__:
            answers = len(self.view.answers)
            self._follow(self.view)
            if len(self.view.answers) > answers:  # it may have another plan
                for name in ("config", "origin", "plan", "_become", "jobs", "view", "_reader"):
                    self.__dict__.pop(name, None)
        for name in ("results", "compute"):
            self.__dict__.pop(name, None)

    # -- what was asked for ------------------------------------------------------------------------------------

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration as plain data; empty where it cannot be read."""
        try:
            return self.read_config()
        except ConfigError:
            return {}

    def setting(self, key: str) -> Any:
        """Return the plain value of a setting by its dotted key; None where it cannot be read."""
        return value_at(self.config, key)

    def read_config(self) -> dict[str, Any]:
        """Return the resolved configuration as plain data.

        Raises:
            ConfigError: It cannot be read; the message says why.
        """
        try:
            text = read_plain(self.folder.config, RESOLVED * LARGEST_FILE, follow=True)
            loaded = read_resolved(self._become.config.encode() if self._become else text)
        except (OSError, ValueError, RecursionError, yaml.YAMLError, ConfigError) as error:
            problem = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
            raise ConfigError(f"{self.folder.config} cannot be read: {problem}") from error
        if not isinstance(loaded, dict):
            raise ConfigError(f"{self.folder.config} cannot be read: it is no table of settings")
        return loaded

    @cached_property
    def origin(self) -> Origin:
        """The command, folder and versions of the run."""
        origin, now = read_origin(self.folder.path), self._become
        return replace(origin, command=now.command, settings=now.settings) if now else origin

    @cached_property
    def _become(self) -> Become | None:
        """What a request has made of the run, if its engine was killed before all files said so."""
        try:
            plan, origin = (path.stat().st_mtime_ns for path in (self.folder.plan, self.folder.path / FILE))
            return self.plan.become if plan >= origin else None
        except (OSError, PlanError):
            return None

    @cached_property
    def plan(self) -> RecordedPlan:
        """The planned jobs.

        Raises:
            PlanError: There is no plan, or it cannot be read.
        """
        try:
            return parse_plan(read_plain(self.folder.plan, LIMIT, follow=True))
        except FileNotFoundError:
            raise PlanError(f"{self.folder.path} has no plan.json: nothing was started in it") from None
        except (OSError, ForeignDataError, PlanError) as error:
            raise PlanError(f"cannot read {self.folder.plan}: {error}") from error

    @cached_property
    def jobs(self) -> Mapping[str, Job]:
        """Id -> job, in the order of the plan; empty without a readable plan."""
        try:
            return self.plan.jobs
        except PlanError as error:
            log.info("%s", error)
            return {}

    @cached_property
    def store(self) -> Store:
        """The store of its outputs."""
        chosen = self.setting("execution.store")
        default = self.folder.path.parent.parent / ".store"
        return Store((Path(chosen) if isinstance(chosen, str) and chosen else default).absolute())

    # -- what happened -----------------------------------------------------------------------------------------

    @cached_property
    def view(self) -> RunView:
        """Jobs, attempts and workers from the journal, up to the last `refresh`.

        Raises:
            StoreError: The journal cannot be read.
        """
        view = RunView(self.jobs.values(), self.plan.stored if self.jobs else ())
        self._follow(view)
        return view

    @cached_property
    def _reader(self) -> JournalReader:
        return JournalReader(self.folder.journal)

    def _follow(self, view: RunView) -> None:
        """Apply new events of the journal, and the progress of running jobs."""
        view.feed(self._reader.new_events())
        self._progress = read_progress(self.folder)
        if self._progress and view.finished is None:
            view.last = max(view.last, self._progress.time)
        running = view.running()
        for how_far in self._progress.running if self._progress else ():
            attempt = running.get(how_far.get("job", ""))
            if attempt is not None and attempt.number == how_far.get("attempt"):
                view.take({**how_far, "event": "JobProgress"})

    @property
    def unreadable(self) -> int:
        """Number of lines of the journal that are no events, as far as it was read."""
        return self._reader.unreadable

    @property
    def progress(self) -> Progress | None:
        """Progress and remaining time, up to the last `refresh`; None if no engine reports it.

        Raises:
            StoreError: The journal cannot be read.
        """
        return self._progress if self.engine_runs() else None

    def engine_runs(self) -> bool | None:
        """Return whether the engine process of the run lives; None if unknown.

        A running engine holds a lock on its journal, which the kernel frees when the process ends, in any way.
        Without locks in the file system, the recorded process id is looked up.
        """
        if self.view.finished is not None:
            return False
        if self.view.started is None and time.time() - self.folder.path.stat().st_mtime < _STARTING_S:
            # Not checked yet: an engine that is about to lock its journal must find it unlocked.
            return True
        try:
            with open_plain(self.folder.journal, follow=True) as file:
                return not lock(file.fileno(), shared=True, wait=False)
        except FileNotFoundError:
            return False
        except LocksUnsupportedError:
            return _process_runs(self.view)
        except OSError:
            return None

    @property
    def state(self) -> str:
        """The run in one word, see `RunView.state`."""
        return self.view.state(self.engine_runs())

    @property
    def lost_attempts(self) -> list[tuple[JobView, AttemptView]]:
        """Attempts in progress when the run was killed; they end with its last sign of life."""
        attempts = self.view.attempts(killed=self.state == "killed")
        return [(job, attempt) for job, attempt in attempts if attempt.outcome == "lost"]

    def timeline(self) -> list[Span]:
        """Return who used which device when, by start time; a multi-GPU job has a span for each device."""
        return self.view.timeline(self.jobs, killed=self.state == "killed")

    # -- what came out -----------------------------------------------------------------------------------------

    @cached_property
    def results(self) -> Results:
        """Content of ``results.json``; before the run has written it, the results stored so far.

        Raises:
            StoreError: The ``results.json`` has invalid content.
        """
        if self.folder.results_json.exists():
            return read_results(self.folder.results_json)
        rounds = self.config.get("rounds_of_training")
        return results_of(
            self.store,
            list(self.jobs.values()),
            rounds if isinstance(rounds, int) else 0,
            self._judging,
            bounded=self.origin.bounded,
            tell=log_problem,
        )

    @cached_property
    def compute(self) -> Compute:
        """Content of ``compute.json``, or the costs stored so far."""
        if (self.folder.path / COMPUTE).exists():
            return read_compute(self.folder.path)
        return compute_of(self.store, list(self.jobs.values()), self.results, self._judging.budgets)

    def samples(
        self, wanted: Callable[[Job], bool] | None = None, most_each: int | None = None
    ) -> Iterator[tuple[Job, formats.Sample]]:
        """Yield every stored evaluated completion, by dataset, model, reference, algorithm, seed and round.

        Args:
            wanted: Returns whether to include the completions of an evaluating job; all if left out.
            most_each: Completions of each job after which no new prompt is begun; all if left out.
        """
        for job in filter(wanted or (lambda _: True), self._in_order()):
            output = self.store.path(job.key)
            if not (output / formats.METRICS).exists():  # its samples are selected from the same completions
                with reading(job, formats.SAMPLES):
                    for sample in _first_prompts(
                        formats.read_lines(output / formats.SAMPLES, formats.Sample), most_each
                    ):
                        yield job, sample

    def curves(self) -> list[tuple[Job, list[formats.TrainingStep]]]:
        """Return the steps of every stored training, by job in the order of `samples`."""
        curves: list[tuple[Job, list[formats.TrainingStep]]] = []
        for job in self._in_order():
            with reading(job, formats.CURVES):
                if steps := formats.read_curve(self.store.path(job.key)):
                    curves.append((job, steps))
        return curves

    def _in_order(self) -> list[Job]:
        return sorted(self.jobs.values(), key=lambda job: (place_of(job), job.id))

    @cached_property
    def _judging(self) -> EvaluationConfig:
        try:
            return converted(self.config.get("evaluation") or {}, EvaluationConfig)
        except ForeignDataError as error:
            log.warning("%s is passed over: %s", self.folder.config, error)
            return EvaluationConfig()


def load(folder: RunFolder | Path) -> LoadedRun:
    """Load a run.

    Args:
        folder: Folder of the run, or of an experiment, which means its newest run.

    Raises:
        ConfigError: There is no run.
    """
    path = folder.path if isinstance(folder, RunFolder) else folder
    if (path / "latest").is_dir():
        path = path / "latest"
    run = RunFolder(path.resolve())
    if not run.holds_run:
        raise ConfigError(f"{path} is no folder of a run: it has none of the files that runs leave.")
    return LoadedRun(run)


def load_planned(folder: RunFolder) -> LoadedRun:
    """Load a run whose plan is needed.

    Raises:
        PlanError: It has no plan that can be read.
    """
    run = LoadedRun(folder)
    _ = run.plan
    return run


def _first_prompts(samples: Iterable[formats.Sample], most: int | None) -> Iterator[formats.Sample]:
    """Yield the completions of the first prompts, all for each prompt, until there are `most` or more."""
    row = None
    for number, sample in enumerate(samples):
        if most is not None and number >= most and sample.row != row:
            return
        row = sample.row
        yield sample


# -- models that are there no more -------------------------------------------------------------------------------


def removed_weights(run: LoadedRun) -> dict[str, list[int]]:
    """Return chain -> rounds whose weights were removed."""
    return rounds_of(_removed(run))


def lost_outputs(run: LoadedRun) -> dict[str, list[int]]:
    """Return chain -> rounds that the run has trained but whose outputs are no longer in the store."""
    return rounds_of(
        job
        for job in run.jobs.values()
        if job.weights and run.view.jobs[job.id].status == "done" and not run.store.is_committed(job.key)
    )


def removed_by(run: LoadedRun) -> list[str]:
    """Return the settings that had weights removed, as ``execution.keep=last``, in this run or another."""
    return sorted({why_removed(job.key, run.store.path(job.key)) for job in _removed(run)} - {""})


def _removed(run: LoadedRun) -> list[Job]:
    return [job for job in run.jobs.values() if job.weights and run.store.is_removed(job.key)]


def rounds_of(jobs: Iterable[Job]) -> dict[str, list[int]]:
    """Return chain -> rounds that have jobs."""
    by_chain = grouped((job.chain, job.round) for job in jobs)
    return {chain: sorted(set(rounds)) for chain, rounds in by_chain.items()}


# -- job logs ----------------------------------------------------------------------------------------------------
# Logs of jobs in the folder of their run.


def logs_of(folder: RunFolder, job_id: str) -> dict[int, Path]:
    """Return attempt number -> its log, for the attempts at a job in this run that have one."""
    return logs_in(folder.job(job_id))


def logs_in(folder: Path) -> dict[int, Path]:
    """Return attempt number -> its log, in a job's folder."""
    logs: dict[int, Path] = {}
    try:
        paths = list(folder.iterdir())
    except (OSError, ValueError):  # there are none; a journal may contain a job id that cannot be a folder name
        return {}
    for path in paths:
        if match := re.fullmatch(r"log(?:\.(\d{1,9}))?\.txt", path.name):
            logs[int(match[1] or 1)] = path
    return dict(sorted(logs.items()))


def log_path(folder: RunFolder, job_id: str, attempt: AttemptView | None) -> Path | None:
    """Return the log of an attempt if it exists: in the run's folder, which may have been moved since."""
    return None if attempt is None else logs_of(folder, job_id).get(attempt.number)


# -- by name -----------------------------------------------------------------------------------------------------
# Find a job, or another object with a hierarchical name: by name, part of it, or a pattern.


MAX_LISTED = 20


def find_job(job_ids: Iterable[str], typed: str) -> str:
    """Return the job that a user means: by id, a part of it, or a pattern with ``*``; also by its chain.

    Args:
        job_ids: Ids of all jobs.
        typed: The user's text. Ids that end with it are preferred to ids that contain it.

    Raises:
        ConfigError: No job matches, or several do; the message lists similar or matching ones.
    """
    ids = list(job_ids)
    # Ids of jobs that do not depend on a seed have no part for it; names of their chains do.
    without = "/".join(part for part in typed.strip("/").split("/") if part != ANY)
    of_chain = without and not _fitting(ids, typed.strip("/")) and _fitting(ids, without)
    return find_named(ids, without if of_chain else typed, "job")


def find_named(names: Iterable[str], typed: str, what: str) -> str:
    """Do the same as `find_job` for other hierarchical names.

    Args:
        names: All names.
        typed: Name that the user wrote.
        what: Kind of object in messages: ``job``.

    Raises:
        ConfigError: None matches, or several do; the message lists similar or matching ones.
    """
    every = list(names)
    wanted = typed.strip("/")
    if wanted in every:
        return wanted
    fitting = _fitting(every, wanted)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ConfigError(f"'{typed}' fits {len(fitting)} {what}s; give more of it:\n" + listed(fitting))
    near = _near(every, wanted)
    remedy = f"Nearest:\n{listed(near)}" if near else f"There are:\n{listed(every)}" if every else ""
    raise ConfigError(f"no {what} fits '{typed}'. {remedy}".rstrip())


def _fitting(names: list[str], wanted: str) -> list[str]:
    if any(sign in wanted for sign in "*?["):
        return [name for name in names if fnmatchcase(name, wanted) or fnmatchcase(name, f"*{wanted}")]
    ending = [name for name in names if f"/{name}".endswith(f"/{wanted}")]
    return ending or [name for name in names if wanted in name]


def _near(names: list[str], wanted: str) -> list[str]:
    """Return names that resemble the wanted one, wholly or in as many last parts."""
    parts = wanted.count("/") + 1
    ends = {"/".join(full_name.lower().split("/")[-parts:]): full_name for full_name in reversed(names)}
    return [ends[near] for near in get_close_matches(wanted.lower(), ends, n=5, cutoff=0.5)]


def listed(names: list[str]) -> str:
    """Return the first of some names, one per line."""
    lines = [f"  {name}" for name in names[:MAX_LISTED]]
    if len(names) > MAX_LISTED:
        lines.append(f"  and {len(names) - MAX_LISTED} more")
    return "\n".join(lines)


_SWEEP = Path("sweep/optuna.log")
"""File in the folder of an experiment that is a sweep; see `sweeps`."""


def experiments(output_dir: Path) -> list[str]:
    """Return the names of the experiments that have a run.

    Raises:
        ConfigError: There is no such folder.
    """
    if not output_dir.is_dir():
        raise ConfigError(f"there is no folder {output_dir}: give that of your runs by --output-dir DIR")
    return sorted(path.parent.name for path in output_dir.glob("*/latest") if path.is_dir())


def runs_of(output_dir: Path, name: str) -> list[RunFolder]:
    """Return all runs of an experiment, oldest first.

    Raises:
        ConfigError: There is none.
    """
    names = experiments(output_dir)
    if name not in names:
        if (output_dir / name / _SWEEP).is_file():
            more = command(f"sweep status {shlex.quote(name)}", output_dir)
            raise ConfigError(f"'{name}' in {output_dir} is a sweep, and no run: `{more}` tells of it")
        raise ConfigError(f"no run of '{name}' in {output_dir}.{known_names(name, names)}")
    runs = [RunFolder(path) for path in (output_dir / name).iterdir() if path.is_dir()]
    return sorted((run for run in runs if run.begun), key=lambda run: (run.begun, run.path))


def runs_before(run: RunFolder) -> list[RunFolder]:
    """Return the older runs of the same experiment, oldest first.

    All of its runs if this one is not among them.
    """
    folders = runs_of(run.path.parent.parent, run.experiment)
    stamps = [folder.stamp for folder in folders]
    return folders[: stamps.index(run.stamp)] if run.stamp in stamps else folders


def choose_run(output_dir: Path, name: str, stamp: str | None = None) -> RunFolder:
    """Return the newest run of an experiment, or the one of a timestamp, which may be abbreviated.

    Raises:
        ConfigError: There is none, or there are several.
    """
    runs = runs_of(output_dir, name)
    if stamp is None:
        return runs[-1] if runs else RunFolder((output_dir / name / "latest").resolve())
    exact = [run for run in runs if run.stamp == stamp]
    fitting = exact or [run for run in runs if run.stamp.startswith(stamp)]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(run.stamp for run in (fitting or runs)[-MAX_LISTED:])
    if fitting:
        raise ConfigError(f"'{stamp}' fits several runs of {name}: {listed}. Give more of it.")
    raise ConfigError(f"{name} has no run '{stamp}'. There are: {listed}.")
