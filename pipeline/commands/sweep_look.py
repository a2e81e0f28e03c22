"""The commands that look at sweeps: they read what sweeps leave, and change nothing."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from pipeline.commands.looking import log_output, note_of_log
from pipeline.commands.report import is_standard_output, refuse_records, write_table
from pipeline.errors import ConfigError, PipelineError, StoreError
from pipeline.files import json_text, plain_target
from pipeline.runs.loaded import logs_in
from pipeline.runs.report.format import shown_path
from pipeline.runs.report.logs import follow_attempts, print_log
from pipeline.runs.report.screen import first
from pipeline.sweeps.folder import SweepFolder, sweep_folder
from pipeline.sweeps.recorded import RecordedSweep, choose_sweep, sweeps_in
from pipeline.sweeps.report.best import best_json, best_lines
from pipeline.sweeps.report.export import as_csv, export_rows
from pipeline.sweeps.report.measures import measured_of
from pipeline.sweeps.report.status import print_sweep, row_of, sweep_json
from pipeline.sweeps.report.tables import SweepRow, sweeps_table
from pipeline.sweeps.report.watched import News, is_over, watched_sweep
from pipeline.sweeps.trials import TrialState
from pipeline.terminal.console import print_json, say, wait_for, watch

log = logging.getLogger("pipeline")


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
    """Show all sweeps until Ctrl-C, or one until it is over; waits for it to begin.

    Raises:
        PipelineError: It cannot be read.
        KeyboardInterrupt: The user has seen enough.
    """
    if name is None:
        _watch_all(output_dir, console, every_s)
        return

    def missing() -> str:
        try:
            choose_sweep(output_dir, name)
        except ConfigError as error:
            return str(error)
        return ""

    wait_for(console, every_s, missing)
    sweep, news = RecordedSweep(choose_sweep(output_dir, name)), News()

    def look() -> bool:
        sweep.refresh()
        return not is_over(sweep)

    watch(
        console,
        every_s,
        look,
        lambda width, height: watched_sweep(sweep, time.time(), width, height),
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


# -- what came out ---------------------------------------------------------------------------------------------


def best(output_dir: Path, name: str, console: Console, *, as_json: bool) -> None:
    """Print the best trial.

    Raises:
        PipelineError: There is no such sweep, or no such trial.
    """
    sweep = RecordedSweep(choose_sweep(output_dir, name))
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
    sweep = RecordedSweep(choose_sweep(output_dir, name))
    if is_standard_output(to):
        to = None
    if to is not None:
        refuse_records("--to", to, ())
        as_json = _is_json(to, as_json=as_json)
    trials = [trial for _, trial in sorted(sweep.view.trials.items())]
    rows = export_rows(trials, measured_of(sweep.folder, trials, ""), time.time(), sweep.view.hosts)
    if to is None:
        print_json(rows) if as_json else sys.stdout.write(as_csv(rows))
        return
    text = json_text(rows, indent=1) + "\n" if as_json else as_csv(rows)
    write_table(to, text, console)


def _is_json(to: Path, *, as_json: bool) -> bool:
    """Whether a file is to hold JSON, as its name says.

    Raises:
        ConfigError: It says neither that nor CSV, or another thing than the option does.
    """
    allowed = (".json",) if as_json else (".csv", ".json")
    if to.suffix.lower() not in allowed:
        asked = " with --json" if as_json else ""
        raise ConfigError(f"--to {to}: the name of the file says what it holds{asked}: *{' or *'.join(allowed)}")
    return to.suffix.lower() == ".json"


def report(output_dir: Path, name: str, out: Path | None, console: Console) -> None:
    """Write the page of a sweep anew, and say where it is.

    Raises:
        PipelineError: There is no such sweep, or the page cannot be written.
    """
    sweep = RecordedSweep(choose_sweep(output_dir, name))
    if out is not None:
        refuse_records("--out", out, (), is_page=True)
    path = out or sweep.folder.report
    try:
        _write_page(path if out is None else plain_target(out), sweep)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}. Give another file as --out.") from error
    say(console, "report:", copy=shown_path(path.absolute()))


def _write_page(path: Path, sweep: RecordedSweep) -> None:
    # Not with the other imports: what draws a page takes time to load, which the other commands need not wait for.
    from pipeline.sweeps.report.page import write_sweep_page

    write_sweep_page(path, sweep)


def conclude(folder: SweepFolder, console: Console) -> None:
    """Show where a sweep stands that this process has worked on, and leave its page; that changes nothing of it.

    Raises:
        StoreError: Its journal cannot be read.
    """
    sweep = RecordedSweep(folder)
    print_sweep(sweep, time.time(), console)
    try:
        _write_page(folder.report, sweep)
    except Exception as error:  # whatever is wrong with a page, the trials are there
        if not isinstance(error, OSError):  # which is no fault of the program
            log.warning("no report was written", exc_info=True)
        again = f"`python -m pipeline sweep report {sweep.name}` tries again"
        say(console, f"warning: no report was written ({error}). {again}.", "bold")
        return
    say(console, "report:", copy=shown_path(folder.report.absolute()))


# -- logs ------------------------------------------------------------------------------------------------------


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
    sweep = RecordedSweep(choose_sweep(output_dir, name))
    trial = _chosen(sweep, number)
    folder = sweep.folder.trial(trial).path

    def look() -> tuple[str, Mapping[int, Path]]:
        sweep.refresh()
        return _over(sweep, trial), logs_in(folder)

    with log_output(raw=raw) as out:
        if follow:
            follow_attempts(
                f"trial {trial}", look, out, note_of_log, attempt=attempt, lines=lines, sleep=out.pause
            )
            return
        found = logs_in(folder)
        chosen = max(found, default=0) if attempt is None else attempt
        if chosen not in found:
            begun = sweep.view.trials[trial].started is not None
            none = "its logs were removed" if begun else "it has not begun yet"
            there = f"there are: {', '.join(map(str, found))}" if found else none
            raise ConfigError(f"trial {trial} of {sweep.name} has no log of attempt {chosen or 1}; {there}.")
        print_log(found[chosen], out, lines)


def _chosen(sweep: RecordedSweep, number: int | None) -> int:
    """The trial that is meant: of that number; if left out the one that began last, first of those that run."""
    trials = sweep.view.trials
    if number is not None:
        if number not in trials:
            known = f"0 to {max(trials)}" if trials else "none yet"
            raise ConfigError(f"sweep {sweep.name} has no trial {number}. There are: {known}.")
        return number
    begun = [trial for trial in trials.values() if trial.started is not None]
    if not begun:
        raise ConfigError(f"no trial of sweep {sweep.name} has begun yet.")
    newest = max(begun, key=lambda trial: (trial.state is TrialState.running, trial.started or 0.0))
    note_of_log(f"trial {newest.number}, {newest.state.value}; `sweep logs {sweep.name} TRIAL` shows another")
    return newest.number


def _over(sweep: RecordedSweep, number: int) -> str:
    """Why there is nothing more to come from a trial, or ""."""
    trial = sweep.view.trials[number]
    if trial.state in (TrialState.done, TrialState.stopped, TrialState.cancelled, TrialState.failed):
        return f"trial {number}: {trial.state.value}" + (f": {trial.reason}" if trial.reason else "")
    return "" if sweep.living_agents() else f"no agent of sweep {sweep.name} is at work"
