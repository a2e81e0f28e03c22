"""A pool of processes that call rewards, each call with a hard deadline.

    GraderPool --- socket per process ---> grader.py (imports the reward, calls it)

A call, of one completion or of several that may be compared, in which a reward hangs, crashes or eats memory costs
its own scores: the process is killed with all its descendants and replaced, and others make its further calls.
Everything is told by deadlines here and acknowledgements there, so a process that holds its interpreter for ever
(a regular expression) is no exception. A process that dies may as well have been killed from outside, as by a
machine short of memory; so the call is made once more, in a fresh process and with no other one beside it, before
it is blamed. Processes die with the one that owns the pool: the kernel sees to it on Linux, and they stay in its
process group, which the engine kills.
"""

from __future__ import annotations

import json
import os
import select
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.config.user_code import import_object
from pipeline.errors import JobError, WorkerError, describe_exit
from pipeline.foreign import parse_json
from pipeline.learning.rewards.calling import bind
from pipeline.learning.rewards.grading import Cause, Graded, Item, PoolSettings, Work
from pipeline.learning.rewards.traits import is_async
from pipeline.machine.children import Child, end

# -- grader process ----------------------------------------------------------------------------------------------
# A process that grades, as its pool sees it: given completions, listened to, ended with all that it started.


_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # what is judged must not depend on the order of a set
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_CONCURRENT_GRACE_S = 1.0
_MOST_BYTES = 64 << 20


class GraderProcess(Child):
    """A process and what it was given.

    Attributes:
        tasks: Calls without an answer, in order.
        started: Those of them that have begun.
        deadline: When the next answer is due, by the monotonic clock.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.tasks: dict[int, None] = {}
        self.started: set[int] = set()
        self.deadline = float("inf")
        self._settings = settings
        super().__init__(
            "pipeline.learning.rewards.grader",
            {**os.environ, **_ENVIRONMENT},
            {"memory_gib": settings.memory_gib},
            max_bytes=_MOST_BYTES,
            # It waits for requests while it has none. One that does not, because an earlier item left threads that
            # keep it busy, is of no use any more.
            send_timeout_s=settings.start_timeout_s,
        )

    def begin(self, work: Work) -> bool:
        """Send a request; False if the process does not take it."""
        settings = self._settings
        chunk = work.next_chunk(settings.processes)
        self.tasks, self.started = dict.fromkeys(chunk), set()
        self.deadline = time.monotonic() + settings.start_timeout_s
        request = {
            "function": work.function,
            "options": work.options,
            "calls": [
                {"id": index, "limit_s": self._limit_s(work, [index]), "items": [*map(_plain, work.calls[index])]}
                for index in chunk
            ],
        }
        try:
            self.channel.send(json.dumps(request).encode())
        except OSError:
            return False
        return True

    def take_answers(self, work: Work) -> bool:
        """Read what has arrived; False if the process is of no use any more."""
        try:
            for line in self.channel.receive():
                self._take(parse_json(line), work)
        except (WorkerError, ValueError, TypeError, KeyError):
            return False  # a completion has got at the socket
        return not self.channel.closed

    def _take(self, answer: dict[str, Any], work: Work) -> None:
        if "broken" in answer:
            raise JobError(str(answer["broken"]))
        if "start" in answer:
            if answer["start"] in self.tasks:
                self.started.add(answer["start"])
        elif "loaded" not in answer:
            self._finish(answer, work)
        grace_s = _CONCURRENT_GRACE_S if work.concurrent else 0.0
        self.deadline = time.monotonic() + self._limit_s(work, self.started or self.tasks) + grace_s

    def _finish(self, answer: dict[str, Any], work: Work) -> None:
        index = answer["id"]
        if index not in self.started:
            raise KeyError(index)
        if "error" in answer:
            cause = Cause(bool(answer["certain"]), str(answer["column"]))
            work.fail(index, Graded(fault="error", message=str(answer["error"]), cause=cause))
        elif "timeout" in answer:
            work.fail(index, self.overdue(work, index))
        else:
            work.finish(index, _graded(answer["scores"], len(work.calls[index])))
        del self.tasks[index]
        self.started.discard(index)

    def overdue(self, work: Work, index: int | None) -> Graded:
        """What is said of a call that took too long."""
        calls = [] if index is None else [index]
        count = max((len(work.calls[each]) for each in calls), default=1)
        several = f" for {count} completions" if count > 1 else ""
        return Graded(fault="timeout", message=f"no answer within {self._limit_s(work, calls):g} s{several}")

    def _limit_s(self, work: Work, calls: Iterable[int]) -> float:
        """Seconds that the longest of these calls may take."""
        return self._settings.timeout_s * max((len(work.calls[index]) for index in calls), default=1)


def end_all(graders: Sequence[GraderProcess]) -> list[int]:
    """End graders with all that they have started; their exit codes."""
    end(graders)
    return [grader.wait() for grader in graders]


def _graded(scores: Sequence[Sequence[Any]], expected: int) -> list[Graded]:
    if len(scores) != expected:
        raise ValueError(f"{len(scores)} scores")
    return [_read(*score) for score in scores]


def _read(value: Any, vote: Any, error: Any) -> Graded:
    if error is not None:
        return Graded(fault="error", message=str(error))
    return Graded(None if value is None else float(value), None if vote is None else str(vote))


def _plain(item: Item) -> dict[str, Any]:
    columns = {name: _as_json(name, value) for name, value in item.columns.items()}
    ids = [int(token) for token in item.ids]
    return {"prompt": item.prompt, "completion": item.completion, "ids": ids, "columns": columns}


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


class GraderPool:
    """Starts graders when there is work, and keeps them until `close`."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._graders: list[GraderProcess] = []
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
        return [grader.process.pid for grader in self._graders]

    def grade(
        self, function: str, options: Mapping[str, Any], calls: Sequence[Sequence[Item]]
    ) -> list[Sequence[Graded]]:
        """Call a reward.

        Args:
            function: Dotted path of the reward; an `async` one is awaited for many calls at once.
            options: Further arguments of the reward.
            calls: What to grade, by call.

        Returns:
            One entry per item of each call, in their order.

        Raises:
            JobError: The reward cannot be imported by a grader, or graders cannot be kept alive.
        """
        work = Work(
            function, dict(options), calls, is_async(bind(import_object(function), options, function).function)
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
        return [work.done[index] for index in range(len(calls))]

    def _start_idle(self, work: Work) -> None:
        for grader in list(self._graders):
            if not grader.tasks and grader.process.poll() is not None:  # nobody's fault, as it had nothing to do
                self._graders.remove(grader)
                end_all([grader])
            elif work.waiting and not grader.tasks and not grader.begin(work):
                self._bury(grader, work)
        while work.waiting and len(self._graders) < self.settings.processes:
            grader = GraderProcess(self.settings)
            self._graders.append(grader)
            if not grader.begin(work):
                self._bury(grader, work)

    def _collect(self, work: Work) -> None:
        """Wait for answers and deadlines, whichever comes first."""
        busy = [grader for grader in self._graders if grader.tasks]
        if not busy:
            return
        patience = max(0.0, min(grader.deadline for grader in busy) - time.monotonic())
        poll = select.poll()
        by_fd = {grader.channel.fileno(): grader for grader in busy}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(patience * 1000 + 1)}
        for fd, grader in by_fd.items():
            if fd in ready:
                if not grader.take_answers(work):
                    self._bury(grader, work)
            elif time.monotonic() >= grader.deadline:
                self._bury(grader, work, overdue=True)

    def _bury(self, grader: GraderProcess, work: Work, *, overdue: bool = False) -> None:
        """Kill a grader; suspect the call that it was at, and hand the others back."""
        self._graders.remove(grader)
        (exit_code,) = end_all([grader])
        ended = Graded(fault="crash", message=f"the grading process ended with {describe_exit(exit_code)}")
        verdict = grader.overdue(work, next(iter(grader.started), None)) if overdue else ended
        work.hand_back(grader.tasks, grader.started, verdict)


def _close_all(graders: list[GraderProcess]) -> None:
    ending = list(graders)
    graders.clear()
    if ending:
        end_all(ending)
