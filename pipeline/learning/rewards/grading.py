"""What is graded, what became of it, and what of a call is still to be done. Pure: no process, no clock."""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal

from pipeline.errors import JobError, PipelineError
from pipeline.learning.rewards.traits import WrongScores

# -- cause -------------------------------------------------------------------------------------------------------
# Whether an exception in a reward is the reward's own fault, or may be due to the completion it was given.
# Told from where it was raised, in the process that grades: only what no completion can bring about is
# certain.


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


Fault = Literal["error", "timeout", "crash"]
FAULTS: tuple[Fault, ...] = ("error", "timeout", "crash")
"""An exception in the reward, no answer before the deadline, the end of the process that ran it."""
_SEQUENTIAL_CHUNK = 16
_CONCURRENT_CHUNK = 64
_MOST_STARTS_IN_VAIN = 3


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """How completions are graded.

    Attributes:
        processes: Graders at most.
        timeout_s: Seconds that a reward may take for each completion of a call.
        memory_gib: Address space that a grader may take beyond what it has after its imports.
        start_timeout_s: Seconds that a grader may take to start and import a reward.
    """

    processes: int = 2
    timeout_s: float = 10.0
    memory_gib: float = 4.0
    start_timeout_s: float = 120.0


@dataclass(frozen=True)
class Item:
    """One completion to grade, in TRL's terms; plain JSON data."""

    prompt: Any
    completion: Any
    ids: Sequence[int]
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graded:
    """What became of an item.

    Attributes:
        value: The score; None where the reward does not apply, or failed.
        answer: What the completion votes for in maj@k.
        fault: How the reward failed, or None.
        message: Says more about a fault.
        cause: What an error is due to.
    """

    value: float | None = None
    answer: str | None = None
    fault: Fault | None = None
    message: str = ""
    cause: Cause = UNKNOWN


class Work:
    """The calls of a reward that are to be made: waiting, with a grader, done."""

    def __init__(
        self, function: str, options: dict[str, Any], calls: Sequence[Sequence[Item]], concurrent: bool
    ) -> None:
        self.function = function
        self.options = options
        self.calls = calls
        self.concurrent = concurrent
        self.waiting: deque[int] = deque(range(len(calls)))
        self.suspects: deque[int] = deque()
        """Calls whose grader died, to be made once more when all others are done."""
        self.done: dict[int, Sequence[Graded]] = {}
        self._recalled: set[int] = set()
        self._alone: set[int] = set()
        self._in_vain = 0

    @property
    def open(self) -> bool:
        """Whether a call has no result yet."""
        return len(self.done) < len(self.calls)

    def next_chunk(self, processes: int) -> list[int]:
        """Calls for one request: many, but so that the last ones are spread over the graders."""
        if self.waiting[0] in self._alone:
            return [self.waiting.popleft()]
        most = _CONCURRENT_CHUNK if self.concurrent else _SEQUENTIAL_CHUNK
        count = min(most, -(-len(self.waiting) // processes))
        chunk: list[int] = []
        while self.waiting and len(chunk) < count and self.waiting[0] not in self._alone:
            chunk.append(self.waiting.popleft())
        return chunk

    def finish(self, index: int, graded: Sequence[Graded]) -> None:
        """Note what became of the items of a call."""
        self.done[index] = graded
        self._in_vain = 0

    def fail(self, index: int, graded: Graded) -> None:
        """Note a failure of a call: as it may compare its items, it is the failure of each."""
        self.finish(index, [graded] * len(self.calls[index]))

    def recall_suspect(self) -> None:
        """Have one of the suspects made for the second and last time."""
        self.waiting.append(self.suspects.popleft())
        self._recalled.add(self.waiting[-1])

    def hand_back(self, tasks: Iterable[int], started: set[int], verdict: Graded) -> None:
        """Suspect or blame the one call that was being made; of several, each is tried again by itself."""
        tasks = list(tasks)
        if len(started) == 1:
            (index,) = started
            if verdict.fault != "crash":
                self.fail(index, verdict)
            elif index in self._recalled:
                self.fail(index, replace(verdict, message=f"{verdict.message}, twice"))
            else:
                self.suspects.append(index)
                self._in_vain = 0
        elif started:
            self._alone |= started
        else:
            self._in_vain += 1
            if self._in_vain > _MOST_STARTS_IN_VAIN:
                raise JobError(
                    f"the processes that grade with '{self.function}' end before they grade anything, "
                    f"{self._in_vain} times in a row: {verdict.message}. Does importing it hang, end its process, "
                    "or take more memory than there is?"
                )
        self.waiting.extendleft(reversed(self._left(tasks)))

    def _left(self, tasks: Iterable[int]) -> list[int]:
        return [index for index in tasks if index not in self.done and index not in self.suspects]
