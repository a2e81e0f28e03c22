"""What jobs take of a device's memory, as far as anybody knows, and what is set aside for them. Pure.

    said by hand > measured, in an earlier run or this one > unknown

A measured peak is taken `MARGIN` times. Once memory has run out on a shared device, more is set aside for jobs of
that kind; once it has on a device that a job had to itself, they go to larger devices, if the run has any.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from pipeline.engine.devices.layout import Layout
from pipeline.plan.graph import Job

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
