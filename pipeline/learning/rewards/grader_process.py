"""A process that grades, as its pool sees it: given completions, listened to, ended with all that it started."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.errors import JobError, WorkerError
from pipeline.foreign import parse_json
from pipeline.learning.rewards.cause import Cause
from pipeline.learning.rewards.grading import Graded, Item, PoolSettings, Work
from pipeline.machine.children import Child, end

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
