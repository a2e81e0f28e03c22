"""The commands that look at runs from another terminal: status, logs, why. They read what runs leave."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from pipeline.config.checks import check_config
from pipeline.config.load import load_config
from pipeline.config.schema import Config
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError, PipelineError
from pipeline.plan.build import build_plan
from pipeline.plan.models import check_models
from pipeline.plan.size import check_size
from pipeline.runs.index import RecordedRun, choose_run, experiments, find_job, logs_of, runs_of
from pipeline.runs.report.live import PlainLines
from pipeline.runs.report.logs import follow_job, follow_run, print_log
from pipeline.runs.report.status import Glance, glance_at, overview_table, print_run, run_json
from pipeline.runs.report.watched import News, watched_run
from pipeline.runs.report.why import explain_job, explain_request
from pipeline.runs.sources import read_models, read_sources
from pipeline.terminal.console import make_console, print_json, say
from pipeline.terminal.log import LogOutput, NobodyReads
from pipeline.terminal.watch import watch


def status(output_dir: Path, name: str | None, stamp: str | None, console: Console, *, as_json: bool) -> None:
    """Print all experiments, or one run.

    Raises:
        PipelineError: There is no such run, or it cannot be read.
    """
    if name is None:
        _refuse_stamp(stamp)
    now = time.time()
    if name is not None:
        run = RecordedRun(choose_run(output_dir, name, stamp))
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
                console.print(
                    f"{row.name}: {row.problem}", style="red", markup=False, highlight=False, soft_wrap=True
                )
    else:
        say(console, f"there are no runs in {output_dir}")


def watch_status(output_dir: Path, name: str | None, stamp: str | None, console: Console, every_s: float) -> None:
    """Show all experiments until Ctrl-C, or one run until it is over.

    Raises:
        PipelineError: There is no such run, or it cannot be read.
        KeyboardInterrupt: The user has seen enough.
    """
    if name is None:
        _watch_all(output_dir, stamp, console, every_s)
    else:
        _watch_run(RecordedRun(choose_run(output_dir, name, stamp)), console, every_s)


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


def _watch_run(run: RecordedRun, console: Console, every_s: float) -> None:
    live, news = run.followed(), PlainLines(console, every_s=0.0)

    def look() -> bool:
        run.refresh()
        live.tick(time.time() if run.engine_runs() else run.view.last)
        return run.state() in ("running", "unknown")

    def page(_width: int, height: int) -> list[RenderableType]:
        return watched_run(run, live, time.time(), height)

    watch(console, every_s, look, page, lambda: news.new(live))
    if not console.is_interactive:
        print_run(run, time.time(), console)


def _refuse_stamp(stamp: str | None) -> None:
    if stamp is not None:
        raise ConfigError(
            f"--run {stamp} is a run of one experiment: say which, as in `status NAME --run {stamp}`"
        )


def _glance(output_dir: Path, name: str, now: float) -> Glance:
    """The newest run of an experiment in one row; one that cannot be read has a row that says so."""
    try:
        return glance_at(RecordedRun(choose_run(output_dir, name), glance=True), now)
    except (PipelineError, OSError) as error:
        return Glance(name=name, problem=str(error))


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
    run = RecordedRun(choose_run(output_dir, name, stamp), glance=job is None)
    console = make_console()
    out = LogOutput(
        raw=raw or not console.is_terminal, colours=console.color_system is not None and not console.no_color
    )
    try:
        if job is None:
            _log_of_engine(run, out, lines, follow=follow)
        else:
            _log_of_job(run, find_job(run.plan.jobs, job), out, attempt, lines, follow=follow)
    except NobodyReads:
        pass
    finally:
        out.close()


def _log_of_engine(run: RecordedRun, out: LogOutput, lines: int | None, *, follow: bool) -> None:
    if follow:
        follow_run(run, out, _note, lines, sleep=out.pause)
    elif run.folder.log.is_file():
        print_log(run.folder.log, out, lines)
    else:
        raise ConfigError(f"{run.folder.path} has no run.log.")


def _log_of_job(
    run: RecordedRun, job_id: str, out: LogOutput, attempt: int | None, lines: int | None, *, follow: bool
) -> None:
    if follow and run.view.jobs[job_id].status != "stored":
        follow_job(run, job_id, out, _note, attempt=attempt, lines=lines, sleep=out.pause)
        return
    path = _log_of(run, job_id, attempt)
    if path.stat().st_size == 0:
        _note(f"{path} is empty: the job wrote nothing")
    print_log(path, out, lines)


def why(output_dir: Path, name: str, job: str, stamp: str | None, overrides: Sequence[str]) -> list[str]:
    """Explain a job: of a run, or of the request that these overrides would make.

    Args:
        output_dir: Folder of all runs.
        name: The experiment.
        job: Id of the job, or a part of it.
        stamp: The run to compare with; None for the one before (with overrides: the newest).
        overrides: ``key=value`` as on the command line of a run.

    Raises:
        PipelineError: There is no such run or job, or the request is wrong.
    """
    now = time.time()
    if overrides:
        config = _request(name, overrides)
        run, plan = (
            RecordedRun(choose_run(output_dir, name, stamp)),
            build_plan(config, sources=read_sources(config), models=read_models(config)),
        )
        store = Store(Path(config.execution.store).absolute()) if config.execution.store else run.store
        return explain_request(run, plan, find_job(plan.jobs, job), store)
    run = RecordedRun(choose_run(output_dir, name))
    job_id = find_job(run.plan.jobs, job)
    return explain_job(run, job_id, _earlier(output_dir, run, job_id, stamp), now)


def _request(name: str, overrides: Sequence[str]) -> Config:
    wrong = [override for override in overrides if "=" not in override and not override.startswith("~")]
    if wrong:
        raise ConfigError(f"cannot read '{wrong[0]}'. After the job come settings as for a run: KEY=VALUE.")
    config = load_config([f"experiment.name={name}", *overrides])
    check_config(config)
    check_size(config)
    check_models(config)
    return config


def _earlier(output_dir: Path, run: RecordedRun, job_id: str, stamp: str | None) -> RecordedRun | None:
    """The run to compare with: the one that was asked for, or the last before this one that has the job."""
    if stamp is not None:
        chosen = RecordedRun(choose_run(output_dir, run.name, stamp))
        if job_id not in chosen.plan.jobs:
            raise ConfigError(f"run {chosen.stamp} of {run.name} has no job {job_id}.")
        return chosen
    for folder in reversed(_before(run)):
        if not folder.plan.is_file():
            continue
        earlier = RecordedRun(folder)
        if job_id in earlier.plan.jobs:
            return earlier
    return None


def _before(run: RecordedRun) -> list[RunFolder]:
    """Runs of the same experiment that are older, oldest first."""
    folders = runs_of(run.folder.path.parent.parent, run.name)
    names = [folder.stamp for folder in folders]
    return folders[: names.index(run.stamp)] if run.stamp in names else folders


def _log_of(run: RecordedRun, job_id: str, attempt: int | None) -> Path:
    """The log of an attempt or of the last; of a job that was stored, the log of the run that made it."""
    found = run.logs(job_id)
    if not found:
        made_by = _maker(run, job_id)
        if made_by is None:
            where = run.view.jobs[job_id].status
            raise ConfigError(f"{job_id} has no log in run {run.stamp} of {run.name}, where it is {where}.")
        _note(f"{job_id} did not run in {run.stamp}; this is its log from {made_by.stamp}")
        found = logs_of(made_by, job_id)
    number = max(found) if attempt is None else attempt
    if number not in found:
        raise ConfigError(f"{job_id} has no log of attempt {number}; there are: {', '.join(map(str, found))}.")
    return found[number]


def _maker(run: RecordedRun, job_id: str) -> RunFolder | None:
    """The last earlier run that has logs of the job and made the output that this run uses."""
    for folder in reversed(_before(run)):
        output = folder.job(job_id) / "output"
        if logs_of(folder, job_id) and output.is_symlink() and output.readlink().name == run.plan.jobs[job_id].key:
            return folder
    return None


def _note(text: str) -> None:
    say(make_console(stderr=True), f"==> {text}")
