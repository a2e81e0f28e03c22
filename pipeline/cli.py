"""The main command: compose the configuration with Hydra, carry out the request, answer with an exit code.

0 every job done; 1 some failed, the rest finished; 2 the request was wrong and nothing started; 130 and 143
interrupted by SIGINT and SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

import hydra
from omegaconf import DictConfig
from rich.console import Console

from pipeline import __version__, multirun
from pipeline.config.load import COMPOSITION_ERRORS, VERSION_BASE, conf_dir, explain, register_schemas, typed
from pipeline.devices.flags import as_overrides
from pipeline.errors import PipelineError
from pipeline.experiment import run_experiment
from pipeline.usage import usage

VERSION = f"pipeline {__version__}"
WRONG_REQUEST = 2
INTERRUPTED = 130
NO_TERMINAL_WIDTH = 120


def main(arguments: Sequence[str]) -> int:
    """Run what a command line asks for; Hydra's own flags (``--cfg job``, ``--multirun``, ...) all work.

    So do ``--num-gpus``, ``--gpu-ids`` and ``--device``.

    Returns:
        The exit code; the highest one of a multirun.
    """
    if answer := _about(arguments):
        make_console().print(answer, markup=False, highlight=False, soft_wrap=True)
        return 0
    codes: list[int] = []
    composing, command = True, os.getpid()
    multirun.failed_runs.clear()

    def one_run(composed: DictConfig) -> float | None:
        nonlocal composing
        composing = False
        label, value, reason = _announce_run(arguments), None, ""
        try:
            config = typed(composed)
            multirun.check_objective(config)
            codes.append(run_experiment(config, make_console(), label))
            value = multirun.objective(config) if codes[-1] == 0 else None
        except PipelineError as error:  # here, since Hydra would print a line of its own about it
            codes.append(refuse(error))
            reason = str(error)
        composing = True
        if label:
            _raise_for_hydra(codes[-1], label, reason, here=os.getpid() == command)
        return value

    entry = hydra.main(version_base=VERSION_BASE, config_path=str(conf_dir()), config_name="config")(one_run)
    try:
        arguments = as_overrides(arguments)
        with _for_hydra(arguments):
            register_schemas(arguments)
            entry()
    except multirun.RunFailed:
        pass
    except PipelineError as error:
        return refuse(error)
    except KeyboardInterrupt:
        return max([INTERRUPTED, *codes])
    except COMPOSITION_ERRORS as error:
        if not composing:
            raise
        return refuse(explain(error))
    for failed in multirun.failed_runs:
        complain(str(failed))
    return max([*codes, *(failed.exit_code for failed in multirun.failed_runs)], default=0)


def _announce_run(arguments: Sequence[str]) -> str:
    """Say which run of a multirun begins: the settings of its own; "" for the only run of a command."""
    if not multirun.in_multirun():
        return ""
    label = multirun.run_label(arguments)
    make_console().print(f"\nrun {label}", style="bold", markup=False, highlight=False, soft_wrap=True)
    return label


def _raise_for_hydra(code: int, label: str, reason: str, *, here: bool) -> None:
    """Let the launcher and the sweeper of a multirun know how a run ended.

    Raises:
        KeyboardInterrupt: It was interrupted, and the runs after it would start in this very process.
        RunFailed: It did not end well.
    """
    if here and code >= INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise multirun.RunFailed(code, label, reason)


def _about(arguments: Sequence[str]) -> str:
    """The answer to a question about the command itself, or ""."""
    if {"--help", "-h"} & set(arguments):
        return usage().rstrip()
    return VERSION if "--version" in arguments else ""


def make_console() -> Console:
    """Standard output; wide enough for every table where it is no terminal and so has no width of its own."""
    return Console() if sys.stdout.isatty() else Console(width=NO_TERMINAL_WIDTH)


def refuse(error: PipelineError) -> int:
    """Tell the user what is wrong with the request; nothing was started."""
    complain(str(error))
    return WRONG_REQUEST


def complain(text: str) -> None:
    """Tell the user what went wrong, in one line."""
    Console(stderr=True).print(f"[bold red]error:[/] {_plain(text)}", highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


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
