"""What is graded, what became of it, and what of a call is still to be done. Pure: no process, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pipeline.errors import JobError
from pipeline.learning.rewards.cause import UNKNOWN, Cause

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
