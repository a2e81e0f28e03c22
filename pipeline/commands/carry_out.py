"""Carrying a request out: what is missing is run, and what came of it is written and printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import yaml
from rich.console import Console

from pipeline.commands.disk_room import keeper_of, tell_removed
from pipeline.commands.dry_run import draw_plan
from pipeline.commands.multirun import group_of_run
from pipeline.commands.report import leave_report
from pipeline.commands.request import Request, Stored
from pipeline.commands.results import RoundReports, leave_results, lost_output, unreadable_output
from pipeline.commands.results_shown import print_results
from pipeline.commands.run_messages import (
    SOME_FAILED,
    announce,
    complain,
    conclude,
    log,
    logged_to,
    tell_arithmetic,
    tell_lost_files,
    tell_notes,
    tell_prepared,
)
from pipeline.commands.sharing import note_traffic, uploaded_before_end
from pipeline.commands.start import settle
from pipeline.commands.track import tracked
from pipeline.commands.trial import TrialRounds
from pipeline.config.plain import to_plain
from pipeline.config.schema import StageChoice
from pipeline.engine.events import Event, Listener
from pipeline.engine.journal import Journal
from pipeline.engine.keeper import Keeper
from pipeline.engine.run_folder import PLAN_SVG, RunFolder, create_run_folder
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.scheduler.state import THERE, JobStatus
from pipeline.engine.store.measured import read_durations, update_durations, update_peaks
from pipeline.engine.store.verified import Verified
from pipeline.errors import StoreError, WorkerError
from pipeline.files import write_whole
from pipeline.learning.algos.registry import with_bounded_kl
from pipeline.plan.graph import WORKER_LOAD_S, Job, duration_name
from pipeline.plan.recorded import plan_text
from pipeline.plan.summary import WORKER_LOAD
from pipeline.runs.index import runs_of
from pipeline.runs.origin import Origin, link_all, link_stored, this_origin, write_origin
from pipeline.runs.progress import LiveRun, ProgressFile
from pipeline.runs.record import METRICS_STAGE
from pipeline.runs.report.screen import GpuLog, shown_on
from pipeline.terminal.console import say
from pipeline.terminal.streams import never_waiting


def carry_out(request: Request, stored: Stored, verified: Verified, console: Console) -> int:
    """Run what is missing, then write and print the results.

    A signal ends jobs that run. What is written before and after is finished in any case; what comes after that no
    longer changes how the only run of a command ended. No terminal holds any of it.
    """
    with StopSignals() as signals, never_waiting():
        code = _carry_out(request, stored, verified, console, signals)
        if not request.label:
            settle(code)
        return code


def _carry_out(
    request: Request, stored: Stored, verified: Verified, console: Console, signals: StopSignals
) -> int:
    config = request.config
    run = create_run_folder(Path(config.output_dir).absolute(), config.experiment.name)
    if request.on_begin is not None:
        request.on_begin(run.path)
    with logged_to(run.log):
        try:
            _begin(request, stored, run, console)
            rounds, keeper = TrialRounds(request, run.path), keeper_of(request, stored.not_here, verified.folder)
            keeper.remove_unneeded()  # what an earlier run of the same has left may be room that this one needs
            with tracked(run, config.tracking, console, signals) as hear:
                outcome = _run_missing(request, stored, verified, run, console, signals, hear, rounds, keeper)
                rounds.conclude()
                keeper.remove_unneeded()
                if outcome is not None:
                    _link_stored(request, run, _found_stored(stored.not_here, outcome))
                noted = note_traffic(request, run)
                code = _end(request, outcome, verified, run, console)
                if uploaded_before_end(request, run, noted, signals, console):
                    keeper.remove_unneeded()  # what was not to be removed before it was uploaded
                tell_removed(keeper, console)
                return code
        except (WorkerError, StoreError) as error:
            complain(console, str(error))
        except OSError as error:
            # A full disk or a folder that was taken away: what is committed stands.
            lost = error.filename or run.path
            complain(console, f"{error.strerror}: {lost}. Mend that, then run the same command.")
        except Exception:
            log.exception("this is a fault of the program, not of the request; please report it")
            raise
    return SOME_FAILED


def _begin(request: Request, stored: Stored, run: RunFolder, console: Console) -> None:
    """Write down what is asked for and what is there, and say it."""
    there = set(request.plan.jobs) - set(stored.not_here)
    write_whole(run.config, yaml.safe_dump(to_plain(request.config), sort_keys=False))
    write_whole(run.plan, plan_text(request.plan, stored=there, keep=request.config.execution.keep))
    draw_plan(request, stored, run.path / PLAN_SVG)
    write_origin(run.path, _origin(request))
    for warning in request.warnings:
        log.warning("%s", warning)
    for key, problem in stored.damaged.items():
        aside = request.store.set_aside(key)
        log.warning("stored output %s is damaged (%s): set aside to %s", key, problem, aside)
    _link_stored(request, run, there)
    announce(request, stored, run, console)
    tell_arithmetic(request, stored.missing)


def _origin(request: Request) -> Origin:
    """What was typed, and what else its reader wants to know."""
    return this_origin(
        request.command,
        request.given,
        group=group_of_run(),
        bounded=with_bounded_kl(request.config),
        devices=[device.label for device in request.used_devices],
    )


def _end(request: Request, outcome: Outcome | None, verified: Verified, run: RunFolder, console: Console) -> int:
    """Write and print what came of it; the exit code."""
    lost = _lost_meanwhile(request, outcome, verified)
    unreadable = [lost_output(request.plan.jobs[job_id], problem) for job_id, problem in lost.items()]

    def tell(job: Job, said: str) -> None:
        unreadable.append(unreadable_output(request.store, job, said))

    left = [job for job_id, job in request.plan.jobs.items() if job_id not in lost]
    results, makers = leave_results(request, left, run, tell)
    if request.config.stage is StageChoice.prepare:
        tell_prepared(request, outcome, console)
    else:
        print_results(console, results, run, request.label)
    leave_report(run, console)
    if outcome is not None and console.is_interactive:
        for warning in request.warnings:  # those of the beginning are out of sight behind a live view
            say(console, f"warning: {warning}", "bold")
    tell_notes(request, makers, run, console, has_rows=bool(results.rows))
    for line in unreadable:
        log.error("%s", line)
        say(console, line, "bold red")
    code = conclude(request, outcome, run, console) or (SOME_FAILED if unreadable else 0)
    return tell_lost_files(run, console) or code


def _lost_meanwhile(request: Request, outcome: Outcome | None, verified: Verified) -> dict[str, str]:
    """Jobs that had left results, and whose outputs have gone or changed since: what is wrong with each."""
    measured = [
        job
        for job in request.plan.jobs.values()
        if job.stage == METRICS_STAGE and (outcome is None or outcome.jobs[job.id] in THERE)
    ]
    return {job.id: problem for job in measured if (problem := verified.problem(job.key)) is not None}


def _link_stored(request: Request, run: RunFolder, job_ids: Collection[str]) -> None:
    """Let the run's folder show outputs that it did not make itself."""
    if job_ids:
        earlier = runs_of(run.path.parent.parent, run.experiment)
        jobs = [request.plan.jobs[job_id] for job_id in request.plan.jobs if job_id in job_ids]
        link = link_all if len(jobs) == len(request.plan.jobs) else link_stored
        link(run, request.store, jobs, [old for old in earlier if old.path != run.path])


def _found_stored(missing: Sequence[str], outcome: Outcome) -> set[str]:
    """Jobs that were missing, and that another run has made meanwhile."""
    return {job_id for job_id in missing if outcome.jobs.get(job_id) is JobStatus.stored}


def _run_missing(
    request: Request,
    stored: Stored,
    verified: Verified,
    run: RunFolder,
    console: Console,
    signals: StopSignals,
    hear: Callable[[], None],
    rounds: TrialRounds,
    keeper: Keeper,
) -> Outcome | None:
    if not (missing := stored.missing):
        _record_nothing_to_do(request, run)
        return None
    clock = _steady_clock()
    live, gpus = _live_run(request, stored.not_here), GpuLog()
    with shown_on(console) as redraw, RoundReports(run) as reports, ProgressFile(run) as told:

        def take(event: Event) -> None:
            live.take({**event, "time": clock()})
            keeper.take(event)

        def show() -> None:
            live.tick(clock())
            live.shared_store = request.shared.notice if request.shared else ""
            redraw(live)
            told.update(live.progress, live.now)
            hear()
            gpus.update(live.view, live.view.elapsed_s(live.now))
            reports.update(live.view, live.view.elapsed_s(live.now))
            rounds.update(live.view)

        def stop(text: str) -> None:
            live.stopping = text
            if not console.is_interactive:
                say(console, text, "yellow")
            show()

        outcome = run_jobs(
            request.plan,
            request.store,
            request.used_devices,
            run.path,
            execution=request.execution,
            threads=request.config.system.cpu_threads,
            portable=request.config.system.portable,
            missing=missing,
            verified=verified,
            listener=Listener(on_event=take, on_tick=show, on_stop=stop),
            signals=signals,
            shared=request.shared,
            elsewhere=stored.elsewhere,
        )
    gpus.conclude()
    _note_measured(request, outcome)
    return outcome


def _note_measured(request: Request, outcome: Outcome) -> None:
    """Note beside the store how long jobs took, and how much memory they had, for later plans."""
    update_durations(request.store.root, outcome.durations(request.plan, duration_name))
    update_peaks(request.store.root, outcome.peaks_mb)


def _live_run(request: Request, missing: Sequence[str]) -> LiveRun:
    layout, timed = request.layout, read_durations(request.store.root)
    there = set(request.plan.jobs) - set(missing)
    return LiveRun(
        request.plan,
        there,
        slots=layout.slots,
        workers=layout.workers,
        load_s=timed.seconds.get(WORKER_LOAD, WORKER_LOAD_S),
    )


def _steady_clock() -> Callable[[], float]:
    """Seconds by the clock on the wall, which do not jump where that is put right meanwhile."""
    began_s = time.time() - time.monotonic()
    return lambda: began_s + time.monotonic()


def _record_nothing_to_do(request: Request, run: RunFolder) -> None:
    """Leave a journal of a run in which every output was stored: no worker was started for it."""
    journal = Journal(run.journal)
    try:
        journal.write("RunStarted", jobs=len(request.plan.jobs), unsettled=0)
        journal.write("RunFinished", interrupted=None, stored=len(request.plan.jobs))
    finally:
        journal.close()
