"""How commands end: what went wrong in one line, and the exit code."""

from __future__ import annotations

import sys

from pipeline.errors import PipelineError
from pipeline.terminal import streams
from pipeline.terminal.console import make_console, say_error

NOT_WRITTEN = 1
WRONG_REQUEST = 2
INTERRUPTED_BY = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143, "SIGUSR2": 143}
"""By the name of the signal that ended the work."""


def refuse(error: PipelineError) -> int:
    """Tell the user what is wrong with the request; nothing was started."""
    complain(str(error))
    return WRONG_REQUEST


def unless_unwritten(code: int) -> int:
    """The exit code of a command that is there to show something: no longer 0 if that could not be written.

    A reader that has seen enough is no failure; a full disk is.
    """
    lost = streams.failure(sys.stdout)
    if code or lost is None:
        return code
    complain(f"standard output could not be written: {lost.strerror}")
    return NOT_WRITTEN


def complain(text: str) -> None:
    """Tell the user what went wrong: in one line, which ends between words where a terminal is narrower."""
    say_error(make_console(stderr=True), text)
