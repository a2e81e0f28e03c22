"""One request from plan to results: what is stored, what must run, where the results go."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from rich.console import Console

from pipeline.config.checks import check_config, check_together
from pipeline.config.ignored import idle_settings
from pipeline.config.load import to_plain
from pipeline.config.schema import AUTO, Backend, Config, ExecutionConfig, StageChoice
from pipeline.datasets.registry import load_dataset
from pipeline.devices.inventory import Device
from pipeline.devices.layout import Layout, make_layout
from pipeline.devices.lease import LeaseSet
from pipeline.devices.leftover import read_levels, wait_until_all_free
from pipeline.devices.select import choose_devices, lease_devices
from pipeline.errors import ConfigError, StoreError, WorkerError
from pipeline.plan.attention import usable_attention
from pipeline.plan.build import build_plan, duration_name
from pipeline.plan.graph import Plan
from pipeline.plan.models import check_models
from pipeline.plan.pending import missing_jobs
from pipeline.plan.recorded import plan_text
from pipeline.plan.size import check_size
from pipeline.plan.source_code import import_warnings
from pipeline.plan.summary import estimated_makespan, summarize
from pipeline.plan.tokenizers import check_chat_templates, check_tokenizers
from pipeline.report.gpus import GpuLog
from pipeline.report.live import make_reporter
from pipeline.report.plan import plan_table
from pipeline.report.tables import result_tables
from pipeline.report.words import duration, jobs
from pipeline.results.compute import collect_compute, read_compute, write_compute
from pipeline.results.durations import read_durations, update_durations
from pipeline.results.journal import Journal
from pipeline.results.paths import RunFolder, create_run_folder, write_whole
from pipeline.results.peaks import read_peaks, update_peaks
from pipeline.results.record import ResultRow, collect_rows, write_results, write_samples
from pipeline.results.sources import check_sources, read_models, read_sources
from pipeline.results.status import RunStatus
from pipeline.results.store import NOT_STORED, Store
from pipeline.results.verified import Verified
from pipeline.scheduler.loop import Outcome, run_plan
from pipeline.scheduler.state import JobStatus, check_runnable
from pipeline.workers.backends import free_timeout_s, make_pool

log = logging.getLogger("pipeline")

SOME_FAILED = 1
INTERRUPTED = {"SIGINT": 130, "SIGTERM": 143, "SIGUSR2": 143}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked request and its plan."""

    config: Config
    plan: Plan
    store: Store
    devices: list[Device]
    warnings: tuple[str, ...] = ()
    """What was changed about the request, for the user to know."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What of a plan is stored."""

    missing: list[str]
    """Ids of the jobs that must run."""
    damaged: dict[str, str]
    """Key -> what is wrong, of stored outputs that cannot be used."""


def run_experiment(config: Config, console: Console, given: Sequence[str] = ()) -> int:
    """Carry out a request, or print its plan where it says `dry_run`.

    Args:
        config: The request.
        console: Where results and warnings go.
        given: Settings of the command line; those without effect are warned of.

    Returns:
        The exit code: 0 every job done, 1 some failed, 130 or 143 interrupted.

    Raises:
        PipelineError: The request is wrong. Nothing was started.
    """
    request = prepare(config, given)
    config, store, peaks = request.config, request.store, read_peaks(request.store.root)
    for warning in request.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if config.dry_run:
        # A dry run only looks, and writes nothing.
        stored = look_up(request, lambda key: store.problem(key, checksums=False))
        check_runnable(request.plan, _layout(request), set(request.plan.jobs) - set(stored.missing), peaks)
        print_plan(request, stored, console)
        return 0
    verified = Verified(store, store.scratch(f"{config.experiment.name}-verified-{os.getpid()}"))
    try:
        with store.in_use(Path(config.output_dir)):
            stored = look_up(request, verified.problem)
            if not stored.missing:
                return carry_out(request, stored, verified, console)
            check_runnable(request.plan, _layout(request), set(request.plan.jobs) - set(stored.missing), peaks)
            with _lease(config, console) as lease:
                return carry_out(replace(request, devices=lease.devices), stored, verified, console)
    finally:
        shutil.rmtree(verified.folder, ignore_errors=True)


def _lease(config: Config, console: Console) -> LeaseSet:
    """Take the devices of a run, so that no other run of this user does meanwhile.

    Raises:
        DeviceError: Others hold what it needs.
    """
    return lease_devices(
        config.device,
        config.execution.workers,
        config.distributed,
        wait=config.execution.wait_for_devices,
        experiment=config.experiment.name,
        on_wait=lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True),
    )


def prepare(config: Config, given: Sequence[str] = ()) -> Request:
    """Check a request and plan it; reads files, writes none.

    Args:
        config: The request.
        given: Settings of the command line, as for `run_experiment`.

    Raises:
        PipelineError: The request is wrong.
    """
    check_config(config)
    check_size(config)
    check_together(lambda: check_sources(config), lambda: _check_models(config))
    devices = choose_devices(config.device, config.execution.workers, config.distributed)
    _check_jobs_per_device(config, devices)
    gpu = any(device.kind == "cuda" for device in devices)
    idle = idle_settings(config, given, gpu=gpu)
    config, warning = usable_attention(config, gpu=gpu)
    store = Store(Path(config.execution.store or Path(config.output_dir) / ".store").absolute())
    sources, models = read_sources(config, store.hints), read_models(config, store.hints)
    plan = build_plan(config, read_durations(store.root), sources, models)
    warnings = (*import_warnings(), *(() if warning is None else (warning,)), *idle)
    return Request(config=config, plan=plan, store=store, devices=devices, warnings=warnings)


def _check_models(config: Config) -> None:
    check_models(config)
    check_tokenizers(config)
    check_chat_templates(config)


def _check_jobs_per_device(config: Config, devices: Sequence[Device]) -> None:
    asked = config.execution.jobs_per_device
    if isinstance(asked, int) and asked > 1 and all(device.kind == "cpu" for device in devices):
        raise ConfigError(
            f"execution.jobs_per_device={asked} is for GPUs, and this run has CPU slots, which take one job each. "
            f"Ask for more slots with execution.workers, or use execution.jobs_per_device={AUTO}, which is 1 there"
        )


def _layout(request: Request) -> Layout:
    return make_layout(request.devices, _execution(request.config))


def look_up(request: Request, problem_of: Callable[[str], str | None]) -> Stored:
    """See what of a plan must run.

    Args:
        request: The request.
        problem_of: Says of a key what is wrong with its output, or None if it can be used.
    """
    damaged: dict[str, str] = {}

    def is_stored(key: str) -> bool:
        problem = problem_of(key)
        if problem is not None and problem != NOT_STORED:
            damaged[key] = problem
        return problem is None

    return Stored(missing=missing_jobs(request.plan, is_stored), damaged=damaged)


def print_plan(request: Request, stored: Stored, console: Console) -> None:
    """Print the plan per round, with what is stored and what the rest would take."""
    plan, missing = request.plan, stored.missing
    console.print(plan_table(summarize(plan, missing)))
    workers = _layout(request).workers
    total = len(plan.jobs)
    estimate = estimated_makespan(plan, missing, workers)
    console.print(
        f"{jobs(total)}: {total - len(missing)} stored, {len(missing)} to run on "
        f"{workers} {'worker' if workers == 1 else 'workers'}"
        + (f", about {duration(estimate)}" if missing else "")
        + ". Nothing was started.",
        highlight=False,
    )


def carry_out(request: Request, stored: Stored, verified: Verified, console: Console) -> int:
    """Run what is missing, then write and print the results."""
    config, plan, store = request.config, request.plan, request.store
    run = create_run_folder(Path(config.output_dir).absolute(), config.experiment.name)
    handler = _log_to(run.log)
    try:
        write_whole(run.config, yaml.safe_dump(to_plain(config), sort_keys=False))
        write_whole(run.plan, plan_text(plan, stored=set(plan.jobs) - set(stored.missing)))
        for warning in request.warnings:
            log.warning("%s", warning)
        for key, problem in stored.damaged.items():
            log.warning("stored output %s is damaged (%s): set aside to %s", key, problem, store.set_aside(key))
        _announce(request, stored.missing, run, console)
        outcome = _run_missing(request, stored.missing, verified, run, console)
        rows = collect_rows(store, plan.jobs.values())
        write_results(run, rows)
        write_samples(run, store, plan.jobs.values())
        write_compute(run.path, collect_compute(store, plan.jobs.values()))
        if config.stage is StageChoice.prepare:
            _tell_prepared(request, outcome, console)
        else:
            print_results(console, rows, run, config.evaluation.confidence)
        for note in _notes(config) if rows else []:
            console.print(note, style="dim", markup=False, highlight=False)
        return _conclude(request, outcome, run, console)
    except (WorkerError, StoreError) as error:
        _complain(console, str(error))
        return SOME_FAILED
    except OSError as error:
        # A full disk or a folder that was taken away: what is committed stands.
        _complain(
            console, f"{error.strerror}: {error.filename or run.path}. Mend that, then run the same command."
        )
        return SOME_FAILED
    finally:
        log.removeHandler(handler)
        handler.close()


def _tell_prepared(request: Request, outcome: Outcome | None, console: Console) -> None:
    if not request.plan.jobs:
        made = ", ".join(request.config.datasets)
        console.print(f"nothing to prepare: {made} makes its rows on the spot", highlight=False)
    elif outcome is None or not (outcome.failures() or outcome.interrupted or outcome.halted):
        console.print("prepared; the same command without stage=prepare goes on from here", highlight=False)


def _run_missing(
    request: Request, missing: Sequence[str], verified: Verified, run: RunFolder, console: Console
) -> Outcome | None:
    if not missing:
        _record_nothing_to_do(request, run)
        return None
    gpus = GpuLog()
    with make_reporter(console) as reporter:

        def show(status: RunStatus) -> None:
            reporter.update(status)
            gpus.update(status)

        outcome = run_jobs(
            request.plan,
            request.store,
            _used_devices(request),
            run.path,
            execution=_execution(request.config),
            threads=request.config.system.cpu_threads,
            missing=missing,
            verified=verified,
            on_status=show,
        )
    gpus.conclude()
    update_durations(request.store.root, outcome.seconds_per_unit(request.plan, duration_name))
    update_peaks(request.store.root, outcome.peaks_mb)
    return outcome


def _record_nothing_to_do(request: Request, run: RunFolder) -> None:
    """Leave a journal of a run in which every output was stored: no worker was started for it."""
    journal = Journal(run.journal)
    try:
        journal.write("RunStarted", jobs=len(request.plan.jobs), unsettled=0)
        journal.write("RunFinished", interrupted=None, stored=len(request.plan.jobs))
    finally:
        journal.close()


def run_jobs(
    plan: Plan,
    store: Store,
    devices: Sequence[Device],
    run_dir: Path,
    *,
    execution: ExecutionConfig | None = None,
    threads: int = 1,
    missing: Sequence[str] | None = None,
    verified: Verified | None = None,
    on_status: Callable[[RunStatus], None] | None = None,
) -> Outcome:
    """Run jobs of a plan on the given devices; the journal and the jobs' logs go to `run_dir`."""
    execution = execution or ExecutionConfig()
    layout = make_layout(devices, execution)
    # A worker that is this very process still holds its memory when the run is over.
    levels = {} if execution.backend is Backend.inline else read_levels(devices)
    pool = make_pool(
        execution, devices, threads=threads, log_dir=run_dir / "workers", layout=layout, levels=levels
    )
    journal = Journal(run_dir / "journal.jsonl")
    wanted = set(plan.jobs if missing is None else missing)
    try:
        return run_plan(
            plan,
            stored=set(plan.jobs) - wanted,
            store=store,
            pool=pool,
            journal=journal,
            run_dir=run_dir,
            settings=execution,
            verified=verified,
            layout=layout,
            peaks=read_peaks(store.root),
            on_status=on_status or (lambda _: None),
        )
    finally:
        journal.close()
        # The devices go to others once this run gives up its lease.
        for words in wait_until_all_free(devices, levels, free_timeout_s(execution)):
            log.warning("%s", words)


def print_results(console: Console, rows: Sequence[ResultRow], run: RunFolder, confidence: float = 0.95) -> None:
    """Print the table of results and where the rest of them is."""
    for table in result_tables(rows, confidence, read_compute(run.path)):
        console.print()
        console.print(table)
    if not rows:
        console.print("no results yet: no evaluation was finished", highlight=False)
        return
    console.print(f"results: {_short(run.path)}/results.json, samples.jsonl", highlight=False, soft_wrap=True)


def _announce(request: Request, missing: Sequence[str], run: RunFolder, console: Console) -> None:
    total = len(request.plan.jobs)
    name = request.config.experiment.name
    if not missing:
        if total:
            console.print(f"{name}: all {jobs(total)} are stored; nothing to run.", highlight=False)
        return
    devices = _used_devices(request)
    names = ", ".join(device.label for device in devices)
    if (slots := _layout(request).slots) > 1:
        names += f", up to {slots} jobs on each"
    log.info("%s: %d jobs, %d stored, on %s", name, total, total - len(missing), names)
    console.print(
        f"{name}: {jobs(total)}, {total - len(missing)} stored, {len(missing)} to run on {names}. "
        f"Log: {_short(run.log)}",
        highlight=False,
        soft_wrap=True,
    )


def _conclude(request: Request, outcome: Outcome | None, run: RunFolder, console: Console) -> int:
    if outcome is None:
        return 0
    if outcome.makespan is not None:
        log.info("%s", outcome.makespan)
        console.print(str(outcome.makespan), highlight=False, soft_wrap=True)
    for job_id, reason in outcome.failures():
        console.print(f"failed: {job_id}: {reason}", style="red", markup=False, highlight=False, soft_wrap=True)
    for line in incomplete_chains(request.plan, outcome):
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if outcome.halted:
        _complain(console, f"the run was ended early: {outcome.halted}. Mend that, then run the same command.")
        return SOME_FAILED
    if outcome.interrupted:
        console.print(f"interrupted by {outcome.interrupted}; the same command goes on from here", style="yellow")
        return INTERRUPTED[outcome.interrupted]
    if outcome.failures():
        console.print(f"logs: {_short(run.path)}/jobs/", highlight=False, soft_wrap=True)
        return SOME_FAILED
    return 0


def incomplete_chains(plan: Plan, outcome: Outcome) -> list[str]:
    """One line for every chain that lacks results because jobs failed: what is missing, and the root cause."""
    missing: dict[str, tuple[set[int], set[str]]] = {}
    for job_id, status in outcome.jobs.items():
        if status in (JobStatus.failed, JobStatus.blocked):
            job = plan.jobs[job_id]
            rounds, causes = missing.setdefault(job.chain, (set(), set()))
            rounds.add(job.round)
            causes.add(outcome.root_causes.get(job_id, job_id))
    lines = []
    for chain, (rounds, causes) in sorted(missing.items()):
        what = f"round {min(rounds)}" + (f" to {max(rounds)}" if len(rounds) > 1 else "")
        lines.append(f"incomplete: {chain}: {what}, because of {', '.join(sorted(causes))}")
    return lines


def _complain(console: Console, text: str) -> None:
    log.error("%s", text)
    console.print(f"error: {text}", style="red", markup=False, highlight=False, soft_wrap=True)


def _notes(config: Config) -> list[str]:
    """What a reader must know about a dataset before reading its numbers."""
    notes = (load_dataset(section).note for section in config.datasets.values())
    return [note for note in notes if note]


def _execution(config: Config) -> ExecutionConfig:
    if config.system.use_parallel_execution:
        return config.execution
    return replace(config.execution, backend=Backend.inline)


def _used_devices(request: Request) -> list[Device]:
    inline = _execution(request.config).backend is Backend.inline
    return request.devices[:1] if inline else request.devices


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


class _RunLog(logging.FileHandler):
    """A log that cannot be written must not flood the terminal: what went wrong is told by the run itself."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - the name that logging calls
        return


def _log_to(path: Path) -> logging.Handler:
    handler = _RunLog(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    return handler
