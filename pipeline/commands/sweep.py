"""``python -m pipeline sweep``: many trials of settings, several runs by one command, and looking at them."""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

import pipeline
from pipeline.commands import launch, looking, start
from pipeline.commands.typed import OUTPUTS, AsJson, Every, LastLines, examples, refuse_both
from pipeline.config.schema import LONGEST_S, Config, DeviceChoice
from pipeline.engine.devices import inventory, select
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import ConfigError, DeviceError, PipelineError, StoreError, WorkerError, known_names
from pipeline.files import plain_target
from pipeline.runs.loaded import logs_in
from pipeline.runs.report.format import command, shown_path
from pipeline.runs.report.format import count as counted
from pipeline.runs.report.logs import follow_attempts, print_log
from pipeline.sweeps import agent as agents_of
from pipeline.sweeps import online, search, storage
from pipeline.sweeps import report as reports
from pipeline.sweeps.command import check_program, overrides_of
from pipeline.sweeps.file import NUM_GPUS, PROGRAM, SPLIT, Sweep, read_sweep
from pipeline.sweeps.plan import AgentPool, agent_pool, check_fits
from pipeline.sweeps.storage import Record, SweepFolder, choose_sweep
from pipeline.terminal.console import make_console, print_json, say
from pipeline.terminal.console import watch as watch_it

# What carries out or reports whole runs is imported late: Hydra and numpy take long to load.
app = typer.Typer(no_args_is_help=True)
log = logging.getLogger("pipeline")
FAILED = 1

OutputDir = Annotated[Path, typer.Option(help="Folder of all runs and sweeps.")]
Name = Annotated[str, typer.Argument(help="The sweep.")]
Agents = Annotated[int | None, typer.Option(min=1, help="The most trials at once; all that have devices.")]
Each = Annotated[
    int | None, typer.Option("--gpus-per-agent", min=1, help="GPUs of each trial, where the file has no num_gpus.")
]
GpuList = Annotated[str | None, typer.Option(help="These GPUs, as 0,1,2,3; ids as in `pipeline gpus`.")]
DeviceKind = Annotated[DeviceChoice, typer.Option(help="cpu: trials run without GPUs.")]
Grace = Annotated[int, typer.Option(min=1, max=LONGEST_S, help="Seconds to end in before it is killed.")]
Count = Annotated[int | None, typer.Option(min=1, help="The most trials: of the sweep, or of this agent.")]


# -- running -----------------------------------------------------------------------------------------------------


def _ids(gpu_list: str | None) -> list[int] | None:
    return None if gpu_list is None else launch.parse_ids(gpu_list, "--gpu-list")


@app.command(
    epilog=examples(
        "pipeline sweep run lr.yaml --agents 4 --gpus-per-agent 2",
        "pipeline sweep run lr.yaml --device cpu --agents 2 epochs=3",
        "pipeline sweep run lr.yaml --dry-run",
    )
)
def run(
    file: Annotated[Path, typer.Argument(help="The sweep file, as W&B has it.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Of every trial: KEY=VALUE.", metavar="[KEY=VALUE]...")
    ] = None,
    name: Annotated[str, typer.Option(help="Of the sweep; that in the file, or the file's, if left out.")] = "",
    agents: Agents = None,
    each: Each = None,
    gpu_list: GpuList = None,
    device: DeviceKind = DeviceChoice.auto,
    count: Count = None,
    grace: Grace = 30,
    wandb: Annotated[bool, typer.Option("--wandb", help="Let W&B search; its agents run trials here.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be tried, and begin nothing.")
    ] = False,
    output_dir: OutputDir = OUTPUTS,
) -> int:
    """Begin a sweep, or go on with it: sweep run FILE [KEY=VALUE ...]."""
    console, ids, overrides = make_console(), _ids(gpu_list), settings or []
    if wandb and dry_run:
        raise ConfigError("--dry-run with --wandb: W&B would choose the trials. Leave one of them out")
    if not wandb:
        storage.check_installed()
    sweep = read_sweep(file, name=name, overrides=overrides)
    if wandb and sweep.is_own:
        raise ConfigError(f"{PROGRAM} is searched on this machine: leave out --wandb, or track its runs there")
    check_program(sweep)
    check_settings(sweep)
    if wandb:
        each = online.devices_of_agents(sweep, each)
    pool = agent_pool(sweep, device, agents=agents, per_trial=each, ids=ids)
    if wandb:
        return _online(sweep, pool, output_dir, console, count, grace)
    if note := check_fits(sweep, pool):
        say(console, note)
    if dry_run:
        folder = storage.sweep_folder(output_dir.absolute(), sweep.name)
        own_agent = agents_of.Agent(sweep, folder, pool, partial(say, console), lambda _record: None)
        for line, copy in own_agent.next_in_words(count):
            say(console, line, copy=copy)
        return 0
    folder = agents_of.begin_sweep(sweep, file, output_dir, overrides=overrides, most=count)
    return _work(sweep, folder, pool, console, None, grace)


@app.command(epilog=examples("pipeline sweep agent lr", "pipeline sweep agent lr --gpu-list 4,5,6,7 --count 10"))
def agent(
    name: Name,
    agents: Agents = None,
    each: Each = None,
    gpu_list: GpuList = None,
    device: DeviceKind = DeviceChoice.auto,
    count: Count = None,
    grace: Grace = 30,
    output_dir: OutputDir = OUTPUTS,
) -> int:
    """Work on a sweep that was begun, beside those who do already: on other GPUs, or another machine."""
    console, ids = make_console(), _ids(gpu_list)
    folder = choose_sweep(output_dir.absolute(), name)
    record = Record(folder)
    settings = record.about
    if settings.halted in ("stopped", "cancelled"):
        resume = command(f"sweep resume {name}", folder.output_dir)
        raise ConfigError(f"sweep {name} is {settings.halted}: {settings.reason}. `{resume}` lets it go on")
    sweep = read_sweep(folder.file, name=name, overrides=settings.overrides)
    sweep = replace(sweep, folder=Path(settings.folder or sweep.folder))
    if settings.halted == "finished" and agents_of.untested(sweep, record) is None:
        say(console, f"sweep {name} is finished: nothing is left for an agent")
        return 0
    pool = agent_pool(sweep, device, agents=agents, per_trial=each, ids=ids)
    if note := check_fits(sweep, pool):
        say(console, note)
    return _work(sweep, folder, pool, console, count, grace)


def _work(
    sweep: Sweep, folder: SweepFolder, pool: AgentPool, console: Console, own: int | None, grace_s: int
) -> int:
    """Be an agent of a sweep; the exit code: 0 all well, 1 some failed, 130 and 143 interrupted."""
    with StopSignals() as signals, reports.shown_on(console, Record(folder)) as (hear, show):
        own_agent = agents_of.Agent(sweep, folder, pool, hear, show, own=own, grace_s=grace_s)
        try:
            own_agent.run(signals)
        except (StoreError, WorkerError) as error:
            say(console, f"error: {error}. Mend that, then run the same command.", "red")
            return FAILED
    conclude(folder, console)
    record = Record(folder)
    if own_agent.interrupted:
        return start.INTERRUPTED_BY[own_agent.interrupted]
    waiting = [trial for trial in record.ready(sweep.options.max_attempts) if trial.num_gpus > len(pool.devices)]
    if waiting and not record.about.halted:
        here = f"the {len(pool.devices)} here"
        say(console, f"left: {counted(len(waiting), 'trial')} that need more devices than {here}")
        return FAILED
    return FAILED if record.having("failed") or record.about.halted == "stopped" else 0


def conclude(folder: SweepFolder, console: Console) -> None:
    """Show the state of a sweep that this process worked on, and write its page or warn.

    Raises:
        StoreError: Its record cannot be read.
    """
    sweep = Record(folder)
    reports.print_sweep(sweep, time.time(), console)
    try:
        reports.write_sweep_page(folder.report, sweep)
    except Exception as error:  # whatever is wrong with a page, the trials are there
        log.info("no report was written", exc_info=True)
        say(console, f"warning: no report was written ({error}). `sweep report {sweep.name}` tries again.", "bold")
        return
    say(console, "report:", copy=shown_path(folder.report.absolute()))


def _refuse_early_ends(config: Config) -> None:
    """Refuse what ends a trial elsewhere than the next one, so that their values do not compare."""
    if config.experiment.budget:
        raise ConfigError("experiment.budget ends trials at different places; limit rounds_of_training")
    if config.experiment.race is not None:
        raise ConfigError("experiment.race ends trials at different places; early_terminate ends bad ones")


def check_settings(sweep: Sweep) -> None:
    """Refuse settings that a run of this package would refuse, and a metric that it would not report.

    A sweep that has begun keeps its parameters, so a name that is misspelt would cost it its name too.

    Raises:
        ConfigError: Says what is wrong with which setting, or with the metric.
    """
    program = Path(pipeline.__file__).parents[1] / PROGRAM
    words = (sweep.program, *sweep.command)
    if not any(Path(word).name == PROGRAM and (sweep.folder / word).resolve() == program for word in words):
        return  # not a run of this very package: what its settings are is not known
    from pipeline.commands.results import OBJECTIVE
    from pipeline.config.checks import check_config
    from pipeline.config.load import load_config
    from pipeline.learning.evaluation.metrics import metric_names
    from pipeline.runs.record import COMPARED

    first = search.ask(sweep, [])
    parameters = {name: value for name, value in (first.parameters if first else {}).items() if name != NUM_GPUS}
    try:
        config = load_config(overrides_of({**parameters, "experiment.name": sweep.name, SPLIT: "validation"}))
        check_config(config)
    except ConfigError as error:
        raise ConfigError(f"the first trial would be refused: {error}") from error
    _refuse_early_ends(config)
    # Algorithms of the user's own may measure what they like, and parts of rewards be called anything.
    own = any(algo.enabled and algo.class_path is not None for algo in config.algos.values())
    name = sweep.metric.name if sweep.metric else OBJECTIVE
    if own or ("/" in name and COMPARED not in name):
        return
    if name not in (names := [OBJECTIVE, *metric_names(config.evaluation)]):
        near = known_names(name.partition(COMPARED)[0], names)
        raise ConfigError(f"metric.name: no trial would tell a metric '{name}'.{near} See docs/evaluation.md")


def _online(
    sweep: Sweep, pool: AgentPool, output_dir: Path, console: Console, most: int | None, grace_s: int
) -> int:
    """Create a sweep at W&B, or go on with it, and run its trials; 0 where W&B had none left, 1 if agents fail."""
    if len(pool.devices) < pool.per_trial:
        raise ConfigError(f"trials need {counted(pool.per_trial, pool.kind)}, and there are {len(pool.devices)}")
    folder = storage.sweep_folder(output_dir.absolute(), sweep.name).path
    path, new = online.created(online.wandb_config(sweep, pool.per_trial), folder / "wandb.json")
    say(console, f"{'created' if new else 'going on with'} the sweep at W&B:", copy=path)
    work = online.OnlineAgents(sweep, path, pool, folder, partial(say, console), limit=most, grace_s=grace_s)
    with StopSignals() as signals:
        interrupted = work.run(signals)
        say(console, f"{counted(work.trials, 'trial')} run; what they have reached is at W&B")
        code = start.INTERRUPTED_BY[interrupted] if interrupted else FAILED if work.gave_up else 0
        start.settle(code)
    return code


def _order(word: str, description: str) -> None:
    """Make the command that tells a sweep one word."""

    @app.command(word, help=description, epilog=examples(f"pipeline sweep {word} lr"))
    def tell(name: Name, output_dir: OutputDir = OUTPUTS) -> None:
        say(make_console(), agents_of.tell(choose_sweep(output_dir.absolute(), name), word))


_order("stop", "Begin no more trials; those under way go on.")
_order("cancel", "Give a sweep up: end its trials now.")
_order("pause", "Begin no more trials until `sweep resume`.")
_order("resume", "Let a sweep go on; what has failed gets another chance.")


@app.command(
    epilog=examples(
        "pipeline sweep multi my_sweep 4 2 8 rounds_of_training=3",
        "pipeline sweep multi my_sweep 1 2 device=cpu",
    )
)
def multi(
    name: Annotated[str, typer.Argument(help="What the names of the experiments begin with.")],
    gpus_per_run: Annotated[int, typer.Argument(help="GPUs of each; CPU slots with device=cpu.")],
    num_runs: Annotated[int, typer.Argument(help="How many runs.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="TOTAL_GPUS, if not all; settings of all runs.",
            metavar="[TOTAL_GPUS] [KEY=VALUE]...",
        ),
    ] = None,
    grace: Grace = 30,
    output_dir: OutputDir = OUTPUTS,
) -> int:
    """Run several experiments side by side, NAME.run1 and so on, each on GPUs of its own."""
    from pipeline.commands.request import prepare
    from pipeline.config.checks import check_config
    from pipeline.config.load import load_config
    from pipeline.sweeps.multi import carry_out, plan_runs, split_total

    total, settings = split_total(words or [])
    on_cpu, folder = "device=cpu" in settings, output_dir.absolute()
    devices = select.devices_of(DeviceChoice.cpu, total).best() if on_cpu else inventory.find_gpus(os.environ)
    if total is not None and total > len(devices):
        there = counted(len(devices), "GPU")
        raise ConfigError(f"TOTAL_GPUS {total}, but {there} can be used; device=cpu has CPU slots")
    devices, kind = devices[:total], "CPU slot" if on_cpu else "GPU"
    runs = plan_runs(name, gpus_per_run, num_runs, len(devices), settings, kind=kind)
    configs = [load_config(planned.typed(folder, on_cpu=on_cpu)) for planned in runs]
    for config in configs:
        check_config(config)
    prepare(configs[0])
    used = [devices[index] for planned in runs for index in planned.places]
    holder_of = select.holders(used)
    if leased := [f"{device.label} by {holder_of[device.uuid]}" for device in used if device.uuid in holder_of]:
        raise DeviceError(f"leased by others: {'; '.join(leased)}. Nothing was started")
    say_line = partial(say, make_console())
    with StopSignals() as signals:
        interrupted, unfinished = carry_out(runs, devices, folder, signals, say_line, grace_s=grace)
        code = start.INTERRUPTED_BY[interrupted] if interrupted else FAILED if unfinished else 0
        start.settle(code)
    return code


# -- looking: what follows reads what sweeps leave, and changes nothing ------------------------------------------


@app.command(epilog=examples("pipeline sweep status", "pipeline sweep status lr --watch"))
def status(
    name: Annotated[str | None, typer.Argument(help="The sweep; all if left out.")] = None,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show one again and again.")] = False,
    every: Every = 2.0,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Show where sweeps stand: all of them, or one with its trials."""
    console, now = make_console(), time.time()
    if watch:
        refuse_both({"--watch": True, "--json": as_json, "all sweeps": name is None})
        _watch(output_dir, name or "", console, every)
    elif name is not None:
        sweep = Record(choose_sweep(output_dir, name))
        print_json(reports.sweep_json(sweep, now)) if as_json else reports.print_sweep(sweep, now, console)
    elif as_json:
        print_json(list(_rows(output_dir, now)))
    elif not (rows := list(_rows(output_dir, now))):
        say(console, f"there are no sweeps in {output_dir}")
    else:
        console.print(reports.sweeps_table(rows))
        for row in rows:
            if "problem" in row:
                say(console, f"{row['name']}: {row['problem']}", "red")


def _rows(output_dir: Path, now: float) -> Iterator[dict[str, Any]]:
    """Sweeps in a row each; one that cannot be read has a row that says so."""
    for name in storage.sweeps_in(output_dir):
        try:
            yield reports.row_of(Record(storage.sweep_folder(output_dir, name)), now)
        except (PipelineError, OSError) as error:
            yield {"name": name, "problem": str(error)}


def _watch(output_dir: Path, name: str, console: Console, every_s: float) -> None:
    """Show a sweep until it is over."""
    shown_states: dict[int, str] = {}
    sweep = Record(choose_sweep(output_dir, name))

    def look() -> bool:
        sweep.refresh()
        return sweep.state() not in ("finished", "cancelled", "stopped")

    def shown(width: int, height: int) -> Sequence[RenderableType]:
        return reports.watched_sweep(sweep, time.time(), width, height)

    watch_it(console, every_s, look, shown, lambda: reports.news(sweep, shown_states))
    if not console.is_interactive:
        reports.print_sweep(sweep, time.time(), console)


@app.command(epilog=examples("pipeline sweep best lr", "pipeline sweep best lr --json"))
def best(name: Name, as_json: AsJson = False, output_dir: OutputDir = OUTPUTS) -> None:
    """Show the best trial: what it reached, and its settings."""
    sweep, console = Record(choose_sweep(output_dir, name)), make_console()
    if as_json:
        print_json(reports.best_json(sweep, time.time()))
        return
    for line, copy in reports.best_lines(sweep):
        say(console, line, copy=copy)


@app.command(epilog=examples("pipeline sweep export lr > lr.csv", "pipeline sweep export lr --json > lr.json"))
def export(name: Name, as_json: AsJson = False, output_dir: OutputDir = OUTPUTS) -> None:
    """Print all trials as a table for other programs."""
    rows = reports.export_rows(Record(choose_sweep(output_dir, name)), time.time())
    print_json(rows) if as_json else sys.stdout.write(reports.as_csv(rows))


@app.command(epilog=examples("pipeline sweep logs lr 7", "pipeline sweep logs lr -f"))
def logs(
    name: Name,
    trial: Annotated[
        int | None, typer.Argument(min=0, help="Its number; the one that began last if left out.")
    ] = None,
    lines: LastLines = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the trial is over.")] = False,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Print what a trial printed, until there is no more or nobody reads it any more."""
    sweep = Record(choose_sweep(output_dir, name))
    if trial is None:
        begun = [record for record in sweep.trials.values() if record.started is not None]
        newest = max(begun, key=lambda record: (record.state == "running", record.started or 0.0), default=None)
        if newest is None:
            raise ConfigError(f"no trial of sweep {name} has begun yet.")
        trial = newest.number
        looking.note_of_log(f"trial {trial}, {newest.state}; `sweep logs {name} TRIAL` shows another")
    if trial not in sweep.trials:
        raise ConfigError(f"sweep {name} has no trial {trial}. There are: 0 to {max(sweep.trials, default=-1)}.")
    folder, number = sweep.folder.trial(trial).path, trial

    def look() -> tuple[str, Mapping[int, Path]]:
        sweep.refresh()
        record = sweep.trials[number]
        over = record.state in ("done", "stopped", "cancelled", "failed")
        idle = "" if sweep.agents() else f"no agent of sweep {name} is at work"
        why = f": {record.reason}" if record.reason else ""
        return (f"trial {number}: {record.state}{why}" if over else idle), logs_in(folder)

    with looking.log_output() as out:
        if follow:
            named = f"trial {number}"
            follow_attempts(named, look, out, looking.note_of_log, lines=lines, sleep=out.pause)
            return
        if not (attempts := logs_in(folder)):
            raise ConfigError(f"trial {number} of {name} has no log.")
        print_log(attempts[max(attempts)], out, lines)


@app.command(epilog=examples("pipeline sweep report lr", "pipeline sweep report lr --out lr.html"))
def report(
    name: Name,
    out: Annotated[Path | None, typer.Option(help="File to write; report.html of the sweep if left out.")] = None,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Write the page of a sweep: history, parameters, importance, front."""
    from pipeline.commands.report import refuse_records, written

    sweep = Record(choose_sweep(output_dir, name))
    if out is not None:
        refuse_records("--out", out, (), is_page=True)
    path = out or sweep.folder.report
    written(path, lambda: reports.write_sweep_page(plain_target(path) if out else path, sweep), make_console())
