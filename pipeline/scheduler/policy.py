"""Which job goes to which worker next: a pure function of the state.

The longest remaining path goes first: critical-path-first list scheduling, which never leaves a device idle while
a job is ready and so stays within Graham's bound. Among jobs of equal urgency a worker gets one whose model it
holds, because loading a model is the one cost that a choice can save without making anything wait. A job that has
failed on a worker goes elsewhere as long as there is anywhere else, so that job and device can be told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.scheduler.ready import Bucket
from pipeline.scheduler.state import RunState, WorkerState


@dataclass(frozen=True)
class Start:
    """Start a job on a worker."""

    job_id: str
    worker: int


def next_actions(state: RunState) -> list[Start]:
    """What to start now: as many jobs as there are idle workers and ready jobs.

    Reads only as far into the queue as there are idle workers, however long it is.
    """
    idle = {worker.index: worker for worker in state.idle_workers()}
    if not idle or not state.can_start:
        return []
    actions = _assign_retries(state, idle)
    for action in actions:
        del idle[action.worker]
    if not idle:
        return actions
    holders = Counter(affinity for worker in state.workers for affinity in worker.holds)
    for bucket in state.ready.buckets():
        for action in _assign(bucket, idle, holders):
            del idle[action.worker]
            actions.append(action)
        if not idle:
            break
    return actions


def _assign_retries(state: RunState, idle: Mapping[int, WorkerState]) -> list[Start]:
    actions: list[Start] = []
    taken: set[int] = set()
    usable = set(state.usable_workers())
    for job_id in sorted(state.retries, key=lambda job_id: (-state.plan.path_s[job_id], job_id)):
        elsewhere = usable - set(state.blame.failed_on(job_id))
        free = (elsewhere or usable) & set(idle) - taken
        if free:
            affinity = state.jobs[job_id].job.affinity
            worker = min(free, key=lambda index: (affinity not in idle[index].holds, index))
            actions.append(Start(job_id, worker))
            taken.add(worker)
    return actions


def _assign(bucket: Bucket, idle: Mapping[int, WorkerState], holders: Counter[str]) -> list[Start]:
    """Spread one bucket over the idle workers: first by what they hold, then where it costs least."""
    waiting = {affinity: iter(job_ids) for affinity, job_ids in bucket.items()}
    heads = {affinity: next(job_ids) for affinity, job_ids in waiting.items()}
    free = dict(idle)
    actions = []
    for worker in idle.values():
        held = next((affinity for affinity in reversed(worker.holds) if affinity in heads), None)
        if held is not None:
            actions.append(Start(_take(held, heads, waiting), worker.index))
            del free[worker.index]
    while free and heads:
        # A model that few workers hold: two models for two workers rather than both on each.
        affinity = min(heads, key=lambda name: holders[name])
        # A worker that holds little, so that no other is pushed out of its memory.
        worker = min(free.values(), key=lambda candidate: (len(candidate.holds), candidate.index))
        actions.append(Start(_take(affinity, heads, waiting), worker.index))
        holders[affinity] += 1
        del free[worker.index]
    return actions


def _take(affinity: str, heads: dict[str, str], waiting: Mapping[str, Iterator[str]]) -> str:
    job_id = heads[affinity]
    following = next(waiting[affinity], None)
    if following is None:
        del heads[affinity]
    else:
        heads[affinity] = following
    return job_id
