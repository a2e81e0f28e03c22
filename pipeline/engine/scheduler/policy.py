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
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from msgspec import Struct

from pipeline.engine.scheduler.ready import EXCLUSIVE, Bucket, Buckets, Kind, Urgency, kind_of
from pipeline.engine.scheduler.state import RunState, WorkerState
from pipeline.plan.graph import Job

# -- placement ---------------------------------------------------------------------------------------------------
# Where there is room for a job now, and where there will be: idle workers, and memory beside the jobs that run.
#
#     on each device:  set aside for the jobs that run  +  for the next one  +  held by idle workers  <=  usable
#
# What idle workers hold, the models of their last jobs, can be had by ending their processes.


@dataclass(frozen=True)
class Seat:
    """A place where a job could start now.

    Attributes:
        device: The device.
        worker: An idle worker on it.
        charge: MiB that are set aside for the job, or `EXCLUSIVE`.
        emptied: Other idle workers on it whose processes must end first, for the memory that they hold.
    """

    device: int
    worker: int
    charge: float
    emptied: tuple[int, ...] = ()


class _Guest(NamedTuple):
    """A job on a device: what is set aside for it, and when by its estimate it ends."""

    charge: float
    until_s: float


class Room:
    """Idle workers and the jobs on each device, those included that are about to start.

    Attributes:
        idle: Workers that could take a job.
        is_plain: One worker on each device, and each will do for every job: memory need not be looked at.
    """

    def __init__(self, state: RunState, now_s: float) -> None:
        self.idle = {worker.index: worker for worker in state.idle_workers()}
        self.is_plain = state.is_plain
        self._state = state
        self._layout = state.layout
        self._now_s = now_s
        self._idle_count = Counter(map(self.node_of, self.idle))
        self._usable = state.usable_devices()
        self._allowed: dict[Kind, set[int]] = {}
        self._guests: dict[int, list[_Guest]] = {}
        """Of each device that was asked for, the jobs on it."""
        self._added: dict[int, list[_Guest]] = {}
        """Those of them that are about to start, on any device."""
        self._free_s: dict[tuple[Kind, int], list[float]] = {}
        """When devices are free, see `_free_on`; forgotten for a machine on which a job is about to start."""

    @cached_property
    def _slots(self) -> Counter[int]:
        """Places that are left on each device."""
        return Counter(map(self._layout.device_of, self._state.table.usable_workers()))

    def _on(self, device: int) -> list[_Guest]:
        """The jobs on a device. Nobody asks, where every job has a device to itself, unless one must wait."""
        if device not in self._guests:
            workers = map(self._state.workers.__getitem__, self._layout.workers_of(device))
            found = [self._guest(worker, device) for worker in workers if worker.job_id]
            self._guests[device] = [*found, *self._added.get(device, ())]
        return self._guests[device]

    def _guest(self, worker: WorkerState, device: int) -> _Guest:
        # One that is overdue ends from now on.
        until_s = max(self._now_s, worker.started_s + self._job(worker.job_id).seconds)
        alone = self._layout.slots == 1
        return _Guest(EXCLUSIVE if alone else self._state.charge(worker.job_id, device), until_s)

    # -- where a job may run -----------------------------------------------------------------------------------

    def fitting(self, job_id: str) -> list[int]:
        """Devices on which a job may ever run."""
        return self._usable if self.is_plain else self._state.fitting_devices(self._job(job_id))

    def allowed(self, job_id: str) -> Collection[int]:
        """Those of them on which it may run next: where it has failed only if the others are too few."""
        if failed_on := self._state.blame.failed_on(job_id):
            elsewhere = [device for device in self.fitting(job_id) if device not in failed_on]
            if elsewhere and self._layout.most_together(elsewhere) >= self._job(job_id).devices:
                return set(elsewhere)
        if (kind := kind_of(self._job(job_id))) not in self._allowed:
            self._allowed[kind] = set(self.fitting(job_id))
        return self._allowed[kind]

    # -- now ---------------------------------------------------------------------------------------------------

    def seats(self, job_id: str) -> list[Seat]:
        """Where a job could start now, one place on each device, the best first."""
        allowed, width = self.allowed(job_id), self._job(job_id).devices
        # Most jobs of several devices find no machine on which so many idle, and cost no more than this.
        machines = takewhile(lambda found: len(found) >= width, self._idle_on)
        idle = [device for found in machines for device in found]
        found = [seat for device in idle if device in allowed and (seat := self._seat_on(job_id, device))]
        return sorted(found, key=lambda seat: self._rank(job_id, seat))

    @cached_property
    def _idle_on(self) -> list[list[int]]:
        """For each machine its devices with an idle worker, or one that is about to start a job; most first."""
        found: dict[int, list[int]] = {}
        for device in dict.fromkeys(map(self._layout.device_of, self.idle)):
            found.setdefault(self._layout.node_of(device), []).append(device)
        return sorted(found.values(), key=len, reverse=True)

    def nodes_with_idle(self, job_id: str) -> list[int] | None:
        """The machines on which as many devices idle as a job has, where nothing else decides where it may run."""
        job = self._job(job_id)
        if not self.is_plain or self._state.blame.failed_on(job_id):
            return None
        return [node for node, count in self._idle_count.items() if count >= job.devices]

    def idle_on(self, node: int) -> int:
        """How many workers of a machine idle."""
        return self._idle_count[node]

    def options(self, job_id: str, seats: Sequence[Seat]) -> list[list[Seat]]:
        """Of some seats as many as a job has devices, on one machine: all such choices that differ in worth.

        For a job of one device each seat; for another one choice on each machine, the better one first.
        """
        width = self._job(job_id).devices
        if width == 1:
            return [[seat] for seat in seats]
        found: dict[int, list[Seat]] = {}
        options = []
        for seat in seats:
            chosen = found.setdefault(self._layout.node_of(seat.device), [])
            chosen.append(seat)
            if len(chosen) == width:
                options.append(chosen[:])
        return options

    def node_of(self, worker: int) -> int:
        """The machine that a worker is on."""
        return self._layout.node_of(self._layout.device_of(worker))

    def seat(self, job_id: str, worker: int) -> Seat:
        """The place of an idle worker, whatever there is room for."""
        device = self._layout.device_of(worker)
        return Seat(device, worker, self._state.charge(job_id, device))

    def _seat_on(self, job_id: str, device: int) -> Seat | None:
        idle = [self.idle[index] for index in self._layout.workers_of(device) if index in self.idle]
        if not idle:
            return None
        charge = self._state.charge(job_id, device)
        if self._layout.slots > 1 and not self._has_room(charge, device, self._on(device)):
            return None
        job = self._job(job_id)
        if job.devices > 1:
            worker = min(idle, key=lambda one: (len(one.holds), one.index))
        else:
            # If it holds other models it lets go of them first, so rather the one that holds most.
            worker = min(idle, key=lambda one: (job.affinity not in one.holds, -one.held_mb, one.index))
        others = [one for one in idle if one is not worker and one.held_mb]
        return Seat(
            device, worker.index, charge, self._emptied(charge, device, {o.index: o.held_mb for o in others})
        )

    def _emptied(self, charge: float, device: int, held: dict[int, int]) -> tuple[int, ...]:
        """As few idle workers as do, those first that hold most."""
        usable = self._layout.places[device].usable_mb
        if math.isinf(charge):
            return tuple(held)
        if usable is None:
            return ()
        over = sum(guest.charge for guest in self._on(device)) + charge + sum(held.values()) - usable
        emptied = []
        for worker in sorted(held, key=lambda index: -held[index]):
            if over <= 0:
                break
            emptied.append(worker)
            over -= held[worker]
        return tuple(emptied)

    def _has_room(self, charge: float, device: int, guests: Sequence[_Guest]) -> bool:
        usable = self._layout.places[device].usable_mb
        if not guests:
            return True
        if math.isinf(charge) or any(math.isinf(guest.charge) for guest in guests):
            return False
        return usable is None or sum(guest.charge for guest in guests) + charge <= usable

    def _rank(self, job_id: str, seat: Seat) -> tuple[float, ...]:
        job, worker = self._job(job_id), self.idle[seat.worker]
        holds = len(worker.holds) if job.devices > 1 else job.affinity not in worker.holds
        if self.is_plain:
            return (holds, seat.worker)
        free, need = self._layout.places[seat.device].free_mb or 0, self._state.needs.of(job)
        guests = len(self._on(seat.device))
        return (
            # Large devices are left to jobs that need them, if any could start now.
            free if need is not None and self._most_needed > need else 0,
            guests > 0,
            # What nobody knows the need of has the best chance on the largest.
            -free if need is None else 0,
            len(seat.emptied),
            guests,
            holds,
            seat.worker,
        )

    @cached_property
    def _most_needed(self) -> int:
        """MiB of a device that the most demanding of the jobs needs that could start now, as far as is known."""
        state = self._state
        needs = [state.needs.of_kind(*kind[1:]) for kind in state.ready.alike]
        needs += [state.needs.of(state.jobs[job_id].job) for job_id in state.retries]
        return max([need or 0 for need in needs], default=0)

    # -- what starts -------------------------------------------------------------------------------------------

    def add(self, job_id: str, seats: Sequence[Seat]) -> None:
        """Let a job start, for the rest of this decision."""
        until_s = self._now_s + self._job(job_id).seconds
        for seat in seats:
            guest = _Guest(seat.charge, until_s)
            self._added.setdefault(seat.device, []).append(guest)
            if seat.device in self._guests:
                self._guests[seat.device].append(guest)
            for index in (seat.worker, *seat.emptied):
                del self.idle[index]
                self._idle_count[self.node_of(index)] -= 1
        nodes = {self._layout.node_of(seat.device) for seat in seats}
        self._free_s = {place: free_s for place, free_s in self._free_s.items() if place[1] not in nodes}

    def could_start_by(self, time_s: float, job_id: str, node: int, beside: str, seats: Sequence[Seat]) -> bool:
        """Whether a job could start on a machine by then if another one started there now."""
        until_s = self._now_s + self._job(beside).seconds
        if until_s <= time_s:
            return True
        mine = [seat for seat in seats if self._layout.node_of(seat.device) == node]
        if self._layout.slots == 1:
            allowed = self.allowed(job_id)
            # Those that are taken idle, so they are among the free ones.
            left = bisect_right(self._free_on(job_id, node), time_s) - sum(one.device in allowed for one in mine)
            return left >= self._job(job_id).devices
        for seat in mine:
            self._on(seat.device).append(_Guest(seat.charge, until_s))
        start_s = self.start_s(job_id, node)
        for seat in mine:
            self._on(seat.device).pop()
        return start_s <= time_s

    # -- later -------------------------------------------------------------------------------------------------

    def start_s(self, job_id: str, node: int) -> float:
        """When by the estimates a job could start on a machine, with what runs and starts now.

        Infinite where it never could.
        """
        free_s, width = self._free_on(job_id, node), self._job(job_id).devices
        return free_s[width - 1] if width <= len(free_s) else math.inf

    def spare(self, job_id: str, node: int, time_s: float) -> float:
        """How many devices of a machine, if others have them from now on, leave a job as many as it takes then.

        Infinite where it may not run on all of them, as some may then have more.
        """
        if self._state.blame.failed_on(job_id):
            return math.inf
        return bisect_right(self._free_on(job_id, node), time_s) - self._job(job_id).devices

    def _free_on(self, job_id: str, node: int) -> list[float]:
        """When each device of a machine on which a job may run has room for it, the first one first."""
        place = kind_of(self._job(job_id)), node
        # The same for all that are alike, but one that failed on some device or looks at what memory is left.
        alike = self._layout.slots == 1 and not self._state.blame.failed_on(job_id)
        if alike and place in self._free_s:
            return self._free_s[place]
        found = sorted(self._earliest_on(job_id, device) for device in self._allowed_on(job_id, node))
        if alike:
            self._free_s[place] = found
        return found

    def is_possible(self, job_id: str, node: int) -> bool:
        """Whether a machine has devices enough on which a job may run."""
        return len(self._allowed_on(job_id, node)) >= self._job(job_id).devices

    def _allowed_on(self, job_id: str, node: int) -> list[int]:
        allowed = self.allowed(job_id)
        return [device for device in self._layout.devices_by_node[node] if device in allowed]

    def _earliest_on(self, job_id: str, device: int) -> float:
        if self._layout.slots == 1:
            return max((guest.until_s for guest in self._on(device)), default=self._now_s)
        guests = sorted(self._on(device), key=lambda guest: -guest.until_s)
        charge = self._state.charge(job_id, device)
        time_s = self._now_s
        while guests and not (len(guests) < self._slots[device] and self._has_room(charge, device, guests)):
            time_s = guests.pop().until_s
        return time_s

    def _job(self, job_id: str) -> Job:
        return self._state.plan.jobs[job_id]


# -- promises ----------------------------------------------------------------------------------------------------
# Machines that are promised to jobs which have to wait, and whether another job may start there until then.


_SAME_S = 1e-6


class Promises:
    """Each machine to one job at most, for the length of one decision.

    Attributes:
        by_node: Machine -> the job that was promised a place there.
    """

    def __init__(self, state: RunState, room: Room, now_s: float) -> None:
        self.by_node: dict[int, str] = {}
        self._state, self._room, self._now_s = state, room, now_s
        self._due_s: dict[tuple[int, str], float] = {}
        """Machine and that job -> when it could start, once somebody asked and before anything starts there."""
        self._spare: dict[tuple[int, str], float] = {}
        """Machine and that job -> how many devices are left there when it starts, see `Room.spare`."""

    def __len__(self) -> int:
        return len(self.by_node)

    @property
    def job_ids(self) -> list[str]:
        """The jobs, in the order in which they were promised something."""
        return list(self.by_node.values())

    def free_nodes(self) -> set[int]:
        """The machines that nobody was promised."""
        return self._state.layout.devices_by_node.keys() - self.by_node.keys()

    def give(self, job_id: str, node: int) -> None:
        """Promise a job a machine."""
        self.by_node[node] = job_id

    def take_back(self, job_id: str) -> int:
        """Promise a job nothing any more, and say what it was."""
        node = next(node for node, one in self.by_node.items() if one == job_id)
        del self.by_node[node]
        return node

    def started(self) -> None:
        """A job is about to start somewhere: fewer devices are left."""
        self._spare.clear()

    def rank(self, seat: Seat) -> int:
        """0 for a place on a machine that nobody was promised, 2 for one that was promised, 1 for those beside."""
        promised = self.by_node.get(self._room.node_of(seat.worker))
        if promised is None:
            return 0
        return 2 if seat.device in self._room.allowed(promised) else 1

    def would_delay(self, job_id: str, seats: Sequence[Seat]) -> bool:
        """Whether a job in some places would delay one that was promised a machine of theirs."""
        return any(self._delays_on(node, job_id, seats) for node in {self._room.node_of(s.worker) for s in seats})

    def _delays_on(self, node: int, job_id: str, seats: Sequence[Seat]) -> bool:
        if (promised := self.by_node.get(node)) is None:
            return False
        return not self._room.could_start_by(self.due_s(node, promised), promised, node, job_id, seats)

    def due_s(self, node: int, promised: str) -> float:
        """Until when a job must be able to start that was promised a machine."""
        if (node, promised) not in self._due_s:
            self._due_s[node, promised] = self._room.start_s(promised, node) + _SAME_S
        return self._due_s[node, promised]

    def leave_none(self, node: int, job_id: str) -> bool:
        """Whether a job would delay the one that was promised a machine, whichever devices there it had.

        The answer of `would_delay` for all choices at once; no where it takes a closer look.
        """
        if (promised := self.by_node.get(node)) is None:
            return False
        due_s, job = self.due_s(node, promised), self._state.plan.jobs[job_id]
        if self._now_s + job.seconds <= due_s:
            return False
        if (node, promised) not in self._spare:
            self._spare[node, promised] = self._room.spare(promised, node, due_s)
        return job.devices > self._spare[node, promised]


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
