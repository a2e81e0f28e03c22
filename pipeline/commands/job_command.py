"""The command that a job of Slurm is to run, checked as it would check itself once it has waited in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.main import get_group

from pipeline.commands import launch, sweep
from pipeline.commands.device_flags import FLAGS, as_overrides
from pipeline.commands.launch import requested
from pipeline.commands.multirun import requests
from pipeline.commands.request import check_fits_ray
from pipeline.commands.sweep_run import check_settings
from pipeline.commands.typed import WRONG_USE, in_words
from pipeline.config.checks import check_config
from pipeline.config.explain import read_flags
from pipeline.config.load import load_config
from pipeline.config.schema import Backend, Config, DeviceChoice, devices_per_training
from pipeline.engine.launch.run import find_program
from pipeline.errors import ConfigError, unknown_name
from pipeline.plan.chains import check_size
from pipeline.runs.report.format import command
from pipeline.slurm.script import shell_word
from pipeline.sweeps.command import check_program, overrides_of
from pipeline.sweeps.file import read_sweep
from pipeline.sweeps.plan import plan_agents, split_words
from pipeline.sweeps.search import most_trials
from pipeline.sweeps.storage import choose_sweep


@dataclass(frozen=True)
class JobCommand:
    """A command that would not be refused.

    Attributes:
        words: Of the command, with ``--`` before a program of the user's own.
        name: What a job is called by them.
        widest: Devices that the widest job of an experiment takes.
        on_cpu: Whether an experiment runs on CPUs, whatever there is.
        watch: A command that shows how far it is; "" for none.
    """

    words: list[str]
    name: str
    widest: int = 1
    on_cpu: bool = False
    watch: str = ""


def checked(words: Sequence[str], *, ray: bool = False) -> JobCommand:
    """Refuse what the command would refuse, as far as that can be told without the devices of the job.

    Args:
        words: What the job is to run, without ``python -m pipeline``.
        ray: Whether it brings up a Ray cluster.

    Raises:
        ConfigError: It is no command for a job, or one that would fail at once.
    """
    if not words:
        raise ConfigError(f"what is the job to run? {_USAGE}")
    first, *rest = words
    match first:
        case "run":
            config = _run_config(rest, _RAY if ray else ())
            writing = config.generation.gpus_per_job
            widest = max(devices_per_training(config), writing if isinstance(writing, int) else 1)
            on_cpu = config.device is DeviceChoice.cpu
            watch = command(f"status {shell_word(config.experiment.name)} --watch", Path(config.output_dir))
            return JobCommand(list(words), config.experiment.name, widest, on_cpu, watch)
        case "sweep":
            return JobCommand(list(words), _sweep_name(rest))
        case "launch":
            return JobCommand(*_launch(rest))
    raise ConfigError(f"{unknown_name('command for a job', first, ['run', 'sweep', 'launch'])} {_USAGE}")


_USAGE = "Give it last: pipeline slurm write --gres gpu:8 run experiment.name=NAME KEY=VALUE ..."


def _parsed(family: typer.Typer, of: str, name: str, words: Sequence[str]) -> Mapping[str, Any]:
    """The arguments of a command of this program, by their names.

    Args:
        family: It is one of these.
        of: What stands before its name.
        name: Its own.
        words: What follows its name.

    Raises:
        ConfigError: It would not take them.
    """
    command: Any = get_group(family)
    own = words[: words.index("--")] if "--" in words else words
    if "--help" in own:
        raise ConfigError(f"{name} {' '.join(words)}: that prints its help and ends, which is no work for a job")
    try:
        return dict(command.commands[name].make_context(f"{of}{name}", list(words)).params)
    except WRONG_USE as error:
        raise ConfigError(in_words(error)) from error


# -- an experiment -----------------------------------------------------------------------------------------------


_RAY = ("execution.backend=ray", "execution.ray.address=the.first.node:20000")
"""What a script with --ray says itself."""


def _run_config(words: Sequence[str], more: Sequence[str]) -> Config:
    asked = read_flags(as_overrides(words), FLAGS)
    if any((asked.help, asked.hydra_help, asked.version, asked.cfg, asked.info, asked.shell_completion)):
        raise ConfigError(f"run {' '.join(words)}: that prints something and ends, which is no work for a job")
    settings = next(requests(asked.overrides)) if asked.multirun else list(asked.overrides)
    if asked.config_dir:
        settings += overrides_of({"hydra.searchpath": [f"file://{Path(asked.config_dir).absolute()}"]})
    for setting in settings if more else ():
        key, _, value = setting.partition("=")
        if key == "execution.ray.address":
            raise ConfigError(f"{setting} with --ray: the script brings the cluster up, and says where it is")
        if key == "execution.backend" and value != Backend.ray.value:
            raise ConfigError(
                f"{setting} with --ray: a run is through the Ray that --ray brings up, or not through Ray. Leave "
                "one of them out"
            )
    config = load_config([*settings, *more])
    check_config(config)
    check_fits_ray(config)
    check_size(config)
    return config


# -- an agent of a sweep -----------------------------------------------------------------------------------------


def _sweep_name(words: Sequence[str]) -> str:
    if not words or words[0] not in ("agent", "run"):
        raise ConfigError("a job of a sweep is an agent of it: pipeline slurm write --array 0-3 sweep agent NAME")
    given = _parsed(sweep.app, "python -m pipeline sweep ", words[0], words[1:])
    if words[0] == "agent":
        return choose_sweep(given["output_dir"].absolute(), given["name"]).name
    strategy, overrides = split_words(given["words"] or [])
    asked = read_sweep(given["file"], name=given["name"], overrides=overrides)
    check_program(asked)
    check_settings(asked)
    if strategy:
        plan_agents(strategy, most_trials(asked))
    return asked.name


# -- a program of the user's own ---------------------------------------------------------------------------------


def _launch(words: Sequence[str]) -> tuple[list[str], str]:
    given = _parsed(launch.app, "python -m pipeline ", "launch", words)
    request = requested(**given)
    if request.nnodes != 1 or request.node_rank is not None or request.master_addr is not None:
        raise ConfigError(
            "--nnodes, --node-rank and --master-addr are for machines without Slurm: the script says them, and "
            "--nodes before the command how many machines there are"
        )
    options = list(words[: len(words) - len(request.program)])
    program = find_program(request.program, Path.cwd())
    separator = [] if options[-1:] == ["--"] else ["--"]
    return ["launch", *options, *separator, *request.program], Path(program.name).stem
