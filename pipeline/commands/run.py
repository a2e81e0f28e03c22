"""One request from plan to results: what is stored, what must run, where the results go."""

from __future__ import annotations

import logging
import os
import platform
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from rich.console import Console

from pipeline import arithmetic
from pipeline.commands.start import settle
from pipeline.config.candidates import candidates_note
from pipeline.config.checks import check_config, check_together
from pipeline.config.ignored import idle_settings
from pipeline.config.load import to_plain
from pipeline.config.schema import (
    AUTO,
    Backend,
    Config,
    EvaluationConfig,
    ExecutionConfig,
    HFModelConfig,
    StageChoice,
)
from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.layout import Layout, make_layout
from pipeline.engine.devices.lease import LeaseSet
from pipeline.engine.devices.memory_reclaim import read_levels, wait_until_all_free
from pipeline.engine.devices.select import choose_devices, lease_devices
from pipeline.engine.journal import Journal
from pipeline.engine.run_folder import RunFolder, create_run_folder
from pipeline.engine.scheduler.job_state import JobStatus
from pipeline.engine.scheduler.loop import Outcome, run_plan
from pipeline.engine.scheduler.runnable import check_runnable
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.status import RunStatus
from pipeline.engine.store.durations import read_durations, update_durations
from pipeline.engine.store.peaks import read_peaks, update_peaks
from pipeline.engine.store.scratch import Scratch, sweep
from pipeline.engine.store.store import NOT_STORED, Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.backends import free_timeout_s, make_pool
from pipeline.errors import ConfigError, StoreError, WorkerError
from pipeline.files import write_whole
from pipeline.learning.algos.prepare import PREPARE
from pipeline.learning.algos.registry import with_bounded_kl
from pipeline.learning.datasets.registry import load_dataset
from pipeline.outputs.formats import PAGE
from pipeline.outputs.prompts import PromptMeasures
from pipeline.plan.attention import usable_attention
from pipeline.plan.build import build_plan, duration_name
from pipeline.plan.chains import PREPARATION, REFERENCE
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job
from pipeline.plan.models import check_models, count_weights, is_local
from pipeline.plan.pairs import check_pairs
from pipeline.plan.pending import missing_jobs
from pipeline.plan.precision import slow_precision
from pipeline.plan.recorded import plan_text
from pipeline.plan.rewards import try_rewards
from pipeline.plan.size import check_size, extent_of
from pipeline.plan.source_code import import_warnings
from pipeline.plan.summary import WORKER_LOAD, estimated_load, estimated_makespan, summarize
from pipeline.plan.tokenizers import check_chat_templates, check_tokenizers
from pipeline.runs.cost import Compute, collect_compute, read_compute, write_compute
from pipeline.runs.index import runs_of
from pipeline.runs.links import link_all, link_stored
from pipeline.runs.makers import collect_makers, several_makers
from pipeline.runs.notes import collect_notes
from pipeline.runs.record import Place, ResultRow, Results, write_results
from pipeline.runs.report.format import duration, jobs, logs_command
from pipeline.runs.report.fronts import budget_tables, front_tables
from pipeline.runs.report.gpus import GpuLog
from pipeline.runs.report.live import make_reporter
from pipeline.runs.report.plan import plan_table
from pipeline.runs.report.tables import result_tables
from pipeline.runs.rows import collect_rows, prompt_reader, write_samples
from pipeline.runs.sources import check_sources, read_models, read_sources
from pipeline.terminal.console import say
from pipeline.terminal.streams import never_waiting
from pipeline.terminal.text import printable

LARGE = 20_000
"""Jobs of a plan that takes seconds to make, which a user is told."""
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
    label: str = ""
    """What tells this run from others of the same command; heads its tables."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What of a plan is stored."""

    missing: list[str]
    """Ids of the jobs that must run."""
    damaged: dict[str, str]
    """Key -> what is wrong, of stored outputs that cannot be used."""


def run_experiment(config: Config, console: Console, *, label: str = "", given: Sequence[str] = ()) -> int:
    """Carry out a request, or print its plan where it says `dry_run`.

    Args:
        config: The request.
        console: Where results and warnings go.
        label: What tells this run from others of the same command; heads its tables.
        given: Settings of the command line; those without effect are warned of.

    Returns:
        The exit code: 0 every job done, 1 some failed, 130 or 143 interrupted.

    Raises:
        PipelineError: The request is wrong. Nothing was started.
    """
    request = replace(prepare(config, given, lambda text: say(console, text)), label=label)
    _check_arithmetic(request.config)
    config, store, peaks = request.config, request.store, read_peaks(request.store.root)
    _warn(request.warnings, console)
    if config.dry_run:
        # A dry run only looks, and writes nothing.
        stored = look_up(request, lambda key: store.problem(key, checksums=False))
        _rewards_tried(request, stored, console)
        check_runnable(request.plan, _layout(request), set(request.plan.jobs) - set(stored.missing), peaks)
        print_plan(request, stored, console)
        return 0
    with store.in_use(Path(config.output_dir)), _notes_of(request) as verified:
        stored = look_up(request, verified.problem)
        if not stored.missing:
            return carry_out(request, stored, verified, console)
        request = _rewards_tried(request, stored, console)
        check_runnable(request.plan, _layout(request), set(request.plan.jobs) - set(stored.missing), peaks)
        with _lease(config, console) as lease:
            return carry_out(replace(request, devices=lease.devices), stored, verified, console)


def _check_arithmetic(config: Config) -> None:
    """See that jobs which run in this process find its arithmetic pinned.

    Raises:
        ConfigError: A library that has to know was imported before.
    """
    if not config.system.portable or _execution(config).backend is not Backend.inline or config.dry_run:
        return
    if late := arithmetic.imported_unpinned():
        raise ConfigError(
            f"system.portable=true with system.use_parallel_execution=false: this process imported "
            f"{' and '.join(late)} before, for the processor's own instructions. Start it by run_parallel.py, "
            f"call pipeline.arithmetic.pin('numpy', 'torch') first, or set system.portable=false"
        )


@contextmanager
def _notes_of(request: Request) -> Iterator[Verified]:
    """Where a run notes which outputs it found good; first what runs that are gone have left there is removed."""
    store = request.store
    experiment = request.config.experiment.name.replace("/", "-")
    name = f"{experiment}-verified-{secrets.token_hex(4)}-{os.getpid()}"
    scratch = Scratch(store.scratch(name))
    try:
        with suppress(OSError):  # a store that may only be read: then there are no notes, and nothing is removed
            scratch.open()
            sweep(store.root, scratch.path)
        yield Verified(store, scratch.path)
    finally:
        scratch.close()


def _rewards_tried(request: Request, stored: Stored, console: Console) -> Request:
    """Call rewards once before they are needed for the first time.

    Raises:
        ConfigError: One cannot work with its dataset.
    """
    if not stored.missing:
        return request
    warnings = try_rewards(request.config)
    _warn(warnings, console)
    return replace(request, warnings=(*request.warnings, *warnings))


def _warn(warnings: Sequence[str], console: Console) -> None:
    for warning in warnings:
        say(console, f"warning: {warning}", "bold")


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
        on_wait=lambda text: say(console, text),
    )


def prepare(config: Config, given: Sequence[str] = (), on_large: Callable[[str], None] | None = None) -> Request:
    """Check a request and plan it; reads files, writes none.

    Args:
        config: The request.
        given: Settings of the command line, as for `run_experiment`.
        on_large: Told that the plan is large, before that is made.

    Raises:
        PipelineError: The request is wrong.
    """
    check_config(config)
    check_size(config)
    if (number := extent_of(config).jobs) >= LARGE and on_large:
        on_large(f"planning some {number:,} jobs")
    check_together(lambda: check_sources(config), lambda: check_models(config))
    # What joins datasets and models makes sense only of those that are there.
    check_tokenizers(config)
    check_pairs(config)
    check_chat_templates(config)
    devices = choose_devices(config.device, config.execution.workers, config.distributed)
    _check_jobs_per_device(config, devices)
    gpu = any(device.kind == "cuda" for device in devices)
    idle = idle_settings(config, given, gpu=gpu)
    config, warning = usable_attention(config, gpu=gpu)
    store = Store(Path(config.execution.store or Path(config.output_dir) / ".store").absolute())
    sources, models = read_sources(config, store.hints), read_models(config, store.hints)
    weights = {name: count_weights(model) for name, model in config.models.items()}
    plan = build_plan(config, read_durations(store.root), sources, models, weights=weights, gpu=gpu)
    said = [one for one in (warning, slow_precision(config, gpu)) if one is not None]
    warnings = (*import_warnings(), *said, *idle)
    return Request(config=config, plan=plan, store=store, devices=devices, warnings=warnings)


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
    timed = read_durations(request.store.root)
    estimate = duration(estimated_makespan(plan, missing, workers) + estimated_load(plan, missing, workers, timed))
    if WORKER_LOAD not in timed or any(duration_name(plan.jobs[job_id]) not in timed for job_id in missing):
        estimate += " (a rough guess, until the first run)"
    say(
        console,
        f"{jobs(total)}: {total - len(missing)} stored, {len(missing)} to run on "
        f"{workers} {'worker' if workers == 1 else 'workers'}"
        + (f", about {estimate}" if missing else "")
        + ". Nothing was started.",
    )
    if unseen := _not_looked_at(request, missing):
        say(console, f"Not looked at before the run: {', '.join(unseen)}.")


def _not_looked_at(request: Request, missing: Collection[str]) -> list[str]:
    """What may still turn out to be wrong or not to be had, since only a job reads it."""
    config, jobs_left = request.config, [request.plan.jobs[job_id] for job_id in missing]
    rows = {job.dataset for job in jobs_left if job.algo == PREPARATION and job.stage == PREPARE.name}
    hub = {
        f"{model.path} on the hub"
        for name, model in config.models.items()
        if isinstance(model, HFModelConfig) and model.path and not is_local(model.path)
        if any(job.model == name and job.algo == REFERENCE for job in jobs_left)
    }
    return [*(f"the rows of {name}" for name in sorted(rows)), *sorted(hub)]


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
        _link_stored(request, run, set(plan.jobs) - set(stored.missing))
        _announce(request, stored.missing, run, console)
        _tell_arithmetic(request, stored.missing)
        outcome = _run_missing(request, stored.missing, verified, run, console, signals)
        if outcome is not None:
            _link_stored(request, run, _found_stored(stored.missing, outcome))
        unreadable: list[str] = []

        def tell(job: Job, said: str) -> None:
            unreadable.append(unreadable_output(store, job, said))

        rows = collect_rows(store, plan.jobs.values(), tell)
        results = summed_up(
            rows,
            prompt_reader(store, plan.jobs.values(), tell),
            config.rounds_of_training,
            config.evaluation,
        )
        asked = config.evaluation
        bounded = with_bounded_kl(config)
        results = replace(results, common_eta=asked.common_eta, split=asked.split, bounded=bounded)
        write_results(run, results)
        write_samples(run, store, plan.jobs.values(), tell)
        makers = collect_makers(store, plan.jobs.values())
        write_compute(run.path, _compute(store, plan, results, config.evaluation.budgets), makers)
        if config.stage is StageChoice.prepare:
            _tell_prepared(request, outcome, console)
        else:
            print_results(console, results, run, request.label)
        for note in [*several_makers(makers), *collect_notes(store, plan.jobs.values())]:
            log.warning("%s", note)
            say(console, f"note: {note}", "bold")
        for note in _notes(config) if rows else []:
            log.info("%s", note)
            say(console, note, "dim")
        for line in unreadable:
            log.error("%s", line)
            say(console, line, "bold red")
        code = _conclude(request, outcome, run, console) or (SOME_FAILED if unreadable else 0)
        return _tell_lost_files(run, console) or code
    except (WorkerError, StoreError) as error:
        _complain(console, str(error))
        return SOME_FAILED
    except OSError as error:
        # A full disk or a folder that was taken away: what is committed stands.
        _complain(
            console, f"{error.strerror}: {error.filename or run.path}. Mend that, then run the same command."
        )
        return SOME_FAILED
    except Exception:
        log.exception("this is a fault of the program, not of the request; please report it")
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


def _tell_lost_files(run: RunFolder, console: Console) -> int:
    """Warn of files of the run that somebody has removed meanwhile; the exit code if results are among them."""
    files = (run.config, run.plan, run.journal, run.log, run.results_json)
    lost = [path.name for path in files if not os.path.lexists(path)]
    if lost:
        text = f"warning: somebody has removed {', '.join(lost)} of this run while it was going on, from"
        say(console, text, "bold", copy=_short(run.path))
    return SOME_FAILED if run.results_json.name in lost else 0


def _link_stored(request: Request, run: RunFolder, job_ids: Collection[str]) -> None:
    """Let the run's folder show outputs that it did not make itself."""
    if job_ids:
        earlier = runs_of(run.path.parent.parent, run.path.parent.name)
        jobs = [request.plan.jobs[job_id] for job_id in request.plan.jobs if job_id in job_ids]
        link = link_all if len(jobs) == len(request.plan.jobs) else link_stored
        link(run, request.store, jobs, [old for old in earlier if old.path != run.path])


def _found_stored(missing: Sequence[str], outcome: Outcome) -> set[str]:
    """Jobs that were missing, and that another run has made meanwhile."""
    return {job_id for job_id in missing if outcome.jobs.get(job_id) is JobStatus.stored}


def unreadable_output(store: Store, job: Job, said: str) -> str:
    """One line for results that are stored, but not as they must be: what is wrong, and what to do."""
    return (
        f"incomplete: {job.chain}: round {job.round}: {said}. Mend the stage that wrote it ({PAGE}), remove "
        f"{store.path(job.key)}, then run the same command."
    )


def _tell_prepared(request: Request, outcome: Outcome | None, console: Console) -> None:
    if not request.plan.jobs:
        made = ", ".join(request.config.datasets)
        say(console, f"nothing to prepare: {made} makes its rows on the spot")
    elif outcome is None or not (outcome.failures() or outcome.interrupted or outcome.halted):
        say(console, "prepared; the same command without stage=prepare goes on from here")


def _run_missing(
    request: Request,
    missing: Sequence[str],
    verified: Verified,
    run: RunFolder,
    console: Console,
    signals: StopSignals,
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
            portable=request.config.system.portable,
            missing=missing,
            verified=verified,
            on_status=show,
            on_stop=lambda text: say(console, text, "yellow"),
            signals=signals,
        )
    gpus.conclude()
    measured = outcome.seconds_per_unit(request.plan, duration_name) | outcome.load_seconds(request.plan)
    update_durations(request.store.root, measured)
    update_peaks(request.store.root, outcome.peaks_mb)
    return outcome


def _tell_arithmetic(request: Request, missing: Sequence[str]) -> None:
    """Log what of the environment a portable run passes over, and where it cannot be portable."""
    if not missing or not request.config.system.portable:
        return
    if passed_over := arithmetic.overridden():
        log.warning("system.portable=true passes over %s, set outside", ", ".join(passed_over))
    if any(device.kind != "cpu" for device in request.devices):
        log.info("system.portable=true has no effect on GPUs: results are those of their kind")
    elif not arithmetic.covers(platform.machine()):
        log.warning("system.portable=true has no effect on %s: it is for x86-64 processors", platform.machine())


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
    portable: bool = False,
    missing: Sequence[str] | None = None,
    verified: Verified | None = None,
    on_status: Callable[[RunStatus], None] | None = None,
    on_stop: Callable[[str], None] | None = None,
    signals: StopSignals | None = None,
) -> Outcome:
    """Run jobs of a plan on the given devices; the journal and the jobs' logs go to `run_dir`."""
    execution = execution or ExecutionConfig()
    layout = make_layout(devices, execution)
    # A worker that is this very process still holds its memory when the run is over.
    levels = {} if execution.backend is Backend.inline else read_levels(devices)
    pool = make_pool(
        execution,
        devices,
        threads=threads,
        log_dir=run_dir / "workers",
        portable=portable,
        layout=layout,
        levels=levels,
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
            on_stop=on_stop or (lambda _: None),
            signals=signals,
        )
    finally:
        journal.close()
        # The devices go to others once this run gives up its lease.
        for words in wait_until_all_free(devices, levels, free_timeout_s(execution)):
            log.warning("%s", words)


def summed_up(
    rows: list[ResultRow],
    read: Callable[[Place], PromptMeasures | None],
    last_round: int,
    settings: EvaluationConfig,
) -> Results:
    """The results of a run: the rows of its chains, and what they say of methods; see `pooling` and `fronts`."""
    # Not with the other imports: scipy takes time to load, which commands that pool nothing need not wait for.
    from pipeline.runs.comparison.fronts import fronts
    from pipeline.runs.comparison.pooling import pooled

    found, comparisons = pooled(rows, read, last_round, settings.confidence)
    points, matched = fronts(found, settings.matched_kl, settings.split)
    return Results(
        rows=rows,
        pooled=found,
        comparisons=comparisons,
        confidence=settings.confidence,
        fronts=points,
        matched=matched,
    )


def _compute(store: Store, plan: Plan, results: Results, budgets: Sequence[float]) -> Compute:
    from pipeline.runs.comparison.budgets import at_budgets
    from pipeline.runs.comparison.costs import costs_of

    rows = collect_compute(store, plan.jobs.values())
    costs = costs_of(results.rows, rows)
    return Compute(rows=rows, costs=costs, budgets=at_budgets(results.pooled, costs, budgets))


def print_results(console: Console, results: Results, run: RunFolder, label: str = "") -> None:
    """Print the table of results and where the rest of them is; a label goes to the titles."""
    if results.rows and not results.pooled:
        results = _of_an_earlier_version(results)
    compute = read_compute(run.path)
    tables = result_tables(results, compute.costs, label)
    for table in (*tables, *front_tables(results, label), *budget_tables(compute.budgets, results, label)):
        console.print()
        console.print(table)
    if not results.rows:
        say(console, "no results yet: no evaluation was finished")
        return
    say(console, "results:", copy=f"{_short(run.path)}/results.json, samples.jsonl")


def _of_an_earlier_version(results: Results) -> Results:
    """Results of a version that knew chains alone, with their means over chains.

    Without fronts: it tried strengths of guidance on the prompts that it reported, and they would be told as of
    validation.
    """
    from pipeline.runs.comparison.pooling import pooled

    found, comparisons = pooled(results.rows, lambda _: None, 0, results.confidence)
    return replace(results, pooled=found, comparisons=comparisons)


def _announce(request: Request, missing: Sequence[str], run: RunFolder, console: Console) -> None:
    total = len(request.plan.jobs)
    name = request.config.experiment.name
    if not missing:
        if total:
            log.info("%s: all %d jobs are stored by earlier runs: nothing ran", name, total)
            log.info("outputs, weights and samples among them: %s/jobs/*/output", run.path)
            say(console, f"{name}: all {jobs(total)} are stored; nothing to run.")
        return
    devices = _used_devices(request)
    names = ", ".join(device.label for device in devices)
    if (slots := _layout(request).slots) > 1:
        names += f", up to {slots} jobs on each"
    log.info("%s: %d jobs, %d stored, on %s", name, total, total - len(missing), names)
    say(
        console,
        f"{name}: {jobs(total)}, {total - len(missing)} stored, {len(missing)} to run on {names}. Log:",
        copy=_short(run.log),
    )


def _conclude(request: Request, outcome: Outcome | None, run: RunFolder, console: Console) -> int:
    config = request.config
    if outcome is None:
        return 0
    if outcome.makespan is not None:
        log.info("%s", outcome.makespan)
        say(console, outcome.makespan.in_words())
    for job_id, reason in outcome.failures():
        say(console, f"failed: {job_id}: {reason}", "red")
    for line in incomplete_chains(request.plan, outcome):
        log.warning("%s", line)
        say(console, line, "bold")
    if outcome.halted:
        _complain(console, f"the run was ended early: {outcome.halted}. Mend that, then run the same command.")
        return SOME_FAILED
    if outcome.interrupted:
        log.warning("interrupted by %s; the same command goes on from here", outcome.interrupted)
        say(console, f"interrupted by {outcome.interrupted}; the same command goes on from here", "bold")
        return INTERRUPTED[outcome.interrupted]
    if failures := outcome.failures():
        say(console, "logs:", copy=f"{_short(run.path)}/jobs/")
        say(
            console,
            "read the first:",
            copy=logs_command(Path(config.output_dir), config.experiment.name, failures[0][0]),
        )
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
    say(console, f"error: {text}", "red")


def _notes(config: Config) -> list[str]:
    """What a reader must know about a dataset, and about how policies are sampled, before reading the numbers."""
    notes = [load_dataset(section).note for section in config.datasets.values()]
    return [note for note in (*notes, candidates_note(config)) if note]


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


class _PrintableFormatter(logging.Formatter):
    """Reasons of failures and names are foreign text, and the log may be read by ``cat``."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _log_to(path: Path) -> logging.Handler:
    handler = _RunLog(path, encoding="utf-8")
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    return handler
