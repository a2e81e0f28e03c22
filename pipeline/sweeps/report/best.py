"""The best trial of a sweep, in words and as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.runs.report.format import count, shown_path
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.report.status import trial_json
from pipeline.sweeps.report.values import measured, typed
from pipeline.sweeps.trials import Trial, TrialState, best_trial


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
        why = f"none of {count(done, 'trial')} that ended has logged it" if done else "no trial has ended yet"
        raise ConfigError(f"sweep {sweep.name} has no value of {view.metric}: {why}.")
    return best


def best_lines(sweep: RecordedSweep) -> Iterator[str]:
    """The best trial: what it reached, its settings as they are typed, where it is.

    Raises:
        ConfigError: There is none.
    """
    view, best = sweep.view, best_of(sweep)
    ended = count(len(view.having(TrialState.done)), "trial")
    yield f"trial {best.number}: {view.metric} {measured(best.value)} ({view.goal.value}; {ended} ended)"
    for name, value in best.parameters.items():
        yield f"  {name}={typed(value)}"
    for name, value in view.tested.items():
        yield f"on held-out data: {name} {measured(value) if isinstance(value, float) else typed(value)}"
    folder = sweep.folder.trial(best.number)
    yield f"folder: {shown_path(folder.path)}"
    if command := _command(folder.start(best.attempts)):
        yield f"it ran: {shlex.join(command)}"


@dataclass(frozen=True)
class _Start:
    """What of the file about the start of a trial is told."""

    command: list[str] = field(default_factory=list)


def _command(start: Path) -> list[str]:
    try:
        return read_json_file(start, _Start).command
    except (OSError, ForeignDataError):
        return []


def best_json(sweep: RecordedSweep, now: float) -> dict[str, Any]:
    """The best trial as plain data.

    Raises:
        ConfigError: There is none.
    """
    view, best = sweep.view, best_of(sweep)
    return {
        "sweep": sweep.name,
        "metric": view.metric,
        "goal": view.goal.value,
        **trial_json(best, now),
        "folder": str(sweep.folder.trial(best.number).path),
        "tested": view.tested or None,
    }
