"""Keep the jobs that could start now, by urgency, so that finding the next one does not scan all jobs."""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from pipeline.engine.devices.select import Layout
from pipeline.plan.graph import Job, Plan, reached
from pipeline.plan.keeping import measures

Urgency = tuple[float, float]
"""Sort key of a job: its priority, then the seconds of its longest remaining path."""
Bucket = Mapping[str, Mapping[str, None]]
"""Jobs of equal urgency and width: affinity -> job ids, in the order in which they became ready."""
Kind = tuple[int, int | None, str]
"""Requirements of a job: how many devices, and how much memory of each."""


class Buckets:
    """Jobs grouped in buckets, the most urgent first, then the widest."""

    def __init__(self, urgency: Mapping[str, Urgency]) -> None:
        self._urgency = urgency
        self._order: list[tuple[Urgency, int]] = []
        self._buckets: dict[tuple[Urgency, int], dict[str, dict[str, None]]] = {}
        self._takes_s: dict[tuple[Urgency, int], Counter[float]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, job: Job) -> None:
        """Add a job."""
        position = self._position(job)
        bucket = self._buckets.get(position)
        if bucket is None:
            insort(self._order, position)
            bucket = self._buckets[position] = {}
            self._takes_s[position] = Counter()
        bucket.setdefault(job.affinity, {})[job.id] = None
        self._takes_s[position][job.seconds] += 1
        self._count += 1

    def remove(self, job: Job) -> None:
        """Remove a job."""
        position = self._position(job)
        bucket = self._buckets[position]
        names = bucket[job.affinity]
        del names[job.id]
        takes_s = self._takes_s[position]
        takes_s[job.seconds] -= 1
        if not takes_s[job.seconds]:
            del takes_s[job.seconds]
        if not names:
            del bucket[job.affinity]
        if not bucket:
            del self._buckets[position], self._takes_s[position]
            del self._order[bisect_left(self._order, position)]
        self._count -= 1

    def buckets(self) -> Iterator[tuple[Urgency, int, Bucket, Collection[float]]]:
        """Yield each bucket: urgency of its jobs, number of devices per job, jobs, and their estimates in s."""
        for position in reversed(self._order):
            yield *position, self._buckets[position], self._takes_s[position]

    def _position(self, job: Job) -> tuple[Urgency, int]:
        return self._urgency[job.id], job.devices


class ReadyQueue:
    """Queue of the jobs that could start now, grouped by where they may run.

    Attributes:
        urgency: Urgency of every job of the plan.
        alike: Kind -> jobs of this kind.
    """

    def __init__(self, plan: Plan, path_s: Mapping[str, float], ranks: Mapping[str, int] | None = None) -> None:
        """Make an empty queue for the jobs of a plan.

        Args:
            plan: The plan.
            path_s: Job id -> seconds of the longest path from it to the end.
            ranks: Job id -> its place in an order that replaces priorities, the first 0; None for priorities.
        """
        # Floats summed in another order differ in the last bits; equal jobs must not differ by that.
        self.urgency = {
            job_id: (plan.jobs[job_id].priority if ranks is None else -ranks[job_id], round(seconds, 6))
            for job_id, seconds in path_s.items()
        }
        self.alike: dict[Kind, Buckets] = {}

    def __len__(self) -> int:
        return sum(map(len, self.alike.values()))

    def push(self, job: Job) -> None:
        """Add a job."""
        kind = kind_of(job)
        if (alike := self.alike.get(kind)) is None:  # not `setdefault`, whose default is built on every call
            alike = self.alike[kind] = Buckets(self.urgency)
        alike.push(job)

    def remove(self, job: Job) -> None:
        """Remove a job."""
        alike = self.alike[kind_of(job)]
        alike.remove(job)
        if not len(alike):
            del self.alike[kind_of(job)]

    def first(self) -> tuple[int, Bucket]:
        """Return the most urgent jobs of one kind, of these the widest: their width, and the jobs."""
        firsts = (next(alike.buckets()) for alike in self.alike.values())
        _, devices, bucket, _ = max(firsts, key=lambda entry: entry[:2])
        return devices, bucket


def kind_of(job: Job) -> Kind:
    """Return the requirements of a job."""
    return job.devices, job.memory_mb, job.memory_kind


# -- first rows --------------------------------------------------------------------------------------------------
# Schedule first rows of results early, so that a run has something to show before its end. Pure functions. By the
# longest path alone, evaluations would come last, as nothing follows them. So the row of the reference and the
# first row of each method count as if more than half of the run came after them; then the jobs that a row needs,
# generations and training included, are done in time. This hardly lengthens a run.


SOON = 0.4
"""Fraction of a run by which first rows are due; less than half, since estimates err."""
LATEST = 0.5
"""A row that is impossible before this fraction is not hurried: that would only delay other rows and the end."""


def paths_for_rows(plan: Plan, seconds: Mapping[str, float], workers: int) -> dict[str, float]:
    """Return job id -> seconds of the longest path to the end, counting the run as following on first rows.

    Args:
        plan: The plan.
        seconds: Job id -> its estimated seconds; 0 for a job that is done.
        workers: Number of workers.
    """
    until_s = plan.longest_paths_until(seconds)
    return plan.longest_paths(seconds, _after_s(plan, seconds, until_s, _nearest_rows(plan, until_s), workers))


def _nearest_rows(plan: Plan, until_s: Mapping[str, float]) -> list[str]:
    """Return the earliest row of each method and of the reference, by seconds until the row is done.

    Methods that have a row already are left out.
    """
    nearest: dict[str, str] = {}
    for job in sorted(filter(measures, plan.jobs.values()), key=lambda job: until_s[job.id]):
        nearest.setdefault(job.algo, job.id)
    return [row for row in nearest.values() if until_s[row]]


def _after_s(
    plan: Plan, seconds: Mapping[str, float], until_s: Mapping[str, float], rows: Iterable[str], workers: int
) -> dict[str, float]:
    """Return row -> seconds of the run to count as following it, for rows possible in the first half."""
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


# -- budget ------------------------------------------------------------------------------------------------------
# Order of jobs under a budget, which may end at any job. A pure function of the plan, not of estimates.


def ranks_of_rows(plan: Plan) -> dict[str, int]:
    """Return job id -> the place of the first row of results that needs it; of jobs for no row, the last.

    Rows are those of the reference, then of the first round, and so on; in a round those of the first seed come
    first, otherwise as planned. So a row is finished before the next one is begun.
    """
    rows = list(filter(measures, plan.jobs.values()))
    seeds = list(dict.fromkeys(row.seed for row in rows))
    rows.sort(key=lambda row: (row.round, seeds.index(row.seed)))
    ranks: dict[str, int] = {}

    def unranked(job_id: str) -> list[str]:
        return [name for name in plan.inputs(job_id) if name not in ranks]

    for rank, row in enumerate(rows):
        ranks.update(dict.fromkeys(reached([row.id], unranked) - ranks.keys(), rank))
    return {job_id: ranks.get(job_id, len(rows)) for job_id in plan.jobs}


# -- memory needs ------------------------------------------------------------------------------------------------
# Memory needs of jobs, as far as known, and the memory reserved for them. Pure functions; sources by precedence:
# set by the user > measured, in an earlier run or this one > unknown. A measured peak is multiplied by `MARGIN`.
# After a job ran out of memory on a shared device, more is reserved for jobs of its kind; after it ran out on a
# device of its own, they go to larger devices, if the run has any.


MARGIN = 1.2
"""Factor on a measured peak: other jobs of the kind have longer prompts and other fragmentation."""
RAISE = 1.5
"""Factor on the reservation of a job that ran out of memory beside others: a few steps reach a whole device."""
EXCLUSIVE = math.inf
"""Reservation of a job that shares its device with no other."""


class Needs:
    """Memory needs of the jobs of one run.

    Attributes:
        seen: Kind of job -> the highest peak of this run, in MiB.
        changes: Counter that grows whenever a need changes.
    """

    def __init__(self, layout: Layout, measured: Mapping[str, int] | None = None) -> None:
        """Start with the measurements of earlier runs.

        Args:
            layout: The devices.
            measured: `Job.memory_kind` -> peak of earlier runs in MiB.
        """
        self.seen: dict[str, int] = {}
        self._peaks = dict(measured or {})
        self._raised: dict[str, int] = {}
        self._outgrown: dict[str, int] = {}
        self.changes = 0
        self.adopt(layout)

    def adopt(self, layout: Layout) -> None:
        """Go on with other devices."""
        self._layout = layout
        self.changes += 1
        self._most = max((place.free_mb or 0 for place in layout.places), default=0)
        self._least = min((place.free_mb for place in layout.places if place.free_mb is not None), default=None)

    def of(self, job: Job) -> int | None:
        """Return the MiB that a job takes on each device, or None if unknown."""
        return self.of_kind(job.memory_mb, job.memory_kind)

    def of_kind(self, memory_mb: int | None, memory_kind: str) -> int | None:
        """Return the MiB for the fields of a job that determine its need, or None if unknown."""
        need = memory_mb if memory_mb is not None else self._peaks.get(memory_kind)
        outgrown = self._outgrown.get(memory_kind)
        return need if outgrown is None else max(need or 0, outgrown)

    def like(self, devices: int, memory_mb: int | None, memory_kind: str) -> tuple[int | None, ...]:
        """Return a key that is equal for jobs that fit in the same places, from the fields that determine it."""
        return devices, memory_mb, self.of_kind(memory_mb, memory_kind), self._raised.get(memory_kind)

    def fitting(self, job: Job, devices: Collection[int]) -> list[int]:
        """Return those of some devices on which a job fits, alone if necessary."""
        need = self.of(job)
        fitting = [device for device in devices if need is None or need <= self._free_mb(device)]
        if len(fitting) >= job.devices or job.memory_mb is not None or len(devices) < job.devices:
            return fitting
        # A measurement never leaves too few devices: torch reserves more on a large GPU than a job needs.
        least = sorted(map(self._free_mb, devices))[-job.devices]
        return [device for device in devices if self._free_mb(device) >= least]

    def _free_mb(self, device: int) -> float:
        free = self._layout.places[device].free_mb
        return math.inf if free is None else free

    def fit_everywhere(self, jobs: Iterable[Job]) -> bool:
        """Return whether every device is large enough for each of the jobs that fit on any."""
        least = self._least
        return least is None or least == self._most or all((self.of(job) or 0) <= least for job in jobs)

    def charge(self, job: Job, device: int) -> float:
        """Return the MiB to reserve for a job on a device; `EXCLUSIVE` if it must not share the device."""
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
        """Note the measured peak of a finished job."""
        if peak_mb is None or not job.memory_kind:
            return
        peak = max(peak_mb, self.seen.get(job.memory_kind, 0))
        self.changes += self._peaks.get(job.memory_kind) != peak
        self.seen[job.memory_kind] = self._peaks[job.memory_kind] = peak

    def ran_out_beside_others(self, job: Job, device: int) -> None:
        """Note that a job ran out of memory while it shared its device."""
        charge = self.charge(job, device)
        if job.memory_kind and not math.isinf(charge):
            self.changes += 1
            self._raised[job.memory_kind] = math.ceil(RAISE * charge)

    def ran_out_exclusively(self, job: Job, device: int) -> None:
        """Note that a job ran out of memory with a device to itself: only a larger device may do."""
        free = self._layout.places[device].free_mb
        if job.memory_kind and free is not None and free < self._most:
            self.changes += 1
            self._outgrown[job.memory_kind] = max(free + 1, self._outgrown.get(job.memory_kind, 0))
