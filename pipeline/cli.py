"""The main command: compose the configuration with Hydra, carry out the request, answer with an exit code.

0 every job done; 1 some failed, the rest finished, or what a dry run was to show could not be written; 2 the
request was wrong and nothing started; 130 and 143 interrupted by SIGINT and SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pipeline import __version__
from pipeline.commands import multirun
from pipeline.commands.device_flags import FLAGS, as_overrides
from pipeline.commands.exits import complain, refuse, unless_unwritten
from pipeline.commands.help import typed_command, usage
from pipeline.commands.run import run_experiment
from pipeline.commands.start import INTERRUPTED
from pipeline.config.arguments import check_flags, config_dir_of, settings_first, with_values
from pipeline.config.explain import all_faults, explain
from pipeline.config.install import conf_dir
from pipeline.config.load import VERSION_BASE, compose_typed, register_schemas, typed
from pipeline.config.schema import Config
from pipeline.config.words import as_meant
from pipeline.errors import ConfigError, PipelineError
from pipeline.sweeps.reading.command import overrides_of
from pipeline.terminal import streams
from pipeline.terminal.console import make_console, say

VERSION = f"pipeline {__version__}"


def main(arguments: Sequence[str]) -> int:
    """Run what a command line asks for; Hydra's own flags (``--cfg job``, ``--multirun``, ...) all work.

    So do ``--num-gpus``, ``--gpu-ids`` and ``--device``.

    Returns:
        The exit code; the highest one of a multirun.
    """
    streams.install()  # a script of the user's own may call this
    if answer := _about(arguments):
        say(make_console(), answer)
        return unless_unwritten(0)
    codes: list[int] = []
    composing, command = True, os.getpid()
    multirun.failed_runs.clear()

    def one_run(composed: DictConfig) -> float | multirun.RunFailed | None:
        nonlocal composing
        composing = False
        label, value, reason = _announce_run(arguments), None, ""
        try:
            given = HydraConfig.get().overrides.task
            config = _typed(composed, arguments, given)
            multirun.check_objective(config)
            code = run_experiment(
                config, make_console(), label=label, given=given, command=_repeating(arguments, given)
            )
            codes.append(unless_unwritten(code) if config.dry_run else code)
            value = multirun.objective(config) if code == 0 else None
        except PipelineError as error:  # here, since Hydra would print a line of its own about it
            codes.append(refuse(error))
            reason = str(error)
        composing = True
        if label and codes[-1]:
            return _failed(codes[-1], label, reason, here=os.getpid() == command)
        return value

    entry = hydra.main(version_base=VERSION_BASE, config_path=str(conf_dir()), config_name="config")(one_run)
    try:
        arguments = as_overrides(arguments)
        check_flags(arguments, FLAGS)
        arguments = as_meant(settings_first(arguments))
        with _for_hydra(with_values(arguments)):
            register_schemas(arguments)
            entry()
    except multirun.RunFailed:
        pass
    except PipelineError as error:
        codes.append(refuse(_all_faults(error, arguments) if isinstance(error, ConfigError) else error))
    except KeyboardInterrupt:
        return max([INTERRUPTED, *codes])
    except Exception as error:
        if not composing:
            raise
        codes.append(refuse(_all_faults(error, arguments)))
    if multirun.failed_runs:
        say(make_console(), "")  # apart from the last run, as runs are from each other
    for failed in multirun.failed_runs:
        complain(str(failed))
    return max([*codes, *(failed.exit_code for failed in multirun.failed_runs)], default=0)


def _typed(composed: DictConfig, arguments: Sequence[str], given: Sequence[str]) -> Config:
    """The configuration of a run; all that is wrong with it is told at once."""
    try:
        return typed(composed)
    except ConfigError as error:
        raise _all_faults(error, arguments, given) from error


def _all_faults(error: Exception, arguments: Sequence[str], given: Sequence[str] | None = None) -> ConfigError:
    """What is wrong with a command line, all of it where that can be found out.

    Args:
        error: What was raised.
        arguments: The command line.
        given: The settings of one run of several; None takes those of the command line.
    """
    try:
        asked = get_args_parser().parse_known_intermixed_args(list(arguments))[0]
    except (SystemExit, argparse.ArgumentError):
        return explain(error)
    if asked.config_path:
        return explain(error)
    words = list(asked.overrides if given is None else given)
    folders = [conf_dir(), *([Path(asked.config_dir).absolute()] if asked.config_dir else [])]
    name = asked.config_name or "config"
    folders.sort(key=lambda folder: not (folder / f"{name.removesuffix('.yaml')}.yaml").is_file())
    searched = overrides_of({"hydra.searchpath": [f"file://{folder}" for folder in folders[1:]]})

    def composed(some: Sequence[str]) -> Config:
        several = multirun.requests_of(some) if asked.multirun and given is None else [list(some)]
        configs = [compose_typed([*each, *searched], folders[0], name) for each in several]
        return configs[0]

    return all_faults(error, words, composed)


def _repeating(arguments: Sequence[str], given: Sequence[str]) -> list[str]:
    """The command that repeats this run alone: its settings, and where those of the user's own groups are."""
    folder = config_dir_of(arguments)
    return [*typed_command().split(), *given, *(["--config-dir", folder] if folder else [])]


def _announce_run(arguments: Sequence[str]) -> str:
    """Say which run of a multirun begins: the settings of its own; "" for the only run of a command."""
    if not multirun.in_multirun():
        return ""
    label = multirun.run_label(arguments)
    say(make_console(), f"\nrun {label}", "bold")
    return label


def _failed(code: int, label: str, reason: str, *, here: bool) -> multirun.RunFailed:
    """Let the launcher and the sweeper of a multirun know that a run did not end well.

    Returns:
        What says so, where nothing is chosen by it: raised, it would have Hydra print a line of its own, and keep
        the runs of further batches (``hydra.sweeper.max_batch_size``) from running.

    Raises:
        KeyboardInterrupt: It was interrupted, and the runs after it would start in this very process.
        RunFailed: A sweeper chooses by results.
    """
    if here and code >= INTERRUPTED:
        raise KeyboardInterrupt
    failed = multirun.RunFailed(code, label, reason)
    if multirun.chooses():
        raise failed
    return failed


def _about(arguments: Sequence[str]) -> str:
    """The answer to a question about the command itself, or ""."""
    if {"--help", "-h"} & set(arguments):
        return usage().rstrip()
    return VERSION if "--version" in arguments else ""


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
