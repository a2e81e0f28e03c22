"""Where runs stand, what they and their jobs printed, and the table of their results."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from pipeline.engine.run_folder import RunFolder
from pipeline.errors import ConfigError, PipelineError
from pipeline.runs.cost import read_compute
from pipeline.runs.index import choose_run, experiments, find_job, is_sweep, runs_before, runs_of
from pipeline.runs.loaded import LoadedRun, load_planned, logs_of
from pipeline.runs.origin import slurm_in_words
from pipeline.runs.record import Results
from pipeline.runs.report.format import command, shown_path
from pipeline.runs.report.logs import follow_job, follow_run, print_log
from pipeline.runs.report.screen import PlainLines
from pipeline.runs.report.status import Glance, News, glance_at, overview_table, print_run, run_json, watched_run
from pipeline.runs.report.tables import budget_tables, front_tables, result_tables
from pipeline.terminal.console import make_console, print_json, say, wait_for, watch
from pipeline.terminal.streams import LogOutput, NobodyReads

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


# -- logs --------------------------------------------------------------------------------------------------------
# ``logs``: the engine's log of a run, or that of one of its jobs.


def logs(
    output_dir: Path,
    name: str,
    job: str | None,
    stamp: str | None,
    *,
    attempt: int | None,
    lines: int | None,
    follow: bool,
    raw: bool = False,
) -> None:
    """Print the engine's log or a job's, until there is no more or nobody reads it any more.

    Raises:
        PipelineError: There is no such run, job or attempt.
        KeyboardInterrupt: The user has seen enough.
    """
    if job is None:
        run = LoadedRun(choose_run(output_dir, name, stamp), glance=True)
    else:
        from pipeline.runs.trained import run_of_job  # reads methods, which no log of an engine needs

        run = run_of_job(output_dir, name, job, stamp)
    with log_output(raw=raw) as out:
        if job is None:
            _log_of_engine(run, out, lines, follow=follow)
        else:
            _log_of_job(run, find_job(run.plan.jobs, job), out, attempt, lines, follow=follow)


@contextmanager
def log_output(*, raw: bool) -> Iterator[LogOutput]:
    """Where a log is printed to, until nobody reads it any more.

    Args:
        raw: On a terminal too, let it have the control characters in the log.
    """
    console = make_console()
    out = LogOutput(
        raw=raw or not console.is_terminal, colours=console.color_system is not None and not console.no_color
    )
    try:
        yield out
    except NobodyReads:
        pass
    finally:
        out.close()


def _log_of_engine(run: LoadedRun, out: LogOutput, lines: int | None, *, follow: bool) -> None:
    if told := slurm_in_words(run.origin.slurm):
        note_of_log(f"{told}; what it printed is in that job's output")
    if follow:
        follow_run(run, out, note_of_log, lines, sleep=out.pause)
    elif run.folder.log.is_file():
        print_log(run.folder.log, out, lines)
    else:
        raise ConfigError(f"{run.folder.path} has no run.log.")


def _log_of_job(
    run: LoadedRun, job_id: str, out: LogOutput, attempt: int | None, lines: int | None, *, follow: bool
) -> None:
    if follow and run.view.jobs[job_id].status != "stored":
        follow_job(run, job_id, out, note_of_log, attempt=attempt, lines=lines, sleep=out.pause)
        return
    path = _log_of(run, job_id, attempt)
    if path.stat().st_size == 0:
        note_of_log(f"{path} is empty: the job wrote nothing")
    print_log(path, out, lines)


def _log_of(run: LoadedRun, job_id: str, attempt: int | None) -> Path:
    """The log of an attempt or of the last; of a job that was stored, the log of the run that made it."""
    found = logs_of(run.folder, job_id)
    if not found:
        made_by = _maker(run, job_id)
        if made_by is None:
            where = run.view.jobs[job_id].status
            raise ConfigError(f"{job_id} has no log in run {run.stamp} of {run.name}, where it is {where}.")
        note_of_log(f"{job_id} did not run in {run.stamp}; this is its log from {made_by.stamp}")
        found = logs_of(made_by, job_id)
    number = max(found) if attempt is None else attempt
    if number not in found:
        raise ConfigError(f"{job_id} has no log of attempt {number}; there are: {', '.join(map(str, found))}.")
    return found[number]


def _maker(run: LoadedRun, job_id: str) -> RunFolder | None:
    """The last earlier run that has logs of the job and made the output that this run uses."""
    for folder in reversed(runs_before(run.folder)):
        output = folder.job(job_id) / "output"
        if logs_of(folder, job_id) and output.is_symlink() and output.readlink().name == run.plan.jobs[job_id].key:
            return folder
    return None


def note_of_log(text: str) -> None:
    """Tell the user something that is no part of the log."""
    say(make_console(stderr=True), f"==> {text}")


# -- results shown -----------------------------------------------------------------------------------------------
# The results of a run as it prints them when it ends, and `show` does again.


def print_results(console: Console, results: Results, run: RunFolder, label: str = "") -> None:
    """Print the table of results and where the rest of them is; a label goes to the titles."""
    compute = read_compute(run.path)
    tables = result_tables(results, compute.costs, label)
    tables += [*front_tables(results, label), *budget_tables(compute.budgets, results, label)]
    for table in tables:
        console.print()
        console.print(table)
    if not results.rows:
        say(console, "no results yet: no evaluation was finished")
        return
    if left_out := dict.fromkeys(name for table in tables for name in table.left_out(console.width)):
        say(console, f"No room for {', '.join(left_out)}: a wider terminal shows all.", "italic")
    say(console, "results:", copy=f"{shown_path(run.path)}/results.json, samples.jsonl")


def say_where_it_stands(console: Console, run: RunFolder) -> None:
    """Say of a run that is not done, so that its table may lack rows, how it stands and where more is told."""
    with suppress(PipelineError):  # results are all that is left of it
        state = LoadedRun(run, glance=True).state
        if state != "done":
            more = command(f"status {run.experiment}", run.path.parent.parent)
            say(console, f"this run: {state}, so rows may be missing. More of it:", "yellow", copy=more)
