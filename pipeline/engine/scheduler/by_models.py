"""Which of equally urgent jobs goes to which idle worker, so that few models are loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from pipeline.engine.scheduler.ready import Bucket
from pipeline.engine.scheduler.worker_state import WorkerState


def by_models(
    bucket: Bucket, idle: Mapping[int, WorkerState], count_holders: Callable[[], Counter[str]]
) -> list[tuple[str, int]]:
    """Spread jobs over idle workers: first by what these hold, then where loading costs least.

    Args:
        bucket: Equally urgent jobs of one device, by model.
        idle: The workers.
        count_holders: Tells how many workers hold each model; asked only where one must be loaded.

    Returns:
        Ids of jobs, and the worker of each.
    """
    waiting, free = _Waiting(bucket), dict(idle)
    found = []
    for worker in idle.values():
        held = next((affinity for affinity in reversed(worker.holds) if affinity in waiting), None)
        if held is not None:
            found.append((waiting.take(held), worker.index))
            del free[worker.index]
    while free and (models := waiting.affinities()):
        holders = count_holders()
        # A model that few workers hold: two models for two workers rather than both on each.
        affinity = min(models, key=lambda name: holders[name])
        # A worker that holds little, so that no other is pushed out of its memory.
        worker = min(free.values(), key=lambda candidate: (len(candidate.holds), candidate.index))
        found.append((waiting.take(affinity), worker.index))
        holders[affinity] += 1
        del free[worker.index]
    return found


class _Waiting:
    """The jobs of one bucket that are not given away yet. Looks only at those models that are asked for."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._begun: dict[str, tuple[str, Iterator[str]]] = {}
        self._gone: set[str] = set()

    def __contains__(self, affinity: str) -> bool:
        return affinity in self._bucket and affinity not in self._gone

    def affinities(self) -> list[str]:
        """Models of which there is a job, in the order in which their first ones became ready."""
        return [name for name in self._bucket if name not in self._gone]

    def first(self, affinity: str) -> str:
        """The next job with a model."""
        if affinity not in self._begun:
            job_ids = iter(self._bucket[affinity])
            self._begun[affinity] = next(job_ids), job_ids
        return self._begun[affinity][0]

    def take(self, affinity: str) -> str:
        """Give it away."""
        job_id, job_ids = self.first(affinity), self._begun[affinity][1]
        following = next(job_ids, None)
        if following is None:
            self._gone.add(affinity)
        else:
            self._begun[affinity] = following, job_ids
        return job_id
