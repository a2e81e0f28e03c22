"""The command that runs an experiment, or prints its plan.

What is missing is run, while the store, devices and notes are held; what came of it is written and printed.
"""

import logging
import os
import secrets
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from rich.console import Console

from pipeline import arithmetic
from pipeline.commands import forecast, multirun, results, sharing, start, steering
from pipeline.commands import request as requests
from pipeline.commands.request import Request, Stored
from pipeline.commands.results import note
from pipeline.config.plain import to_plain
from pipeline.config.schema import Backend, Config, DryRun, StageChoice
from pipeline.engine.devices.select import LeaseSet, devices_of
from pipeline.engine.journal import Event, Journal, Listener
from pipeline.engine.keeper import Keeper, keys_of_weights, tell_needs
from pipeline.engine.run_folder import RunFolder, create_run_folder
from pipeline.engine.run_jobs import read_durations, read_peaks, run_jobs, update_durations, update_peaks
from pipeline.engine.scheduler import reactions, state
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store.gc import remove_dead_claims
from pipeline.engine.store.store import AGAIN, Scratch, Verified, remove_leftovers
from pipeline.errors import ConfigError, PipelineError, StoreError, WorkerError
from pipeline.files import write_whole
from pipeline.learning.algos.registry import with_bounded_kl
from pipeline.learning.datasets.base import load_dataset
from pipeline.plan import graph, models, recorded, rewards
from pipeline.runs import loaded, origin, progress, race
from pipeline.runs.record import METRICS_STAGE
from pipeline.runs.report import screen, tables
from pipeline.runs.report.format import count, logs_command, shown_path, typed_command
from pipeline.terminal.console import say
from pipeline.terminal.streams import never_waiting, printable


def run_experiment(
    config: Config,
    console: Console,
    *,
    label: str = "",
    given: Sequence[str] = (),
    command: Sequence[str] = (),
    on_begin: Callable[[Path], None] | None = None,
    only_evaluates: bool = False,
    chains: Collection[str] | None = None,
    added: Sequence[str] = (),
) -> int:
    """Carry out a request, or print its plan where it says `dry_run`.

    Args:
        config: The request.
        console: Console for results and warnings.
        label: Name of this run among others of the same command; heads its tables.
        given: Settings of the command line; those without effect are warned of.
        command: Words of a command that repeats the run, for its reader.
        on_begin: Told the run's folder once it is there.
        only_evaluates: Whether a request that would train a policy is refused.
        chains: Algorithms for which anything is computed; None for all.
        added: What was added to earlier runs that it goes on from, and to begin it.

    Returns:
        The exit code: 0 every job done, 1 some failed, 3 the budget was spent, 130 or 143 interrupted.

    Raises:
        PipelineError: The request is wrong. Nothing was started.
    """
    request = requests.prepare(config, given)
    request = request if chains is None else requests.with_chains_of(request, chains)
    request = requests.with_command(replace(request, label=label, on_begin=on_begin, added=tuple(added)), command)
    _check_arithmetic(request)
    config, store, peaks = request.config, request.store, read_peaks(request.store.root)
    if request.chosen is not None:
        say(console, request.chosen)
    _warn(request.warnings, console)

    def check(stored: Stored) -> None:
        if only_evaluates:
            requests.refuse_training(request, stored)
        reactions.check_runnable(request.plan, request.layout, set(request.plan.jobs) - set(stored.missing), peaks)

    if config.dry_run:  # which only looks
        there = sharing.shared_keys(config, console)
        stored = requests.look_up(request, lambda key: store.problem(key, checksums=False), there)
        _tried(request, stored, console)
        check(stored)
        if config.dry_run is DryRun.measure and stored.missing:
            unsettled, missing = _unsettled(request, given, there)
            if code := _measured(unsettled, missing, console):
                return code
            planned = requests.prepare(request.asked or config, given).plan
            request = replace(request, plan=planned if chains is None else planned.up_to(request.plan.jobs))
        told = forecast.forecast(request, stored.missing)
        requests.print_plan(request, stored, told.timed, console)
        tell_race(request, console)
        if stored.missing:
            whole = None
            if request.standing is not None:
                unsettled, missing = _unsettled(request, given, there)
                whole = unsettled, forecast.forecast(unsettled, missing)
            forecast.tell_time(request, told, console, whole)
        return 0

    # A run that is refused leaves no folder of a store; where there is one, what it holds is looked at first.
    is_new = config.execution.shared_store is None and not os.path.exists(store.root)  # noqa: PTH110 - Path.exists may raise
    if is_new:
        nothing = Stored(missing=list(request.plan.jobs), damaged={})
        requests.check_room(request, nothing)
        request = _tried(request, nothing, console)
    with (
        store.in_use(Path(config.output_dir)),
        notes_of(request) as verified,
        sharing.in_use(request, verified, console) as request,
    ):
        with suppress(StoreError):  # where nothing can be locked or written, no run removes anything either
            tell_needs(store, verified.folder, keys_of_weights(request.plan.jobs.values()))
        stored = sharing.look_up_shared(request, verified, console)
        if not stored.missing:
            return carry_out(_tried(request, stored, console), stored, verified, console)
        requests.check_room(request, stored)
        request = request if is_new else _tried(request, stored, console)
        check(stored)
        # Those of a cluster are Ray's to give.
        with LeaseSet(request.devices) if requests.on_cluster(config) else leased(config, console) as lease:
            return carry_out(replace(request, devices=lease.devices, lease=lease), stored, verified, console)


def _unsettled(request: Request, given: Sequence[str], there: Collection[str]) -> tuple[Request, list[str]]:
    """Return all that a request carries out, of a race if no other pair settles, and its missing jobs."""
    if request.standing is not None:
        calm = request.standing.unsettled(request.config)
        whole = requests.prepare(calm, given, request.devices)
        request = replace(whole, is_elsewhere=request.is_elsewhere)
    looked_up = requests.look_up(request, lambda key: request.store.problem(key, checksums=False), there)
    return request, looked_up.missing


def _measured(request: Request, missing: list[str], console: Console) -> int:
    """Measure the kinds of missing jobs on the request's devices; the exit code.

    Raises:
        PipelineError: The devices are not here, or others hold them.
    """
    if request.is_elsewhere or requests.on_cluster(request.config):
        raise ConfigError("dry_run=measure runs jobs, so it needs the devices here; dry_run=true does not")
    with (
        leased(request.config, console) as lease,
        TemporaryDirectory(prefix="pipeline-measure-") as folder,
        logged_to(Path(folder) / "run.log"),
        StopSignals() as signals,
    ):
        leased_to = replace(request, devices=lease.devices)
        ended = forecast.measure(leased_to, missing, Path(folder), signals, console)
    return start.INTERRUPTED_BY[ended] if ended else 0


def _check_arithmetic(request: Request) -> None:
    """See that jobs which run in this process find its arithmetic pinned.

    Raises:
        ConfigError: A library that has to know was imported before.
    """
    config = request.config
    if (
        not config.system.portable
        or request.execution.backend is not Backend.inline
        or config.dry_run is DryRun.true
    ):
        return
    if late := arithmetic.imported_unpinned():
        raise ConfigError(
            f"system.portable=true: this process imported {' and '.join(late)} before, for the processor's own "
            "instructions. Call pipeline.pin('numpy', 'torch') first, or set system.portable=false"
        )


@contextmanager
def notes_of(request: Request) -> Iterator[Verified]:
    """Yield a run's notes on which outputs are intact; leftovers of ended runs are removed first."""
    store = request.store
    experiment = request.config.experiment.name.replace("/", "-")
    name = f"{experiment}-verified-{secrets.token_hex(4)}-{os.getpid()}"
    scratch = Scratch(store.scratch(name))
    try:
        # A store that may only be read: then there are no notes, and nothing is removed.
        with suppress(OSError, StoreError):
            scratch.open()
            remove_leftovers(store.root, scratch.path)
            remove_dead_claims(store)
        yield Verified(store, scratch.path)
    finally:
        scratch.close()


def _tried(request: Request, stored: Stored, console: Console) -> Request:
    """Call rewards once, and look at files and for models, before they are needed.

    What an earlier run was told of rows that are stored is told again.

    Raises:
        ConfigError: One cannot work with its dataset, a row lacks what it needs, or a model is not to be had.
    """
    preparing = request.config.stage is StageChoice.prepare  # who prepares asks whether the rest can use the rows
    if not stored.missing and not preparing:
        return request
    # What the machines of a cluster have in their caches is not known here.
    needed = [] if requests.on_cluster(request.config) else request.needed_models(stored.missing)
    fetched = models.fetched_models(request.config, needed)
    warned = origin.warnings_of_rows(request.store, request.plan.jobs.values())
    used = sorted(request.config.datasets) if preparing else request.used_datasets(stored.missing)
    tried = rewards.try_rewards(request.config, used, lambda text: _warn([text], console))
    hints = request.store.hints if os.access(request.store.root, os.W_OK) else None
    asked = [] if request.config.dry_run else rewards.ask_judges(request.config, used, hints)
    warnings = tuple(dict.fromkeys([*fetched, *warned, *tried, *asked]))
    _warn(warnings, console)
    return replace(request, warnings=(*request.warnings, *warnings))


def _warn(warnings: Sequence[str], console: Console) -> None:
    for warning in warnings:
        say(console, f"warning: {warning}", "bold")


def leased(config: Config, console: Console) -> LeaseSet:
    """Take the devices of a run, so that no other run of this user does meanwhile.

    Raises:
        DeviceError: Others hold what it needs.
    """
    workers, threads = config.execution.workers, config.system.cpu_threads
    return devices_of(config.device, workers, config.distributed, threads=threads).lease(
        wait=config.execution.wait_for_devices,
        experiment=config.experiment.name,
        on_wait=lambda text: say(console, text),
    )


# -- run messages ------------------------------------------------------------------------------------------------
# What a run says: when it begins, when it ends and how, on the terminal and in its log; and its exit code.


SOME_FAILED = 1

log = logging.getLogger("pipeline")


def tell_prepared(request: Request, outcome: Outcome | None, console: Console) -> None:
    """Say how the run of a request ended that only prepares datasets."""
    if not request.plan.jobs:
        made = ", ".join(request.config.datasets)
        say(console, f"nothing to prepare: {made} makes its rows on the spot")
    elif outcome is None or not (outcome.failures() or outcome.interrupted or outcome.halted):
        for dataset, prepared in origin.prepared_rows(request.store, request.plan.jobs.values()).items():
            if not prepared.warnings:  # those that are short of rows are told below, as in every run
                say(console, f"{dataset}: {prepared}")
        say(console, "prepared; the same command without stage=prepare goes on from here")


def announce(request: Request, stored: Stored, run: RunFolder, console: Console) -> None:
    """Say what of the plan is stored, what runs, and on which devices."""
    total, missing = len(request.plan.jobs), stored.missing
    name = request.config.experiment.name
    if not missing:
        if total:
            log.info("outputs, weights and samples among them: %s/jobs/*/output", run.path)
            note(console, f"{name}: all {count(total, 'job')} are stored; nothing to run.", "", logging.INFO)
        return
    devices = request.used_devices
    names = ", ".join(device.label for device in devices)
    if (slots := request.layout.slots) > 1:
        names += f", up to {slots} jobs on each"
    there = f"{total - len(missing):,} stored{stored.in_shared}"
    log.info("%s: %d jobs, %s, on %s", name, total, there, names)
    text = f"{name}: {count(total, 'job')}, {there}, {len(missing)} to run on {names}. Log:"
    say(console, text, copy=shown_path(run.log))


def conclude(request: Request, outcome: Outcome | None, run: RunFolder, console: Console) -> int:
    """Say how the run ended, and what to do where not all is well; the exit code."""
    config = request.config
    if outcome is None:
        return 0
    if outcome.makespan is not None:
        note(console, str(outcome.makespan), "", logging.INFO)
    for job_id, reason in outcome.failures():
        say(console, f"failed: {job_id}: {reason}", "red")
    for line in incomplete_chains(request.plan, outcome):
        note(console, line)
    if outcome.is_spent:
        log.warning("%s", outcome.halted)
        again = f"{outcome.halted}. The same command goes on from here, with a new budget:"
        say(console, again, "bold", copy=typed_command(request.command))
        return SOME_FAILED if outcome.failures() else start.BUDGET_SPENT
    if outcome.halted:
        advice = "" if outcome.halted.endswith(AGAIN) else ". Mend that, then run the same command."
        note(console, f"the run was ended early: {outcome.halted}{advice}", "red", logging.ERROR, "error: ")
        return SOME_FAILED
    if outcome.interrupted:
        note(console, f"interrupted by {outcome.interrupted}; the same command goes on from here")
        return start.INTERRUPTED_BY[outcome.interrupted]
    if failures := outcome.failures():
        first = logs_command(Path(config.output_dir), config.experiment.name, failures[0][0])
        say(console, "logs:", copy=f"{shown_path(run.path)}/jobs/")
        say(console, "read the first:", copy=first)
        return SOME_FAILED
    return 0


def incomplete_chains(plan: graph.Plan, outcome: Outcome) -> list[str]:
    """Return one line per chain that lacks results because jobs failed or the budget was spent.

    Each says what is missing, and the root cause.
    """
    missing: dict[str, tuple[set[int], set[str]]] = {}
    for job_id, status in outcome.jobs.items():
        is_failed = status in (state.JobStatus.failed, state.JobStatus.blocked)
        if is_failed or (outcome.is_spent and status not in state.THERE):
            rounds, causes = missing.setdefault(plan.jobs[job_id].chain, (set(), set()))
            rounds.add(plan.jobs[job_id].round)
            causes.add(outcome.root_causes.get(job_id, job_id) if is_failed else "experiment.budget")

    def what(rounds: set[int]) -> str:
        return f"round {min(rounds)}" + (f" to {max(rounds)}" if len(rounds) > 1 else "")

    return [
        f"incomplete: {chain}: {what(rounds)}, because of {', '.join(sorted(causes))}"
        for chain, (rounds, causes) in sorted(missing.items())
    ]


def tell_race(request: Request, console: Console) -> None:
    """Say what the race of a request can settle, if it is one."""
    if request.config.experiment.race is not None:
        from pipeline.runs import racing  # statistics, which take time to load

        for text in racing.expected(request.config.experiment.race, request.config):
            note(console, text, "", logging.INFO)


def tell_notes(
    request: Request, makers: Sequence[origin.Maker], run: RunFolder, console: Console, *, has_rows: bool
) -> None:
    """Say what a reader must know of the trainings and of the datasets."""
    config = request.config
    store, jobs = request.store, request.plan.jobs.values()
    short = origin.short_of_rows(store, jobs, config.evaluation, request.warnings)
    failed = origin.failed_rewards(store, jobs, run)
    stopped = origin.stopped_chains(config.experiment.last_rounds, config.rounds_of_training)
    this = loaded.load(run)
    stopped += origin.added_later(this.origin, this.view.answers)
    of_jobs = origin.collect_notes(store, jobs, config)
    for text in [*origin.several_makers(makers), *stopped, *short, *failed, *of_jobs]:
        note(console, text, mark="note: ")
    if has_rows:
        split = config.evaluation.split
        notes = dict.fromkeys(load_dataset(section).note_of(split) for section in config.datasets.values())
        for text in filter(None, notes):
            note(console, text, "dim", logging.INFO)


class _RunLog(logging.FileHandler):
    """Log that stays silent if it cannot be written: the run itself reports that."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - the name that logging calls
        return

    def close(self) -> None:
        with suppress(OSError):  # what could not be written before cannot be now
            super().close()


class _PrintableFormatter(logging.Formatter):
    """Reasons of failures and names are foreign text, and the log may be read by ``cat``."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Send what the engine and its commands log to the file of a run, and nowhere else, inside the block."""
    handler = _RunLog(path, encoding="utf-8")
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    before = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
        log.setLevel(before[0])
        log.propagate = before[1]


def carry_out(request: Request, stored: Stored, verified: Verified, console: Console) -> int:
    """Run what is missing, then write and print the results.

    A signal ends jobs that run. What is written before and after is finished in any case; what comes after that no
    longer changes how the only run of a command ended. No terminal holds any of it.
    """
    with StopSignals() as signals, never_waiting():
        code = _carry_out(request, stored, verified, console, signals)
        if not request.label:
            start.settle(code)
        return code


def _carry_out(
    request: Request, stored: Stored, verified: Verified, console: Console, signals: StopSignals
) -> int:
    config, begun = request.config, request
    run = create_run_folder(Path(config.output_dir).absolute(), config.experiment.name)
    if request.on_begin is not None:
        request.on_begin(run.path)
    with logged_to(run.log):
        try:
            _begin(request, stored, run, console)
            there = request.plan.jobs.keys() - set(stored.not_here)
            rounds = results.TrialRounds(request, run.path)
            keeper = requests.keeper_of(request, stored.not_here, verified.folder)
            keeper.remove_unneeded()  # what an earlier run of the same has left may be room that this one needs
            with results.tracked(run, config.tracking, console, signals) as hear:
                outcome, request, keeper = _run_missing(
                    request, stored, verified, run, console, signals, hear, rounds, keeper
                )
                rounds.conclude()
                keeper.remove_unneeded()
                if outcome is not None:  # what another run has made meanwhile
                    found = {job for job in request.plan.jobs if outcome.jobs.get(job) is state.JobStatus.stored}
                    _link_stored(request, run, found - there)
                code = _end(request, outcome, verified, run, console)
                if request.command != begun.command:
                    say(console, "the run was changed; its command by now:", copy=shlex.join(request.command))
                if sharing.uploaded_before_end(request, signals, console):
                    keeper.remove_unneeded()  # what was not to be removed before it was uploaded
                requests.tell_removed(keeper, console)
                return code
        except (WorkerError, StoreError) as error:
            note(console, str(error), "red", logging.ERROR, "error: ")
        except OSError as error:
            # A full disk or a folder that was taken away: what is committed stands.
            problem = f"{error.strerror}: {error.filename or run.path}. Mend that, then run the same command."
            note(console, problem, "red", logging.ERROR, "error: ")
        except Exception:
            log.exception("this is a fault of the program, not of the request; please report it")
            raise
    return SOME_FAILED


def _begin(request: Request, stored: Stored, run: RunFolder, console: Console) -> None:
    """Write down what is asked for and what is there, and say it."""
    there = set(request.plan.jobs) - set(stored.not_here)
    write_whole(run.config, yaml.safe_dump(to_plain(request.config), sort_keys=False))
    write_whole(run.plan, recorded.plan_text(request.plan, stored=there, keep=request.config.execution.keep))
    steering.write_standing(run, request)
    made = replace(
        origin.of_this_process(),
        command=list(request.command),
        settings=list(request.given),
        group=multirun.group_of_run(),
        bounded=list(with_bounded_kl(request.config)),
        devices=[device.label for device in request.used_devices],
        added=list(request.added),
    )
    origin.write_origin(run.path, made)
    for warning in request.warnings:
        log.warning("%s", warning)
    for key, problem in stored.damaged.items():
        aside = request.store.set_aside(key)
        log.warning("stored output %s is damaged (%s): set aside to %s", key, problem, aside)
    _link_stored(request, run, there)
    announce(request, stored, run, console)
    if stored.missing:
        tell_race(request, console)
    pinned = arithmetic.PINS if request.config.system.portable else ("numpy",)
    if stored.missing and (passed_over := arithmetic.overridden(*pinned)):
        log.warning("workers do not get %s, which would change results", ", ".join(passed_over))


def _end(request: Request, outcome: Outcome | None, verified: Verified, run: RunFolder, console: Console) -> int:
    """Write and print what came of it; the exit code."""
    jobs, unreadable = request.plan.jobs, list[str]()
    measured = [job for job in jobs.values() if job.stage == METRICS_STAGE]
    done = [job for job in measured if outcome is None or outcome.jobs[job.id] in state.THERE]
    lost = {job.id: fault for job in done if (fault := verified.problem(job.key)) is not None}  # or changed since

    def tell(job: graph.Job, fault: str) -> None:
        what = f"incomplete: {job.chain}: round {job.round}: its stored output cannot be used: {fault}"
        unreadable.append(f"{what}. The same command makes it again; if not, remove {request.store.path(job.key)}")

    for job_id, problem in lost.items():
        tell(jobs[job_id], problem)
    usable = [job for job_id, job in jobs.items() if job_id not in lost]
    of = request
    if outcome is not None and (seen := _at_last_looks(request, verified, run, console)):
        of, usable = seen, list(seen.plan.jobs.values())
    written, makers = results.leave_results(of, usable, run, tell)
    if request.config.stage is StageChoice.prepare:
        tell_prepared(request, outcome, console)
    else:
        tables.print_results(console, written, run, request.label)
    results.leave_report(run, console)
    if outcome is not None and console.is_interactive:
        for warning in request.warnings:  # those of the beginning are out of sight behind a live view
            say(console, f"warning: {warning}", "bold")
    tell_notes(request, makers, run, console, has_rows=bool(written.rows))
    if request.standing is not None:
        for line in race.told(request.standing):
            note(console, line, "", logging.INFO)
    for line in unreadable:
        note(console, line, "bold red", logging.ERROR)
    return conclude(request, outcome, run, console) or (SOME_FAILED if unreadable else 0)


def _at_last_looks(request: Request, verified: Verified, run: RunFolder, console: Console) -> Request | None:
    """Return the request of the last looks of a race that ended before it was over; their metrics are made here.

    Until a round is decided the plan has no metrics of it. None if no race was ended, or it had no look.
    """
    standing = request.standing
    if standing is None or request.asked is None or not standing.pairs or not standing.racing:
        return None
    try:
        made = requests.prepare(standing.ended_here(request.asked), devices=request.devices)
        there = {job.id for job in made.plan.jobs.values() if verified.problem(job.key) is None}
        measured = [
            job.id for job in made.plan.jobs.values() if job.stage == METRICS_STAGE and job.id not in there
        ]
        measured = [job_id for job_id in measured if there.issuperset(made.plan.inputs(job_id))]
        with TemporaryDirectory(prefix="pipeline-race-") as folder:
            how = {**made.how, "missing": measured, "verified": verified}
            ended = run_jobs(made.plan.up_to(measured), made.store, made.used_devices[:1], Path(folder), **how)
    except PipelineError as error:
        note(console, f"the last looks of the race have no table: {error}", mark="warning: ")
        return None
    done = there.union(job_id for job_id in measured if ended.jobs.get(job_id) in state.THERE)
    made = replace(made, plan=made.plan.up_to(done))
    if not any(job.stage == METRICS_STAGE for job in made.plan.jobs.values()):
        return None  # as of a reference that is not evaluated
    _link_stored(made, run, [job_id for job_id in measured if job_id in done])
    looks = standing.last_looks()
    told = [f"{name}, round {len(looks[name])}: {looks[name][-1]:,}" for name in standing.open_from if looks[name]]
    note(console, f"the race is not over; results are of its last whole look, in prompts: {'; '.join(told)}")
    return made


def _link_stored(request: Request, run: RunFolder, job_ids: Collection[str]) -> None:
    """Let the run's folder show outputs that it did not make itself."""
    origin.link_stored(run, request.store, [request.plan.jobs[job_id] for job_id in job_ids])


def _run_missing(
    request: Request,
    stored: Stored,
    verified: Verified,
    run: RunFolder,
    console: Console,
    signals: StopSignals,
    hear: Callable[[], None],
    rounds: results.TrialRounds,
    keeper: Keeper,
) -> tuple[Outcome | None, Request, Keeper]:
    """Run what is missing; return what came of it, and the request and keeper by then: a run can be changed."""
    if not stored.missing:
        with closing(Journal(run.journal)) as journal:  # no worker is started for it
            journal.write("RunStarted", jobs=len(request.plan.jobs), unsettled=0)
            journal.write("RunFinished", interrupted=None, stored=len(request.plan.jobs))
        return None, request, keeper
    timed, told = read_durations(request.store.root, request.gpu), forecast.forecast(request, stored.missing)
    events: list[Event] = []

    def followed(request: Request, stored: Stored) -> progress.LiveRun:
        return progress.LiveRun(
            request.plan,
            request.plan.jobs.keys() - set(stored.not_here),
            slots=request.layout.slots,
            workers=request.layout.workers,
            load_s=timed.seconds.get(graph.WORKER_LOAD, graph.WORKER_LOAD_S),
            timed=timed.jobs,
        )

    live, gpus = followed(request, stored), screen.GpuLog()
    with screen.shown_on(console) as redraw, progress.ProgressFile(run) as progress_file:

        def take(event: Event) -> None:
            event = {**event, "time": time.time()}
            live.take(event)
            keeper.take(event)
            if event["event"] not in ("JobProgress", "Heartbeat"):
                events.append(event)

        def show() -> None:
            live.tick(time.time())
            live.shared_store = request.shared.notice if request.shared else ""
            redraw(live)
            progress_file.update(live.progress, live.now)
            hear()
            gpus.update(live.view, live.view.elapsed_s(live.now))
            rounds.update(live.view)

        def stop(text: str) -> None:
            live.stopping = text
            if not console.is_interactive:
                say(console, text, "yellow")
            show()

        def change(now: Request, stored: Stored) -> None:
            nonlocal live, keeper
            live, keeper = followed(now, stored), requests.keeper_of(now, stored.not_here, verified.folder)
            with suppress(StoreError):
                tell_needs(now.store, verified.folder, keys_of_weights(now.plan.jobs.values()))
            for event in events:
                live.take(event)

        steered = steering.Steered(request, run, verified, change)
        outcome = run_jobs(
            request.plan,
            request.store,
            request.used_devices,
            run.path,
            **request.how,
            missing=stored.missing,
            verified=verified,
            listener=Listener(on_event=take, on_tick=show, on_stop=stop),
            signals=signals,
            shared=request.shared,
            steering=steered,
            budget=request.config.experiment.budget,
        )
    gpus.conclude()
    # Beside the store, for later plans.
    durations = outcome.durations(steered.request.plan, graph.duration_name)
    if request.config.stage is StageChoice.prepare:  # few jobs that import: plans would count that for every job
        durations = replace(durations, seconds={})
    update_durations(request.store.root, durations, request.gpu)
    update_peaks(request.store.root, outcome.peaks_mb)
    if steered.request is request:  # else it was predicted for other jobs
        outcome = forecast.compared(request, told, outcome)
    return outcome, steered.request, keeper
