"""Make a request of a configuration: check it, plan it, and find the stored part of its plan.

Reads files and asks for devices; writes nothing that stays, and starts nothing.
"""

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rich.console import Console
from rich.filesize import decimal

from pipeline.config.checks import check_config, check_together, idle_settings
from pipeline.config.schema import Backend, Config, DeviceChoice, DryRun, ExecutionConfig, Keep, TextBackend
from pipeline.config.tables import point_of, rows_of
from pipeline.engine.devices import inventory, select
from pipeline.engine.keeper import Keeper
from pipeline.engine.run_jobs import read_durations
from pipeline.engine.store.shared import SharedStore, check_address
from pipeline.engine.store.store import NOT_STORED, Store
from pipeline.errors import ConfigError, DeviceError, StoreError, has_package, install_command
from pipeline.foreign import ForeignDataError
from pipeline.learning.algos.registry import CHECK, PREPARE
from pipeline.machine import memory
from pipeline.outputs.formats import read_metrics
from pipeline.outputs.manifest import REMOVED
from pipeline.plan import build, compatibility, contents, estimates, graph, rewards
from pipeline.plan.models import (
    all_models,
    check_models,
    check_sources,
    count_weights,
    known_rows,
    read_models,
    read_sources,
    teachers,
)
from pipeline.runs.race import Standing, with_saved
from pipeline.runs.record import METRICS_STAGE, PRIMARY_METRICS
from pipeline.runs.report.format import count
from pipeline.runs.report.tables import plan_table
from pipeline.terminal.console import say


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked request and its plan."""

    config: Config
    plan: graph.Plan
    store: Store
    devices: list[inventory.Device]
    warnings: tuple[str, ...] = ()
    """Changes to the request, for the user to know."""
    label: str = ""
    """Name of this run among others of the same command; heads its tables."""
    given: tuple[str, ...] = ()
    """Settings of the command line."""
    command: tuple[str, ...] = ()
    """Words of a command that repeats it; none where there is no such command."""
    added: tuple[str, ...] = ()
    """What was added to earlier runs that it goes on from, and to begin it."""
    on_begin: Callable[[Path], None] | None = None
    """Called with the run's folder once it is there."""
    rows: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Dataset -> rows of each split, as far as they are known."""
    lease: select.LeaseSet | None = None
    """Its right to its GPUs, while it runs."""
    shared: SharedStore | None = None
    """The store that other machines share, while it is in use."""
    is_elsewhere: bool = False
    """Whether the devices are planned for and not of this machine; only in a dry run."""
    standing: Standing | None = None
    """What its race has decided so far, if it is one."""
    asked: Config | None = None
    """The configuration without what the race has decided."""
    chosen: str | None = None
    """Which backend `generation.backend=auto` has become, and why."""

    @property
    def execution(self) -> ExecutionConfig:
        """Return the execution settings, with jobs in this very process where the request says so."""
        if self.config.system.use_parallel_execution:
            return self.config.execution
        return replace(self.config.execution, backend=Backend.inline)

    @property
    def how(self) -> dict[str, Any]:
        """How its jobs run: arguments of `run_jobs`."""
        system = self.config.system
        return {"execution": self.execution, "threads": system.cpu_threads, "portable": system.portable}

    @property
    def used_devices(self) -> list[inventory.Device]:
        """The devices that jobs run on: this very process is on the first."""
        return self.devices[:1] if self.execution.backend is Backend.inline else self.devices

    @property
    def gpu(self) -> str:
        """Name of the GPUs that jobs run on, for their recorded times; "" for CPU cores."""
        return _gpu_of(self.devices)

    @property
    def layout(self) -> select.Layout:
        """Return the workers, and which device each is on."""
        return select.make_layout(self.devices, self.execution)

    def used_datasets(self, missing: Collection[str]) -> list[str]:
        """Return the names of the datasets that jobs still use; stored rows may not suit another model."""
        return sorted({rows_of(self.plan.jobs[job_id].dataset) for job_id in missing} - {""})

    def needed_models(self, missing: Collection[str]) -> list[str]:
        """Return the models that the run still uses, checkpoints and teachers too, by the key of their section."""
        jobs = [self.plan.jobs[job_id] for job_id in missing]
        reads = (PREPARE.name, CHECK.name)  # which read rows alone
        used = {f"models.{job.model}" for job in jobs if job.algo != contents.PREPARING or job.stage not in reads}
        named = {*(f"algos.{name}" for name in self.config.evaluation.also), *teachers(self.config)}
        return sorted(used | named & {f"algos.{job.algo}" for job in jobs})


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Stored and missing outputs of a plan."""

    missing: list[str]
    """Ids of the jobs that must run."""
    damaged: dict[str, str]
    """Key -> what is wrong, of stored outputs that cannot be used."""
    elsewhere: list[str] = field(default_factory=list)
    """Ids of the jobs whose outputs are in the shared store alone, and needed here."""

    @property
    def not_here(self) -> list[str]:
        """Ids of the jobs whose outputs are to be made or fetched."""
        return [*self.missing, *self.elsewhere]

    @property
    def in_shared(self) -> str:
        """Return how many outputs are in the shared store alone, to follow the stored number; or ""."""
        return f" ({len(self.elsewhere):,} of them in the shared store, to be fetched)" if self.elsewhere else ""


def prepare(config: Config, given: Sequence[str] = (), devices: list[inventory.Device] | None = None) -> Request:
    """Check a request and plan it; reads files, writes none.

    Args:
        config: The request.
        given: Settings of the command line, as for `run_experiment`.
        devices: The devices, if they are chosen already.

    Raises:
        PipelineError: The request is wrong.
    """
    check_config(config)
    if (shared := config.execution.shared_store) is not None:
        check_address(shared)
    _check_ray(config)
    build.check_size(config)
    store = Store(Path(config.execution.store or Path(config.output_dir) / ".store").absolute())
    _check_places(config, store.root)
    check_together(lambda: check_sources(config), lambda: check_models(config))
    # What joins datasets and models makes sense only of those that are there.
    rewards.check_tokenizers(config)
    rewards.check_pairs(config)
    rewards.check_chat_templates(config)
    devices, is_elsewhere = _devices(config) if devices is None else (devices, False)
    jobs, on_cpu = config.execution.jobs_per_device, all(device.kind == "cpu" for device in devices)
    if isinstance(jobs, int) and jobs > 1 and on_cpu:
        raise ConfigError(f"execution.jobs_per_device={jobs}: CPU slots take one job each. Use execution.workers")
    gpu = any(device.kind == "cuda" for device in devices)
    config, chosen = compatibility.chosen_backend(config, gpu=gpu)
    asked = config  # what is planned again must not choose again
    compatibility.check_compatible(config, gpu=gpu)
    idle = idle_settings(config, given, gpu=gpu)
    config = compatibility.named_by_bits(config)
    config, warning = compatibility.usable_attention(config, gpu=gpu)
    plain = compatibility.plain_attention(config)
    sources, models = read_sources(config, store.hints), read_models(config, store.hints)
    weights = {name.removeprefix("models."): count_weights(model) for name, model in all_models(config).items()}
    count, rows = known_rows(config, store.path), dict[str, Mapping[str, int]]()
    plan_of = partial(
        build.build_plan,
        durations=read_durations(store.root, _gpu_of(devices)),
        sources=sources,
        models=models,
        weights=weights,
        gpu=_gpu_of(devices) or None,
        plain_attention=plain,
        rows=lambda name, key: rows.setdefault(name, count(name, key)),
    )
    plan, standing = plan_of(config), None
    if config.experiment.race is not None:
        from pipeline.runs import racing  # statistics, which take time to load

        everything, standing = plan, racing.stand(config, plan, store, rows)
        config = standing.applied(config)
        plan = plan_of(config, racing=standing.open_from)
        standing = with_saved(standing, everything, plan)
    notes = (
        warning,
        compatibility.said_of_attention(plain),
        compatibility.slow_precision(config, gpu),
        compatibility.nucleus_beside_logprobs(config),
        said_of_best(config),
    )
    return Request(
        config=config,
        plan=plan,
        store=store,
        devices=devices,
        warnings=(*(note for note in notes if note is not None), *idle),
        given=_with_backend(given, config) if chosen else tuple(given),
        rows=rows,
        is_elsewhere=is_elsewhere,
        standing=standing,
        asked=asked,
        chosen=chosen,
    )


def _with_backend(words: Sequence[str], config: Config) -> tuple[str, ...]:
    """Return the words of a command with the backend that was chosen, so that they mean the same elsewhere."""
    key = "generation.backend="
    return (*(word for word in words if not word.startswith(key)), f"{key}{config.generation.backend.name}")


def with_command(request: Request, command: Sequence[str]) -> Request:
    """Return a request with the words of a command that repeats it; none where there is no such command."""
    words = _with_backend(command, request.config) if request.chosen and command else tuple(command)
    return replace(request, command=words)


def with_chains_of(request: Request, algos: Collection[str]) -> Request:
    """Return a request that computes nothing for other algorithms; results that they have in the store stay.

    Args:
        request: The request.
        algos: Names of algorithms; that of a front stands for its points.
    """
    chosen = {*algos, *request.config.evaluation.also, contents.REFERENCE, contents.PREPARING}
    goals = [
        job.id
        for job in request.plan.jobs.values()
        if not chosen.isdisjoint((job.algo, point_of(job.algo)[0]))
        or (job.stage == METRICS_STAGE and request.store.has(job.key, checksums=False))
    ]
    return replace(request, plan=request.plan.up_to(goals))


def planned(config: Config) -> graph.Plan:
    """Plan a request that is not to be carried out, as far as its settings, data and models say.

    Raises:
        PipelineError: The request is wrong.
    """
    check_config(config)
    if config.execution.shared_store is not None:
        check_address(config.execution.shared_store)
    build.check_size(config)
    check_models(config)
    if config.generation.backend is TextBackend.auto:  # where it would run is not known; either has the same jobs
        config = replace(config, generation=replace(config.generation, backend=TextBackend.own))
    config = compatibility.named_by_bits(config)
    sources, models = read_sources(config), read_models(config)
    plain = compatibility.plain_attention(config)
    return build.build_plan(config, sources=sources, models=models, plain_attention=plain)


def on_cluster(config: Config) -> bool:
    """Return whether the devices of a run are those of an existing cluster, not of this machine."""
    return config.system.use_parallel_execution and config.execution.backend is Backend.ray


def _gpu_of(devices: Sequence[inventory.Device]) -> str:
    return next((device.name for device in devices if device.kind == "cuda"), "")


def _devices(config: Config) -> tuple[list[inventory.Device], bool]:
    """Return the devices of a request, and whether a dry run plans for them though they are not here."""
    execution, threads = config.execution, config.system.cpu_threads
    if on_cluster(config):
        from pipeline.engine.workers.on_ray import cluster_devices  # most runs have no use for it

        return cluster_devices(config.device, execution, threads, config.distributed.num_gpus), False
    planned = select.planned_gpus(config.distributed, execution.workers) if config.dry_run else []
    try:
        wanted = select.devices_of(config.device, execution.workers, config.distributed, threads=threads)
        found = wanted.best()
    except DeviceError:
        if not planned:
            raise
        return planned, True
    if planned and config.dry_run is DryRun.true and config.device is DeviceChoice.auto and found[0].kind == "cpu":
        return planned, True  # the profile's GPU is what is asked about; a measurement takes what is here
    return found, False


def _check_ray(config: Config) -> None:
    if config.execution.backend is not Backend.ray:
        return
    if not has_package("ray"):
        raise ConfigError(f"execution.backend=ray needs Ray, which is not installed: {install_command('ray')}")
    check_fits_ray(config)
    from pipeline.engine.workers.on_ray import check_environment  # as above

    check_environment(config.execution.ray)


def check_fits_ray(config: Config) -> None:
    """Refuse settings that no Ray can follow, whether or not one is here.

    Raises:
        ConfigError: There are such.
    """
    if config.execution.backend is not Backend.ray:
        return
    from pipeline.engine.workers.on_ray import check_address  # as above

    check_address(config.execution.ray)
    if (jobs := config.execution.jobs_per_device) != 1:
        raise ConfigError(f"execution.jobs_per_device={jobs}: Ray gives each worker a device of its own. Use 1")
    if on_cluster(config) and config.distributed.ids is not None:
        ids = f"distributed.gpu_ids={config.distributed.ids}"
        raise ConfigError(f"{ids}: Ray chooses the GPUs of a cluster. Say how many with distributed.num_gpus")


def _check_places(config: Config, store: Path) -> None:
    """Refuse folders to write to that cannot be made or entered."""
    for key, given in (("output_dir", config.output_dir), ("execution.store", config.execution.store)):
        if "://" in (given or ""):
            address = "an address that machines share is execution.shared_store"
            raise ConfigError(f"{key}={given}: must be a folder of this machine; {address}")
    outputs = Path(config.output_dir)
    for key, folder in (
        ("output_dir", outputs),
        ("execution.store" if config.execution.store else "output_dir", store),
        ("experiment.name", outputs / config.experiment.name),
    ):
        whole = folder.absolute()
        there = next(above for above in (whole, *whole.parents) if os.path.lexists(above))
        try:
            os.stat(f"{there}/.")  # noqa: PTH116 - as no Path has it: whether it is a folder that may be entered
            if there != whole and key != "experiment.name":
                # By a try: rights do not tell it of what is no disk, such as /proc.
                Path(mkdtemp(prefix=".", dir=there)).rmdir()
        except OSError as error:
            why = f"{there}: {error.strerror}. Set {key} to a place where you may write"
            raise ConfigError(f"{key}: nothing can be written in {folder}: {why}") from error


@memory.no_garbage_collection()
def look_up(request: Request, problem_of: Callable[[str], str | None], shared: Collection[str] = ()) -> Stored:
    """See what of a plan must run.

    Args:
        request: The request.
        problem_of: Says of a key what is wrong with its output, or None if it can be used.
        shared: The keys of what can be fetched where it is not stored here.
    """
    damaged: dict[str, str] = {}
    elsewhere: set[str] = set()

    def is_stored(key: str, good: Collection[str | None]) -> bool:
        problem = problem_of(key)
        if problem not in (None, NOT_STORED, REMOVED):
            damaged[key] = problem
        if problem not in good and key in shared:
            elsewhere.add(key)
            return True
        return problem in good

    whole, enough = partial(is_stored, good=(None,)), partial(is_stored, good=(None, REMOVED))
    missing = graph.missing_jobs(request.plan, whole, enough)
    fetched = [job.id for job in request.plan.jobs.values() if job.key in elsewhere] if elsewhere else []
    return Stored(missing=missing, damaged=damaged, elsewhere=fetched)


def keeper_of(request: Request, missing: Collection[str], scratch: Path) -> Keeper:
    """Return the object that removes weights in a run.

    Args:
        request: The request.
        missing: Ids of the jobs that must run.
        scratch: The run's folder in the store, where it tells what it needs.
    """
    output_dir = Path(request.config.output_dir).absolute()
    shared = request.shared
    return Keeper(
        is_needed=shared.is_uploading if shared else lambda _: False,
        plan=request.plan,
        keep=request.config.execution.keep,
        there=set(request.plan.jobs) - set(missing),
        store=request.store,
        scratch=scratch,
        experiment=output_dir / request.config.experiment.name,
        output_dir=output_dir,
        score_of=lambda job: score_of(request.store, job),
    )


def score_of(store: Store, job: graph.Job) -> float | None:
    """Return the score of a policy by the primary metric, from the output of the job that measures it."""
    try:
        rows = {row.metric: row.value for row in read_metrics(store.path(job.key)).rows}
    except (OSError, ForeignDataError):  # results say so; here it is a round of which nothing is known
        return None
    return next((value for name in PRIMARY_METRICS if (value := rows.get(name)) is not None), None)


def tell_removed(keeper: Keeper, console: Console) -> None:
    """Say what was removed, by this run and before it, and why not all that was to be."""
    mark, sentences = f"execution.keep={keeper.keep.name}: ", []
    if keeper.number:
        sentences.append(f"the weights of {count(keeper.number, 'output')} were removed, {decimal(keeper.freed)}")
    if gone := sum(keeper.is_gone(job_id) for job_id in keeper.before):
        again = "; `python -m pipeline export` makes them again" if keeper.lacking else ""
        sentences.append(f"the weights of {count(gone, 'output')} were removed by earlier runs{again}")
    if sentences:
        say(console, mark + "; ".join(sentences), "bold" if keeper.lacking else "dim")
    if keeper.stuck:
        say(console, f"warning: {mark}weights stay: {keeper.stuck}", "bold")


def said_of_best(config: Config) -> str | None:
    """Warn if the round whose weights stay is selected on the prompts of the reported results; else None."""
    if config.execution.keep is not Keep.best or config.evaluation.split != "test":
        return None
    return (
        "execution.keep=best chooses by evaluation.split=test: the results of what is kept flatter it. "
        "evaluation.split=validation chooses by other prompts"
    )


_LEAST = 1_000_000
"""Bytes free below which a disk is as good as full for other reasons; an estimate is no better than that."""


def check_room(request: Request, stored: Stored) -> None:
    """Refuse a run that cannot fit the disk of its store.

    Raises:
        StoreError: It cannot; says what it needs, what is free and what would help.
    """
    need, free = estimates.disk_need(request.plan, request.config, stored.missing), _free(request)
    if free is None or need.least <= max(free, _LEAST):
        return
    # And of weights that the run removes before its first job, as `execution.keep` asks for.
    keeper = keeper_of(request, stored.missing, request.store.root / ".tmp" / "none")
    if need.least <= free + keeper.removable():
        return
    raise StoreError(
        f"the disk of {request.store.root} has {decimal(free)} free, and the models of this run take "
        f"{decimal(need.least)} at least. Set execution.store or execution.keep=last, or use `store gc`"
    )


def refuse_training(request: Request, stored: Stored) -> None:
    """Refuse a request that would train, for one that was only to evaluate.

    Raises:
        ConfigError: It would; says what, why that may be, and what would help.
    """
    missing = set(stored.missing)
    trains = [job for job in request.plan.jobs.values() if job.weights and job.id in missing]
    if not trains:
        return
    raise ConfigError(
        f"evaluate trains nothing, and the weights of {count(len(trains), 'training')} are missing, first of "
        f"{trains[0].id}: removed (execution.keep), not trained yet, or of other settings, data or code. The "
        "command of the run trains them, with 'evaluation.on=[SET]' and all else that is to be evaluated"
    )


def _free(request: Request) -> int | None:
    """Return the free bytes on the disk of the store, which need not exist yet; None if unknown."""
    store = request.store.root
    try:
        return shutil.disk_usage(next(folder for folder in (store, *store.parents) if folder.is_dir())).free
    except (OSError, StopIteration):
        return None


def _print_need(request: Request, stored: Stored, console: Console) -> None:
    """Print the disk space that the rest of a plan's trained models take, and what is free."""
    if not stored.missing:
        return
    need, free = estimates.disk_need(request.plan, request.config, stored.missing), _free(request)
    text = f"About {decimal(need.made)} of models that are trained"
    keep = request.config.execution.keep
    if keep is not Keep.all:
        text += f", of which {decimal(need.stays)} stay (execution.keep={keep.name})"
    say(console, f"{text}; {'what is free is not known' if free is None else f'{decimal(free)} are free'}.")
    if need.unknown:
        say(console, f"Not in these figures, since nothing tells how large: {', '.join(need.unknown)}.")
    try:
        check_room(request, stored)
        if free is not None and need.stays > free:
            say(console, "warning: it would start, and may fill the disk.", "bold")
    except StoreError as problem:
        say(console, f"warning: this would not start: {problem}", "bold")


@memory.no_garbage_collection()
def print_plan(request: Request, stored: Stored, timed: Collection[str], console: Console) -> None:
    """Print the plan per round, with what is stored and what the rest would take.

    Args:
        request: The request.
        stored: What is stored of it.
        timed: Ids of the jobs to run whose kind was timed.
        console: Console to print to.
    """
    rows = graph.summarize(request.plan, stored.missing, timed)
    console.print(plan_table(rows))
    datasets = request.config.datasets
    trained_on = {name: rows for name, rows in request.rows.items() if datasets[name].trained_on}
    for line in fewer_rows(trained_on, request.config.data_collection.prompts_per_round):
        say(console, line)
    total, missing = len(request.plan.jobs), len(stored.missing)
    text = f"{count(total, 'job')}: {total - missing:,} stored{stored.in_shared}, {missing:,} to run on "
    say(console, f"{text}{count(request.layout.workers, 'worker')}. Nothing was started.")
    _print_need(request, stored, console)


def fewer_rows(rows: Mapping[str, Mapping[str, int]], wanted: int) -> list[str]:
    """Return a line for each dataset with fewer training rows than a round asks for.

    Args:
        rows: Dataset -> rows of each split, as far as they are known.
        wanted: Prompts of a round.
    """
    more = f"so each round draws from all; data_collection.prompts_per_round={wanted} asks for more."
    return [
        f"datasets.{name} has {count(train, 'row')} to train on, {more}"
        for name, splits in rows.items()
        if 0 < (train := splits.get("train", wanted)) < wanted
    ]
