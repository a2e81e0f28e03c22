"""A run that is a trial of a sweep, or of one at W&B: it tells the sweep what every round has reached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean

from pipeline.commands.multirun import is_judged, primary_result
from pipeline.commands.request import Request
from pipeline.errors import JobError
from pipeline.plan.graph import Job
from pipeline.runs.record import METRICS_STAGE, ResultRow, collect_rows, place_of
from pipeline.runs.run_view import RunView
from pipeline.runs.tracking.trackers import leave_values, sweep_trial
from pipeline.sweeps.reporting import log, own_trial

OBJECTIVE = "objective"
"""What trials are judged by where the sweep file does not name a metric of the results: their primary metric."""
COMPARED = "/vs_"
"""In the name of a difference to another policy; what it is between is not the same in every trial."""
_THERE = ("done", "stored")


class TrialRounds:
    """Tells the sweep of the rounds of this run, each once and in order; does nothing for any other run."""

    def __init__(self, request: Request, run: Path) -> None:
        self._request, self._run = request, run
        self._rounds: dict[int, list[Job]] = defaultdict(list)
        self._at_wandb = sweep_trial() is not None
        if self._at_wandb or own_trial() is not None:
            for job in request.plan.jobs.values():
                if job.stage == METRICS_STAGE and job.round > 0:
                    self._rounds[job.round].append(job)

    def update(self, view: RunView) -> None:
        """Tell of the rounds that have been judged by now."""
        while self._rounds and all(view.jobs[job.id].status in _THERE for job in self._rounds[min(self._rounds)]):
            self._tell(min(self._rounds))

    def conclude(self) -> None:
        """Tell of all that is stored: the run is over."""
        for number in sorted(self._rounds):
            self._tell(number)

    def _tell(self, number: int) -> None:
        config = self._request.config
        rows = collect_rows(self._request.store, self._rounds.pop(number))
        if config.evaluation.objective is not None:
            rows = [row for row in rows if is_judged(config, row)]
        if values := values_of(rows):
            log(values, step=number)
            if self._at_wandb:
                leave_values(self._run, number, values)


def values_of(rows: Sequence[ResultRow]) -> dict[str, float]:
    """The means over chains of what all chains of a round have, and the objective among them."""
    found: dict[str, list[float]] = defaultdict(list)
    chains = {place_of(row) for row in rows}
    for row in rows:
        if row.value is not None and COMPARED not in row.metric:
            found[row.metric].append(row.value)
    means = {metric: fmean(values) for metric, values in found.items() if len(values) == len(chains)}
    with suppress(JobError):  # nothing by which settings are chosen
        means[OBJECTIVE] = primary_result(rows)
    return means
