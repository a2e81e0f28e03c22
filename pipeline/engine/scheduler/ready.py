"""The jobs that could start now, by urgency: kept so that finding the next one does not look at all of them."""

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping

from pipeline.engine.devices.select import Layout
from pipeline.plan.graph import Job, Plan
from pipeline.plan.keeping import measures

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
        if (bucket := self._buckets.get(place)) is None:
            insort(self._order, place)
            bucket = self._buckets[place] = {}
        bucket.setdefault(job.affinity, {})[job.id] = None
        self._count += 1

    def remove(self, job: Job) -> None:
        """Take a job out."""
        place = self._place(job)
        bucket = self._buckets[place]
        del bucket[job.affinity][job.id]
        if not bucket[job.affinity]:
            del bucket[job.affinity]
        if not bucket:
            del self._buckets[place], self._order[bisect_left(self._order, place)]
        self._count -= 1

    def buckets(self) -> Iterator[tuple[Urgency, int, Bucket]]:
        """All buckets: the urgency of its jobs, the devices that each needs, and the jobs."""
        for place in reversed(self._order):
            yield *place, self._buckets[place]

    def _place(self, job: Job) -> tuple[Urgency, int]:
        return self._urgency[job.id], job.devices


class ReadyQueue:
    """The jobs that could start now, those apart that may not run in the same places.

    Attributes:
        urgency: Of every job of the plan.
        alike: Kind -> its jobs.
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
        self.alike: dict[Kind, Buckets] = {}

    def __len__(self) -> int:
        return sum(map(len, self.alike.values()))

    def push(self, job: Job) -> None:
        """Add a job."""
        kind = kind_of(job)
        if (alike := self.alike.get(kind)) is None:  # not `setdefault`, which is given a new one each time
            alike = self.alike[kind] = Buckets(self.urgency)
        alike.push(job)

    def remove(self, job: Job) -> None:
        """Take a job out."""
        alike = self.alike[kind_of(job)]
        alike.remove(job)
        if not len(alike):
            del self.alike[kind_of(job)]

    def first(self) -> tuple[int, Bucket]:
        """The most urgent jobs, and of these the widest, of one kind: their width, and which they are."""
        firsts = (next(alike.buckets()) for alike in self.alike.values())
        _, devices, bucket = max(firsts, key=lambda found: found[:2])
        return devices, bucket


def kind_of(job: Job) -> Kind:
    """What decides where a job may run."""
    return job.devices, job.memory_mb, job.memory_kind


# -- first rows --------------------------------------------------------------------------------------------------
# How early the first rows of results are to be there, so that a run has something to show before its end.
# Pure. By the longest path evaluations come last, as nothing follows them. So the reference's row and the
# nearest one of each method count as if more than half of the run came after them: what a row needs,
# generations and training included, is then done in time. Runs get hardly longer by it.


SOON = 0.4
"""Part of a run after which rows are due; less than half of it, since estimates err."""
LATEST = 0.5
"""A row that cannot be there after this part is not hurried: that would only delay the others, and the end."""


def paths_for_rows(plan: Plan, seconds: Mapping[str, float], workers: int) -> dict[str, float]:
    """Job id -> seconds of the longest path to the end of the run, where the run follows on first rows.

    Args:
        plan: The plan.
        seconds: Job id -> what it is estimated to take; 0 for one that is there.
        workers: How many carry it out.
    """
    until_s = plan.longest_paths_until(seconds)
    return plan.longest_paths(seconds, _after_s(plan, seconds, until_s, _nearest_rows(plan, until_s), workers))


def _nearest_rows(plan: Plan, until_s: Mapping[str, float]) -> list[str]:
    """The row of each method, and of the reference, that could be there first, by when; none of what has one."""
    nearest: dict[str, str] = {}
    for job in sorted(filter(measures, plan.jobs.values()), key=lambda job: until_s[job.id]):
        nearest.setdefault(job.algo, job.id)
    return [row for row in nearest.values() if until_s[row]]


def _after_s(
    plan: Plan, seconds: Mapping[str, float], until_s: Mapping[str, float], rows: Iterable[str], workers: int
) -> dict[str, float]:
    """Row -> seconds of the run that are to follow it, of those that can be there in its first half."""
    work_s = {job.id: seconds[job.id] * job.devices / workers for job in plan.jobs.values()}
    whole_s = max([*until_s.values(), sum(work_s.values())])
    after_s: dict[str, float] = {}
    needed: set[str] = set()
    for row in rows:
        with_it = needed | plan.needs([row])
        earliest_s = max(until_s[row], sum(work_s[job_id] for job_id in with_it))
        if earliest_s <= LATEST * whole_s:
            after_s[row] = whole_s - max(SOON * whole_s, earliest_s)
            needed = with_it
    return after_s


# -- memory needs ------------------------------------------------------------------------------------------------
# What jobs take of a device's memory, as far as anybody knows, and what is set aside for them. Pure. said by
# hand > measured, in an earlier run or this one > unknown A measured peak is taken `MARGIN` times. Once
# memory has run out on a shared device, more is set aside for jobs of that kind; once it has on a device that
# a job had to itself, they go to larger devices, if the run has any.


MARGIN = 1.2
"""On a measured peak: other jobs of the kind have longer prompts, and their memory is fragmented otherwise."""
RAISE = 1.5
"""On what was set aside for a job that ran out of memory beside others: few such steps reach a whole device."""
EXCLUSIVE = math.inf
"""Set aside for a job that shares its device with no other."""


class Needs:
    """Needs of the jobs of one run.

    Attributes:
        seen: Kind of job -> the highest peak of this run, in MiB.
        changes: Grows whenever a need is another one than before.
    """

    def __init__(self, layout: Layout, measured: Mapping[str, int] | None = None) -> None:
        """Start with what is known.

        Args:
            layout: The devices.
            measured: `Job.memory_kind` -> peak of earlier runs, in MiB.
        """
        self.seen: dict[str, int] = {}
        self._layout = layout
        self._peaks = dict(measured or {})
        self._raised: dict[str, int] = {}
        self._outgrown: dict[str, int] = {}
        self.changes = 0
        self._most = max((place.free_mb or 0 for place in layout.places), default=0)
        self._least = min((place.free_mb for place in layout.places if place.free_mb is not None), default=None)

    def of(self, job: Job) -> int | None:
        """MiB that a job takes of each device, or None where that is unknown."""
        return self.of_kind(job.memory_mb, job.memory_kind)

    def of_kind(self, memory_mb: int | None, memory_kind: str) -> int | None:
        """The same from the fields of the job on which it rests."""
        need = memory_mb if memory_mb is not None else self._peaks.get(memory_kind)
        outgrown = self._outgrown.get(memory_kind)
        return need if outgrown is None else max(need or 0, outgrown)

    def like(self, devices: int, memory_mb: int | None, memory_kind: str) -> tuple[int | None, ...]:
        """The same for all jobs that have room in the same places; from the fields on which that rests."""
        return devices, memory_mb, self.of_kind(memory_mb, memory_kind), self._raised.get(memory_kind)

    def fitting(self, job: Job, devices: Collection[int]) -> list[int]:
        """On which of some devices a job may run, if need be alone."""
        need = self.of(job)
        found = [device for device in devices if need is None or need <= self._free_mb(device)]
        if len(found) >= job.devices or job.memory_mb is not None or len(devices) < job.devices:
            return found
        # A measurement refuses nothing: what torch reserved on a large GPU is more than the job cannot do without.
        least = sorted(map(self._free_mb, devices))[-job.devices]
        return [device for device in devices if self._free_mb(device) >= least]

    def _free_mb(self, device: int) -> float:
        free = self._layout.places[device].free_mb
        return math.inf if free is None else free

    def fit_everywhere(self, jobs: Iterable[Job]) -> bool:
        """Whether every device will do for each of the jobs that fit on any."""
        least = self._least
        return least is None or least == self._most or all((self.of(job) or 0) <= least for job in jobs)

    def charge(self, job: Job, device: int) -> float:
        """MiB to set aside for a job that runs on a device; `EXCLUSIVE` if it shares the device with no other."""
        layout, usable = self._layout, self._layout.places[device].usable_mb
        if layout.slots == 1 or job.devices > 1:
            return EXCLUSIVE
        need = self.of(job)
        if need is None and not layout.vouched:
            return EXCLUSIVE
        if usable is None:
            return 0
        if need is None:
            least = usable // layout.slots
        else:
            least = need if job.memory_mb is not None else math.ceil(need * MARGIN)
        charge = max(least, self._raised.get(job.memory_kind, 0))
        return charge if charge <= usable else EXCLUSIVE

    # -- what happens ------------------------------------------------------------------------------------------

    def measured(self, job: Job, peak_mb: int | None) -> None:
        """A job has finished."""
        if peak_mb is None or not job.memory_kind:
            return
        peak = max(peak_mb, self.seen.get(job.memory_kind, 0))
        self.changes += self._peaks.get(job.memory_kind) != peak
        self.seen[job.memory_kind] = self._peaks[job.memory_kind] = peak

    def ran_out_beside_others(self, job: Job, device: int) -> None:
        """Memory ran out for a job that did not have its device to itself."""
        charge = self.charge(job, device)
        if job.memory_kind and not math.isinf(charge):
            self.changes += 1
            self._raised[job.memory_kind] = math.ceil(RAISE * charge)

    def ran_out_exclusively(self, job: Job, device: int) -> None:
        """Memory ran out for a job that had its device to itself: a larger one may do."""
        free = self._layout.places[device].free_mb
        if job.memory_kind and free is not None and free < self._most:
            self.changes += 1
            self._outgrown[job.memory_kind] = max(free + 1, self._outgrown.get(job.memory_kind, 0))
