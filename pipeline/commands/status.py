"""``status``: where runs stand, seen from another terminal, once or again and again."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from pipeline.errors import ConfigError, PipelineError
from pipeline.runs.index import choose_run, experiments, is_sweep, runs_of
from pipeline.runs.loaded import LoadedRun, load_planned
from pipeline.runs.report.screen import PlainLines
from pipeline.runs.report.status import Glance, News, glance_at, overview_table, print_run, run_json, watched_run
from pipeline.terminal.console import print_json, say, wait_for, watch

_BEGINS_S = 60.0
"""A run that has been there for longer and has no plan will not get one."""


def status(output_dir: Path, name: str | None, stamp: str | None, console: Console, *, as_json: bool) -> None:
    """Print all experiments, or one run.

    Raises:
        PipelineError: There is no such run, or it cannot be read.
    """
    if name is None:
        _refuse_stamp(stamp)
    now = time.time()
    if name is not None:
        run = load_planned(choose_run(output_dir, name, stamp))
        if as_json:
            print_json(run_json(run, now))
        else:
            print_run(run, now, console)
        return
    rows = [_glance(output_dir, known, now) for known in experiments(output_dir)]
    if as_json:
        print_json([vars(row) for row in rows])
    elif rows:
        console.print(overview_table(rows))
        for row in rows:
            if row.problem:
                say(console, f"{row.name}: {row.problem}", "red")
    else:
        say(console, f"there are no runs in {output_dir}")


def watch_status(output_dir: Path, name: str | None, stamp: str | None, console: Console, every_s: float) -> None:
    """Show all experiments until Ctrl-C, or one run until it is over; waits for the first run of an experiment.

    Raises:
        PipelineError: There is no such run, and its name is of a sweep or others are there; or it cannot be read.
        KeyboardInterrupt: The user has seen enough.
    """
    if name is None:
        _watch_all(output_dir, stamp, console, every_s)
    else:
        if stamp is None and not is_sweep(output_dir, name):
            wait_for(console, every_s, lambda: _missing(output_dir, name))
        _watch_run(load_planned(choose_run(output_dir, name, stamp)), console, every_s)


def _missing(output_dir: Path, name: str) -> str:
    """Why there is no run to be watched yet; one that has begun a moment ago may have no plan."""
    try:
        runs = runs_of(output_dir, name)
    except ConfigError as error:
        return str(error)
    begins = (
        len(runs) == 1 and not runs[0].plan.is_file() and time.time() - runs[0].path.stat().st_mtime < _BEGINS_S
    )
    return f"the run of '{name}' in {output_dir} is about to begin." if begins else ""


def _watch_all(output_dir: Path, stamp: str | None, console: Console, every_s: float) -> None:
    _refuse_stamp(stamp)
    rows: list[Glance] = []
    news = News()

    def look() -> bool:
        now = time.time()
        rows[:] = [_glance(output_dir, known, now) for known in experiments(output_dir)]
        return True

    def page(_width: int, height: int) -> list[RenderableType]:
        newest = sorted(rows, key=lambda row: (row.run, row.name), reverse=True)
        room = height - 3
        more = [Text(f"and {len(newest) - room} more")] if len(newest) > room else []
        return [overview_table(newest[:room]), *more] if rows else [Text(f"there are no runs in {output_dir}")]

    watch(console, every_s, look, page, lambda: news.of(rows))


def _watch_run(run: LoadedRun, console: Console, every_s: float) -> None:
    news = PlainLines(console, every_s=0.0)

    def look() -> bool:
        run.refresh()
        return run.state in ("running", "unknown") or run.is_uploading

    def page(width: int, height: int) -> list[RenderableType]:
        return watched_run(run, time.time(), width, height)

    watch(console, every_s, look, page, lambda: news.new(run.view, run.progress, time.time()))
    if not console.is_interactive:
        print_run(run, time.time(), console)


def _refuse_stamp(stamp: str | None) -> None:
    if stamp is not None:
        raise ConfigError(
            f"--run {shlex.quote(stamp)} is a run of one experiment: say which, as in "
            "`status NAME --run 2026-01-02_10`"
        )


def _glance(output_dir: Path, name: str, now: float) -> Glance:
    """The newest run of an experiment in one row; one that cannot be read has a row that says so."""
    try:
        return glance_at(LoadedRun(choose_run(output_dir, name), glance=True), now)
    except (PipelineError, OSError) as error:
        return Glance(name=name, problem=str(error))
