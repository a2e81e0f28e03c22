"""Whose fault it is when workers die: the job's, the device's, or that of a machine with several. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from pipeline.engine.workers.failure import FailureKind

BLAMED_ON_DEVICES = frozenset({FailureKind.lost, FailureKind.hang, FailureKind.device})
"""Failures that a broken device would cause. A raised exception or a lost connection is not among them."""
NODE_FACTOR = 2
"""Times the failures that speak against a device which must speak against a machine: it has several of them."""


class Blame:
    """Counts what each device has failed since it last finished a job.

    A device that has failed several different jobs in a row, each of them nowhere else, is the suspect, until the
    same jobs fail on another device too: then they take the blame themselves.
    """

    def __init__(self, limit: int) -> None:
        """Start with a clean slate.

        Args:
            limit: Different jobs in a row that make a device the suspect.
        """
        self._limit = limit
        self._suspicions: dict[Hashable, list[str]] = {}
        self._failed_on: dict[str, set[Hashable]] = {}

    def failed_on(self, job_id: str) -> Collection[Hashable]:
        """Devices on which a job has failed: another attempt should be made elsewhere."""
        return self._failed_on.get(job_id, frozenset())

    def finished(self, device: Hashable) -> None:
        """A job was finished on a device, so it works."""
        self._suspicions.pop(device, None)

    def suspect(self, device: Hashable) -> list[str]:
        """The jobs that speak against a device if there are enough of them, else nothing."""
        jobs = self._suspicions.get(device, [])
        return list(jobs) if len(jobs) >= self._limit else []

    def failed(self, job_id: str, device: Hashable, kind: FailureKind) -> None:
        """An attempt has failed."""
        if kind not in BLAMED_ON_DEVICES:
            return
        devices = self._failed_on.setdefault(job_id, set())
        devices.add(device)
        if len(devices) > 1:
            for jobs in self._suspicions.values():
                if job_id in jobs:
                    jobs.remove(job_id)
        elif job_id not in (jobs := self._suspicions.setdefault(device, [])):
            jobs.append(job_id)
