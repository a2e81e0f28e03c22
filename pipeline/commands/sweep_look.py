"""The commands that look at sweeps: they read what sweeps leave, and change nothing."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from pipeline.commands.looking import log_output, note_of_log
from pipeline.commands.report import is_standard_output, refuse_records, write_table
from pipeline.errors import ConfigError, PipelineError, StoreError
from pipeline.files import json_text, plain_target
from pipeline.runs.loaded import logs_in
from pipeline.runs.report.format import shown_path
from pipeline.runs.report.logs import follow_attempts, print_log
from pipeline.sweeps.report import (
    as_csv,
    best_json,
    best_lines,
    export_rows,
    news,
    print_sweep,
    row_of,
    sweep_json,
    sweeps_table,
    watched_sweep,
)
from pipeline.sweeps.storage import Record, SweepFolder, choose_sweep, sweep_folder, sweeps_in
from pipeline.terminal.console import print_json, say, wait_for, watch

log = logging.getLogger("pipeline")


def status(output_dir: Path, name: str | None, console: Console, *, as_json: bool) -> None:
    """Print all sweeps, or one.

    Raises:
        PipelineError: There is no such sweep, or it cannot be read.
    """
    now = time.time()
    if name is not None:
        sweep = Record(choose_sweep(output_dir, name))
        print_json(sweep_json(sweep, now)) if as_json else print_sweep(sweep, now, console)
        return
    rows = _rows(output_dir)
    if as_json:
        print_json(rows)
    elif not rows:
        say(console, f"there are no sweeps in {output_dir}")
    else:
        console.print(sweeps_table(rows))
        for row in rows:
            if "problem" in row:
                say(console, f"{row['name']}: {row['problem']}", "red")


def _rows(output_dir: Path) -> list[dict[str, Any]]:
    """Sweeps in a row each; one that cannot be read has a row that says so."""
    rows = []
    for name in sweeps_in(output_dir):
        try:
            rows.append(row_of(Record(sweep_folder(output_dir, name)), time.time()))
        except (PipelineError, OSError) as error:
            rows.append({"name": name, "problem": str(error)})
    return rows


def watch_status(output_dir: Path, name: str, console: Console, every_s: float) -> None:
    """Show a sweep until it is over; waits for it to begin.

    Raises:
        PipelineError: It cannot be read.
        KeyboardInterrupt: The user has seen enough.
    """
    known: dict[int, str] = {}

    def missing() -> str:
        try:
            choose_sweep(output_dir, name)
        except ConfigError as error:
            return str(error)
        return ""

    wait_for(console, every_s, missing)
    sweep = Record(choose_sweep(output_dir, name))

    def look() -> bool:
        sweep.refresh()
        return sweep.state() not in ("finished", "cancelled", "stopped")

    def shown(width: int, height: int) -> list[RenderableType]:
        return watched_sweep(sweep, time.time(), width, height)

    watch(console, every_s, look, shown, lambda: news(sweep, known))
    if not console.is_interactive:
        print_sweep(sweep, time.time(), console)


def best(output_dir: Path, name: str, console: Console, *, as_json: bool) -> None:
    """Print the best trial.

    Raises:
        PipelineError: There is no such sweep, or no such trial.
    """
    sweep = Record(choose_sweep(output_dir, name))
    if as_json:
        print_json(best_json(sweep, time.time()))
        return
    for line, copy in best_lines(sweep):
        say(console, line, copy=copy)


def export(output_dir: Path, name: str, to: Path | None, console: Console, *, as_json: bool) -> None:
    """Write all trials as a table for other programs: CSV, or JSON where the user or the file's name says so.

    Raises:
        PipelineError: There is no such sweep, or the file cannot be written.
    """
    sweep = Record(choose_sweep(output_dir, name))
    to = None if is_standard_output(to) else to
    if to is not None:
        refuse_records("--to", to, ())
        if to.suffix.lower() not in ((".json",) if as_json else (".csv", ".json")):
            raise ConfigError(f"--to {to}: the name of the file says what it holds: *.csv, or *.json")
        as_json = to.suffix.lower() == ".json"
    rows = export_rows(sweep, time.time())
    if to is not None:
        write_table(to, json_text(rows, indent=1) + "\n" if as_json else as_csv(rows), console)
    else:
        print_json(rows) if as_json else sys.stdout.write(as_csv(rows))


def report(output_dir: Path, name: str, out: Path | None, console: Console) -> None:
    """Write the page of a sweep anew, and say where it is.

    Raises:
        PipelineError: There is no such sweep, or the page cannot be written.
    """
    sweep = Record(choose_sweep(output_dir, name))
    if out is not None:
        refuse_records("--out", out, (), is_page=True)
    path = out or sweep.folder.report
    try:
        _write_page(path if out is None else plain_target(out), sweep)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}. Give another file as --out.") from error
    say(console, "report:", copy=shown_path(path.absolute()))


def _write_page(path: Path, sweep: Record) -> None:
    # Not with the other imports: what draws a page takes time to load, which the other commands need not wait for.
    from pipeline.sweeps.report import write_sweep_page

    write_sweep_page(path, sweep)


def conclude(folder: SweepFolder, console: Console) -> None:
    """Show where a sweep stands that this process has worked on, and leave its page; that changes nothing of it.

    Raises:
        StoreError: Its record cannot be read.
    """
    sweep = Record(folder)
    print_sweep(sweep, time.time(), console)
    try:
        _write_page(folder.report, sweep)
    except Exception as error:  # whatever is wrong with a page, the trials are there
        log.info("no report was written", exc_info=True)
        say(console, f"warning: no report was written ({error}). `sweep report {sweep.name}` tries again.", "bold")
        return
    say(console, "report:", copy=shown_path(folder.report.absolute()))


def logs(
    output_dir: Path,
    name: str,
    number: int | None,
    *,
    attempt: int | None,
    lines: int | None,
    follow: bool,
    raw: bool,
) -> None:
    """Print what a trial printed, until there is no more or nobody reads it any more.

    Raises:
        PipelineError: There is no such sweep, trial or attempt.
        KeyboardInterrupt: The user has seen enough.
    """
    sweep = Record(choose_sweep(output_dir, name))
    if number is None:
        begun = [trial for trial in sweep.trials.values() if trial.started is not None]
        newest = max(begun, key=lambda trial: (trial.state == "running", trial.started or 0.0), default=None)
        if newest is None:
            raise ConfigError(f"no trial of sweep {name} has begun yet.")
        number = newest.number
        note_of_log(f"trial {number}, {newest.state}; `sweep logs {name} TRIAL` shows another")
    if number not in sweep.trials:
        raise ConfigError(f"sweep {name} has no trial {number}. There are: 0 to {max(sweep.trials, default=-1)}.")
    folder = sweep.folder.trial(number).path

    def look() -> tuple[str, Mapping[int, Path]]:
        sweep.refresh()
        trial = sweep.trials[number]
        over = trial.state in ("done", "stopped", "cancelled", "failed")
        idle = "" if sweep.agents() else f"no agent of sweep {name} is at work"
        why = f": {trial.reason}" if trial.reason else ""
        return (f"trial {number}: {trial.state}{why}" if over else idle), logs_in(folder)

    with log_output(raw=raw) as out:
        if follow:
            named = f"trial {number}"
            follow_attempts(named, look, out, note_of_log, attempt=attempt, lines=lines, sleep=out.pause)
            return
        found = logs_in(folder)
        chosen = max(found, default=1) if attempt is None else attempt
        if chosen not in found:
            there = ", ".join(map(str, found)) or "none"
            raise ConfigError(f"trial {number} of {name} has no log of attempt {chosen}; there are: {there}.")
        print_log(found[chosen], out, lines)
