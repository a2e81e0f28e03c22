"""The best trial of a sweep, in words and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.engine.run_folder import RunFolder
from pipeline.errors import ConfigError
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.runs.index import experiments, runs_of
from pipeline.runs.origin import read_origin
from pipeline.runs.report.format import count, shown_path, typed_command
from pipeline.sweeps.agents.programs import as_typed
from pipeline.sweeps.agents.wandb_run import SWEEP_PARAM_PATH, WANDB_MODE, folders_of
from pipeline.sweeps.reading.script import reads_settings
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.report.status import trial_json
from pipeline.sweeps.space import Choice, Constant, Parameter
from pipeline.sweeps.trials import Trial, TrialState, best_trial
from pipeline.sweeps.values import by_state, counted, measured, typed, varied
from pipeline.terminal.streams import on_one_line


def best_of(sweep: RecordedSweep) -> Trial:
    """The best trial.

    Raises:
        ConfigError: There is none, and why.
    """
    view = sweep.view
    if not view.metric:
        raise ConfigError(f"the file of sweep {sweep.name} names no metric, so no trial is the best one.")
    best = best_trial(view.trials.values(), view.goal)
    if best is None:
        done = len(view.having(TrialState.done))
        why = f"none of {done:,} done has logged it" if done else "no trial is done yet"
        raise ConfigError(f"sweep {sweep.name} has no value of {view.metric}: {why}.")
    return best


def best_lines(sweep: RecordedSweep) -> Iterator[tuple[str, str]]:
    """The best trial: what it reached, with which of the settings that were searched, where it is, its command.

    Yields:
        A line, and what follows it and is to be copied, or "".

    Raises:
        ConfigError: There is none.
    """
    best = best_of(sweep)
    start = _start(sweep.folder.trial(best.number).start(best.attempts))
    yield from ((line, "") for line in _reached(sweep, best))
    yield from ((f"{name}:", shown_path(path)) for name, path in _places(sweep, best, start))
    if start.command:
        elsewhere = start.folder and start.folder != str(Path.cwd())
        given = [f"{name}={typed_command([value])}" for name, value in _environment(sweep, best, start).items()]
        typed_again = " ".join([*given, typed_command(as_typed(start.command))])
        yield (f"again, in {start.folder}:" if elsewhere else "again:"), typed_again


def _reached(sweep: RecordedSweep, best: Trial) -> Iterator[str]:
    view = sweep.view
    of = f"of {count(len(view.trials), 'trial')}: {counted(by_state(view))}"
    yield f"trial {best.number}: {view.metric} {measured(best.value)} ({view.goal.value}; {of})"
    for name in (searched := _searched(sweep, best)):
        yield f"  {name}={on_one_line(typed(best.parameters[name]))}"
    if fixed := len(best.parameters) - len(searched):
        yield f"  and {count(fixed, 'setting')} that {'is' if fixed == 1 else 'are'} the same in all trials"
    if held_out := view.tested.get(view.metric):
        value = measured(held_out) if isinstance(held_out, float) else typed(held_out)
        yield f"on held-out data: {view.metric} {value} ({count(len(view.tested), 'metric')} with --json)"
    elif view.tested:
        yield f"on held-out data: {count(len(view.tested), 'metric')}, see --json"


def _searched(sweep: RecordedSweep, best: Trial) -> list[str]:
    """Parameters that the search chose; all where nobody can tell, or none is left."""
    asked = sweep.asked
    if asked is None:
        return [name for name in varied(list(sweep.view.trials.values())) if name in best.parameters]
    fixed = {name for name, parameter in asked.parameters.items() if _is_fixed(parameter)}
    return [name for name in best.parameters if name not in fixed] or list(best.parameters)


def _is_fixed(parameter: Parameter) -> bool:
    distribution = parameter.distribution
    return isinstance(distribution, Constant) or (
        isinstance(distribution, Choice) and len(distribution.values) == 1
    )


@dataclass(frozen=True)
class _Start:
    """What of the file about the start of a trial is told."""

    command: list[str] = field(default_factory=list)
    folder: str = ""
    environment: dict[str, str] = field(default_factory=dict)


def _start(path: Path) -> _Start:
    try:
        return read_json_file(path, _Start)
    except (OSError, ForeignDataError):
        return _Start()


def _environment(sweep: RecordedSweep, best: Trial, start: _Start) -> dict[str, str]:
    """What decided a trial besides its command: variables of the file, and the settings of W&B's client."""
    found = dict(sweep.asked.options.environment) if sweep.asked is not None else {}
    place, folder = sweep.folder.trial(best.number), Path(start.folder)
    if SWEEP_PARAM_PATH in start.environment and (
        folders_of(place, best.attempts, folder) or reads_settings(start.command, folder)
    ):
        found[SWEEP_PARAM_PATH] = str(place.for_wandb.absolute())
        if WANDB_MODE in start.environment:  # without it there is no login, which the program would ask for
            found[WANDB_MODE] = start.environment[WANDB_MODE]
    return found


def _places(sweep: RecordedSweep, best: Trial, start: _Start) -> Iterator[tuple[str, Path]]:
    yield "folder", sweep.folder.trial(best.number).path
    if own := _own_run(sweep, start.command):
        yield "its run", own.path
    reports = [("report", own.report)] if own else []
    reports.append(("report of the sweep" if own else "report", sweep.folder.report))
    yield from ((name, path) for name, path in reports if path.is_file())


def _own_run(sweep: RecordedSweep, command: Sequence[str]) -> RunFolder | None:
    """The newest run of this program that had the settings of a command; None where the trial is no such run."""
    output_dir = sweep.folder.path.parent.parent
    if not command or sweep.name not in experiments(output_dir):
        return None
    runs = reversed(runs_of(output_dir, sweep.name))
    return next((run for run in runs if read_origin(run.path).settings == [*command[2:]]), None)


def best_json(sweep: RecordedSweep, now: float) -> dict[str, Any]:
    """The best trial as plain data.

    Raises:
        ConfigError: There is none.
    """
    view, best = sweep.view, best_of(sweep)
    start = _start(sweep.folder.trial(best.number).start(best.attempts))
    return {
        "sweep": sweep.name,
        "metric": view.metric,
        "goal": view.goal.value,
        **trial_json(best, now),
        "host": view.hosts.get(best.agent, ""),
        "folder": str(sweep.folder.trial(best.number).path),
        "command": start.command,
        "environment": _environment(sweep, best, start),
        "tested": view.tested or None,
    }
