"""What a run leaves beside the outputs of its jobs: results, its page, and what trackers are told of it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from pipeline.commands.request import Request
from pipeline.config.schema import Tracker, TrackingConfig, TrackingMode
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.learning.algos.registry import with_bounded_kl
from pipeline.machine.children import command
from pipeline.plan.graph import Job
from pipeline.runs.cost import compute_of, results_of, write_compute
from pipeline.runs.loaded import load
from pipeline.runs.origin import Maker, collect_makers
from pipeline.runs.record import Results, write_results, write_samples
from pipeline.runs.report.format import shown_path
from pipeline.runs.run_view import RunView
from pipeline.runs.tracking.feeders import Feeders
from pipeline.runs.tracking.trackers import sweep_trial
from pipeline.terminal.console import say

log = logging.getLogger("pipeline")


def leave_results(
    request: Request, jobs: Sequence[Job], run: RunFolder, tell: Callable[[Job, str], None]
) -> tuple[Results, list[Maker]]:
    """Write all files of results into the folder of a run, as far as its jobs are done.

    Args:
        request: The request.
        jobs: Those of its plan whose results count.
        run: Its folder.
        tell: Takes what cannot be read of a job's stored output, in words.

    Returns:
        The results, and what made the outputs that they rest on.
    """
    store, asked = request.store, request.config.evaluation
    results = results_of(
        store,
        jobs,
        request.config.rounds_of_training,
        asked,
        bounded=with_bounded_kl(request.config),
        tell=tell,
    )
    write_results(run, results)
    write_samples(run, store, jobs, tell)
    every = request.plan.jobs.values()
    makers = collect_makers(store, every)
    write_compute(run.path, compute_of(store, every, results, asked.budgets), makers)
    return results, makers


# -- page --------------------------------------------------------------------------------------------------------


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

    runs = [load(folder) for folder in folders]
    names = run_names(runs)
    tables = comparison_tables(compare_runs(runs, names)) if len(runs) > 1 else []
    write_page(path, page_of(runs, names, [page_table(table, results_first=True) for table in tables]))


def renew_report(run: RunFolder) -> None:
    """Write the page of a run again, of which something has changed since it was left; says nothing."""
    try:
        write_report(run.report, [run])
    except Exception as error:  # as below
        log.warning("the report is not up to date: %s", error, exc_info=True)


def leave_report(run: RunFolder, console: Console) -> None:
    """Write the page of a run that has ended. That it cannot be written changes nothing of the run."""
    try:
        write_report(run.report, [run])
    except Exception as error:  # whatever is wrong with a page, the results are there
        log.warning("no report was written: %s", error, exc_info=True)
        say(
            console,
            f"warning: no report was written ({error}). `python -m pipeline report {run.experiment}` tries again.",
            "bold",
        )
        return
    say(console, "report:", copy=shown_path(run.report))


# -- round reports -----------------------------------------------------------------------------------------------
# Reports of a run that goes on, whenever a round has finished: each by a process of its own, for which the run
# never waits. The last report is written by the run itself.


MOST_OFTEN_S = 60.0
"""Seconds between two looks whether a report is due."""
NICENESS = 10
_LONGEST_REASON = 300


class RoundReports:
    """Has reports written while a run goes on."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._process: subprocess.Popen[str] | None = None
        self._rounds = 0
        """How many rounds the last report was told of."""
        self._next_look_s = MOST_OFTEN_S
        self._failed = False

    def __enter__(self) -> RoundReports:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process that writes, so that no earlier report takes the place of the last one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
            self._remove_unfinished()

    def update(self, view: RunView, elapsed_s: float) -> None:
        """Look at the run, so many seconds after its begin: start a report where one is due."""
        if elapsed_s < self._next_look_s or self._failed:
            return
        self._next_look_s = elapsed_s + MOST_OFTEN_S
        if self._process is not None:
            self._ask(self._process)
        elif (rounds := finished_rounds(view)) > self._rounds:
            self._rounds = rounds
            self._start()

    def _start(self) -> None:
        # One thread: what numpy would start more of takes longer to start than there is to compute.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        words, environment = command(__name__, environment, folder=str(self._run.path.absolute()))
        try:
            self._process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,  # Ctrl-C is for the run
                text=True,
            )
        except OSError as error:
            self._give_up(str(error))

    def _ask(self, process: subprocess.Popen[str]) -> None:
        """See whether the process has ended."""
        if process.poll() is None:
            return
        _, said = process.communicate()
        self._process = None
        if process.returncode:
            self._remove_unfinished()
            self._give_up(said.strip().rpartition("\n")[2][:_LONGEST_REASON] or f"exit code {process.returncode}")

    def _give_up(self, reason: str) -> None:
        """What went wrong once would again; the end of the run tries once more."""
        self._failed = True
        log.warning("no report of the rounds so far was written: %s", reason)

    def _remove_unfinished(self) -> None:
        for path in self._run.path.glob(f".{self._run.report.name}.*"):
            path.unlink(missing_ok=True)


def finished_rounds(view: RunView) -> int:
    """Rounds of which this run has finished the last missing job; none when all are over, as it ends then."""
    open_rounds = {number for (_, number), cell in view.cells.items() if not cell.settled}
    begun = {number for (_, number), cell in view.cells.items() if cell.stored < cell.total}
    return len(begun - open_rounds) if open_rounds else 0


# -- trackers ----------------------------------------------------------------------------------------------------


@contextmanager
def tracked(
    run: RunFolder, tracking: TrackingConfig, console: Console, signals: StopSignals
) -> Iterator[Callable[[], None]]:
    """Have trackers told of a run while something is done. Whatever happens to them costs a warning.

    Args:
        run: The run; it has its plan.
        tracking: What is asked for.
        console: Where warnings go, and to the log.
        signals: One that comes ends the wait for trackers at the end; one that has come leaves it out.

    Yields:
        To be called now and then: hears what goes wrong.
    """

    def warn(text: str) -> None:
        log.warning("%s", text)
        say(console, f"warning: {text}", "bold")

    online = Tracker.wandb in tracking.report_to and tracking.mode is TrackingMode.online
    if sweep_trial() is not None and not online:
        warn(
            "this run is a trial of a sweep at W&B, which hears nothing of it now: that needs "
            "'tracking.report_to=[wandb]' tracking.mode=online in the sweep's command"
        )
    if not tracking.report_to:
        yield lambda: None
        return

    feeders = Feeders(run, tracking, warn)
    try:
        yield feeders.look
        if signals.received is None:
            feeders.finish(tracking.finish_timeout_s, signals.fileno())
    finally:
        feeders.end()
    for name, way in feeders.told.items():
        say(console, f"{name}:", copy=way)


if __name__ == "__main__":
    from pipeline.machine.descendants import begin

    os.nice(NICENESS)
    logging.disable()  # what cannot be read is told at the end of the run
    folder = RunFolder(Path(begin()["folder"]))
    try:
        write_report(folder.report, [folder])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
