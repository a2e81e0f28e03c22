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
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from pipeline.config.arguments import check_flags
from pipeline.config.load import VERSION_BASE, conf_dir, explain, register_schemas, typed
from pipeline.devices.flags import FLAGS, as_overrides
from pipeline.errors import PipelineError
from pipeline.experiment import run_experiment

WRONG_REQUEST = 2
INTERRUPTED = 130
NO_TERMINAL_WIDTH = 120


def main(arguments: Sequence[str]) -> int:
    """Run what a command line asks for; Hydra's own flags (``--cfg job``, ``--multirun``, ...) all work.

    So do ``--num-gpus``, ``--gpu-ids`` and ``--device``.

    Returns:
        The exit code; the highest one of a multirun.
    """
    codes: list[int] = []
    composing = True

    def one_run(composed: DictConfig) -> None:
        nonlocal composing
        composing = False
        try:
            codes.append(run_experiment(typed(composed), make_console(), HydraConfig.get().overrides.task))
        except PipelineError as error:  # here, since Hydra would print a line of its own about it
            codes.append(refuse(error))
        composing = True

    entry = hydra.main(version_base=VERSION_BASE, config_path=str(conf_dir()), config_name="config")(one_run)
    try:
        arguments = as_overrides(arguments)
        check_flags(arguments, FLAGS)
        with _for_hydra(arguments):
            register_schemas(arguments)
            entry()
    except PipelineError as error:
        return refuse(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if not composing:
            raise
        return refuse(explain(error))
    return max(codes, default=0)


def make_console() -> Console:
    """Standard output; wide enough for every table where it is no terminal and so has no width of its own."""
    return Console() if sys.stdout.isatty() else Console(width=NO_TERMINAL_WIDTH)


def refuse(error: PipelineError) -> int:
    """Tell the user what is wrong with the request; nothing was started."""
    Console(stderr=True).print(f"[bold red]error:[/] {_plain(str(error))}", highlight=False, soft_wrap=True)
    return WRONG_REQUEST


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
