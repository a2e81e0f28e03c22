"""What a run leaves and tells: its results and page, what trackers hear, and the sweep that it is a trial of."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from statistics import fmean

from rich.console import Console

from pipeline.commands.request import Request
from pipeline.config.schema import Config, Tracker, TrackingConfig, TrackingMode
from pipeline.config.tables import point_of
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.learning.algos.registry import with_bounded_kl
from pipeline.plan.graph import Job, chain_name
from pipeline.runs import cost, loaded, origin, record, run_view, trackers
from pipeline.runs.report.format import shown_path
from pipeline.sweeps import reporting
from pipeline.terminal.console import say

log = logging.getLogger("pipeline")


def note(console: Console, text: str, style: str = "bold", level: int = logging.WARNING, mark: str = "") -> None:
    """Say something on the terminal, behind a mark, and in the log."""
    log.log(level, "%s", text)
    say(console, f"{mark}{text}", style)


def leave_results(
    request: Request, jobs: Sequence[Job], run: RunFolder, tell: Callable[[Job, str], None]
) -> tuple[record.Results, list[origin.Maker]]:
    """Write all files of results into the folder of a run, as far as its jobs are done.

    Args:
        request: The request.
        jobs: Jobs of its plan whose results count.
        run: Folder of the run.
        tell: Takes what cannot be read of a job's stored output, in words.

    Returns:
        The results, and what made the outputs that they rest on.
    """
    store, evaluation = request.store, request.config.evaluation
    rounds, bounded = request.config.rounds_of_training, with_bounded_kl(request.config)
    results = cost.results_of(store, jobs, rounds, evaluation, bounded=bounded, tell=tell)
    record.write_results(run, results)
    record.write_samples(run, store, jobs, tell)
    every = request.plan.jobs.values()
    makers = origin.collect_makers(store, every)
    cost.write_compute(run.path, cost.compute_of(store, every, results, evaluation.budgets), makers)
    return results, makers


def write_report(path: Path, folders: Sequence[RunFolder]) -> None:
    """Write a page of runs; several stand side by side at its top.

    Raises:
        PipelineError: What one left cannot be read.
        OSError: The page cannot be written.
    """
    # Not with the other imports: what reads results takes time to load, which a run that begins need not wait for.
    from pipeline.runs.compare import compare_runs, comparison_tables, run_names
    from pipeline.runs.report.html import page_table, write_page
    from pipeline.runs.report.page import page_of

    runs = [loaded.load(folder) for folder in folders]
    names = run_names(runs)
    tables = comparison_tables(compare_runs(runs, names)) if len(runs) > 1 else []
    write_page(path, page_of(runs, names, [page_table(table, results_first=True) for table in tables]))


def leave_report(run: RunFolder, console: Console) -> None:
    """Write the page of a run that has ended, and say so. A failure changes nothing of the run."""
    try:
        write_report(run.report, [run])
    except Exception as error:  # whatever is wrong with a page, the results are there
        log.warning("no report was written: %s", error, exc_info=True)
        again = f"`python -m pipeline report {run.experiment}` tries again"
        text, copy, style = f"warning: no report was written ({error}). {again}.", "", "bold"
    else:
        text, copy, style = "report:", shown_path(run.report), ""
    say(console, text, style, copy=copy)


# -- listeners ---------------------------------------------------------------------------------------------------


@contextmanager
def tracked(
    run: RunFolder, tracking: TrackingConfig, console: Console, signals: StopSignals
) -> Iterator[Callable[[], None]]:
    """Have trackers told of a run while something is done. Whatever happens to them costs a warning.

    Args:
        run: The run; it has its plan.
        tracking: Settings of tracking.
        console: Console for warnings, which go to the log as well.
        signals: One that comes ends the wait for trackers at the end; one that has come leaves it out.

    Yields:
        To be called now and then: hears what goes wrong.
    """
    warn = partial(note, console, mark="warning: ")
    online = Tracker.wandb in tracking.report_to and tracking.mode is TrackingMode.online
    if trackers.sweep_trial() is not None and not online:
        needed = "'tracking.report_to=[wandb]' tracking.mode=online in the sweep's command"
        warn(f"the sweep at W&B that this run is a trial of hears nothing of it: that needs {needed}")
    if not tracking.report_to:
        yield lambda: None
        return

    feeders = trackers.Feeders(run, tracking, warn)
    try:
        yield feeders.look
        if signals.received is None:
            feeders.finish(tracking.finish_timeout_s, signals.fileno())
    finally:
        feeders.end()
    for name, way in feeders.look_commands.items():
        say(console, f"{name}:", copy=way)


OBJECTIVE = "objective"
"""Name under which trials report the primary metric of their results, for sweep files that name none."""
_THERE = ("done", "stored")


class TrialRounds:
    """Tells the sweep of the rounds of this run, each once and in order; does nothing for any other run."""

    def __init__(self, request: Request, run: Path) -> None:
        self._request, self._run = request, run
        self._rounds: dict[int, list[Job]] = defaultdict(list)
        self._at_wandb = trackers.sweep_trial() is not None
        if self._at_wandb or reporting.own_trial() is not None:
            for job in request.plan.jobs.values():
                if job.stage == record.METRICS_STAGE and job.round > 0:
                    self._rounds[job.round].append(job)

    def update(self, view: run_view.RunView) -> None:
        """Tell of the rounds that have been judged by now."""
        while self._rounds and all(view.jobs[job.id].status in _THERE for job in self._rounds[min(self._rounds)]):
            self._tell(min(self._rounds))

    def conclude(self) -> None:
        """Tell of all that is stored: the run is over."""
        for number in sorted(self._rounds):
            self._tell(number)

    def _tell(self, number: int) -> None:
        rows = record.collect_rows(self._request.store, self._rounds.pop(number))
        if values := values_of([row for row in rows if is_judged(self._request.config, row)]):
            reporting.log(values, step=number)
            if self._at_wandb:
                trackers.leave_values(self._run, number, values)


def is_judged(config: Config, row: record.ResultRow) -> bool:
    """Return whether settings are selected by the chain of a row."""
    if (pattern := config.evaluation.objective) is None:
        return True
    # Test sets and checkpoints count only where the pattern names them, so that they change no other objective.
    places, _, algo = pattern.rpartition("/")
    named = point_of(places.partition("/")[0])[1] or not config.evaluation.on_own
    if point_of(row.dataset)[1] and not named:
        return False
    if row.algo in config.evaluation.also and algo != row.algo:
        return False
    several = len(config.models[row.model].references) > 1
    chain = chain_name(row.dataset, row.model, row.reference if several else None, row.seed, row.algo)
    return fnmatchcase(chain, pattern) or fnmatchcase(row.algo, pattern)


def values_of(rows: Sequence[record.ResultRow]) -> dict[str, float]:
    """Return the means over the chains of a round, for metrics that all of them have.

    Without differences to another policy: what these are between is not the same in every trial.
    """
    chains, own = (
        {record.place_of(row) for row in rows},
        [row for row in rows if record.COMPARED not in row.metric],
    )
    values = record.grouped((row.metric, row.value) for row in own if row.value is not None)
    means = {metric: fmean(column) for metric, column in values.items() if len(column) == len(chains)}
    if objective := next((metric for metric in record.PRIMARY_METRICS if metric in means), None):
        means[OBJECTIVE] = means[objective]
    return means
