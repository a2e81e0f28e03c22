"""What a run writes down and tells as it goes: its events, its attempts and the lives of its workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipeline.engine.events import Event
from pipeline.engine.journal import Journal
from pipeline.engine.scheduler.makespan import Attempt, WorkerSpan
from pipeline.errors import StoreError


class RunAccount:
    """Keeps the books of one run.

    Attributes:
        attempts: Every attempt, in the order in which they ended.
        spans: Every worker that was started.
        broken: Why the journal can no longer be written, or "". The run must end then: nobody could tell from its
            journal what happened after.
    """

    def __init__(
        self, journal: Journal, clock: Callable[[], float], on_event: Callable[[Event], None] = lambda _: None
    ) -> None:
        self.attempts: list[Attempt] = []
        self.spans: list[WorkerSpan] = []
        self.broken = ""
        self._journal = journal
        self._clock = clock
        self._on_event = on_event
        self._sent_s: dict[int, float] = {}

    def write(self, event: str, **fields: Any) -> None:
        """Have an event on disk and then tell it, or remember that it could not be written."""
        if self.broken:
            return
        try:
            written = self._journal.write(event, **fields)
        except StoreError as error:
            self.broken = str(error)
        else:
            self._on_event(written)

    def tell(self, event: str, **fields: Any) -> None:
        """Tell an event that has no place in the journal."""
        self._on_event({"event": event, **fields})

    def worker_started(self, worker: int) -> None:
        """A worker process was started."""
        self.spans.append(WorkerSpan(worker=worker, started_s=self._clock()))
        self.tell("WorkerStarting", worker=worker)

    def worker_ready(self, worker: int) -> None:
        """It can take jobs."""
        at = self._span(worker)
        self.spans[at] = replace(self.spans[at], ready_s=self._clock())

    def worker_ended(self, worker: int) -> None:
        """It is no more."""
        at = self._span(worker)
        self.spans[at] = replace(self.spans[at], ended_s=self._clock())

    def sent(self, worker: int) -> None:
        """A worker was given a job."""
        self._sent_s[worker] = self._clock()

    def end_attempt(
        self, job_id: str, number: int, worker: int, outcome: str, load_s: float = 0.0, devices: int = 1
    ) -> Attempt:
        """An attempt is over."""
        attempt = Attempt(
            job_id=job_id,
            attempt=number,
            worker=worker,
            devices=devices,
            sent_s=self._sent_s[worker],
            ended_s=self._clock(),
            load_s=load_s,
            outcome=outcome,
        )
        self.attempts.append(attempt)
        return attempt

    def _span(self, worker: int) -> int:
        """Where in `spans` the worker is that is in this place now."""
        return next(at for at in range(len(self.spans) - 1, -1, -1) if self.spans[at].worker == worker)
