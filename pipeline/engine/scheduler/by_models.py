"""Which of equally urgent jobs goes to which idle worker, so that few models are loaded and little has to move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from math import ceil

from pipeline.engine.scheduler.ready import Bucket
from pipeline.engine.scheduler.whereabouts import Whereabouts
from pipeline.engine.scheduler.worker_state import WorkerState

_Near = Callable[[str], Mapping[str, int]]
LOOK = 16
"""Jobs of which it is compared where their inputs are for each one that is given away: the first that would do."""


def by_models(
    bucket: Bucket,
    idle: Mapping[int, WorkerState],
    count_holders: Callable[[], Counter[str]],
    where: Whereabouts | None = None,
) -> list[tuple[str, int]]:
    """Spread jobs over idle workers: first by what these hold, then where loading costs least.

    What is equal in that goes to a machine that has the inputs. No idle worker is left without a job for it.

    Args:
        bucket: Equally urgent jobs of one device, by model.
        idle: The workers, in their order.
        count_holders: Tells how many workers hold each model; asked only where one must be loaded.
        where: What machines have at hand; None where there is but one.

    Returns:
        Ids of jobs, and the worker of each.
    """
    waiting, free = _Waiting(bucket), dict(idle)
    near = cache(where.near) if where else None  # jobs may read thousands of outputs
    found = []
    for worker in idle.values():
        held = next((affinity for affinity in reversed(worker.holds) if affinity in waiting), None)
        if held is not None:
            next_ones = waiting.first(held, LOOK if where else 1)
            job_id = _nearest(next_ones, worker, where, near) if where and near else next_ones[0]
            found.append((waiting.take(held, job_id), worker.index))
            del free[worker.index]
    while free and (models := waiting.affinities()):
        holders = count_holders()
        affinity, job_id, worker = _to_load(waiting, models, free, holders, near)
        found.append((waiting.take(affinity, job_id), worker.index))
        holders[affinity] += 1
        del free[worker.index]
    return found


def _nearest(job_ids: Sequence[str], worker: WorkerState, where: Whereabouts, near: _Near) -> str:
    """The first job of which the machine of a worker has all at hand, or of those that come next the most."""
    if where.has_all(job_ids[0], worker.node):  # as jobs with one model mostly read little else
        return job_ids[0]
    return max(job_ids, key=lambda job_id: near(job_id).get(worker.node, 0))


def _to_load(
    waiting: _Waiting,
    models: Sequence[str],
    free: Mapping[int, WorkerState],
    holders: Counter[str],
    near: _Near | None,
) -> tuple[str, str, WorkerState]:
    """A model, a job with it, and the worker that is to load it."""
    # A model that few workers hold: two models for two workers rather than both on each.
    fewest = min(holders[name] for name in models)
    rare = [name for name in models if holders[name] == fewest]
    # A worker that holds little, so that no other is pushed out of its memory.
    least = min(len(worker.holds) for worker in free.values())
    empty = [worker for worker in free.values() if len(worker.holds) == least]
    found, most = (rare[0], waiting.first(rare[0])[0], empty[0]), 0
    if near is None:
        return found
    on_node: dict[str, WorkerState] = {}
    for worker in empty:
        on_node.setdefault(worker.node, worker)
    for name in rare[:LOOK]:
        for job_id in waiting.first(name, ceil(LOOK / len(rare))):
            for node, worker in on_node.items():
                if (at_hand := near(job_id).get(node, 0)) > most:
                    found, most = (name, job_id, worker), at_hand
    return found


class _Waiting:
    """The jobs of one bucket that are not given away yet. Looks only at those models that are asked for."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._begun: dict[str, tuple[list[str], Iterator[str]]] = {}
        self._gone: set[str] = set()

    def __contains__(self, affinity: str) -> bool:
        return affinity in self._bucket and affinity not in self._gone

    def affinities(self) -> list[str]:
        """Models of which there is a job, in the order in which their first ones became ready."""
        return [name for name in self._bucket if name not in self._gone]

    def first(self, affinity: str, number: int = 1) -> list[str]:
        """The next jobs with a model, so many at most."""
        if affinity not in self._begun:
            self._begun[affinity] = [], iter(self._bucket[affinity])
        seen, others = self._begun[affinity]
        seen += islice(others, max(0, number - len(seen)))
        return seen[:number]

    def take(self, affinity: str, job_id: str) -> str:
        """Give one of those away."""
        self._begun[affinity][0].remove(job_id)
        if not self.first(affinity):
            self._gone.add(affinity)
        return job_id
