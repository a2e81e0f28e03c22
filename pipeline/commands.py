"""What the commands around the main job have in common: how they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from pipeline import cli
from pipeline.errors import PipelineError
from pipeline.start import INTERRUPTED


@contextmanager
def answering() -> Iterator[None]:
    """Answer what a user did wrong with one message, and Ctrl-C with its exit code.

    Raises:
        typer.Exit: 1 if what was to be shown could not be written, 2 for a wrong request, 130 for Ctrl-C; or what
            the command raised.
    """
    try:
        yield
    except PipelineError as error:
        raise typer.Exit(cli.refuse(error)) from error
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(INTERRUPTED) from interrupt
    except typer.Exit as end:
        raise typer.Exit(cli.unless_unwritten(end.exit_code)) from end
    if code := cli.unless_unwritten(0):
        raise typer.Exit(code)
