"""Show the state of runs and jobs and why, what they printed, and the table of their results."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from pipeline.commands import typed
from pipeline.engine.run_folder import RunFolder
from pipeline.errors import ConfigError, PipelineError
from pipeline.runs import loaded, origin, race, record
from pipeline.runs.loaded import LoadedRun, choose_run, find_job, load_planned, logs_of, runs_before, runs_of
from pipeline.runs.report import screen, tables
from pipeline.runs.report import status as standing
from pipeline.runs.report.format import command
from pipeline.runs.report.logs import follow_job, follow_run, print_log
from pipeline.terminal.console import make_console, print_json, say, watch
from pipeline.terminal.streams import LogOutput, NobodyReads

app = typer.Typer()


@app.command(
    epilog=typed.examples(
        "pipeline show first_run",
        "pipeline show first_run --run 2026-11-27_09",
        "pipeline show first_run --output-dir /data/outputs",
    )
)
def show(name: typed.Experiment, run: typed.Stamp = None, output_dir: typed.OutputDir = typed.OUTPUTS) -> None:
    """Print results that are on disk; of a run that is not done, so that rows may be missing, how it stands."""
    folder, console = choose_run(output_dir, name, run), make_console()
    if run is None and not _has_rows(folder):
        others = (other for other in reversed(runs_of(output_dir, name)) if _has_rows(other))
        if older := next(others, None):
            say(console, f"run {folder.stamp} has no results yet; these are of run {older.stamp}", "yellow")
            folder = older
    if not folder.results_json.is_file():
        raise PipelineError(f"{folder.path} has no results yet")
    tables.print_results(console, record.read_results(folder.results_json), folder)
    if known := race.read_standing(folder):
        for line in race.told(known):
            say(console, line)
    with suppress(PipelineError):  # results are all that is left of it
        state = LoadedRun(folder).state
        if state != "done":
            more = command(f"status {name}", output_dir)
            say(console, f"this run: {state}, so rows may be missing. More of it:", "yellow", copy=more)


def _has_rows(folder: RunFolder) -> bool:
    return folder.results_json.is_file() and bool(record.read_results(folder.results_json).rows)


@app.command(
    epilog=typed.examples(
        "pipeline status", "pipeline status first_run --watch", "pipeline status first_run --json"
    )
)
def status(
    name: Annotated[
        str | None, typer.Argument(help="The experiment; all if left out.", autocompletion=typed.experiments)
    ] = None,
    run: typed.Stamp = None,
    as_json: typed.AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show one run again and again, until it is over.")
    ] = False,
    every: typed.Every = 2.0,
    output_dir: typed.OutputDir = typed.OUTPUTS,
) -> None:
    """Print all experiments, or one run; once, or again and again."""
    typed.refuse_both({"--watch": watch, "--json": as_json})
    console = make_console()
    if name is not None:
        chosen = load_planned(choose_run(output_dir, name, run))
        if watch:
            watch_run(chosen, console, every)
        elif as_json:
            print_json(standing.run_json(chosen, time.time()))
        else:
            standing.print_run(chosen, time.time(), console)
        return
    if run is not None:
        raise ConfigError(f"--run {run} is a run of one experiment: say which, as `status NAME --run`")
    if watch:
        raise ConfigError("--watch shows one experiment: say which, as `status NAME --watch`")
    rows = _glances(output_dir)
    if as_json:
        print_json(rows)
    elif rows:
        console.print(standing.overview_table(rows))
        for row in rows:
            if row["problem"]:
                say(console, f"{row['name']}: {row['problem']}", "red")
    else:
        say(console, f"there are no runs in {output_dir}")


def watch_run(run: LoadedRun, console: Console, every_s: float) -> None:
    """Show one run until it is over."""
    news = screen.PlainLines(console, every_s=0.0)

    def look() -> bool:
        run.refresh()
        return run.state in ("running", "unknown")

    def page(width: int, height: int) -> list[RenderableType]:
        return standing.watched_run(run, time.time(), width, height)

    watch(console, every_s, look, page, lambda: news.new(run.view, run.progress, time.time()))
    if not console.is_interactive:
        standing.print_run(run, time.time(), console)


def _glances(output_dir: Path) -> list[dict[str, Any]]:
    """Return one row for the newest run of each experiment; the row of an unreadable run says so."""

    def glance(name: str) -> dict[str, Any]:
        try:
            return standing.glance_at(LoadedRun(choose_run(output_dir, name)), now)
        except (PipelineError, OSError) as error:
            return {"name": name, "state": "unreadable", "problem": str(error)}

    now = time.time()
    return [glance(name) for name in loaded.experiments(output_dir)]


# -- logs --------------------------------------------------------------------------------------------------------
# ``logs``: the engine's log of a run, or that of one of its jobs.


@app.command(
    epilog=typed.examples(
        "pipeline logs first_run -f",
        "pipeline logs first_run PITA/r1/train",
        "pipeline logs first_run 'PITA/r1/gen*/003' --attempt 1",
    )
)
def logs(
    name: typed.Experiment,
    job: Annotated[str | None, typer.Argument(help="A job, see `why`; the engine's own log if left out.")] = None,
    run: typed.Stamp = None,
    attempt: typed.Attempt = None,
    lines: typed.LastLines = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job or run is over.")] = False,
    output_dir: typed.OutputDir = typed.OUTPUTS,
) -> None:
    """Print the engine's log or a job's, until there is no more or nobody reads it any more."""
    if job is None:
        chosen = LoadedRun(choose_run(output_dir, name, run))
    else:
        chosen = load_planned(choose_run(output_dir, name, run))
    with log_output() as out:
        if job is None:
            _log_of_engine(chosen, out, lines, follow=follow)
        else:
            _log_of_job(chosen, find_job(chosen.plan.jobs, job), out, attempt, lines, follow=follow)


@contextmanager
def log_output() -> Iterator[LogOutput]:
    """Return where to print a log, until nobody reads it any more."""
    out = LogOutput(raw=not make_console().is_terminal)
    try:
        yield out
    except NobodyReads:
        pass
    finally:
        out.close()


def _log_of_engine(run: LoadedRun, out: LogOutput, lines: int | None, *, follow: bool) -> None:
    if slurm_job := origin.slurm_in_words(run.origin.slurm):
        note_of_log(f"{slurm_job}; what it printed is in that job's output")
    if follow:
        follow_run(run, out, note_of_log, lines, out.pause)
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
    """Return the log of an attempt or of the last one; for a stored job, the log of the run that made it."""
    attempts = logs_of(run.folder, job_id)
    if not attempts:
        made_by = _maker(run, job_id)
        if made_by is None:
            where = run.view.jobs[job_id].status
            raise ConfigError(f"{job_id} has no log in run {run.stamp} of {run.name}, where it is {where}.")
        note_of_log(f"{job_id} did not run in {run.stamp}; this is its log from {made_by.stamp}")
        attempts = logs_of(made_by, job_id)
    number = max(attempts) if attempt is None else attempt
    if number not in attempts:
        raise ConfigError(f"{job_id} has no log of attempt {number}; there are: {', '.join(map(str, attempts))}.")
    return attempts[number]


def _maker(run: LoadedRun, job_id: str) -> RunFolder | None:
    """Return the last earlier run that has logs of the job and made the output that this run uses."""
    for folder in reversed(runs_before(run.folder)):
        output = folder.job(job_id) / "output"
        if logs_of(folder, job_id) and output.is_symlink() and output.readlink().name == run.plan.jobs[job_id].key:
            return folder
    return None


def note_of_log(text: str) -> None:
    """Tell the user something that is no part of the log."""
    say(make_console(stderr=True), f"==> {text}")


# -- why ---------------------------------------------------------------------------------------------------------
# Where a job stands, and why it ran again.


@app.command(epilog=typed.examples("pipeline why first_run PITA/r2/metrics"))
def why(
    name: typed.Experiment,
    job: Annotated[
        str, typer.Argument(help="Id of a job, a part of it that no other has, or a pattern with '*'.")
    ],
    output_dir: typed.OutputDir = typed.OUTPUTS,
) -> None:
    """Explain where a job of the newest run stands, and why it ran."""
    run = load_planned(choose_run(output_dir, name))
    job_id = find_job(run.plan.jobs, job)
    earlier = (load_planned(folder) for folder in reversed(runs_before(run.folder)) if folder.plan.is_file())
    before = next((other for other in earlier if job_id in other.plan.jobs), None)
    for line in standing.explain_job(run, job_id, before, time.time()):
        say(make_console(), line)
