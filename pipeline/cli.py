"""The main command: compose the configuration with Hydra, carry out the request, answer with an exit code.

0 every job done; 1 some failed, the rest finished, or what a dry run was to show could not be written; 2 the
request was wrong and nothing started; 3 the budget ended before the plan; 130 and 143 interrupted by SIGINT and
SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pipeline import __version__
from pipeline.commands import multirun, run, start
from pipeline.config import checks, load, plain, tables
from pipeline.errors import PipelineError
from pipeline.terminal import streams
from pipeline.terminal.console import make_console, say

if TYPE_CHECKING:
    import argparse

VERSION = f"pipeline {__version__}"


def main(arguments: Sequence[str]) -> int:
    """Run what a command line asks for; Hydra's own flags (``--cfg job``, ``--multirun``, ...) all work.

    So do ``--num-gpus``, ``--gpu-ids`` and ``--device``.

    Returns:
        The exit code; the highest one of a multirun.
    """
    streams.install()  # a script of the user's own may call this
    if {"--help", "-h", "--version"} & set(arguments):
        say(make_console(), VERSION if "--version" in arguments else usage().rstrip())
        return start.unless_unwritten(0)
    codes: list[int] = []
    composing, command, folder = True, os.getpid(), None
    multirun.failed_runs.clear()

    def one_run(composed: DictConfig) -> multirun.RunFailed | None:
        nonlocal composing
        composing = False
        label, reason = "", ""
        if multirun.in_multirun():
            label = multirun.run_label(arguments)
            say(make_console(), f"\nrun {label}", "bold")
        try:
            overrides = HydraConfig.get().overrides.task
            again = [*typed_command().split(), *overrides, *(["--config-dir", folder] if folder else [])]
            config = load.typed(composed)
            multirun.check_sweeper()
            code = run.run_experiment(config, make_console(), label=label, given=overrides, command=again)
            codes.append(start.unless_unwritten(code) if config.dry_run else code)
        except PipelineError as error:  # here, since Hydra would print a line of its own about it
            codes.append(start.refuse(error))
            reason = str(error)
        composing = True
        if not label or not codes[-1]:
            return None
        if os.getpid() == command and codes[-1] >= start.INTERRUPTED:
            raise KeyboardInterrupt  # the runs after it would start in this very process
        return multirun.RunFailed(codes[-1], label, reason)

    conf = str(tables.conf_dir())
    entry = hydra.main(version_base=load.VERSION_BASE, config_path=conf, config_name="config")(one_run)
    try:
        flags = multirun.read_flags(arguments)
        multirun.refuse_repeats(flags.typed)
        folder = flags.config_dir
        settings = load.as_meant(flags.overrides)
        _check_settings(flags, settings)
        arguments = multirun.for_hydra(flags, settings)
        with _for_hydra(arguments):
            load.register_schemas()
            entry()
    except PipelineError as error:
        codes.append(start.refuse(error))
    except KeyboardInterrupt:
        return max([start.INTERRUPTED, *codes])
    except Exception as error:
        if not composing:
            raise
        codes.append(start.refuse(load.explain(error)))
    if multirun.failed_runs:
        say(make_console(), "")  # apart from the last run, as runs are from each other
    for failed in multirun.failed_runs:
        start.complain(str(failed))
    return max([*codes, *(failed.exit_code for failed in multirun.failed_runs)], default=0)


def _check_settings(flags: argparse.Namespace, settings: Sequence[str]) -> None:
    """Refuse all at once what Hydra would refuse one by one; of several runs, each value of one."""
    own_files = bool(flags.config_path or flags.config_name or flags.config_dir)
    faults = load.read_settings(settings, several=flags.multirun, own_files=own_files)[1]
    if own_files:
        plain.refuse_all(faults)
    elif faults and not flags.multirun:
        load.load_config(settings)
    elif flags.multirun:
        for request in multirun.requests(settings):
            checks.check_config(load.load_config(request))


@contextlib.contextmanager
def _for_hydra(arguments: Sequence[str]) -> Iterator[None]:
    """Give Hydra its command line, and have it raise what it would otherwise print before it exits."""
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full


# -- help -------------------------------------------------------------------------------------------------------
# What ``--help`` says: what it is for, what is typed most, and where the rest is.


_TEXT = """\
Train and compare methods of language-model post-training, round by round.
Settings become a plan of jobs, workers on the GPUs or CPU cores of this machine
carry them out, and a table compares what came of them.

    {command} experiment.name=NAME [KEY=VALUE ...] [FLAG ...]

That alone trains a tiny model on sums, which takes a minute or so on two cores.
Further words, any of them together:
    dry_run=true                        the plan, and what of it is stored
    'algos=[PITA,DPO,GRPO]'             choices of a group
    'experiment.seeds=[0,1,2]'          three chains for each algorithm
    rounds_of_training=3 algos.PITA.eta=0.5          any key
    dataset=jsonl datasets.jsonl.path=FILE           data of your own
    model=hf models.hf.path=FOLDER_OR_HUB_ID         another model
    profile=a100_80gb                   values for a GPU
    --multirun algos.PITA.eta=0.5,1.0   a run for each value
The same command again goes on from where it was, and computes nothing twice.

Groups (GROUP=CHOICE; algos, dataset and model also 'GROUP=[CHOICE,CHOICE]'):
{groups}

Flags:
    --num-gpus N             so many GPUs, the idlest
    --gpu-ids 0 2 3          these GPUs; `{other} gpus` lists them
    --device cpu             no GPU
    --multirun, -m           a run for each combination of values with commas
    --cfg job                the configuration; `-p algos` a part of it
    --config-dir, -cd DIR    a folder of groups of your own
    --hydra-help             further flags, which are Hydra's
    --version, --help

What a key means, its type, range, unit and default; also of a group of keys:
    {other} help KEY
Looking at runs, GPUs and the store:
    {other} --help
"""


def usage() -> str:
    """Return the usage text, with the command as it was typed."""
    command = typed_command()
    return _TEXT.format(
        command=command,
        groups="\n".join(map(_group, tables.groups())),
        other="pipeline" if command.startswith("pipeline") else "python -m pipeline",
    )


def typed_command() -> str:
    """Return how the main command was called: as a script, the package or the installed program."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return "python -m pipeline run"
    return f"python {program.name}" if program.suffix == ".py" else f"{program.name} run"


def _group(name: str) -> str:
    choices, first, more = ", ".join(tables.choices_of(name)), f"    {name:<12}", " " * 16
    return fill(choices, 79, initial_indent=first, subsequent_indent=more, break_on_hyphens=False)
