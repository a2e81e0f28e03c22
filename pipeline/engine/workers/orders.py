"""The orders that a worker has been given and has not begun."""

from __future__ import annotations

import queue
import threading
from collections import deque

from pipeline.engine.workers.messages import JobFinished, RunJob, Shutdown, WarmUp

Order = RunJob | WarmUp | Shutdown


class Orders:
    """What to do next, in the order in which it came. One thread takes orders; others, and signal handlers, put.

    An order that was handed ahead counts only if the job that it is to follow was the last one and ended well.
    """

    def __init__(self) -> None:
        self._orders: deque[Order] = deque()
        self._arrivals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._taking = threading.Lock()
        self._next: Order | None = None
        self._ended_well = ""

    def put(self, order: Order) -> None:
        """Add one. This waits for nothing: a signal may have come in the midst of a `get`."""
        self._orders.append(order)
        if self._arrivals.empty():
            self._arrivals.put(None)

    def get(self) -> Order:
        """The next one, waited for."""
        found, self._next = self._next, None
        while found is None and (found := self._take()) is None:
            self._arrivals.get()
        return found

    def is_followed(self, order: RunJob, answer: object) -> bool:
        """Note how a job has ended; whether another one is there to be begun at once."""
        self._ended_well = order.job_id if isinstance(answer, JobFinished) else ""
        self._next = self._next or self._take()
        return isinstance(self._next, RunJob)

    def drop_ahead(self) -> list[str]:
        """Take out the jobs that were handed ahead, and name them. For any thread."""
        dropped = []
        # All or nothing: one taken meanwhile would follow one that is dropped here, and be named by nobody.
        with self._taking:
            for _ in range(len(self._orders)):
                order = self._orders.popleft()
                if isinstance(order, RunJob) and order.after:
                    dropped.append(order.job_id)
                else:
                    self._orders.append(order)
        return dropped

    def _take(self) -> Order | None:
        """The first that counts, if there is one; those before it are dropped."""
        with self._taking:
            while self._orders:
                order = self._orders.popleft()
                if not isinstance(order, RunJob) or order.after in ("", self._ended_well):
                    return order
        return None
