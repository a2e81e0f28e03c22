"""Which job goes to which worker next: a pure function of the state.

The highest priority goes first (`plan.build`), and of equal ones the longest remaining path: list scheduling,
which never leaves a device idle while a job is ready and so stays within Graham's bound.
Among jobs of equal urgency a worker gets one whose model it holds: loading is a cost that a choice can save
without making anything wait. A job that has failed on a device goes elsewhere as long as there is anywhere else,
so that job and device can be told apart.

Priorities are given once, before anything starts. No job starves by them: a plan is finite, each job is tried a
bounded number of times, and so each has its turn when those before it have had theirs.

Where a device has several workers, or devices differ in size, a job starts only on a device whose memory holds it
beside the jobs that run there (`placement`). Empty devices go first; among devices of different sizes the smallest
that does, if a job is ready that needs a larger one.

A job that must wait when its turn comes, for several devices or for memory, is promised what it needs on the
machine where it could start first (EASY backfill); each machine is promised to one job at a time. Until that
starts, others may start there only if by their estimates that does not delay it, because they end before it
could start or because enough is left for it then. The promise is kept even if more urgent jobs turn up, so it
starts, estimates being right, as soon as enough of the jobs have ended that ran there when it was made, or
sooner elsewhere. With one worker on each device, fewer of them are idle on each machine at any time at which a
job is ready than the widest job needs. A job that is wider than any machine has whole ones. It is promised those
that no other was, and more as the others start; only once it has as many as it takes is a time kept for it.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property

from msgspec import Struct

from pipeline.engine.scheduler.placement import Promises, Room, Seat
from pipeline.engine.scheduler.ready import Bucket, Buckets, Kind, Urgency, kind_of
from pipeline.engine.scheduler.state import RunState, WorkerState
from pipeline.plan.graph import Job

# -- by models ---------------------------------------------------------------------------------------------------


def by_models(
    bucket: Bucket, idle: Mapping[int, WorkerState], count_holders: Callable[[], Counter[str]]
) -> list[tuple[str, int]]:
    """Spread jobs over idle workers, so that few models are loaded. No worker is left without a job for it.

    Args:
        bucket: Equally urgent jobs of one device, by model.
        idle: The workers, in their order.
        count_holders: Tells how many workers hold each model; asked only where one must be loaded.

    Returns:
        Ids of jobs, and the worker of each.
    """
    waiting: dict[str, Iterator[str]] = {}
    first: dict[str, str] = {}
    gone: set[str] = set()

    def has(affinity: str) -> bool:
        if affinity not in waiting and affinity in bucket:
            waiting[affinity] = iter(bucket[affinity])
            first[affinity] = next(waiting[affinity])
        return affinity in first

    def take(affinity: str) -> str:
        job_id = first.pop(affinity)
        if following := next(waiting[affinity], None):
            first[affinity] = following
        else:
            gone.add(affinity)
        return job_id

    free, found = dict(idle), []
    for worker in idle.values():
        held = next(filter(has, reversed(worker.holds)), None)
        if held is not None:
            found.append((take(held), worker.index))
            del free[worker.index]
    holders = count_holders() if free and len(gone) < len(bucket) else Counter[str]()
    while free and len(gone) < len(bucket):
        # A model that few workers hold: two models for two workers rather than both on each. A worker that holds
        # little, so that no other is pushed out of its memory.
        affinity = min((name for name in bucket if name not in gone), key=holders.__getitem__)
        worker = min(free.values(), key=lambda one: len(one.holds))
        has(affinity)
        found.append((take(affinity), worker.index))
        holders[affinity] += 1
        del free[worker.index]
    return found


BACKFILL_DEPTH = 500
"""Ready jobs, or groups of such as are alike, that are looked at in search of one that fits beside a promise."""


class Start(Struct, frozen=True):
    """Start a job on a worker.

    Attributes:
        job_id: The job.
        worker: Is given the job.
        members: Further workers, on devices of their own, whose devices the job has as well.
        emptied: Idle workers on the same devices whose processes must end first, for the memory that they hold.
        ahead: Whether the worker is to begin it by itself, after those that it has.
    """

    job_id: str
    worker: int
    members: tuple[int, ...] = ()
    emptied: tuple[int, ...] = ()
    ahead: bool = False


class Reserve(Struct, frozen=True):
    """Promise the next place on a machine to a job that has to wait for it.

    Attributes:
        job_id: The job.
        node: The machine, see `Place.node`.
    """

    job_id: str
    node: int = 0


Action = Start | Reserve


def next_actions(state: RunState, now_s: float = 0.0) -> list[Action]:
    """What to start now: as many jobs as there is room for.

    Reads only as far into the queue as there are idle workers, however long it is.

    Args:
        state: The run.
        now_s: On the clock on which jobs were started.
    """
    if not state.can_start or not state.idle_workers():  # as in most turns
        return []
    draft = _Draft(state, now_s)
    draft.fill()
    return draft.actions


class _Answer(Enum):
    """Whether a job starts."""

    starts = "starts"
    waits = "waits"  # there is no room for it, nor for any other like it
    delays = "delays"  # it would delay the one that was promised a place


class _Draft:
    """The decisions of one call."""

    def __init__(self, state: RunState, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.room = Room(state, now_s)
        self.actions: list[Action] = []
        self.promises = Promises(state, self.room, now_s)
        self._delaying_s: dict[object, float] = {}
        """Needs of a job -> how long one takes that delays it wherever it runs; 0 if there is no room at all."""
        self._left: dict[int, WorkerState] = {}
        self._looked = -1
        """See `_unpromised`: what it found, and after how many actions."""
        self._retries: list[str] = []
        self._settled: set[str] = set()
        """Jobs that begin where they were promised a place, or wait for that."""

    @cached_property
    def _holders(self) -> Counter[str]:
        """Model -> how many workers hold it."""
        return Counter(affinity for worker in self.state.workers for affinity in worker.holds)

    def fill(self) -> None:
        """Decide about idle workers until none is left, or nothing more may start."""
        for job_id, node in self.state.reserved.items():
            if self._could_ever(job_id):
                self._promise(job_id, node)
        # A job whose machine another one has taken is one like all that wait.
        self._settled = set(self.promises.job_ids)
        left = math.inf
        while len(self.promises) < left:
            # Where one starts elsewhere than promised, its machine is there for the others.
            left = len(self.promises)
            in_vain: set[tuple[Kind, float]] = set()
            for job_id in self.promises.job_ids:
                self._start_promised(job_id, in_vain)
        self._retries = self._in_turn()
        if self.room.is_plain:
            self._fill_plainly()
        else:
            self._fill_by_kind()
        if self.room.idle:
            self._try_again(-math.inf)

    def _fill_plainly(self) -> None:
        """One worker on each device, and each will do for every job."""
        looked_at = 0
        for urgency, devices, bucket in self.state.ready.buckets():
            self._try_again(urgency[0])
            if not self.room.idle:
                return
            given: set[str] = set()
            if devices == 1 and (free := self._unpromised()):
                for job_id, worker in by_models(bucket, free, lambda: self._holders):
                    self._start(Start(job_id, worker))
                    given.add(job_id)
            if devices == 1 and not (self.promises and self.room.idle):
                continue
            takes = self.state.ready.takes[urgency, devices]
            for job_id in (name for names in bucket.values() for name in names):
                looked_at += bool(self.promises)
                if all(self._known(*alike) and not self._may_promise(alike[0]) for alike in takes):
                    break
                if job_id not in self._settled and job_id not in given:
                    self._consider(job_id)
                if not self.room.idle or looked_at >= BACKFILL_DEPTH:
                    return

    def _unpromised(self) -> dict[int, WorkerState]:
        """Idle workers of machines on which nothing is promised to any job."""
        if not self.promises:
            return self.room.idle
        if self._looked != len(self.actions):  # each of which takes workers, or promises a machine
            node_of, self._looked = self.room.node_of, len(self.actions)
            self._left = {
                index: one for index, one in self.room.idle.items() if node_of(index) not in self.promises.by_node
            }
        return self._left

    def _fill_by_kind(self) -> None:
        """By urgency over all kinds of job; where there is no room for one, the others of its kind are skipped."""
        kinds = [self._in_order(alike) for alike in self.state.ready.alike.values()]
        heads = [(next(jobs), number) for number, jobs in enumerate(kinds)]
        heapq.heapify(heads)
        looked_at = 0
        while heads and looked_at < BACKFILL_DEPTH:
            self._try_again(-heads[0][0][0][0])
            if not self.room.idle:
                return
            (*_, job_id), number = heapq.heappop(heads)
            answer = _Answer.delays if job_id in self._settled else self._consider(job_id)
            looked_at += answer is _Answer.delays
            if answer is not _Answer.waits and (following := next(kinds[number], None)):
                heapq.heappush(heads, (following, number))

    def _in_order(self, alike: Buckets) -> Iterator[tuple[Urgency, int, str]]:
        """Jobs of one kind with their order: of equally urgent ones those first whose models idle workers hold."""
        held = {affinity for worker in self.room.idle.values() for affinity in worker.holds}
        count = 0
        for urgency, _, bucket in alike.buckets():
            for affinity in sorted(bucket, key=lambda name: name not in held):
                for job_id in bucket[affinity]:
                    count += 1
                    yield _reversed(urgency), count, job_id

    def _in_turn(self) -> list[str]:
        """Jobs that are tried again, the most urgent last."""
        urgency = self.state.ready.urgency
        waiting = [job_id for job_id in self.state.retries if job_id not in self._settled]
        return sorted(waiting, key=lambda job_id: (_reversed(urgency[job_id]), job_id), reverse=True)

    def _try_again(self, priority: float) -> None:
        """Those of them that have a priority, or a larger one, come before jobs that have it and are new."""
        while self._retries and self._job(self._retries[-1]).priority >= priority:
            self._consider(self._retries.pop())

    def _consider(self, job_id: str) -> _Answer:
        """Start a job if it may; promise it a place if it has to wait, and a machine is left to promise one on."""
        answer = self._start_beside(job_id)
        if answer is _Answer.starts or not self._may_promise(kind_of(self._job(job_id))):
            return answer
        if self._could_ever(job_id):
            self._promise(job_id)
        return answer

    def _could_ever(self, job_id: str) -> bool:
        return self._job(job_id).devices <= self.state.table.most_devices(self._job(job_id))

    def _may_promise(self, kind: Kind) -> bool:
        """Whether a job of a kind that has to wait may be promised a place."""
        machines = len(self.state.layout.devices_by_node)
        return (kind[0] > 1 or not self.room.is_plain) and len(self.promises) < machines

    def _promise(self, job_id: str, node: int | None = None) -> None:
        """Promise it a machine on which nothing is promised: that of before, or where it could start first."""
        left = self.promises.free_nodes()
        if node is None or node not in left or not self.room.is_possible(job_id, node):
            found = [(at_s, one) for one in left if (at_s := self.room.start_s(job_id, one)) < math.inf]
            if not found:
                return
            node = min(found)[1]
            self.actions.append(Reserve(job_id, node))
        self.promises.give(job_id, node)

    def _start_promised(self, job_id: str, in_vain: set[tuple[Kind, float]]) -> None:
        """Start a job that was promised a place, there or elsewhere, if there is one now.

        Args:
            job_id: The job.
            in_vain: Kinds and estimates of others for which there was none since the last one started. What would
                delay a third job is the same for all that are alike, so there is none for this one but its own.
        """
        node, job = self.promises.take_back(job_id), self._job(job_id)
        alike = (kind_of(job), job.seconds)
        if alike not in in_vain or self.room.idle_on(node) >= job.devices:
            if self._start_beside(job_id) is _Answer.starts:
                in_vain.clear()
                return
            if self.room.is_plain and job_id not in self.state.retries:
                in_vain.add(alike)
        self.promises.give(job_id, node)

    def _start_beside(self, job_id: str) -> _Answer:
        """Start a job in the place that suits it best, if there is one where it delays no other's."""
        takes_s, kind = self._job(job_id).seconds, kind_of(self._job(job_id))
        # A job that is tried again may run in fewer places than others like it, one with a promise in more.
        apart = job_id in self.state.retries or job_id in self.state.reserved
        like = None if apart else self.state.needs.like(*kind)
        if like is not None and (known := self._known(kind, takes_s)):
            return known
        nodes = self.room.nodes_with_idle(job_id)
        places: Sequence[object] = nodes or ()
        if nodes is None or not all(self.promises.leave_none(node, job_id) for node in nodes):
            seats = sorted(self.room.seats(job_id), key=self.promises.rank)
            places = options = self.room.options(job_id, seats)
            for option in sorted(options, key=lambda one: max(map(self.promises.rank, one))):
                if not self.promises.would_delay(job_id, option):
                    self._take(job_id, option)
                    return _Answer.starts
        if like is not None and self.promises:
            self._delaying_s[like] = takes_s if places else 0.0
        return _Answer.delays if places else _Answer.waits

    def _known(self, kind: Kind, takes_s: float) -> _Answer | None:
        """The answer for jobs of a kind that take so long, if one like them had it: room gets only less."""
        delaying_s = self._delaying_s.get(self.state.needs.like(*kind), math.inf)
        if not self.promises or takes_s < delaying_s:
            return None
        return _Answer.delays if delaying_s else _Answer.waits

    def _take(self, job_id: str, seats: list[Seat]) -> None:
        # In the order of workers on each machine, which is that of ranks.
        leader, *members = sorted((seat.worker for seat in seats), key=lambda one: (self.room.node_of(one), one))
        emptied = tuple(sorted(worker for seat in seats for worker in seat.emptied))
        self._add(job_id, seats)
        self.actions.append(Start(job_id, leader, tuple(members), emptied))

    def _start(self, action: Start) -> None:
        self._add(action.job_id, [self.room.seat(action.job_id, action.worker)])
        self.actions.append(action)

    def _add(self, job_id: str, seats: Sequence[Seat]) -> None:
        self.room.add(job_id, seats)
        self.promises.started()

    def _job(self, job_id: str) -> Job:
        return self.state.plan.jobs[job_id]


def _reversed(urgency: Urgency) -> Urgency:
    """What sorts the most urgent first."""
    priority, path_s = urgency
    return -priority, -path_s
