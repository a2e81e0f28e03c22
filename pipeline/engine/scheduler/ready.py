"""The jobs that could start now, by urgency: kept so that finding the next one does not look at all of them."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping

from pipeline.plan.graph import Plan
from pipeline.plan.job import Job

Urgency = tuple[float, float]
"""What decides whose turn it is: the priority, and of equal ones the seconds of the longest remaining path."""
Bucket = Mapping[str, Mapping[str, None]]
"""Jobs of equal urgency and width: affinity -> job ids, in the order in which they became ready."""
Kind = tuple[int, int | None, str]
"""What decides where a job may run: how many devices it needs and how much of their memory."""


class Buckets:
    """Jobs in buckets, the most urgent first, then the widest."""

    def __init__(self, urgency: Mapping[str, Urgency]) -> None:
        self._urgency = urgency
        self._order: list[tuple[Urgency, int]] = []
        self._buckets: dict[tuple[Urgency, int], dict[str, dict[str, None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, job: Job) -> None:
        """Add a job."""
        place = self._place(job)
        bucket = self._buckets.get(place)
        if bucket is None:
            insort(self._order, place)
            bucket = self._buckets[place] = {}
        bucket.setdefault(job.affinity, {})[job.id] = None
        self._count += 1

    def remove(self, job: Job) -> None:
        """Take a job out."""
        place = self._place(job)
        bucket = self._buckets[place]
        names = bucket[job.affinity]
        del names[job.id]
        if not names:
            del bucket[job.affinity]
        if not bucket:
            del self._buckets[place]
            del self._order[bisect_left(self._order, place)]
        self._count -= 1

    @property
    def most_urgent(self) -> Urgency:
        """The largest urgency of them; what no job can have where there are none."""
        return self._order[-1][0] if self._order else (-math.inf, -math.inf)

    def buckets(self) -> Iterator[tuple[Urgency, int, Bucket]]:
        """All buckets with the urgency of their jobs, and the devices that each of these needs."""
        for place in reversed(self._order):
            yield *place, self._buckets[place]

    def _place(self, job: Job) -> tuple[Urgency, int]:
        return self._urgency[job.id], job.devices


class ReadyQueue(Buckets):
    """Buckets of jobs that are equally urgent and need equally many devices: the most urgent, then the widest.

    Attributes:
        urgency: Of every job of the plan.
        alike: The same jobs again, those apart that may not run in the same places.
        takes: How many there are of each urgency, kind and estimate: what decides beside a promise.
    """

    def __init__(self, plan: Plan, path_s: Mapping[str, float]) -> None:
        """Make an empty queue for the jobs of a plan.

        Args:
            plan: The plan.
            path_s: Job id -> seconds of the longest path from it to the end.
        """
        # Sums of floats in another order differ in the last bits; that must not tell equal jobs apart.
        self.urgency = {
            job_id: (plan.jobs[job_id].priority, round(seconds, 6)) for job_id, seconds in path_s.items()
        }
        super().__init__(self.urgency)
        self.alike: dict[Kind, Buckets] = {}
        self.takes: dict[tuple[Urgency, int], Counter[tuple[Kind, float]]] = {}

    def push(self, job: Job) -> None:
        """Add a job."""
        super().push(job)
        place, kind = self._place(job), kind_of(job)
        # Not `setdefault`, which is given a new one each time: many jobs are alike.
        if (takes := self.takes.get(place)) is None:
            takes = self.takes[place] = Counter()
        takes[kind, job.seconds] += 1
        if (alike := self.alike.get(kind)) is None:
            alike = self.alike[kind] = Buckets(self.urgency)
        alike.push(job)

    def remove(self, job: Job) -> None:
        """Take a job out."""
        super().remove(job)
        place, kind = self._place(job), kind_of(job)
        takes = self.takes[place]
        takes[kind, job.seconds] -= 1
        if not takes[kind, job.seconds]:
            del takes[kind, job.seconds]
            if not takes:
                del self.takes[place]
        alike = self.alike[kind]
        alike.remove(job)
        if not len(alike):
            del self.alike[kind]


def kind_of(job: Job) -> Kind:
    """What decides where a job may run."""
    return job.devices, job.memory_mb, job.memory_kind
