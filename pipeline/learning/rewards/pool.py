"""A pool of processes that call rewards, each completion with a hard deadline.

    GraderPool --- socket per process ---> grader.py (imports the reward, calls it)

A completion that makes a reward hang, crash or eat memory costs itself: the process is killed with all its
descendants and replaced, and whatever else it had been given is graded by others. Everything is told by deadlines
here and acknowledgements there, so a process that holds its interpreter for ever (a regular expression) is no
exception. A process that dies may as well have been killed from outside, as by a machine short of memory; so the
completion is graded once more, in a fresh process and with no other one beside it, before it is blamed. Processes
die with the one that owns the pool: the kernel sees to it on Linux, and they stay in its process group, which the
engine kills.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.config.user_code import import_object
from pipeline.errors import JobError, describe_exit
from pipeline.learning.rewards.calling import bind
from pipeline.learning.rewards.cause import UNKNOWN, Cause
from pipeline.learning.rewards.traits import is_async
from pipeline.machine import descendants
from pipeline.machine.descendants import Process

Fault = Literal["error", "timeout", "crash"]
FAULTS: tuple[Fault, ...] = ("error", "timeout", "crash")
"""An exception in the reward, no answer before the deadline, the end of the process that ran it."""

_PACKAGE_PARENT = Path(__file__).parents[3]
_SEQUENTIAL_CHUNK = 16
_CONCURRENT_CHUNK = 64
_CONCURRENT_GRACE_S = 1.0
_MOST_BYTES = 1 << 20
_MOST_STARTS_IN_VAIN = 3


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """How completions are graded.

    Attributes:
        processes: Graders at most.
        timeout_s: Seconds that a reward may take for one completion.
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


class GraderPool:
    """Starts graders when there is work, and keeps them until `close`."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._graders: list[_Grader] = []
        self._finalizer = weakref.finalize(self, _close_all, self._graders)

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all graders and what they started. The pool can be used again."""
        _close_all(self._graders)

    def pids(self) -> list[int]:
        """Process ids of the graders."""
        return [grader.pid for grader in self._graders]

    def grade(self, function: str, options: Mapping[str, Any], items: Sequence[Item]) -> list[Graded]:
        """Call a reward for every item.

        Args:
            function: Dotted path of the reward; an `async` one is awaited for many items at once.
            options: Further arguments of the reward.
            items: What to grade.

        Returns:
            One entry per item, in their order.

        Raises:
            JobError: The reward cannot be imported by a grader, or graders cannot be kept alive.
        """
        work = _Work(
            function, dict(options), items, is_async(bind(import_object(function), options, function).function)
        )
        try:
            while work.open:
                if work.suspects and not work.waiting and not any(grader.tasks for grader in self._graders):
                    self.close()  # for a fresh process, with no other one beside it
                    work.recall_suspect()
                self._start_idle(work)
                self._collect(work)
        except BaseException:
            self.close()  # whoever is interrupted must find no half-answered request later
            raise
        return [work.done[index] for index in range(len(items))]

    def _start_idle(self, work: _Work) -> None:
        for grader in list(self._graders):
            if not grader.tasks and not grader.alive:  # killed while it had nothing to do; that is nobody's fault
                self._graders.remove(grader)
                grader.kill()
            elif work.waiting and not grader.tasks and not grader.begin(work, self.settings):
                self._bury(grader, work)
        while work.waiting and len(self._graders) < self.settings.processes:
            grader = _Grader(self.settings)
            self._graders.append(grader)
            if not grader.begin(work, self.settings):
                self._bury(grader, work)

    def _collect(self, work: _Work) -> None:
        """Wait for answers and deadlines, whichever comes first."""
        busy = [grader for grader in self._graders if grader.tasks]
        if not busy:
            return
        patience = max(0.0, min(grader.deadline for grader in busy) - time.monotonic())
        poll = select.poll()
        by_fd = {grader.fd: grader for grader in busy}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(patience * 1000 + 1)}
        for fd, grader in by_fd.items():
            if fd in ready:
                if not grader.take_answers(work):
                    self._bury(grader, work)
            elif time.monotonic() >= grader.deadline:
                self._bury(grader, work, overdue=True)

    def _bury(self, grader: _Grader, work: _Work, *, overdue: bool = False) -> None:
        """Kill a grader; suspect the item that it was at, and hand the others back."""
        self._graders.remove(grader)
        exit_code = grader.kill()
        fault: Fault = "timeout" if overdue else "crash"
        said = (
            f"no answer within {self.settings.timeout_s:g} s"
            if overdue
            else f"the grading process ended with {describe_exit(exit_code)}"
        )
        work.hand_back(grader.tasks, grader.started, Graded(fault=fault, message=said))


class _Work:
    """The items of one call: waiting, with a grader, done."""

    def __init__(self, function: str, options: dict[str, Any], items: Sequence[Item], concurrent: bool) -> None:
        self.function = function
        self.options = options
        self.items = items
        self.concurrent = concurrent
        self.waiting: deque[int] = deque(range(len(items)))
        self.suspects: deque[int] = deque()
        """Items whose grader died, to be graded once more when all others are done."""
        self.done: dict[int, Graded] = {}
        self._recalled: set[int] = set()
        self._alone: set[int] = set()
        self._in_vain = 0

    @property
    def open(self) -> bool:
        return len(self.done) < len(self.items)

    def next_chunk(self, processes: int) -> list[int]:
        """Items for one request: many, but so that the last ones are spread over the graders."""
        if self.waiting[0] in self._alone:
            return [self.waiting.popleft()]
        most = _CONCURRENT_CHUNK if self.concurrent else _SEQUENTIAL_CHUNK
        count = min(most, -(-len(self.waiting) // processes))
        chunk: list[int] = []
        while self.waiting and len(chunk) < count and self.waiting[0] not in self._alone:
            chunk.append(self.waiting.popleft())
        return chunk

    def finish(self, index: int, graded: Graded) -> None:
        self.done[index] = graded
        self._in_vain = 0

    def recall_suspect(self) -> None:
        """Have one of the suspects graded for the second and last time."""
        self.waiting.append(self.suspects.popleft())
        self._recalled.add(self.waiting[-1])

    def hand_back(self, tasks: Iterable[int], started: set[int], verdict: Graded) -> None:
        """Suspect or blame the one item that was being graded; of several, each is tried again by itself."""
        tasks = list(tasks)
        if len(started) == 1:
            (index,) = started
            if verdict.fault != "crash":
                self.finish(index, verdict)
            elif index in self._recalled:
                self.finish(index, replace(verdict, message=f"{verdict.message}, twice"))
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


class _Grader:
    """A process and what it was given.

    Attributes:
        tasks: Items without an answer, in order.
        started: Those of them whose grading has begun.
        deadline: When the next answer is due, by the monotonic clock.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.tasks: dict[int, None] = {}
        self.started: set[int] = set()
        self.deadline = float("inf")
        self._settings = settings
        self._limit_s = settings.timeout_s
        self._partial = b""
        self.tag = descendants.new_tag()
        ours, theirs = socket.socketpair()
        try:
            self._process = _spawn(theirs.fileno(), self.tag, settings.memory_gib)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def begin(self, work: _Work, settings: PoolSettings) -> bool:
        """Send a request; False if the process does not take it."""
        chunk = work.next_chunk(settings.processes)
        self._limit_s = settings.timeout_s + (_CONCURRENT_GRACE_S if work.concurrent else 0.0)
        self.tasks, self.started = dict.fromkeys(chunk), set()
        self.deadline = time.monotonic() + settings.start_timeout_s
        request = {
            "function": work.function,
            "options": work.options,
            "limit_s": settings.timeout_s,
            "items": [_plain(index, work.items[index]) for index in chunk],
        }
        try:
            # It waits for requests while it has none. One that does not, because an earlier item left threads
            # that keep it busy, is of no use any more.
            self._socket.settimeout(settings.start_timeout_s)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            return False
        self._socket.setblocking(False)
        return True

    def take_answers(self, work: _Work) -> bool:
        """Read what has arrived; False if the process is of no use any more."""
        try:
            chunk = self._socket.recv(_MOST_BYTES)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        try:
            for line in lines:
                self._take(json.loads(line), work)
        except (ValueError, TypeError, KeyError, AttributeError):
            return False  # a completion has got at the socket
        return bool(chunk) and len(self._partial) <= _MOST_BYTES

    def _take(self, answer: dict[str, Any], work: _Work) -> None:
        if "broken" in answer:
            raise JobError(str(answer["broken"]))
        self.deadline = time.monotonic() + self._limit_s
        if "loaded" in answer:
            return
        if "start" in answer:
            if answer["start"] in self.tasks:
                self.started.add(answer["start"])
            return
        index = answer["id"]
        if index not in self.started:
            raise KeyError(index)
        if "error" in answer:
            cause = Cause(bool(answer["certain"]), str(answer["column"]))
            graded = Graded(fault="error", message=str(answer["error"]), cause=cause)
        elif "timeout" in answer:
            graded = Graded(fault="timeout", message=f"no answer within {self._settings.timeout_s:g} s")
        else:
            value, vote = answer["value"], answer["answer"]
            graded = Graded(None if value is None else float(value), None if vote is None else str(vote))
        del self.tasks[index]
        self.started.discard(index)
        work.finish(index, graded)

    def kill(self) -> int:
        """End the process, and whatever it has started."""
        _end([self])
        return self._process.wait()

    def hang_up(self) -> set[Process]:
        """End the process itself; returns those descendants that may have lost its tag."""
        below = descendants.below(self.pid)
        self._socket.close()
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        return below


def _close_all(graders: list[_Grader]) -> None:
    ending = list(graders)
    graders.clear()
    if ending:
        _end(ending)


def _end(graders: Sequence[_Grader]) -> None:
    """End graders with all that they have started."""
    tags = {grader.tag for grader in graders}
    below = set().union(*(grader.hang_up() for grader in graders))
    descendants.end(lambda: descendants.tagged(tags) | descendants.alive(below))


def _spawn(fd: int, tag: str, memory_gib: float) -> subprocess.Popen[bytes]:
    settings = {
        "fd": fd,
        "parent_pid": os.getpid(),
        "memory_gib": memory_gib,
        "sys_path": [entry or str(Path.cwd()) for entry in sys.path],
    }
    env = {
        **descendants.with_tag(os.environ, tag),
        "PYTHONPATH": str(_PACKAGE_PARENT),
        "PYTHONHASHSEED": "0",  # what is judged must not depend on the order of a set
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    # -P: a file in the current folder must not take the place of a module of the standard library.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "pipeline.learning.rewards.grader", json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env,
        pass_fds=[fd],
    )


def _plain(index: int, item: Item) -> dict[str, Any]:
    columns = {name: _as_json(name, value) for name, value in item.columns.items()}
    ids = [int(token) for token in item.ids]
    return {"id": index, "prompt": item.prompt, "completion": item.completion, "ids": ids, "columns": columns}


def _as_json(name: str, value: Any) -> Any:
    """A column's value as JSON can carry it: numpy's scalars and arrays become plain ones."""
    value = value.tolist() if hasattr(value, "tolist") else value
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise JobError(
            f"column '{name}' holds {type(value).__name__}, which cannot be sent to a grading process: {error}. "
            "Use text, numbers, lists and tables of them."
        ) from error
    return value
