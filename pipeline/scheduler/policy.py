"""Which job goes to which worker next: a pure function of the state.

The longest remaining path goes first: critical-path-first list scheduling, which never leaves a device idle while
a job is ready and so stays within Graham's bound. Among jobs of equal urgency a worker gets one whose model it
holds, because loading a model is the one cost that a choice can save without making anything wait. A job that has
failed on a worker goes elsewhere as long as there is anywhere else, so that job and device can be told apart.

A job of several devices for which too few are idle when its turn comes is promised the next ones (EASY backfill):
until it starts, others may take an idle worker only if by their estimates they end before it could start, or if
enough are left for it then. It keeps the promise even if more urgent jobs turn up, so it starts, estimates being
right, as soon as enough of the jobs have ended that ran when it was made. At any time at which a job is ready,
fewer workers are idle than the widest job needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pipeline.plan.job import Job
from pipeline.scheduler.ready import Bucket
from pipeline.scheduler.state import RunState, WorkerState

BACKFILL_DEPTH = 500
"""Ready jobs that are looked at in search of one that fits beside a promise."""
_SAME_S = 1e-6


@dataclass(frozen=True)
class Start:
    """Start a job on a worker, with the devices of further ones that are idle too."""

    job_id: str
    worker: int
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reserve:
    """Promise the next workers to a job that needs several."""

    job_id: str


Action = Start | Reserve


def next_actions(state: RunState, now_s: float = 0.0) -> list[Action]:
    """What to start now: as many jobs as there are idle workers and ready jobs.

    Reads only as far into the queue as there are idle workers, however long it is.

    Args:
        state: The run.
        now_s: On the clock on which jobs were started.
    """
    draft = _Draft(state, now_s)
    if draft.idle and state.can_start:
        draft.fill()
    return draft.actions


@dataclass
class _Promise:
    """Workers that are kept for a job.

    Attributes:
        job_id: The job.
        workers: It will run on some of these.
        start_s: When enough of them should be free.
        spare: How many more should be free then.
    """

    job_id: str
    workers: Collection[int]
    start_s: float
    spare: int


class _Draft:
    """The decisions of one call."""

    def __init__(self, state: RunState, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.idle = {worker.index: worker for worker in state.idle_workers()}
        self.actions: list[Action] = []
        self._usable = set(state.usable_workers())
        self._begun: dict[int, str] = {}
        """Worker -> what it is to start now."""
        self._promise: _Promise | None = None
        self._holders: Counter[str] = Counter()

    def fill(self) -> None:
        """Decide about idle workers until none is left, or nothing more may start."""
        reserved = self.state.reserved
        if reserved and self._could_ever(reserved) and not self._seat(reserved):
            self._promise = self._promised(reserved)
        for job_id in self._retries():
            if job_id != self.state.reserved:
                self._consider(job_id)
        if not self.idle:
            return
        self._holders.update(affinity for worker in self.state.workers for affinity in worker.holds)
        looked_at = 0
        for devices, bucket in self.state.ready.buckets():
            if devices == 1 and self._promise is None:
                for action in _assign(bucket, self.idle, self._holders):
                    self._start(action)
            else:
                for job_id in (name for names in bucket.values() for name in names):
                    if job_id != self.state.reserved:
                        self._consider(job_id)
                    looked_at += self._promise is not None
                    if not self.idle or looked_at >= BACKFILL_DEPTH:
                        return
            if not self.idle:
                return

    def _retries(self) -> list[str]:
        urgency = self.state.plan.path_s
        return sorted(self.state.retries, key=lambda job_id: (-urgency[job_id], job_id))

    def _consider(self, job_id: str) -> None:
        """Start a job if it may; promise it workers if it is the first that must wait for some."""
        if self._promise is not None:
            self._backfill(job_id)
        elif not self._seat(job_id) and self._job(job_id).devices > 1 and self._could_ever(job_id):
            self.actions.append(Reserve(job_id))
            self._promise = self._promised(job_id)

    def _could_ever(self, job_id: str) -> bool:
        return self._job(job_id).devices <= len(self._usable)

    def _seat(self, job_id: str) -> bool:
        """Start a job on whichever idle workers suit it, if there are enough."""
        return self._place(job_id, self._by_liking(job_id, self._suitable(job_id)))

    def _backfill(self, job_id: str) -> None:
        """Start a job beside the promise, if that does not delay it."""
        promise, job = self._promise, self._job(job_id)
        assert promise is not None
        suitable = self._suitable(job_id)
        beside = self._by_liking(job_id, suitable - set(promise.workers))
        kept = self._by_liking(job_id, suitable & set(promise.workers))
        in_time = self.now_s + job.seconds <= promise.start_s + _SAME_S
        if in_time:
            self._place(job_id, beside + kept)
            return
        spare = kept[: max(0, promise.spare)]
        if self._place(job_id, beside + spare):
            promise.spare -= max(0, job.devices - len(beside))

    def _suitable(self, job_id: str) -> set[int]:
        """Idle workers that a job may take: those on which it has failed only where others are too few."""
        return self._allowed(job_id) & set(self.idle)

    def _allowed(self, job_id: str) -> set[int]:
        elsewhere = self._usable - set(self.state.blame.failed_on(job_id))
        return elsewhere if len(elsewhere) >= self._job(job_id).devices else self._usable

    def _by_liking(self, job_id: str, workers: Collection[int]) -> list[int]:
        """One that holds the model first; for a job of several devices, which lets go of models, the emptiest."""
        job = self._job(job_id)
        if job.devices > 1:
            return sorted(workers, key=lambda index: (len(self.idle[index].holds), index))
        return sorted(workers, key=lambda index: (job.affinity not in self.idle[index].holds, index))

    def _place(self, job_id: str, workers: list[int]) -> bool:
        devices = self._job(job_id).devices
        if len(workers) < devices:
            return False
        # In the order of devices, which is that of ranks.
        leader, *members = sorted(workers[:devices])
        self._start(Start(job_id, leader, tuple(members)))
        return True

    def _start(self, action: Start) -> None:
        self.actions.append(action)
        for index in (action.worker, *action.members):
            self._begun[index] = action.job_id
            del self.idle[index]

    def _promised(self, job_id: str) -> _Promise:
        workers = self._allowed(job_id)
        free_s = sorted(self._free_s(index) for index in workers)
        start_s = free_s[self._job(job_id).devices - 1]
        in_time = sum(time_s <= start_s + _SAME_S for time_s in free_s)
        return _Promise(job_id, workers, start_s, in_time - self._job(job_id).devices)

    def _free_s(self, index: int) -> float:
        """When a worker should be free; one that is overdue, or is being started, from now on."""
        worker = self.state.workers[index]
        if index in self._begun:
            return self.now_s + self._job(self._begun[index]).seconds
        if worker.job_id:
            return max(self.now_s, worker.started_s + self._job(worker.job_id).seconds)
        return self.now_s

    def _job(self, job_id: str) -> Job:
        return self.state.plan.jobs[job_id]


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
