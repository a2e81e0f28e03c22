"""Change a run from any terminal: end or resume a chain, add to the run, clone or order chains, change devices.

While the run goes on its engine is asked; a run that is over is carried out again with the other settings.
"""

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import chdir, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from pipeline.commands import request as requests
from pipeline.commands import steering, typed
from pipeline.commands.run import run_experiment
from pipeline.commands.steering import LEVELS, Asked
from pipeline.config.load import config_from_plain
from pipeline.config.schema import Config
from pipeline.engine.devices.inventory import Device, cpu_slots
from pipeline.engine.journal import JournalReader
from pipeline.errors import ConfigError, PipelineError, unknown_name
from pipeline.runs.loaded import LoadedRun, choose_run, load_planned, runs_of
from pipeline.runs.origin import additions
from pipeline.runs.race import read_standing
from pipeline.runs.report.format import command as command_text
from pipeline.runs.report.status import is_on_ray
from pipeline.terminal.console import make_console, say
from pipeline.terminal.streams import printable

app = typer.Typer()
PATIENCE_S = 120.0
"""Seconds to wait for an engine, which makes the new plan before it answers."""

Chain = Annotated[str, typer.Argument(help="A chain, as in `status`, or an algorithm for all of its chains.")]
Words = Annotated[list[str] | None, typer.Argument(help="Settings, KEY=VALUE.")]


@app.command(epilog=typed.examples("pipeline stop first_run DPO", "pipeline stop first_run s1/PITA --after-round"))
def stop(
    name: typed.Experiment,
    chain: Chain,
    after_round: Annotated[bool, typer.Option(help="Let it end the round that it has begun.")] = False,
    output_dir: typed.OutputDir = typed.OUTPUTS,
) -> int:
    """End a chain after its last finished round; its running jobs save what they can, and devices go to others."""
    return _ask(name, output_dir, Asked(verb="stop", chain=chain, after_round=after_round))


@app.command(epilog=typed.examples("pipeline resume first_run DPO"))
def resume(name: typed.Experiment, chain: Chain, output_dir: typed.OutputDir = typed.OUTPUTS) -> int:
    """Let a chain go on that was stopped."""
    return _ask(name, output_dir, Asked(verb="resume", chain=chain))


@app.command(
    epilog=typed.examples(
        "pipeline add first_run 'algos=[GRPO]' 'experiment.seeds=[1,2]'",
        "pipeline add first_run rounds_of_training=3",
    )
)
def add(name: typed.Experiment, words: Words = None, output_dir: typed.OutputDir = typed.OUTPUTS) -> int:
    """Add algorithms, datasets, models, seeds, test sets or rounds: lists append, numbers are new totals."""
    if not words:
        raise ConfigError("say what to add: pipeline add NAME 'algos=[GRPO]' 'experiment.seeds=[1]'")
    return _ask(name, output_dir, Asked(verb="add", words=words))


@app.command(
    epilog=typed.examples("pipeline clone first_run DPO --as DPO-weak algos.DPO-weak.beta=0.3 --from-round 1")
)
def clone(
    name: typed.Experiment,
    chain: Chain,
    words: Words = None,
    as_: Annotated[str, typer.Option("--as", help="Name of the clone.")] = "",
    from_round: Annotated[int, typer.Option(min=0, help="Last round that it shares with the chain.")] = 0,
    output_dir: typed.OutputDir = typed.OUTPUTS,
) -> int:
    """Add a chain like another one, with settings of its own, from the start or from a round of the other."""
    if not as_:
        raise ConfigError("name the clone: pipeline clone NAME CHAIN --as X algos.X.KEY=VALUE")
    asked = Asked(verb="clone", chain=chain, words=words or [], name=as_, from_round=from_round)
    return _ask(name, output_dir, asked)


@app.command(epilog=typed.examples("pipeline priority first_run DPO high"))
def priority(
    name: typed.Experiment,
    chain: Chain,
    level: Annotated[str, typer.Argument(help=f"{', '.join(LEVELS)}.")],
    output_dir: typed.OutputDir = typed.OUTPUTS,
) -> int:
    """Let jobs of a chain start before or after all others; results do not depend on it."""
    if level not in LEVELS:
        raise ConfigError(unknown_name("level", level, LEVELS))
    return _ask(name, output_dir, Asked(verb="priority", chain=chain, words=[level]))


@app.command(
    epilog=typed.examples("pipeline devices first_run -3", "pipeline devices first_run +1 -0"),
    context_settings={"ignore_unknown_options": True},  # -3 is none
)
def devices(
    name: typed.Experiment,
    words: Annotated[list[str], typer.Argument(metavar="+1 -3 ...", help="Numbers as in `status`, or UUIDs.")],
    output_dir: typed.OutputDir = typed.OUTPUTS,
) -> int:
    """Give devices back to other runs once their present job is over, or take more; results do not change."""
    return _ask(name, output_dir, Asked(verb="devices", words=words))


@app.command(epilog=typed.examples("pipeline command first_run"))
def command(name: typed.Experiment, run: typed.Stamp = None, output_dir: typed.OutputDir = typed.OUTPUTS) -> None:
    """Print the one command that computes what a run is by now, with all that it was asked."""
    loaded = LoadedRun(choose_run(output_dir, name, run))
    line, made = loaded.origin.command_line, loaded.origin
    if not line:
        raise ConfigError(f"{name} was not started from a command line, so no command repeats it")
    if (standing := read_standing(loaded.folder)) is not None and standing.racing:
        sys.stderr.write("the race is not over; this is what it has decided by now\n")
    if made.settings and loaded.setting("experiment.race"):
        decided = {key: loaded.setting(key) or {} for key in ("experiment.looks", "experiment.last_rounds")}
        settings = steering.without_race(made.settings, decided)
        line = shlex.join(steering.command_after(made.command, made.settings, settings))
    sys.stdout.write(f"{printable(line)}\n")


def _ask(name: str, output_dir: Path, asked: Asked) -> int:
    runs = [LoadedRun(folder) for folder in runs_of(output_dir.absolute(), name)]
    run = next((each for each in reversed(runs) if not each.origin.only_evaluates), runs[-1])
    load_planned(run.folder)
    if not run.origin.settings:
        raise ConfigError(f"{name} was not started by a command with settings, which is what a request changes")
    folder = Path(run.origin.folder)
    # Files and code that settings name are looked for where the run was started.
    with chdir(folder) if folder.is_dir() else nullcontext():
        return _asked(run, asked, make_console())


def _asked(run: LoadedRun, asked: Asked, console: Console) -> int:
    if run.state not in ("running", "unknown"):
        return _afterwards(run, asked, console)
    if asked.verb not in ("priority", "devices"):
        _after(run, asked)  # what is wrong with it is told here
    answer = _answered(run, asked)
    if answer["reason"]:
        reason = str(answer["reason"])
        raise PipelineError(reason if reason.startswith(f"{asked.verb} ") else f"{asked}: {reason}")
    if asked.verb == "devices":
        signs = {word[0] for word in asked.words}
        notes = ["; a device is given back once the job that it has is over"] if "-" in signs else []
        if "+" in signs and is_on_ray(run):
            notes += ["; Ray starts one that comes once the cluster has room, and `status` shows whether it waits"]
        say(console, f"{asked}: done{''.join(notes)}")
        return 0
    _tell_entries(run, asked, console)
    more = command_text(f"command {run.name}", run.folder.path.parent.parent)
    say(console, f"{asked}: done; the run has {answer['jobs']:,} jobs. What it has become:", copy=more)
    return 0


def _tell_entries(run: LoadedRun, asked: Asked, console: Console) -> None:
    """Say which prompts count for claims of a race on what was added."""
    standing = read_standing(run.folder)
    if asked.verb in ("add", "clone") and standing and standing.added:
        seen = max(standing.added.values())
        say(
            console, f"claims of the race on added algorithms count prompts after the first {seen:,}, seen by then"
        )


def _after(run: LoadedRun, asked: Asked) -> tuple[Config, list[str], list[str]]:
    """Return configuration, settings and command of a run after a request.

    Raises:
        PipelineError: The request does not fit the run.
    """
    view, made = run.view, run.origin
    there = {job.id for job in view.jobs.values() if job.status in ("done", "stored")}
    standing = read_standing(run.folder)
    rounds = steering.rounds_of(run.jobs, there, view.running().keys(), standing.racing if standing else None)
    before = config_from_plain(run.read_config())
    is_race = before.experiment.race is not None
    configs = before, steering.composed(made.command, made.settings) if is_race else before
    settings = steering.settings_of_run(asked, made.settings, made.command, configs, standing, run.jobs, rounds)
    config = steering.composed(made.command, settings)
    config.output_dir = str(run.folder.path.parent.parent)  # wherever this command is typed
    request = requests.prepare(config, settings, devices=_like_those_of(made.devices))
    steering.check_follows(asked, before, run.jobs, request)
    return config, settings, steering.command_after(made.command, made.settings, settings)


def _like_those_of(labels: Sequence[str]) -> list[Device] | None:
    """Return devices like those of a run, which need not be visible here; None if it does not say which it had.

    Only their kind matters to a plan.
    """
    kind: Literal["cuda", "cpu"] = "cuda" if any(label.startswith("GPU") for label in labels) else "cpu"
    return [replace(slot, kind=kind) for slot in cpu_slots(1) * len(labels)] or None


def _afterwards(run: LoadedRun, asked: Asked, console: Console) -> int:
    """Carry out a run that is over again, with what was asked."""
    if asked.verb in ("stop", "priority", "devices"):
        raise ConfigError(f"{asked.verb} is for a run that goes on, and {run.name} is {run.state}")
    config, settings, command = _after(run, asked)
    say(console, "The run is over; this goes on from it:", copy=shlex.join(command))
    added = [*additions(run.origin, run.view.answers), *([] if asked.verb == "resume" else [str(asked)])]
    return run_experiment(config, console, given=settings, command=command, added=added)


def _answered(run: LoadedRun, asked: Asked) -> dict[str, object]:
    """Ask the engine of a run and wait for its answer.

    Raises:
        PipelineError: None comes, and nothing was changed.
    """
    reader = JournalReader(run.folder.journal)
    for _ in reader.new_events():
        pass
    try:
        path = steering.ask(run.folder, asked)
    except OSError as error:
        where = error.filename or run.folder.path
        raise ConfigError(f"{where}: {error.strerror}: nothing can be asked there") from error
    until = time.monotonic() + PATIENCE_S
    try:
        while True:
            for event in reader.new_events():
                if event["event"] == "RequestAnswered" and event.get("request") == path.stem:
                    return event
            over = LoadedRun(run.folder).state not in ("running", "unknown")
            if over or time.monotonic() > until:
                break
            time.sleep(0.2)
    finally:
        with suppress(OSError):
            path.unlink()  # an engine that has read it answers in its journal all the same
    why = "the run has ended before it answered" if over else f"no answer within {PATIENCE_S:g} s"
    raise PipelineError(f"{asked}: {why}; nothing was changed, unless `pipeline command {run.name}` says so")
