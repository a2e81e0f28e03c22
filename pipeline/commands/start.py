"""The one way into every command, guarded from its first line on.

    run_parallel.py, python -m pipeline, pipeline  ->  start  ->  streams that last  ->  imports  ->  the command

NumPy is told which instructions to take before anything imports it. Imports nothing heavy, so that there is hardly
a moment in which Ctrl-C meets an unguarded process.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

from pipeline import arithmetic
from pipeline.errors import PipelineError
from pipeline.machine.memory import imported_for_good
from pipeline.terminal import streams

INTERRUPTED = 130
BUG = 1
NOT_WRITTEN = 1
WRONG_REQUEST = 2
BUDGET_SPENT = 3
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
_started = False
_PLEASE_REPORT = (
    "error: this is a fault of the program, not of your request. Please report it with the lines above."
)


def start(command: str, *arguments: object) -> NoReturn:
    """Import a command, carry it out, and end the process with its exit code.

    Args:
        command: ``module:function``; returns an exit code, None for 0.
        arguments: Its arguments.
    """
    global _started
    _started = True
    _end_with(INTERRUPTED, [signal.SIGINT])
    streams.install()
    arithmetic.pin("numpy")
    code = _carry_out(command, arguments)
    settle(code)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # here, where Ctrl-C still ends the waiting for a terminal that is stopped
    gc.freeze()  # else Python goes through all modules as it ends, which takes it longer than some commands
    sys.exit(code)


def settle(code: int) -> None:
    """Make signals end the process at once from now on, with this exit code: its work is done.

    Args:
        code: The exit code. Nothing changes in a process that did not begin in `start`.
    """
    if _started:
        _end_with(code, _SIGNALS)


def pipeline() -> NoReturn:
    """Run the command ``pipeline``."""
    start("pipeline.__main__:main")


def _carry_out(command: str, arguments: tuple[object, ...]) -> int:
    module, _, name = command.partition(":")
    function = None
    try:
        os.getcwd()  # noqa: PTH109 - nothing else here needs pathlib
    except OSError:
        sys.stderr.write("error: the current folder is not there any more. Go to another one by cd\n")
        return WRONG_REQUEST
    try:
        with imported_for_good():
            function = getattr(import_module(module), name)
        _on_interrupt_raise()
        code: int | None = function(*arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return BUG
        return end.code or 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "pipeline":
            return _fault()
        sys.stderr.write(f"error: {_missing(error.name)}\n")
        return WRONG_REQUEST if function is None else BUG  # since something may have been started
    except Exception:
        return _fault()
    return code or 0


def _fault() -> int:
    """Tell of the exception that is being handled as of a fault of the program."""
    import traceback

    sys.stderr.write(f"{traceback.format_exc()}{_PLEASE_REPORT}\n")
    return BUG


def _missing(module: str | None) -> str:
    """Say what to do about a package that this Python lacks."""
    import shlex

    from pipeline.errors import install_command

    install = f"`{shlex.quote(sys.executable)} -m {install_command()}`"
    other = "Use the Python that has it, in a checkout `.venv/bin/python`"
    return f"the package '{module}' is missing from {sys.executable}. {other}, or install all: {install}"


def _end_with(code: int, signals: Sequence[signal.Signals]) -> None:
    """Have signals end the process at once, without a word, while nothing needs an orderly end."""

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        os._exit(code)

    for number in signals:
        if signal.getsignal(number) is not signal.SIG_IGN:  # whoever started this process has it ignored
            signal.signal(number, end)


def _on_interrupt_raise() -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# -- exits -------------------------------------------------------------------------------------------------------
# How commands end: what went wrong in one line, and the exit code.


INTERRUPTED_BY = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143, "SIGUSR2": 143}
"""Exit codes by the name of the signal that ended the work."""


def refuse(error: PipelineError) -> int:
    """Tell the user what is wrong with the request; nothing was started."""
    complain(str(error))
    return WRONG_REQUEST


def unless_unwritten(code: int) -> int:
    """Return the exit code of a command that only prints; never 0 if printing failed.

    A reader that has seen enough is no failure; a full disk is.
    """
    lost = streams.failure(sys.stdout)
    if code or lost is None:
        return code
    complain(f"standard output could not be written: {lost.strerror}")
    return NOT_WRITTEN


def complain(text: str) -> None:
    """Tell the user what went wrong: in one line, which ends between words where a terminal is narrower."""
    from pipeline.terminal.console import make_console, say_error

    say_error(make_console(stderr=True), text)
