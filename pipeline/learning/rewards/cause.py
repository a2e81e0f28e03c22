"""Whether an exception in a reward is the reward's own fault, or may be due to the completion it was given.

Told from where it was raised, in the process that grades: only what no completion can bring about is certain.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from pipeline.errors import PipelineError
from pipeline.learning.rewards.traits import WrongScores


@dataclass(frozen=True)
class Cause:
    """What an exception is due to.

    Attributes:
        certain: Whether the reward would fail so for any completion.
        column: The column that it looked up among its `**` arguments and that is not there, or "".
    """

    certain: bool = False
    column: str = ""


UNKNOWN = Cause()


def cause_of(error: BaseException) -> Cause:
    """Judge an exception that has gone through a reward."""
    if isinstance(error, WrongScores | PipelineError):
        return Cause(certain=True)
    raised = _raised(error.__traceback__)
    if not raised:
        return UNKNOWN
    if type(error) is NameError:  # not UnboundLocalError: which branches are taken is up to the completion
        return Cause(certain=_is_global(error, raised[-1].tb_frame))
    if isinstance(error, ImportError):
        return Cause(certain=isinstance(_statement(_innermost_in_file(raised)), ast.Import | ast.ImportFrom))
    if isinstance(error, KeyError):
        column = _looked_up(error, raised)
        return Cause(certain=bool(column), column=column)
    return UNKNOWN


def _raised(trace: TracebackType | None) -> list[TracebackType]:
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _is_global(error: NameError, frame: FrameType) -> bool:
    """Whether a name of the module was meant; code that is made out of a completion may use any name."""
    code = frame.f_code
    return error.name in code.co_names and error.name not in code.co_freevars and Path(code.co_filename).is_file()


def _innermost_in_file(raised: Sequence[TracebackType]) -> TracebackType:
    """Beneath it is at most what Python runs to find a module."""
    frozen = itertools.takewhile(_is_import_machinery, reversed(raised))
    return raised[max(0, len(raised) - 1 - len(list(frozen)))]


def _is_import_machinery(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")


def _looked_up(error: KeyError, raised: Sequence[TracebackType]) -> str:
    """The text that was looked up in the `**` arguments of a function that the exception has gone through."""
    match _statement(raised[-1]):
        case ast.Expr(ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key)))):
            table = raised[-1].tb_frame.f_locals.get(name)
            further = (_further_arguments(trace.tb_frame) for trace in raised)
            if error.args == (key,) and any(each is table is not None for each in further):
                return key
    return ""


def _further_arguments(frame: FrameType) -> object:
    code = frame.f_code
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    places = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    return frame.f_locals.get(code.co_varnames[places])


def _statement(trace: TracebackType) -> ast.stmt | None:
    """The part of the source that was being carried out, or None where it cannot be found."""
    code = trace.tb_frame.f_code
    first, last, start, end = next(itertools.islice(code.co_positions(), trace.tb_lasti // 2, None))
    if first is None or last is None or start is None or end is None or not Path(code.co_filename).is_file():
        return None
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    if not all(lines):
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        found = ast.parse(b"".join(lines)).body
    except (SyntaxError, ValueError):
        return None
    return found[0] if len(found) == 1 else None
