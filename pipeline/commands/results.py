"""Write the results of a run, and its page."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from pipeline.commands.request import Request
from pipeline.engine.run_folder import RunFolder
from pipeline.learning.algos.registry import with_bounded_kl
from pipeline.plan.graph import Job
from pipeline.runs import cost, loaded, origin, record
from pipeline.runs.report.format import shown_path
from pipeline.terminal.console import say

log = logging.getLogger("pipeline")


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


def leave_report(run: RunFolder, console: Console | None = None) -> None:
    """Write the page of a run that has ended, and say so. A failure changes nothing of the run."""
    try:
        write_report(run.report, [run])
    except Exception as error:  # whatever is wrong with a page, the results are there
        log.warning("no report was written: %s", error, exc_info=True)
        again = f"`python -m pipeline report {run.experiment}` tries again"
        text, copy, style = f"warning: no report was written ({error}). {again}.", "", "bold"
    else:
        text, copy, style = "report:", shown_path(run.report), ""
    if console is not None:
        say(console, text, style, copy=copy)
