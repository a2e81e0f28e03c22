"""The commands that look at sweeps: they read what sweeps leave, and change nothing."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from pipeline.errors import PipelineError
from pipeline.runs.report.screen import first
from pipeline.sweeps.folder import sweep_folder
from pipeline.sweeps.recorded import RecordedSweep, choose_sweep, sweeps_in
from pipeline.sweeps.report.status import print_sweep, row_of, sweep_json
from pipeline.sweeps.report.tables import SweepRow, sweeps_table
from pipeline.sweeps.report.watched import News, is_over, watched_sweep
from pipeline.terminal.console import print_json, say
from pipeline.terminal.watch import watch


def status(output_dir: Path, name: str | None, console: Console, *, as_json: bool) -> None:
    """Print all sweeps, or one.

    Raises:
        PipelineError: There is no such sweep, or it cannot be read.
    """
    now = time.time()
    if name is not None:
        sweep = RecordedSweep(choose_sweep(output_dir, name))
        if as_json:
            print_json(sweep_json(sweep, now))
        else:
            print_sweep(sweep, now, console)
        return
    rows = [_row(output_dir, known, now) for known in sweeps_in(output_dir)]
    if as_json:
        print_json([asdict(row) for row in rows])
    elif rows:
        console.print(sweeps_table(rows))
        for row in rows:
            if row.problem:
                say(console, f"{row.name}: {row.problem}", "red")
    else:
        say(console, f"there are no sweeps in {output_dir}")


def _row(output_dir: Path, name: str, now: float) -> SweepRow:
    """A sweep in one row; one that cannot be read has a row that says so."""
    try:
        return row_of(RecordedSweep(sweep_folder(output_dir, name)), now)
    except (PipelineError, OSError) as error:
        return SweepRow(name=name, problem=str(error))


def watch_status(output_dir: Path, name: str | None, console: Console, every_s: float) -> None:
    """Show all sweeps until Ctrl-C, or one until it is over.

    Raises:
        PipelineError: There is no such sweep, or it cannot be read.
        KeyboardInterrupt: The user has seen enough.
    """
    if name is None:
        _watch_all(output_dir, console, every_s)
        return
    sweep, news = RecordedSweep(choose_sweep(output_dir, name)), News()

    def look() -> bool:
        sweep.refresh()
        return not is_over(sweep)

    watch(
        console,
        every_s,
        look,
        lambda _width, height: watched_sweep(sweep, time.time(), height),
        lambda: news.of_trials(sweep.view),
    )
    if not console.is_interactive:
        print_sweep(sweep, time.time(), console)


def _watch_all(output_dir: Path, console: Console, every_s: float) -> None:
    rows: list[SweepRow] = []
    news = News()

    def look() -> bool:
        now = time.time()
        rows[:] = [_row(output_dir, known, now) for known in sweeps_in(output_dir)]
        return True

    def page(_width: int, height: int) -> list[RenderableType]:
        newest = sorted(rows, key=lambda row: (row.started or 0.0, row.name), reverse=True)
        shown, more = first(newest, height - 2, lambda _: 0)
        rest = [Text(f"and {more} more")] if more else []
        return [sweeps_table(shown), *rest] if rows else [Text(f"there are no sweeps in {output_dir}")]

    watch(console, every_s, look, page, lambda: news.of_sweeps(rows))
