"""The record of a sweep: a study of Optuna in a journal file, added to by one process at a time.

    outputs/NAME/sweep/optuna.log    the study; Optuna's own tools open it

An attempt at a trial of the sweep is a trial of the study. What this program knows of it stands in user
attributes: which it is and with which settings from its creation, ``start`` and ``end``. Whoever holds
the lock decides; one that dies leaves nothing but a line that was cut off, which the next one removes.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.errors import ConfigError, PipelineError, StoreError, explaining, install_command, known_names
from pipeline.files import Inside, LocksUnsupportedError, lock, open_plain
from pipeline.foreign import converted
from pipeline.sweeps.file import Goal, Metric, Sweep, read_sweep
from pipeline.sweeps.reporting import TRIALS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import JournalStorage
    from optuna.trial import FrozenTrial

_NAME = "sweep"
STATES = ("waiting", "running", "done", "failed", "stopped", "cancelled", "lost")
"""States of a trial: ``stopped`` early, by the rule of the file; ``lost`` with its agent, and tried again."""
MAX_LOSSES = 5
"""Agents that may die with a trial: one that takes its machine along would do so for ever."""


# -- files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialFolder:
    """The folder of one trial and the names inside it. A further attempt has names of its own."""

    path: Path

    parameters = Inside("parameters.json")
    """The settings, nested as in the file."""
    for_wandb = Inside("parameters.yaml")
    """The settings as W&B's agent writes them: ``wandb.init`` takes them from there."""

    def metrics(self, attempt: int) -> Path:
        """Return the file of logged metrics: lines as ``{"step": 1, "values": {"loss": 0.5}, "time": 1.7e9}``."""
        return self.path / f"metrics{_nth(attempt)}.jsonl"

    def log(self, attempt: int) -> Path:
        """Return the file with an attempt's output."""
        return self.path / f"log{_nth(attempt)}.txt"

    def start(self, attempt: int) -> Path:
        """Return the file on an attempt's start: command line, environment, devices, port, and its exit code."""
        return self.path / f"start{_nth(attempt)}.json"


def _nth(attempt: int) -> str:
    return f".{attempt}" if attempt > 1 else ""


@dataclass(frozen=True)
class SweepFolder:
    """The folder of one sweep, ``<output_dir>/<name>/sweep/``, and the names inside it."""

    path: Path

    file = Inside("sweep.yaml")
    """The sweep file as it was given."""
    journal = Inside("optuna.log")
    """The study."""
    lock = Inside("lock")
    """Held by whoever decides which trial comes next."""
    agents = Inside("agents")
    """A file for each agent, locked as long as it lives."""
    report = Inside("report.html")
    """The sweep as one page."""

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.path.parent.name

    @property
    def output_dir(self) -> Path:
        """Folder of all runs and sweeps."""
        return self.path.parent.parent

    @property
    def begun(self) -> bool:
        """Whether it is one that has begun, by its name and its study."""
        return self.path.name == _NAME and self.journal.is_file() and self.journal.stat().st_size > 0

    def once(self, what: str) -> TrialFolder:
        """Return the folder of work that is done once: ``prepared``, ``winner``."""
        return TrialFolder(self.path / what)

    def trial(self, number: int) -> TrialFolder:
        """Return the folder of a trial."""
        return TrialFolder(self.path / TRIALS / f"{number:04d}")


def sweep_folder(output_dir: Path, name: str) -> SweepFolder:
    """Return the folder of a sweep by name, whether or not it exists."""
    return SweepFolder(output_dir / name / _NAME)


def sweeps_in(output_dir: Path) -> list[str]:
    """Return the names of the sweeps that have begun.

    Raises:
        ConfigError: There is no such folder.
    """
    if not output_dir.is_dir():
        raise ConfigError(f"there is no folder {output_dir}. Give the output_dir of your sweeps as --output-dir.")
    folders = (SweepFolder(path.parent) for path in output_dir.glob("*/sweep/optuna.log"))
    return sorted(folder.name for folder in folders if folder.begun)


def choose_sweep(output_dir: Path, name: str) -> SweepFolder:
    """Return the folder of a sweep that has begun.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in (names := sweeps_in(output_dir)):
        raise ConfigError(f"no sweep '{name}' in {output_dir}.{known_names(name, names)}")
    return sweep_folder(output_dir, name)


# -- what stands in the study ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Start:
    """Start of an attempt.

    Attributes:
        agent: Agent that runs it, or ran it.
        devices: Its devices in words, with UUIDs for GPUs.
        started: Seconds since 1970.
    """

    agent: str = ""
    devices: list[str] = field(default_factory=list)
    started: float | None = None


@dataclass(frozen=True, kw_only=True)
class End:
    """End of an attempt.

    Attributes:
        state: State of the trial; ``waiting`` after an interruption.
        value: Last value of the metric.
        best: Best logged value of the metric.
        values: Last value of every metric.
        exit_code: Exit code of its program.
        reason: Why it failed, was stopped or interrupted.
        ended: Seconds since 1970.
    """

    state: str = "waiting"
    value: float | None = None
    best: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    exit_code: int | None = None
    reason: str = ""
    ended: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """The user attributes of an attempt; `round` counts how often the sweep was begun again or resumed before."""

    trial: int
    attempt: int
    parameters: dict[str, Any]
    num_gpus: int = 1
    round: int = 0
    start: Start | None = None
    end: End | None = None


@dataclass(frozen=True, kw_only=True)
class About:
    """A sweep as it was begun.

    Attributes:
        method: Search method.
        metric: Metric by which trials are judged, or "".
        goal: Direction of better values.
        folder: Folder in which the sweep was begun, and programs start.
        overrides: Settings of the command line that are fixed for every trial.
        count: The most trials, as the command line says; None for no bound.
        round: Times it was begun again or resumed, when failed trials have another chance.
        halted: ``paused``, ``stopped``, ``cancelled``, ``finished``, or "" while trials are begun.
        reason: Why.
        started: When it began, in seconds since 1970.
        time: When it last changed.
    """

    method: str = ""
    metric: str = ""
    goal: Goal = "minimize"
    folder: str = ""
    overrides: list[str] = field(default_factory=list)
    count: int | None = None
    round: int = 0
    halted: str = ""
    reason: str = ""
    started: float = 0.0
    time: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Once:
    """Work done once, beside the trials: preparing, and the test of the best one.

    Attributes:
        agent: Agent that does it, or has done it.
        done: Whether it is done.
        trial: Number of the trial that is tested.
        results: Metric -> value in the test.
    """

    agent: str = ""
    done: bool = False
    trial: int | None = None
    results: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trial(End, Start):
    """One choice of settings, with the start and the end of its last attempt; its state is one of `STATES`.

    Attributes:
        number: From 0, in the order in which they were known.
        parameters: Dotted name -> value.
        num_gpus: Devices it needs.
        attempts: Number of attempts begun.
        failures: Attempts that have failed since the sweep was last begun or resumed.
        losses: Agents that have died with it since then.
        sampled, distributions: The settings as Optuna has them.
        key: Key of the last attempt in the study.
    """

    number: int
    parameters: Mapping[str, Any]
    num_gpus: int = 1
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    sampled: Mapping[str, Any] = field(default_factory=dict, repr=False)
    distributions: Mapping[str, BaseDistribution] = field(default_factory=dict, repr=False)
    key: int = -1


def best_trial(trials: Mapping[int, Trial], goal: str) -> Trial | None:
    """Return the finished trial with the best value, the first of equal ones."""
    done = [trial for trial in trials.values() if trial.state == "done" and trial.value is not None]
    sign = -1 if goal == "maximize" else 1
    return min(done, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)


class Record:
    """One sweep, as far as it was read, and how to add to it.

    Attributes:
        folder: Folder of the sweep.
        about: Its request and state.
        trials: Trials by number. Those of an agent that is gone are lost, also where nobody has written so.
        failing: Trials that have failed since one ended well, each once.
        once: ``prepared`` and ``winner`` -> how far that is.
    """

    def __init__(self, folder: SweepFolder) -> None:
        """Read what there is.

        Raises:
            StoreError: The study cannot be read.
            ConfigError: Optuna is not installed.
        """
        self.folder = folder
        self.about, self.trials, self.failing = About(), dict[int, Trial](), list[int]()
        self.once: dict[str, Once] = {}
        self.refresh()

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.folder.name

    def refresh(self) -> None:
        """Take what the study has got since the last time, and see whose agents are gone.

        Raises:
            StoreError: The study cannot be read.
        """
        if not self.folder.journal.is_file():
            return
        with self._study() as storage:
            for study in storage.get_all_studies()[:1]:
                attributes = dict(study.user_attrs)
                self.about = converted(attributes.pop("about", {}), About)
                self.once = {name: converted(value, Once) for name, value in attributes.items()}
                self._take(storage.get_all_trials(0, deepcopy=False))

    @contextmanager
    def _study(self) -> Iterator[JournalStorage]:
        """Yield the study; one message tells what is wrong with a file that anybody may have changed.

        Raises:
            StoreError: It is wrong.
        """
        try:
            yield self._storage
        except OSError as error:
            raise StoreError(f"cannot open {self.folder.journal}: {error.strerror}") from error
        except PipelineError:
            raise
        except Exception as error:
            raise StoreError(f"{self.folder.journal} is damaged: {type(error).__name__}: {error}") from error

    @cached_property
    def _storage(self) -> JournalStorage:
        check_installed()
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with suppress(FileNotFoundError):
            open_plain(self.folder.journal).close()  # Optuna reads, and adds to, whatever a link leads to
        # The one backend that unpickles nothing. Who writes holds the lock of the sweep, which the kernel takes
        # back from the dead, where Optuna's own stays.
        backend = JournalFileBackend(os.fspath(self.folder.journal), _HeldAlready())  # type: ignore[arg-type]
        return optuna.storages.JournalStorage(backend)

    def _take(self, attempts: Iterable[FrozenTrial]) -> None:
        ends, trials, lives = list[tuple[float, int, str]](), dict[int, Trial](), dict[str, bool]()
        for frozen in attempts:
            record = converted(frozen.user_attrs, _Attempt)
            start, end = record.start or Start(), record.end or End(state="running" if record.start else "waiting")
            if end.state == "running":
                if start.agent not in lives:
                    lives[start.agent] = self.lives(start.agent)
                if not lives[start.agent]:
                    end = End(state="lost", reason=f"agent {start.agent} is gone")
            current = record.round == self.about.round
            before = trials.get(record.trial) if current else None
            if end.ended is not None and current:
                ends.append((end.ended, record.trial, end.state))
            losses = (before.losses if before else 0) + (end.state == "lost" and current)
            state = "failed" if losses >= MAX_LOSSES else end.state
            trials[record.trial] = Trial(
                **vars(start),
                **{**vars(end), "state": "waiting" if state in ("failed", "cancelled") and not current else state},
                number=record.trial,
                parameters=record.parameters,
                num_gpus=record.num_gpus,
                attempts=record.attempt - (record.start is None),
                failures=(before.failures if before else 0) + (state == "failed" and current),
                losses=losses,
                sampled=frozen.params,
                distributions=frozen.distributions,
                key=frozen.number,
            )
        self.trials, self.failing = dict(sorted(trials.items())), []
        for _, number, state in sorted(ends):
            if state in ("done", "stopped"):
                self.failing.clear()
            elif state == "failed" and number not in self.failing:
                self.failing.append(number)

    @cached_property
    def asked(self) -> Sweep | None:
        """Return the request in its file; None where that cannot be read any more."""
        try:
            return read_sweep(self.folder.file, name=self.name, overrides=self.about.overrides)
        except (PipelineError, OSError):
            return None

    def having(self, *states: str) -> list[Trial]:
        """Return the trials in some states, by number."""
        return [trial for trial in self.trials.values() if trial.state in states]

    def ready(self, max_attempts: int) -> list[Trial]:
        """Return the trials to start or retry, in the order in which they were created.

        One that ended well and has told no value of the metric would do the same again.
        """
        again = (
            trial
            for trial in self.having("waiting", "lost", "failed")
            if trial.state != "failed" or (trial.failures < max_attempts and trial.exit_code != 0)
        )
        return [trial for trial in again if trial.losses < MAX_LOSSES]

    def reached(self, metric: Metric | None) -> str:
        """Say which trial has reached the target; "" if none has, or there is no target."""
        if metric is None or metric.target is None:
            return ""
        sign = -1 if metric.goal == "maximize" else 1
        for trial in self.having("done", "stopped"):
            if trial.value is not None and sign * trial.value <= sign * metric.target:
                return f"trial {trial.number} has reached the target: {metric.name} {trial.value:g}"
        return ""

    # -- agents ------------------------------------------------------------------------------------------------

    def lives(self, agent: str) -> bool:
        """Return whether an agent lives: its file is locked until its process ends, in any way."""
        if not agent or "/" in agent:
            return False
        with suppress(OSError), open_plain(self.folder.agents / agent) as file:
            return not lock(file.fileno(), shared=True, wait=False)
        return False

    def agents(self) -> list[str]:
        """Return the live agents."""
        with suppress(OSError):
            return sorted(path.name for path in self.folder.agents.iterdir() if self.lives(path.name))
        return []

    def state(self) -> str:
        """Return the sweep's state in one word.

        ``finished``, ``cancelled``, ``stopped`` and ``paused`` as it was told; ``stopping`` while trials of a
        stopped one still run; ``running`` as long as an agent is there; else ``idle``.
        """
        if self.about.halted == "stopped" and self.having("running"):
            return "stopping"
        return self.about.halted or ("running" if self.agents() else "idle")

    @contextmanager
    def present(self) -> Iterator[str]:
        """Be seen as an agent that lives, until this process ends, however it ends; yields its id.

        Raises:
            StoreError: Its file cannot be written or locked.
        """
        id_ = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        path = self.folder.agents / id_
        with self.turn():  # nobody takes a file for that of an agent that is gone before it is locked
            with explaining(StoreError, f"cannot write {path}"):
                file = path.open("x")
            lock(file.fileno())
        with file:
            yield id_
            path.unlink(missing_ok=True)

    # -- writing -----------------------------------------------------------------------------------------------

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Be the only one who reads, decides and writes; all that is recorded so far has been read.

        Raises:
            StoreError: The lock or the study cannot be opened, or what is to be written cannot be.
        """
        with explaining(StoreError, f"cannot write to {self.folder.path}"):
            self.folder.agents.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            lock(descriptor)
            with self._study(), suppress(FileNotFoundError), open_plain(self.folder.journal) as file:
                end = file.seek(0, 2)  # of a line that a killed writer has begun Optuna reads nothing behind
                if end and (file.seek(end - 1), file.read(1))[1] != b"\n":
                    file.seek(0)
                    os.truncate(self.folder.journal, file.read().rfind(b"\n") + 1)
            self.refresh()
            yield
        except LocksUnsupportedError as error:
            raise StoreError(f"{self.folder.lock} is on a file system without locks: give --output-dir") from error
        finally:
            os.close(descriptor)

    def tell(self, now: float | None = None, **changed: Any) -> None:
        """Note how the sweep stands, inside a turn: fields of `About`."""
        about = replace(self.about, **changed, time=time.time() if now is None else now)
        with self._study() as storage:
            from optuna.study import StudyDirection

            if not storage.get_all_studies():
                storage.create_new_study([StudyDirection[about.goal.upper()]], self.name)
        self.note("about", about)

    def note(self, name: str, value: About | Once) -> None:
        """Note how the sweep stands, or how far something is that is done once, inside a turn."""
        with self._study() as storage:
            storage.set_study_user_attr(0, name, msgspec.to_builtins(value))
        self.refresh()

    def create(self, parameters: Mapping[str, Any], **more: Any) -> Trial:
        """Add a trial that waits, inside a turn, with further fields of `Trial`."""
        return self._add(Trial(number=max(self.trials, default=-1) + 1, parameters=parameters, **more))

    def _add(self, trial: Trial, start: Start | None = None) -> Trial:
        attempt = _Attempt(
            trial=trial.number,
            attempt=trial.attempts + 1,
            parameters=dict(trial.parameters),
            num_gpus=trial.num_gpus,
            round=self.about.round,
            start=start,
        )
        attributes = {name: value for name, value in msgspec.to_builtins(attempt).items() if value is not None}
        with self._study() as storage:
            from optuna.trial import TrialState, create_trial

            state = TrialState.RUNNING if start else TrialState.WAITING
            params, spaces = dict(trial.sampled), dict(trial.distributions)
            made = create_trial(state=state, params=params, distributions=spaces, user_attrs=attributes)
            storage.create_new_trial(0, made)
        self.refresh()
        return self.trials[trial.number]

    def start(self, trial: Trial, agent: str, devices: list[str], now: float | None = None) -> Trial:
        """Note that an attempt at a trial begins, inside a turn."""
        start = Start(agent=agent, devices=devices, started=time.time() if now is None else now)
        if trial.attempts or trial.state != "waiting":
            return self._add(trial, start)
        with self._study() as storage:
            from optuna.trial import TrialState

            storage.set_trial_user_attr(trial.key, "start", msgspec.to_builtins(start))
            storage.set_trial_state_values(trial.key, TrialState.RUNNING)
        self.refresh()
        return self.trials[trial.number]

    def end(self, key: int, end: End, curve: Mapping[int, float] = {}, now: float | None = None) -> None:
        """Note how an attempt has ended, inside a turn.

        Args:
            key: Key of the attempt.
            end: The end.
            curve: Values of the metric for Optuna's tools, by step.
            now: Seconds since 1970; None for now.
        """
        written = replace(end, ended=time.time() if now is None else now)
        with self._study() as storage:
            from optuna.trial import TrialState

            state, values = TrialState.FAIL, None
            if end.value is not None and end.state in ("done", "stopped"):
                state = TrialState.COMPLETE if end.state == "done" else TrialState.PRUNED
                values = [end.value]
            for step, value in curve.items():
                storage.set_trial_intermediate_value(key, step, value)
            storage.set_trial_user_attr(key, "end", msgspec.to_builtins(written))
            storage.set_trial_state_values(key, state, values)
        self.refresh()

    def note_lost(self) -> list[Trial]:
        """Note the trials that were lost with their agents, inside a turn, and remove the files of such agents."""
        lost = [trial for trial in self.having("lost", "failed") if trial.ended is None]
        for trial in lost:
            self.end(trial.key, End(state="lost", reason=trial.reason))
        with suppress(OSError):
            for path in self.folder.agents.iterdir():
                if not self.lives(path.name):
                    path.unlink()
        return lost


class _HeldAlready:
    """Lock for Optuna's journal that is held already."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


def check_installed() -> None:
    """See that there is Optuna.

    Raises:
        ConfigError: There is not; says how to install it.
    """
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise ConfigError(f"sweeps are kept by Optuna, which is not installed: {install_command('sweeps')}")
