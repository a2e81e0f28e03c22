"""The books of a run: its attempts and the lives of its workers. Pure; times are monotonic seconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipeline.engine.scheduler.makespan import Attempt, WorkerSpan


@dataclass
class Ledger:
    """The books of one run.

    Attributes:
        attempts: Every attempt, in the order in which they ended.
        spans: Every worker process that was started.
    """

    attempts: list[Attempt] = field(default_factory=list)
    spans: list[WorkerSpan] = field(default_factory=list)
    _latest: dict[int, int] = field(default_factory=dict)
    """Worker -> where its last span is."""

    def worker_started(self, worker: int, now_s: float) -> None:
        """A worker process was started."""
        self._latest[worker] = len(self.spans)
        self.spans.append(WorkerSpan(worker=worker, started_s=now_s))

    def worker_ready(self, worker: int, now_s: float) -> None:
        """It can take jobs."""
        at = self._latest[worker]
        self.spans[at] = replace(self.spans[at], ready_s=now_s)

    def worker_ended(self, worker: int, now_s: float) -> None:
        """It is no more."""
        at = self._latest[worker]
        self.spans[at] = replace(self.spans[at], ended_s=now_s)
