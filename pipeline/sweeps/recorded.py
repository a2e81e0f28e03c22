"""Sweeps on disk: which there are, what one has recorded, and whether its agents still live."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from pipeline.engine.journal import JournalReader, read_event, whole_lines
from pipeline.errors import ConfigError, PipelineError, known_names
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, converted, parse_json, read_json, read_json_file
from pipeline.locks import lock
from pipeline.outputs.formats import LARGEST
from pipeline.sweeps.folder import SweepFolder, sweep_folder
from pipeline.sweeps.reporting import whole_step
from pipeline.sweeps.spec import Goal, Method, Sweep
from pipeline.sweeps.trials import LAST_TRIAL, SweepView, TrialState

# -- events ------------------------------------------------------------------------------------------------------
# The lines of a sweep's journal: which fields each has, and of what type. See `trials` for what they mean. As
# in the journal of a run, fields and events that are not known are passed over, and a line with a field of a
# wrong type, or without one that it needs, costs itself alone.


_Number = Annotated[int, Meta(ge=0, le=LAST_TRIAL)]
_Pid = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Time = Annotated[float, Meta(ge=0, le=2.5e11)]
_Id = Annotated[str, Meta(pattern=r"\Aa[1-9][0-9]{0,8}\Z")]
"""Of an agent; a file has that name."""


class _SweepStarted(TypedDict):
    name: str
    method: Method
    time: _Time
    metric: NotRequired[str | None]
    goal: NotRequired[Goal | None]
    pid: NotRequired[_Pid | None]
    host: NotRequired[str]
    folder: NotRequired[str]
    overrides: NotRequired[list[str]]
    count: NotRequired[_Number | None]


class _AgentJoined(TypedDict):
    agent: _Id
    host: NotRequired[str]
    pid: NotRequired[_Pid | None]
    devices: NotRequired[list[str]]


class _AgentLeft(TypedDict):
    agent: _Id


class _TrialCreated(TypedDict):
    trial: _Number
    parameters: dict[str, Any]
    num_gpus: NotRequired[Annotated[int, Meta(ge=0, le=10**6)]]
    exact: NotRequired[str]


class _TrialStarted(TypedDict):
    trial: _Number
    attempt: Annotated[int, Meta(ge=1, le=10**6)]
    agent: _Id
    time: _Time
    devices: NotRequired[list[str]]
    pid: NotRequired[_Pid | None]


class _TrialEnded(TypedDict):
    trial: _Number
    state: TrialState
    time: _Time
    value: NotRequired[float | None]
    values: NotRequired[dict[str, float | None]]
    best: NotRequired[float | None]
    exit_code: NotRequired[int | None]
    reason: NotRequired[str]


class _Halt(TypedDict):
    reason: NotRequired[str]


class _WinnerTested(TypedDict):
    results: dict[str, Any]
    trial: NotRequired[_Number]


_KINDS: Mapping[str, Any] = {
    "SweepStarted": _SweepStarted,
    "AgentJoined": _AgentJoined,
    "AgentLeft": _AgentLeft,
    "TrialCreated": _TrialCreated,
    "TrialStarted": _TrialStarted,
    "TrialEnded": _TrialEnded,
    "SweepPaused": _Halt,
    "SweepResumed": _Halt,
    "SweepStopped": _Halt,
    "SweepCancelled": _Halt,
    "SweepFinished": _Halt,
    "WinnerTested": _WinnerTested,
}


def read_sweep_event(line: bytes) -> dict[str, Any]:
    """Read one line of a sweep's journal.

    Raises:
        ForeignDataError: It is no event, or lacks what one of its kind needs.
    """
    event = read_event(line)
    if (kind := _KINDS.get(event["event"])) is not None:
        converted(event, kind)
    if "exact" in event:
        # Parameters may be infinite, which JSON has no number for.
        event["parameters"] = converted(parse_json(event.pop("exact"), infinite=True), dict[str, Any])
    return event


# -- logged ------------------------------------------------------------------------------------------------------
# What a trial has logged of its metrics, a line each: ``{"step": 1, "values": {"loss": 0.5}, "time":
# 1.7e9}``. Whoever writes it may be killed in the middle of a line, and is a program of the user's own: what
# is no such line costs itself alone.


_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One line.

    Attributes:
        values: Name of a metric -> its value; None for one that is no finite number, or beyond all use.
        step: As the program counts; None where it does not.
        time: When, in seconds since 1970.
    """

    values: dict[str, float | None]
    step: int | None = None
    time: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Line:
    """As it is written, whatever numbers are in it."""

    values: dict[str, int | float | None]
    step: int | float | None = None
    time: int | float | None = None


def read_line(line: bytes) -> Logged:
    """Read one line.

    Raises:
        ForeignDataError: It is none.
    """
    found = read_json(line, _Line, infinite=True)
    values = {name: _usable(value) for name, value in found.values.items()}
    return Logged(
        values=values, step=None if found.step is None else whole_step(found.step), time=_usable(found.time)
    )


def logged_lines(path: Path) -> list[bytes]:
    """The lines that were written so far; nothing where there is no such file, or it cannot be read."""
    with suppress(OSError), open_plain(path) as file:
        return list(whole_lines(file))
    return []


def latest_values(path: Path) -> dict[str, float | None]:
    """What was logged last of each metric, as far as the end of the file tells."""
    with suppress(OSError), open_plain(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        return last_values(parsed(whole_lines(file)))
    return {}


def naming(lines: Iterable[bytes], metric: str) -> list[bytes]:
    """Those of the lines that may tell of a metric: many are written, and few need to be read."""
    names = {json.dumps(metric, ensure_ascii=escaped).encode(errors="replace") for escaped in (True, False)}
    return [line for line in lines if any(name in line for name in names)]


def parsed(lines: Iterable[bytes]) -> Iterator[Logged]:
    """What lines say, those left out that say nothing."""
    for line in lines:
        with suppress(ForeignDataError):
            yield read_line(line)


def last_values(lines: Iterable[Logged]) -> dict[str, float | None]:
    """What was logged last of each metric."""
    return {name: value for line in lines for name, value in line.values.items()}


def _usable(value: float | None) -> float | None:
    """One number that nothing can be done with must not cost the others of its line."""
    return float(value) if value is not None and abs(value) <= LARGEST else None


def sweeps_in(output_dir: Path) -> list[str]:
    """Names of the sweeps that have begun.

    Raises:
        ConfigError: There is no such folder.
    """
    if not output_dir.is_dir():
        raise ConfigError(f"there is no folder {output_dir}. Give the output_dir of your sweeps as --output-dir.")
    return sorted(path.parent.parent.name for path in output_dir.glob("*/sweep/journal.jsonl") if path.is_file())


def choose_sweep(output_dir: Path, name: str) -> SweepFolder:
    """The folder of a sweep that has begun.

    Raises:
        ConfigError: There is none of that name.
    """
    known = sweeps_in(output_dir)
    if name in known:
        return sweep_folder(output_dir, name)
    if not known:
        raise ConfigError(f"there are no sweeps in {output_dir}. `python -m pipeline sweep run FILE` begins one.")
    raise ConfigError(f"no sweep '{name}' in {output_dir}.{known_names(name, known)}")


class RecordedSweep:
    """One sweep: its journal so far, and its agents.

    Attributes:
        folder: Where it is.
        view: What the journal told up to the last `refresh`. Trials of agents that are gone are lost in it, also
            where nobody has written so yet.
    """

    def __init__(self, folder: SweepFolder) -> None:
        """Read what there is.

        Raises:
            StoreError: The journal cannot be read.
        """
        self.folder, self.view = folder, SweepView()
        self._journal = JournalReader(folder.journal, read_sweep_event)
        self.refresh()

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name

    @property
    def unreadable(self) -> int:
        """How many lines of the journal are no events of a sweep."""
        return self._journal.unreadable

    @cached_property
    def best(self) -> dict[str, Any]:
        """What was written of the best trial; empty where nothing was."""
        try:
            return read_json_file(self.folder.best, dict[str, Any], follow=True)
        except (OSError, ForeignDataError):
            return {}

    @cached_property
    def asked(self) -> Sweep | None:
        """What its file asks for; None where that cannot be read any more."""
        # Not with the other imports: what reads the file takes time to load, which not everybody needs.
        from pipeline.sweeps.reading.file import read_sweep

        try:
            return read_sweep(self.folder.file, name=self.name, overrides=self.view.overrides)
        except (PipelineError, OSError):
            return None

    @property
    def most(self) -> int | None:
        """How many trials it has at most; None where nobody knows."""
        from pipeline.sweeps.searching.searches import most_trials

        bounds = [self.view.count, most_trials(self.asked) if self.asked is not None else None]
        return min((bound for bound in bounds if bound is not None), default=None)

    def refresh(self) -> None:
        """Take what the journal has got since the last time, and see whose agents are gone.

        Raises:
            StoreError: The journal cannot be read.
        """
        self._take()
        gone = [agent for agent in self.agents() if self.agent_lives(agent) is False]
        if gone:
            self._take()  # what an agent has written before it left
            self.view.lose(gone)

    def _take(self) -> None:
        self.view.feed(self._journal.new_events())

    def so_far(self) -> dict[int, float | None]:
        """Number of each running trial -> what it has logged of the metric last."""
        running, metric = self.view.having(TrialState.running), self.view.metric
        if not metric:
            return {}
        paths = {trial.number: self.folder.trial(trial.number).metrics(trial.attempts) for trial in running}
        return {number: latest_values(path).get(metric) for number, path in paths.items()}

    def agent_lives(self, agent: str) -> bool | None:
        """Whether an agent is still there; None where nobody can tell.

        An agent holds a lock on its file, which the kernel gives back when the process ends, however it ends.
        """
        try:
            with open_plain(self.folder.agents / agent) as file:
                return not lock(file.fileno(), shared=True, wait=False)
        except FileNotFoundError:
            return False
        except OSError:  # no locks among them
            return None

    def agents(self) -> list[str]:
        """Agents that have joined and not left, and those whose trials run, whatever else the journal says."""
        running = (trial.agent for trial in self.view.having(TrialState.running))
        return list(dict.fromkeys([*self.view.agents, *running]))

    def living_agents(self) -> list[str]:
        """Those of `agents` that may still be there."""
        return [agent for agent in self.agents() if self.agent_lives(agent) is not False]

    def state(self) -> str:
        """The sweep in one word.

        ``finished``, ``cancelled``, ``stopped`` and ``paused`` as it was told; ``stopping`` while trials of a
        stopped one still run; ``running`` as long as an agent is there; else ``idle``.
        """
        living = self.living_agents()
        running = [trial for trial in self.view.having(TrialState.running) if trial.agent in living]
        if self.view.halted == "stopped" and running:
            return "stopping"
        return self.view.halted or ("running" if living else "idle")
