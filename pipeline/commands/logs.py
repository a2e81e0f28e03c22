"""``logs``: the engine's log of a run, or that of one of its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.engine.run_folder import RunFolder
from pipeline.errors import ConfigError
from pipeline.runs.index import choose_run, find_job, runs_before
from pipeline.runs.loaded import LoadedRun, logs_of
from pipeline.runs.origin import slurm_in_words
from pipeline.runs.report.logs import follow_job, follow_run, print_log
from pipeline.terminal.console import make_console, say
from pipeline.terminal.streams import LogOutput, NobodyReads


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
