"""The main command: compose the configuration with Hydra, carry out the request, answer with an exit code.

0 every job done; 1 some failed, the rest finished, or what a dry run was to show could not be written; 2 the
request was wrong and nothing started; 130 and 143 interrupted by SIGINT and SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pipeline import __version__
from pipeline.commands import multirun
from pipeline.commands.help import typed_command, usage
from pipeline.commands.run import run_experiment
from pipeline.commands.start import INTERRUPTED, complain, refuse, unless_unwritten
from pipeline.config.checks import check_config
from pipeline.config.load import (
    VERSION_BASE,
    as_meant,
    explain,
    load_config,
    read_settings,
    register_schemas,
    typed,
)
from pipeline.config.plain import refuse_all
from pipeline.config.tables import conf_dir
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
        return unless_unwritten(0)
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
            given = HydraConfig.get().overrides.task
            again = [*typed_command().split(), *given, *(["--config-dir", folder] if folder else [])]
            config = typed(composed)
            multirun.check_sweeper()
            code = run_experiment(config, make_console(), label=label, given=given, command=again)
            codes.append(unless_unwritten(code) if config.dry_run else code)
        except PipelineError as error:  # here, since Hydra would print a line of its own about it
            codes.append(refuse(error))
            reason = str(error)
        composing = True
        if not label or not codes[-1]:
            return None
        if os.getpid() == command and codes[-1] >= INTERRUPTED:
            raise KeyboardInterrupt  # the runs after it would start in this very process
        return multirun.RunFailed(codes[-1], label, reason)

    entry = hydra.main(version_base=VERSION_BASE, config_path=str(conf_dir()), config_name="config")(one_run)
    try:
        asked = multirun.read_flags(arguments)
        folder = asked.config_dir
        settings = as_meant(asked.overrides)
        _check_settings(asked, settings)
        arguments = multirun.for_hydra(asked, settings)
        with _for_hydra(arguments):
            register_schemas()
            entry()
    except PipelineError as error:
        codes.append(refuse(error))
    except KeyboardInterrupt:
        return max([INTERRUPTED, *codes])
    except Exception as error:
        if not composing:
            raise
        codes.append(refuse(explain(error)))
    if multirun.failed_runs:
        say(make_console(), "")  # apart from the last run, as runs are from each other
    for failed in multirun.failed_runs:
        complain(str(failed))
    return max([*codes, *(failed.exit_code for failed in multirun.failed_runs)], default=0)


def _check_settings(asked: argparse.Namespace, settings: Sequence[str]) -> None:
    """Refuse, all at once, what Hydra would refuse one by one; of several runs each value that one has."""
    own_files = bool(asked.config_path or asked.config_name or asked.config_dir)
    faults = read_settings(settings, several=asked.multirun, own_files=own_files)[1]
    if own_files:
        refuse_all(faults)
    elif faults and not asked.multirun:
        load_config(settings)
    elif asked.multirun:
        for request in multirun.requests(settings):
            check_config(load_config(request))


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
