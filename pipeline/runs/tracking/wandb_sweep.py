"""A run under ``wandb agent``: a trial of a sweep at W&B, which hears of it by one run that the agent has named.

WANDB_SWEEP_ID, WANDB_RUN_ID    of the agent: the run that the sweep waits for
the run's own file of values    a line for each round: what a trial is judged by, written by the run
the process of the tracker      tells that run these lines; chains are runs of their own, in the same group
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.events import whole_lines
from pipeline.files import json_text, open_plain
from pipeline.foreign import ForeignDataError, read_json

_OF_A_TRIAL = ("WANDB_RUN_ID", "WANDB_SWEEP_")
_OF_A_RUN = ("WANDB_NAME", "WANDB_RUN_NAME", "WANDB_SERVICE", "WANDB__SERVICE", "WANDB_RESUME", "WANDB_FORK_FROM")
_ID, _SWEEP, _PARAMETERS = "WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH"


@dataclass(frozen=True, kw_only=True)
class SweepTrial:
    """What W&B's agent says of a trial.

    Attributes:
        id: Of its run.
        sweep: Id of the sweep.
        project: That of the sweep; None where it is not said.
        entity: Whose project that is.
    """

    id: str
    sweep: str
    project: str | None = None
    entity: str | None = None


@dataclass(frozen=True, kw_only=True)
class JudgedRound:
    """What a round has reached: a line of the file of values."""

    round: int
    values: dict[str, float | int | None]


def sweep_trial(environment: Mapping[str, str] | None = None) -> SweepTrial | None:
    """The trial that a process is; None for any that no agent of W&B has started.

    Args:
        environment: Of the process; None for that of this one.
    """
    given = os.environ if environment is None else environment
    if not given.get(_ID) or not given.get(_SWEEP):
        return None
    project, entity = given.get("WANDB_PROJECT"), given.get("WANDB_ENTITY")
    return SweepTrial(id=given[_ID], sweep=given[_SWEEP], project=project, entity=entity)


def is_of_other_run(name: str) -> bool:
    """Whether a variable of an environment ties whoever calls ``wandb.init`` to one run, or gives all one name."""
    return name.startswith((*_OF_A_TRIAL, *_OF_A_RUN))


def own_runs(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which every ``wandb.init`` is a run of its own, with the parameters of the sweep."""
    keeps = {_PARAMETERS} if sweep_trial(environment) is not None else set()
    return {name: value for name, value in environment.items() if name in keeps or not is_of_other_run(name)}


def values_file(run: Path) -> Path:
    """Where a run leaves what it is judged by.

    Args:
        run: Folder of the run.
    """
    return run / "tracking" / "sweep.jsonl"


def leave_values(run: Path, number: int, values: Mapping[str, float]) -> None:
    """Leave what a round has reached; a full disk costs the sweep that, and the run nothing."""
    with suppress(OSError):
        path = values_file(run)
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(json_text({"round": number, "values": values}) + "\n")


def left_values(run: Path) -> list[JudgedRound]:
    """What the rounds have reached up to now."""
    found: list[JudgedRound] = []
    with suppress(OSError, ForeignDataError, json.JSONDecodeError), open_plain(values_file(run)) as file:
        found.extend(read_json(line, JudgedRound) for line in whole_lines(file))
    return found
