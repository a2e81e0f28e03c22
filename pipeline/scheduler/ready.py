"""The jobs that could start now, by urgency: kept so that finding the next one does not look at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping

from pipeline.plan.job import Job

Bucket = Mapping[str, Mapping[str, None]]
"""Jobs of equal urgency: affinity -> job ids, in the order in which they became ready."""


class ReadyQueue:
    """Buckets of equally urgent jobs, the most urgent first."""

    def __init__(self, path_s: Mapping[str, float]) -> None:
        """Make an empty queue.

        Args:
            path_s: Seconds of the longest path from each job to the end of the plan: its urgency.
        """
        # Sums of floats in another order differ in the last bits; that must not tell equal jobs apart.
        self._urgency = {job_id: round(seconds, 6) for job_id, seconds in path_s.items()}
        self._order: list[float] = []
        self._buckets: dict[float, dict[str, dict[str, None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, job: Job) -> None:
        """Add a job."""
        urgency = self._urgency[job.id]
        if urgency not in self._buckets:
            insort(self._order, urgency)
            self._buckets[urgency] = {}
        self._buckets[urgency].setdefault(job.affinity, {})[job.id] = None
        self._count += 1

    def remove(self, job: Job) -> None:
        """Take a job out."""
        urgency = self._urgency[job.id]
        bucket = self._buckets[urgency]
        del bucket[job.affinity][job.id]
        if not bucket[job.affinity]:
            del bucket[job.affinity]
        if not bucket:
            del self._buckets[urgency]
            del self._order[bisect_left(self._order, urgency)]
        self._count -= 1

    def buckets(self) -> Iterator[Bucket]:
        """All buckets, the most urgent first."""
        for urgency in reversed(self._order):
            yield self._buckets[urgency]

    def longest_s(self) -> float:
        """Length of the longest path that begins with a job in the queue."""
        return self._order[-1] if self._order else 0.0
