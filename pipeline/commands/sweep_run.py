"""Running sweeps: ``sweep run``, with or without ``--wandb``, ``agent``, ``stop`` and its like, and ``multi``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

import pipeline
from pipeline.commands.multirun import COMPARED, OBJECTIVE
from pipeline.commands.start import INTERRUPTED_BY, settle
from pipeline.commands.sweep_look import conclude
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import find_gpus
from pipeline.engine.devices.lease import holders
from pipeline.engine.devices.select import choose_devices
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, DeviceError, StoreError, WorkerError, known_names
from pipeline.runs.report.format import command
from pipeline.runs.report.format import count as counted
from pipeline.sweeps import agent as agents
from pipeline.sweeps.command import check_program, overrides_of
from pipeline.sweeps.file import NUM_GPUS, PROGRAM, SPLIT, Sweep, read_sweep
from pipeline.sweeps.online import OnlineAgents, created, devices_of_agents, wandb_config
from pipeline.sweeps.plan import DevicesAsked, check_fits, fit_agents, plan_agents, split_words
from pipeline.sweeps.report import shown_on
from pipeline.sweeps.search import ask, most_trials
from pipeline.sweeps.storage import Record, SweepFolder, check_installed, choose_sweep, sweep_folder
from pipeline.terminal.console import say

FAILED = 1


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """What a user has typed.

    Attributes:
        file: The sweep file.
        words: A strategy and its numbers, then settings of every trial.
        output_dir: Folder of all runs and sweeps.
        where: On which devices.
        name: Of the sweep; "" for that in the file.
        count: The most trials: of the sweep, or with W&B those that are run here. None for no bound.
        grace_s: Seconds that a trial has to end once it was told to.
        dry_run: Whether to tell what would be done, and begin nothing.
    """

    file: Path
    words: Sequence[str] = ()
    output_dir: Path
    where: DevicesAsked
    name: str = ""
    count: int | None = None
    grace_s: int = 30
    dry_run: bool = False


def _decide(request: SweepRequest, sweep: Sweep, console: Console) -> SweepRequest | None:
    """Do what a strategy says, and tell its plan; None where a person does not want what it comes to.

    Raises:
        ConfigError: There is no such strategy, or its agents do not fit.
    """
    words, _ = split_words(request.words)
    where = request.where
    if not words:
        return request
    if where.agents is not None or where.each is not None:
        raise ConfigError(
            f"{' '.join(words)}: a strategy says how many agents and devices: no --agents, --gpus-per-agent"
        )
    plan = plan_agents(words, most_trials(sweep))
    gpus = where.gpus()
    plan = fit_agents(plan, gpus)
    for line in plan.lines("GPU" if gpus else "CPU slot"):
        say(console, line)
    if not request.dry_run and plan.confirm and console.is_interactive and not typer.confirm("Begin?"):
        return None
    most = min((each for each in (request.count, plan.total) if each is not None), default=None)
    return replace(request, where=replace(where, agents=plan.at_once, each=plan.devices), count=most)


def run(request: SweepRequest, console: Console) -> int:
    """Begin a sweep, or go on with it, and work on it until nothing is left; the exit code.

    Raises:
        PipelineError: The request is wrong. Nothing was started.
    """
    check_installed()
    _, overrides = split_words(request.words)
    sweep = read_sweep(request.file, name=request.name, overrides=overrides)
    check_program(sweep)
    check_settings(sweep)
    decided = _decide(request, sweep, console)
    if decided is None:
        return 0
    pool = decided.where.pool(sweep)
    if note := check_fits(sweep, pool):
        say(console, note)
    if request.dry_run:
        folder = sweep_folder(request.output_dir.absolute(), sweep.name)
        one = agents.Agent(sweep, folder, pool, partial(say, console), lambda _record: None)
        for line, copy in one.next_in_words(decided.count):
            say(console, line, copy=copy)
        return 0
    folder = agents.begin_sweep(
        sweep,
        request.file,
        request.output_dir,
        overrides=overrides,
        most=decided.count,
        say=partial(say, console),
    )
    return _work(sweep, folder, decided.where, console, None, request.grace_s)


def agent(
    name: str, output_dir: Path, console: Console, where: DevicesAsked, most: int | None, grace_s: int
) -> int:
    """Join a sweep that was begun; the exit code.

    Raises:
        PipelineError: There is none, or its devices cannot be had.
    """
    folder = choose_sweep(output_dir.absolute(), name)
    record = Record(folder)
    about = record.about
    if about.halted in ("stopped", "cancelled"):
        resume = command(f"sweep resume {name}", folder.output_dir)
        raise ConfigError(f"sweep {name} is {about.halted}: {about.reason}. `{resume}` lets it go on")
    sweep = read_sweep(folder.file, name=name, overrides=about.overrides)
    sweep = replace(sweep, folder=Path(about.folder or sweep.folder))
    if about.halted == "finished" and agents.untested(sweep, record) is None:
        say(console, f"sweep {name} is finished: nothing is left for an agent")
        return 0
    if note := check_fits(sweep, where.pool(sweep)):
        say(console, note)
    return _work(sweep, folder, where, console, most, grace_s)


def tell(word: str, name: str, output_dir: Path, console: Console) -> None:
    """Tell a sweep to stop, to be given up, to pause or to go on.

    Raises:
        PipelineError: There is none, or it makes no sense now.
    """
    say(console, agents.tell(choose_sweep(output_dir.absolute(), name), word, partial(say, console)))


def _work(
    sweep: Sweep, folder: SweepFolder, where: DevicesAsked, console: Console, own: int | None, grace_s: int
) -> int:
    """Be an agent of a sweep; the exit code: 0 all well, 1 some failed, 130 and 143 interrupted."""
    pool = where.pool(sweep)
    with StopSignals() as signals, shown_on(console, Record(folder)) as (hear, show):
        one = agents.Agent(sweep, folder, pool, hear, show, own=own, grace_s=grace_s)
        try:
            one.run(signals)
        except (StoreError, WorkerError) as error:
            say(console, f"error: {error}. Mend that, then run the same command.", "red")
            return FAILED
    conclude(folder, console)
    record = Record(folder)
    if one.interrupted:
        return INTERRUPTED_BY[one.interrupted]
    left = [trial for trial in record.ready(sweep.options.max_attempts) if trial.num_gpus > len(pool.devices)]
    if left and not record.about.halted:
        say(
            console,
            f"left: {counted(len(left), 'trial')} that need more devices than the {len(pool.devices)} here",
        )
        return FAILED
    return FAILED if record.having("failed") or record.about.halted == "stopped" else 0


def check_settings(sweep: Sweep) -> None:
    """Refuse settings with which a run of this package would be refused, and a metric that it would not tell.

    A sweep that has begun keeps its parameters, so a name that is misspelt would cost it its name too.

    Raises:
        ConfigError: Says what is wrong with which setting, or with the metric.
    """
    program = Path(pipeline.__file__).parents[1] / PROGRAM
    words = (sweep.program, *sweep.command)
    if not any(Path(word).name == PROGRAM and (sweep.folder / word).resolve() == program for word in words):
        return  # not a run of this very package: what its settings are is not known
    from pipeline.config.checks import check_config  # and Hydra, which other programs do without
    from pipeline.config.load import load_config
    from pipeline.learning.evaluation.metrics import metric_names

    first = ask(sweep, [])
    given = {name: value for name, value in (first.parameters if first else {}).items() if name != NUM_GPUS}
    try:
        check_config(
            config := load_config(overrides_of({**given, "experiment.name": sweep.name, SPLIT: "validation"}))
        )
    except ConfigError as error:
        raise ConfigError(f"the first trial would be refused: {error}") from error
    # Algorithms of the user's own may measure what they like, and parts of rewards be called anything.
    own = any(algo.enabled and algo.class_path is not None for algo in config.algos.values())
    name = sweep.metric.name if sweep.metric else OBJECTIVE
    if own or ("/" in name and COMPARED not in name):
        return
    if name not in (known := [OBJECTIVE, *metric_names(config.evaluation)]):
        near = known_names(name.partition(COMPARED)[0], known)
        raise ConfigError(f"metric.name: no trial would tell a metric '{name}'.{near} See docs/evaluation.md")


# -- searched by W&B ---------------------------------------------------------------------------------------------


def run_online(request: SweepRequest, console: Console) -> int:
    """Create a sweep at W&B, or go on with it, and run its trials; the exit code.

    Returns:
        0 where W&B had no trial left, 1 where its agents fail, 130 or 143 after a signal.

    Raises:
        PipelineError: The request is wrong, or W&B does not create the sweep. Nothing was started.
    """
    if request.dry_run:
        raise ConfigError("--dry-run with --wandb: W&B would choose the trials. Leave one of them out")
    _, overrides = split_words(request.words)
    sweep = read_sweep(request.file, name=request.name, overrides=overrides)
    if sweep.is_own:
        raise ConfigError(
            "run_parallel.py is searched on this machine: leave out --wandb, or track its runs there"
        )
    check_program(sweep)
    decided = _decide(request, sweep, console)
    if decided is None:
        return 0
    share = devices_of_agents(sweep, decided.where.each)
    pool = replace(decided.where, each=share).pool(sweep)
    if len(pool.devices) < share:
        raise ConfigError(
            f"trials of this sweep need {counted(share, pool.kind)}, and there are {len(pool.devices)}"
        )
    folder, told = sweep_folder(request.output_dir.absolute(), sweep.name).path, partial(say, console)
    path, new = created(wandb_config(sweep, share), folder / "wandb.json")
    say(console, f"{'created' if new else 'going on with'} the sweep at W&B:", copy=path)
    work = OnlineAgents(sweep, path, pool, folder, told, limit=decided.count, grace_s=request.grace_s)
    with StopSignals() as signals:
        interrupted = work.run(signals)
        say(console, f"{counted(work.trials, 'trial')} run; what they have reached is at W&B")
        code = INTERRUPTED_BY[interrupted] if interrupted else FAILED if work.gave_up else 0
        settle(code)
    return code


# -- several runs ------------------------------------------------------------------------------------------------


def multi(
    name: str,
    each: int,
    runs: int,
    words: Sequence[str],
    output_dir: Path,
    console: Console,
    *,
    queue: bool = False,
    grace_s: int = 30,
) -> int:
    """Run experiments ``NAME.run1``, ``NAME.run2``, ... side by side; the exit code.

    Args:
        name: What their names begin with.
        each: GPUs of each run; CPU slots with ``device=cpu`` among the settings.
        runs: How many.
        words: The number of GPUs to be shared out, if given, and settings of all runs.
        output_dir: Folder of all runs.
        console: Where it is told.
        queue: Let runs wait for GPUs that others have, and for each other where they do not fit.
        grace_s: Seconds that a run has to end once it was told to.

    Returns:
        0 if all ended well, 1 if one did not, 130 or 143 after a signal.

    Raises:
        PipelineError: The request is wrong, or GPUs are leased by others. Nothing was started.
    """
    from pipeline.commands.request import prepare
    from pipeline.config.checks import check_config
    from pipeline.config.load import load_config
    from pipeline.sweeps.multi import carry_out, plan_runs, split_total

    total, settings = split_total(words)
    on_cpu, folder = "device=cpu" in settings, output_dir.absolute()
    devices = choose_devices(DeviceChoice.cpu, total) if on_cpu else find_gpus(os.environ)
    if total is not None and total > len(devices):
        raise ConfigError(
            f"TOTAL_GPUS {total}, but {counted(len(devices), 'GPU')} can be used; device=cpu has CPU slots"
        )
    devices = devices[:total]
    planned = plan_runs(
        name, each, runs, len(devices), settings, queue=queue, kind="CPU slot" if on_cpu else "GPU"
    )
    configs = [load_config(run.typed(folder, on_cpu=on_cpu, queue=queue)) for run in planned]
    for config in configs:
        check_config(config)
    prepare(configs[0])
    used = [devices[place] for place in sorted({place for run in planned for place in run.places})]
    held = holders(used)
    if not queue and (told := [f"{one.label} by {held[one.uuid]}" for one in used if one.uuid in held]):
        raise DeviceError(f"leased by others: {'; '.join(told)}. Nothing was started; --queue waits for them")
    with StopSignals() as signals:
        interrupted, left = carry_out(
            planned, devices, folder, signals, partial(say, console), queue=queue, grace_s=grace_s
        )
        code = INTERRUPTED_BY[interrupted] if interrupted else FAILED if left else 0
        settle(code)
    return code
