"""``compare`` of a sweep whose trials are no runs of this program: by the parameters in which they differ."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from pipeline.commands.targets import is_standard_output, refuse_records, write_table, written
from pipeline.files import plain_target
from pipeline.sweeps.folder import sweep_folder
from pipeline.sweeps.recorded import RecordedSweep
from pipeline.sweeps.report.export import as_csv, export_rows
from pipeline.sweeps.report.measures import measured_of
from pipeline.sweeps.report.status import about_table, foremost
from pipeline.sweeps.report.tables import trials_table
from pipeline.terminal.console import say, say_styled


def trials_named(output_dir: Path, name: str) -> RecordedSweep | None:
    """The sweep of that name, where there are no runs that are called so.

    Raises:
        StoreError: Its journal cannot be read.
    """
    folder = sweep_folder(output_dir, name)
    if not folder.journal.is_file() or (output_dir / name / "latest").is_dir():
        return None
    return RecordedSweep(folder)


def compare_trials(sweep: RecordedSweep, csv: Path | None, html: Path | None, console: Console) -> None:
    """Print the trials of a sweep side by side, the best first, or write them as CSV or as its page.

    Raises:
        PipelineError: The file cannot be written.
    """
    view, now = sweep.view, time.time()
    trials = list(view.trials.values())
    for option, path in (("--csv", csv), ("--html", html)):
        if path is not None and not (path is csv and is_standard_output(csv)):
            refuse_records(option, path, (), is_page=path is html)
    if html is not None:
        # Not with the other imports: what draws a page takes time to load.
        from pipeline.sweeps.report.page import write_sweep_page

        written(html, lambda: write_sweep_page(plain_target(html), sweep), console)
    if csv is not None:
        rows = export_rows(trials, measured_of(sweep.folder, trials, ""), now, view.hosts)
        write_table(csv, as_csv(rows), console)
    if csv is None and html is None:
        _print(sweep, now, console)


def _print(sweep: RecordedSweep, now: float, console: Console) -> None:
    view = sweep.view
    if not view.trials:
        say(console, f"no trials yet: {sweep.name}")
        return
    table = trials_table(view, foremost(list(view.trials.values()), view.goal), now, sweep.so_far())
    say_styled(console, about_table(sweep, table, console.width))
    console.print(table)
