"""The orders that a worker has been given and has not begun."""

from __future__ import annotations

import queue
from contextlib import suppress

from pipeline.engine.workers.messages import JobFinished, RunJob, Shutdown, WarmUp

Order = RunJob | WarmUp | Shutdown


class Orders:
    """What to do next, in the order in which it came. One thread puts orders in, another one takes them.

    An order that was handed ahead counts only if the job that it is to follow was the last one and ended well.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._next: Order | None = None
        self._ended_well = ""

    def put(self, order: Order) -> None:
        """Add one."""
        self._queue.put(order)

    def get(self) -> Order:
        """The next one, waited for."""
        found, self._next = self._next, None
        while found is None:
            found = self._counts(self._queue.get())
        return found

    def is_followed(self, order: RunJob, answer: object) -> bool:
        """Note how a job has ended; whether another one is there to be begun at once."""
        well = isinstance(answer, JobFinished) and not answer.changed
        self._ended_well = order.job_id if well else ""
        with suppress(queue.Empty):
            while self._next is None:
                self._next = self._counts(self._queue.get_nowait())
        return isinstance(self._next, RunJob)

    def drop_ahead(self) -> list[str]:
        """Take out the jobs that were handed ahead, and name them. For any thread."""
        kept, dropped = list[Order](), list[str]()
        with suppress(queue.Empty):
            while True:
                order = self._queue.get_nowait()
                if isinstance(order, RunJob) and order.after:
                    dropped.append(order.job_id)
                else:
                    kept.append(order)
        for order in kept:
            self._queue.put(order)
        return dropped

    def _counts(self, order: Order) -> Order | None:
        return None if isinstance(order, RunJob) and order.after not in ("", self._ended_well) else order
