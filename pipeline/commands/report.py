"""Reports: the page of a run, which it leaves when it ends, and pages that are asked for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pipeline.commands.targets import refuse_records
from pipeline.engine.run_folder import RunFolder
from pipeline.errors import ConfigError, StoreError
from pipeline.files import plain_target
from pipeline.runs.index import choose_run, newest_of_several
from pipeline.runs.loaded import LoadedRun, load
from pipeline.runs.report.format import shown_path
from pipeline.terminal.console import say

FILE = "report.html"

log = logging.getLogger("pipeline")


def report(output_dir: Path, names: Sequence[str], stamp: str | None, out: Path | None, console: Console) -> None:
    """Write a page of one run or several anew, and say where it is.

    Args:
        output_dir: Folder of all runs.
        names: Experiments; of each the newest run.
        stamp: Timestamp of the run, where there is one name.
        out: The file; that of the run if left out, and of several ``report.html`` beside the experiments.
        console: Where to.

    Raises:
        PipelineError: There is no such run, what it left cannot be read, or the page cannot be written.
    """
    if stamp is not None and len(names) > 1:
        raise ConfigError("--run chooses a run of one experiment: give one NAME with it.")
    folders = [choose_run(output_dir, name, stamp) for name in dict.fromkeys(names)]
    for note in filter(None, map(newest_of_several, folders if stamp is None else ())):
        say(console, note)
    if out is not None:
        refuse_records("--out", out, map(LoadedRun, folders), is_page=True)
    path = out or (folders[0].report if len(folders) == 1 else output_dir / FILE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_report(path if out is None else plain_target(out), folders)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}. Give another file as --out.") from error
    say(console, "report:", copy=shown_path(path))


def write_report(path: Path, folders: Sequence[RunFolder]) -> None:
    """Write a page of runs; several stand side by side at its top.

    Raises:
        PipelineError: What one left cannot be read.
        OSError: The page cannot be written.
    """
    # Not with the other imports: what reads results takes time to load, which a run that begins need not wait for.
    from pipeline.runs.comparison.names import run_names
    from pipeline.runs.comparison.runs import compare_runs, compared
    from pipeline.runs.report.page.html import write_page
    from pipeline.runs.report.page.results import comparison_table
    from pipeline.runs.report.page.run import page_of
    from pipeline.runs.report.runs import comparison_tables

    runs = [load(folder) for folder in folders]
    names = run_names(runs)
    tables = comparison_tables(compare_runs(list(map(compared, runs)), names)) if len(runs) > 1 else []
    write_page(path, page_of(runs, names, [comparison_table(table) for table in tables]))


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
