"""What a trial logs to W&B rather than to us, put where everything else that is logged is, while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.files import json_text
from pipeline.sweeps.agents.wandb_run import WandbRun, printed_folders, run_files, run_folders
from pipeline.sweeps.folder import TrialFolder
from pipeline.sweeps.space import fingerprint
from pipeline.sweeps.spec import Goal, Metric

_SLACK_S = 2.0
"""By which times of files may be inexact."""
Row = Mapping[str, float | None]


class WandbMetrics:
    """The runs of W&B of one attempt at a trial. All of them count, as with W&B's agent, where they are one run.

    Attributes:
        taken: Rows with the metric that were added to the trial's own file.
    """

    def __init__(
        self,
        place: TrialFolder,
        attempt: int,
        metric: Metric | None,
        since: float,
        start: Path = Path(),
    ) -> None:
        """Prepare.

        Args:
            place: Folder of the trial, which the program has as WANDB_DIR.
            attempt: Which attempt.
            metric: What trials are judged by; None where they are not.
            since: When the attempt began, by the clock of its files; runs of earlier ones do not count.
            start: The folder in which the program is started.
        """
        self._start = start
        self.taken = 0
        self._place, self._attempt, self._since = place, attempt, since - _SLACK_S
        self._metric, self._goal = (metric.name, metric.goal) if metric else ("", Goal.minimize)
        self._runs: dict[Path, WandbRun] = {}
        self._said: float | None = None

    def follow(self) -> None:
        """Add the rows with the metric that are new."""
        for path in run_files(folders_of(self._place, self._attempt, self._start), self._since):
            run = self._runs.pop(path, None) or WandbRun(path)
            self._runs[path] = run  # the last one is the one that was written to last
            with suppress(OSError):  # a file that was removed, or a full disk: then it has logged nothing
                self._add(row for row in run.rows() if self._metric in row)

    def conclude(self) -> None:
        """Add what is left, and of the last run with the metric its summary, where that says something else."""
        self.follow()
        runs = list(self._runs.values())
        found = [self._summed_up(run.summary) for run in runs]
        last = next((each for each in reversed(found) if self._metric in each), found[-1] if found else None)
        if last is not None and not (self.taken and last.get(self._metric, self._said) == self._said):
            with suppress(OSError):
                self._add([last])

    def _summed_up(self, summary: Row) -> Row:
        """A summary in which the metric has a value of its own, also where ``define_metric`` chose which it is."""
        best, other = ("min", "max") if self._goal is Goal.minimize else ("max", "min")
        kinds = ("best", best, "last", "mean", other)
        chosen = [summary[name] for kind in kinds if (name := f"{self._metric}.{kind}") in summary]
        if not chosen or not self.taken or self._metric in summary:
            return summary
        return {**summary, self._metric: chosen[0]}

    @property
    def kept(self) -> Path | None:
        """The folder of runs that W&B was not told of; None where there are none."""
        return next((path.parents[1] for path in self._runs if path.parent.name.startswith("offline-")), None)

    @property
    def exit_code(self) -> int:
        """That of the run that was written to last; 0 where there is none."""
        return next((run.exit_code for run in reversed(self._runs.values())), 0)

    def other_values(self, parameters: Mapping[str, Any]) -> list[str]:
        """What these runs say of parameters that is not what the trial was given, in words.

        Args:
            parameters: Of the trial, in tables as the file has them.
        """
        found = (line for run in self._runs.values() for line in _other(parameters, run.config, ""))
        return list(dict.fromkeys(found))

    def _add(self, rows: Iterator[Row] | list[Row]) -> None:
        lines = []
        for row in rows:
            if self._metric in row:
                self.taken, self._said = self.taken + 1, row[self._metric]
            if row:
                lines.append(_line(row, self.taken, round(time.time(), 3)))
        if lines:
            with self._place.metrics(self._attempt).open("a") as file:
                file.write("".join(lines))


def folders_of(place: TrialFolder, attempt: int, start: Path) -> list[Path]:
    """The folders of the runs of W&B of an attempt at a trial.

    Args:
        place: Folder of the trial, which the program had as WANDB_DIR.
        attempt: Which attempt.
        start: The folder in which the program was started.
    """
    folders = run_folders(place.path)
    with suppress(OSError):
        folders = folders or printed_folders(place.log(attempt), start)
    return folders


def _line(row: Row, step: int, now: float) -> str:
    """As `reporting.log` writes it; names of wandb's own begin with an underscore."""
    known = {name: value for name, value in row.items() if not name.startswith("_")}
    when = row.get("_timestamp") or now
    number = row.get("_step")
    told = {"step": step if number is None else int(number), "values": known, "time": when}
    return json_text(told, separators=(",", ":")) + "\n"


def _other(given: Mapping[str, Any], config: Mapping[str, Any], outer: str) -> Iterator[str]:
    for name, value in given.items():
        if name not in config:
            continue
        other = config[name]
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _other(value, other, f"{outer}{name}.")
        elif _is_plain(value) and _is_plain(other) and not _same(value, other):
            yield f"{outer}{name}={other} where the sweep gave {value}"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _same(value: Any, other: Any) -> bool:
    """Whether two values are one, be it that one of them was written as a text."""
    if str(value) == str(other) or fingerprint(value) == fingerprint(other):
        return True
    try:
        return not isinstance(value, bool) and float(value) == float(other)
    except (TypeError, ValueError, OverflowError):
        return False
