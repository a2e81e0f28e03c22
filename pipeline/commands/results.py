"""The results of a run: collected of its jobs and written to its folder."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.commands.request import Request
from pipeline.engine.run_folder import RunFolder
from pipeline.learning.algos.registry import with_bounded_kl
from pipeline.machine.children import command
from pipeline.plan.graph import Job
from pipeline.runs.cost import compute_of, results_of, write_compute
from pipeline.runs.origin import Maker, collect_makers
from pipeline.runs.record import Results, write_results, write_samples
from pipeline.runs.run_view import RunView


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


# -- round reports -----------------------------------------------------------------------------------------------
# Reports of a run that goes on, whenever a round has finished: each by a process of its own, for which the run
# never waits. The last report is written by the run itself.


MOST_OFTEN_S = 60.0
"""Seconds between two looks whether a report is due."""
NICENESS = 10
_LONGEST_REASON = 300

log = logging.getLogger("pipeline")


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


if __name__ == "__main__":
    from pipeline.commands.report import write_report
    from pipeline.machine.descendants import begin

    os.nice(NICENESS)
    logging.disable()  # what cannot be read is told at the end of the run
    folder = RunFolder(Path(begin()["folder"]))
    try:
        write_report(folder.report, [folder])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
