"""What a trial has logged to W&B rather than to us, put where everything else that is logged is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from pipeline.files import json_text
from pipeline.sweeps.agents.wandb_run import WandbRun, newest_run, read_wandb_run
from pipeline.sweeps.folder import TrialFolder

MOST_ROWS = 10_000
"""Of the last rows with the metric."""
_SLACK_S = 2.0
"""By which times of files may be inexact."""


def take_over(place: TrialFolder, attempt: int, metric: str, since: float) -> None:
    """Add what a W&B run has of a metric, and its summary, to the trial's own file.

    Args:
        place: Folder of the trial, which the program had as WANDB_DIR.
        attempt: Which attempt.
        metric: Its name; "" where trials are not judged.
        since: When the attempt began, by the clock of its files; runs of earlier ones do not count.
    """
    with suppress(OSError):  # a file that was removed, or a full disk: then it has logged nothing
        path = newest_run(place.path, since - _SLACK_S)
        if path is None:
            return
        rows = _judged_by(read_wandb_run(path), metric)
        now = round(time.time(), 3)
        lines = [_line(row, step, now) for step, row in enumerate(rows, 1) if row]
        with place.metrics(attempt).open("a") as file:
            file.write("".join(lines))


def _judged_by(run: WandbRun, metric: str) -> list[dict[str, float | None]]:
    """The rows with a metric, and the summary behind them where that says something else of it."""
    rows = [row for row in run.rows if metric in row][-MOST_ROWS:]
    said = rows[-1][metric] if rows else None
    return rows if rows and run.summary.get(metric, said) == said else [*rows, run.summary]


def _line(row: Mapping[str, float | None], step: int, now: float) -> str:
    """As `reporting.log` writes it; names of wandb's own begin with an underscore."""
    known = {name: value for name, value in row.items() if not name.startswith("_")}
    when = row.get("_timestamp") or now
    number = row.get("_step")
    told = {"step": step if number is None else int(number), "values": known, "time": when}
    return json_text(told, separators=(",", ":")) + "\n"
