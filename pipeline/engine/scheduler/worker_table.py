"""The workers of a run, kept so that finding those that could take a job does not look at all of them."""

from __future__ import annotations

from pipeline.engine.devices.layout import Layout
from pipeline.engine.scheduler.memory_needs import Needs
from pipeline.engine.scheduler.ready import Kind, kind_of
from pipeline.engine.scheduler.worker_state import WorkerPhase, WorkerState
from pipeline.plan.job import Job


class WorkerTable:
    """Workers by index, which of them may be idle, and which devices have one that is given jobs.

    Attributes:
        workers: By index. A process that comes up, a job that ends and what is said of a place go through the
            methods here.
    """

    def __init__(self, layout: Layout, needs: Needs) -> None:
        """Begin with workers that are not up, and some that may never be.

        Args:
            layout: Where they are.
            needs: What jobs take of their devices.
        """
        there = layout.workers - layout.joining
        self.workers = [WorkerState(index, absent=index >= there) for index in range(layout.workers)]
        self._layout, self._needs = layout, needs
        # All that are idle, and some that are not any more: nothing is idle that was not let in here.
        self._candidates: set[int] = set()
        self._usable: list[int] | None = None
        # Of each kind of job where it may run, and on how many devices at once; as of so many changes of needs.
        self._fitting: dict[Kind, tuple[list[int], int]] = {}
        self._changes = 0

    def ready(self, index: int, device: str, visible: str, node: str) -> None:
        """A process is up."""
        joins = self.workers[index].absent
        self.workers[index] = self.workers[index].ready(device, visible, node)
        self._candidates.add(index)
        if joins:
            self._forget()

    def lost(self, index: int) -> None:
        """A process has ended, and with it all that was there."""
        self.workers[index] = self.workers[index].lost()

    def free(self, index: int) -> None:
        """The job of a worker is over."""
        self.workers[index].free()
        self._candidates.add(index)

    def quarantine(self, index: int) -> None:
        """Give a worker no more jobs."""
        self.workers[index].quarantined = True
        self._forget()

    def release(self, index: int) -> None:
        """Give it jobs again."""
        self.workers[index].quarantined = False
        self._candidates.add(index)
        self._forget()

    def idle(self) -> list[WorkerState]:
        """Workers that could take a job, in their order."""
        found = [self.workers[index] for index in sorted(self._candidates)]
        idle = [worker for worker in found if worker.phase is WorkerPhase.idle]
        if len(idle) < len(found):
            self._candidates = {worker.index for worker in idle}
        return idle

    def usable_workers(self) -> list[int]:
        """Places that are there, and not quarantined."""
        return [worker.index for worker in self.workers if not (worker.quarantined or worker.absent)]

    def usable_devices(self) -> list[int]:
        """Devices of which a place is left."""
        if self._usable is None:
            self._usable = sorted({self._layout.device_of(index) for index in self.usable_workers()})
        return self._usable

    def fitting_devices(self, job: Job) -> list[int]:
        """Those of them on which a job may run."""
        return self._places(job)[0]

    def most_devices(self, job: Job) -> int:
        """How many of those it could have at once."""
        return self._places(job)[1]

    def _forget(self) -> None:
        self._usable = None
        self._fitting.clear()

    def _places(self, job: Job) -> tuple[list[int], int]:
        if self._changes != self._needs.changes:
            self._changes = self._needs.changes
            self._fitting.clear()
        if (kind := kind_of(job)) not in self._fitting:
            found = self._needs.fitting(job, self.usable_devices())
            self._fitting[kind] = found, self._layout.most_together(found, job.devices)
        return self._fitting[kind]
