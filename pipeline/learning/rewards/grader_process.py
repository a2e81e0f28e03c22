"""A process that grades, as its pool sees it: given completions, listened to, ended with all that it started."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from pipeline.errors import JobError, WorkerError
from pipeline.foreign import parse_json
from pipeline.learning.rewards.cause import Cause
from pipeline.learning.rewards.grading import Batch, Graded, Item, PoolSettings
from pipeline.machine.children import Child, end

_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # what is judged must not depend on the order of a set
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_CONCURRENT_GRACE_S = 1.0
_MOST_BYTES = 1 << 20


class GraderProcess(Child):
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
        super().__init__(
            "pipeline.learning.rewards.grader",
            {**os.environ, **_ENVIRONMENT},
            {"memory_gib": settings.memory_gib},
            max_bytes=_MOST_BYTES,
            # It waits for requests while it has none. One that does not, because an earlier item left threads that
            # keep it busy, is of no use any more.
            send_timeout_s=settings.start_timeout_s,
        )

    def begin(self, work: Batch) -> bool:
        """Send a request; False if the process does not take it."""
        settings = self._settings
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
            self.channel.send(json.dumps(request).encode())
        except OSError:
            return False
        return True

    def take_answers(self, work: Batch) -> bool:
        """Read what has arrived; False if the process is of no use any more."""
        try:
            for line in self.channel.receive():
                self._take(parse_json(line), work)
        except (WorkerError, ValueError, TypeError, KeyError):
            return False  # a completion has got at the socket
        return not self.channel.closed

    def _take(self, answer: dict[str, Any], work: Batch) -> None:
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


def end_all(graders: Sequence[GraderProcess]) -> list[int]:
    """End graders with all that they have started; their exit codes."""
    end(graders)
    return [grader.wait() for grader in graders]


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
