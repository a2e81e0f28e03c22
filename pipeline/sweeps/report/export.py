"""All trials of a sweep as a table for other programs: a row each, nothing cut off."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from pipeline.runs.record import csv_cell
from pipeline.sweeps.batch import effective_batch
from pipeline.sweeps.report.measures import Measured
from pipeline.sweeps.report.tables import seconds_of
from pipeline.sweeps.trials import Trial
from pipeline.sweeps.values import plain

PARAMETER, METRIC = "parameters.", "metrics."
"""What the names of columns begin with, so that none of them is another one's."""


def export_rows(
    trials: Sequence[Trial],
    measured: Sequence[Measured],
    now: float,
    hosts: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Trials as plain data, by number; every row has the same names.

    Args:
        trials: The trials.
        measured: What each has logged.
        now: Seconds since 1970.
        hosts: Agent -> its machine.
    """
    parameters = _names(trial.parameters for trial in trials)
    metrics = _names(found.values for found in measured)
    return [
        {
            **_row(trial, now, hosts.get(trial.agent, "")),
            **{f"{PARAMETER}{name}": plain(trial.parameters.get(name)) for name in parameters},
            **{f"{METRIC}{name}": found.values.get(name) for name in metrics},
        }
        for trial, found in zip(trials, measured, strict=True)
    ]


def _row(trial: Trial, now: float, host: str) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "state": trial.state.value,
        "value": trial.value,
        "attempts": trial.attempts,
        "num_gpus": trial.num_gpus,
        "effective_batch": effective_batch(trial.parameters, trial.num_gpus),
        "began": _moment(trial.started),
        "ended": _moment(trial.ended),
        "seconds": None if (seconds := seconds_of(trial, now)) is None else round(seconds, 3),
        "agent": trial.agent,
        "host": host,
        "devices": " ".join(trial.devices),
        "exit_code": trial.exit_code,
        "reason": trial.reason,
    }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds).astimezone().isoformat()


def _names(found: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for one in found for name in one))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV; lists and mappings as JSON, and no text that a spreadsheet would take for a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if rows:
        writer.writerow(map(csv_cell, rows[0]))
        writer.writerows([csv_cell(_cell(value)) for value in row.values()] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list | dict) else value
