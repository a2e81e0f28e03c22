"""What the commands around the main job have in common: their errors become messages and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from pipeline.commands.exits import refuse, unless_unwritten
from pipeline.commands.start import INTERRUPTED
from pipeline.errors import PipelineError


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
        raise typer.Exit(refuse(error)) from error
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(INTERRUPTED) from interrupt
    except typer.Exit as end:
        raise typer.Exit(unless_unwritten(end.exit_code)) from end
    if code := unless_unwritten(0):
        raise typer.Exit(code)
