"""Which job goes to which worker next: a pure function of the state.

The highest priority goes first (`plan.build`), and of equal ones the longest remaining path: list scheduling,
which never leaves a device idle while a job is ready and so stays within Graham's bound.
Among jobs of equal urgency a worker gets one whose model it holds: loading is a cost that a choice can save
without making anything wait. A job that has failed on a device goes elsewhere as long as there is anywhere else,
so that job and device can be told apart.

Priorities are given once, before anything starts. No job starves by them: a plan is finite, each job is tried a
bounded number of times, and so each has its turn when those before it have had theirs.

Where a device has several workers, or devices differ in size, a job starts only on a device whose memory holds it
beside the jobs that run there. Empty devices go first; among devices of different sizes the smallest that does, if
a job is ready that needs a larger one.

A job that must wait when its turn comes, for several devices or for memory, is promised what it needs on the
machine where it could start first (EASY backfill); each machine is promised to one job at a time. Until it starts,
others may start there only if by their estimates that does not delay it, because they end before it could start or
because enough is left for it then.
The promise is kept even if more urgent jobs turn up, so it starts, estimates being right, as soon as enough of the
jobs have ended that ran there when it was made, or sooner elsewhere. With one worker on each device of a machine,
fewer of them are idle at any time at which a job is ready than the widest job needs.
"""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from typing import NamedTuple

from msgspec import Struct

from pipeline.engine.scheduler.ready import EXCLUSIVE, Buckets, Kind, kind_of
from pipeline.engine.scheduler.state import RunState, WorkerState
from pipeline.plan.graph import Job

# -- room --------------------------------------------------------------------------------------------------------
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
        self._usable = state.usable_devices()
        self._allowed: dict[Kind, set[int]] = {}
        self._guests: dict[int, list[_Guest]] = {}
        """Of each device that was asked for, the jobs on it."""

    @cached_property
    def _slots(self) -> Counter[int]:
        """Places that are left on each device."""
        return Counter(map(self._layout.device_of, self._state.usable_workers()))

    def _on(self, device: int) -> list[_Guest]:
        """The jobs on a device. Nobody asks, where every job has a device to itself, unless one must wait."""
        if device not in self._guests:
            workers = map(self._state.workers.__getitem__, self._layout.workers_of(device))
            self._guests[device] = [self._guest(worker, device) for worker in workers if worker.job_id]
        return self._guests[device]

    def _guest(self, worker: WorkerState, device: int) -> _Guest:
        # One that is overdue ends from now on.
        until_s = max(self._now_s, self._state.jobs[worker.job_id].sent_s + self._job(worker.job_id).seconds)
        alone = self._layout.slots == 1
        return _Guest(EXCLUSIVE if alone else self._state.charge(worker.job_id, device), until_s)

    def allowed(self, job_id: str) -> Collection[int]:
        """Devices on which a job may run next: where it has failed only if the others are too few."""
        job = self._job(job_id)
        if failed_on := self._state.blame.failed_on(job_id):
            elsewhere = [device for device in self._fitting(job) if device not in failed_on]
            if elsewhere and self._layout.most_together(elsewhere) >= job.devices:
                return set(elsewhere)
        if (kind := kind_of(job)) not in self._allowed:
            self._allowed[kind] = set(self._fitting(job))
        return self._allowed[kind]

    def _fitting(self, job: Job) -> list[int]:
        return self._usable if self.is_plain else self._state.fitting_devices(job)

    # -- now ---------------------------------------------------------------------------------------------------

    def options(self, job_id: str) -> list[list[Seat]]:
        """Where a job could start now: as many seats as it has devices, on one machine, each choice of worth.

        For a job of one device each seat, the best first; for another one choice on each machine.
        """
        job, allowed = self._job(job_id), self.allowed(job_id)
        idle: dict[int, list[int]] = {}
        for device in dict.fromkeys(map(self._layout.device_of, self.idle)):
            if device in allowed:
                idle.setdefault(self._layout.node_of(device), []).append(device)
        # Most jobs of several devices find no machine on which so many idle, and cost no more than this.
        enough = [devices for devices in idle.values() if len(devices) >= job.devices]
        found = [[seat for device in devices if (seat := self._seat_on(job_id, device))] for devices in enough]
        if job.devices == 1:
            found = [[seat] for seats in found for seat in seats]
        options = [sorted(seats, key=lambda seat: self._rank(job, seat))[: job.devices] for seats in found]
        options = [seats for seats in options if len(seats) == job.devices]
        return sorted(options, key=lambda seats: self._rank(job, seats[-1]))

    def _seat_on(self, job_id: str, device: int) -> Seat | None:
        idle = [self.idle[index] for index in self._layout.workers_of(device) if index in self.idle]
        charge = self._state.charge(job_id, device)
        if self._layout.slots > 1 and not self._has_room(charge, device, self._on(device)):
            return None
        job = self._job(job_id)
        if job.devices > 1:
            worker = min(idle, key=lambda one: (len(one.holds), one.index))
        else:
            # If it holds other models it lets go of them first, so rather the one that holds most.
            worker = min(idle, key=lambda one: (job.affinity not in one.holds, -one.held_mb, one.index))
        others = {one.index: one.held_mb for one in idle if one is not worker and one.held_mb}
        return Seat(device, worker.index, charge, self._emptied(charge, device, others))

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

    def _rank(self, job: Job, seat: Seat) -> tuple[float, ...]:
        worker = self.idle[seat.worker]
        # A worker that holds little, so that no other model is pushed out of its memory.
        holds = (job.devices == 1 and job.affinity not in worker.holds, len(worker.holds), seat.worker)
        if self.is_plain:
            return holds
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
            *holds,
        )

    @cached_property
    def _most_needed(self) -> int:
        """MiB of a device that the most demanding of the jobs needs that could start now, as far as is known."""
        state = self._state
        needs = [state.needs.of_kind(*kind[1:]) for kind in state.ready.alike]
        needs += [state.needs.of(state.jobs[job_id].job) for job_id in state.retries]
        return max([need or 0 for need in needs], default=0)

    def add(self, job_id: str, seats: Sequence[Seat]) -> None:
        """Let a job start, for the rest of this decision."""
        until_s = self._now_s + self._job(job_id).seconds
        for seat in seats:
            self._on(seat.device).append(_Guest(seat.charge, until_s))
            for index in (seat.worker, *seat.emptied):
                del self.idle[index]

    # -- later -------------------------------------------------------------------------------------------------

    def could_start_by(self, time_s: float, job_id: str, node: int, beside: str, seats: Sequence[Seat]) -> bool:
        """Whether a job could start on a machine by then if another one started now in some seats there."""
        until_s = self._now_s + self._job(beside).seconds
        if until_s <= time_s:
            return True
        for seat in seats:
            self._on(seat.device).append(_Guest(seat.charge, until_s))
        start_s = self.start_s(job_id, node)
        for seat in seats:
            self._on(seat.device).pop()
        return start_s <= time_s

    def start_s(self, job_id: str, node: int) -> float:
        """When by the estimates a job could start on a machine, with what runs and starts now.

        Infinite where it never could.
        """
        allowed, width = self.allowed(job_id), self._job(job_id).devices
        devices = [device for device in self._layout.devices_by_node[node] if device in allowed]
        free_s = sorted(self._earliest_on(job_id, device) for device in devices)
        return free_s[width - 1] if width <= len(free_s) else math.inf

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


BACKFILL_DEPTH = 500
"""Ready jobs that are looked at in search of one that may start, beyond those that do."""
_SAME_S = 1e-6


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

    Reads only as far into the queue as there are idle workers, and `BACKFILL_DEPTH` jobs beyond.

    Args:
        state: The run.
        now_s: On the clock on which jobs were started.
    """
    if not state.can_start or not state.idle_workers():  # as in most turns
        return []
    draft = _Draft(state, now_s)
    draft.fill()
    return draft.actions


_Turn = tuple[float, bool, float, int, int, str]
"""What sorts jobs into the order in which they have their turn, and at the end the job."""


class _Draft:
    """The decisions of one call."""

    def __init__(self, state: RunState, now_s: float) -> None:
        self.state = state
        self.room = Room(state, now_s)
        self.actions: list[Action] = []
        self._promised: dict[int, tuple[str, float]] = {}
        """Machine -> the job that was promised it, and until when it must be able to start there."""
        self._in_vain_s: dict[object, float] = {}
        """Needs of a job -> how long one takes that may start nowhere; 0 if there is no room, which gets less."""

    @cached_property
    def _holders(self) -> Counter[str]:
        """Model -> how many workers hold it."""
        return Counter(affinity for worker in self.state.workers for affinity in worker.holds)

    @cached_property
    def _at_hand(self) -> Counter[str]:
        """Model -> how many idle workers hold it."""
        return Counter(affinity for worker in self.room.idle.values() for affinity in worker.holds)

    def fill(self) -> None:
        """Decide about idle workers until none is left, or nothing more may start."""
        for job_id, node in self.state.reserved.items():
            self._promise(job_id, node)
        for node, promise in list(self._promised.items()):
            del self._promised[node]
            if not self._start(promise[0]):  # there or elsewhere
                self._promised[node] = promise
        in_vain = 0
        for *_, job_id in heapq.merge(self._again(), *starmap(self._of_kind, self.state.ready.alike.items())):
            if not self.room.idle or in_vain >= BACKFILL_DEPTH:
                return
            if job_id not in self.state.reserved and not self._start(job_id):
                in_vain += 1
                if self._may_promise(kind_of(self._job(job_id))):
                    self._promise(job_id)

    def _again(self) -> list[_Turn]:
        """Jobs that are tried again: before those that have the same priority and are new."""
        urgency = self.state.ready.urgency
        return sorted((-urgency[one][0], False, -urgency[one][1], 0, 0, one) for one in self.state.retries)

    def _of_kind(self, kind: Kind, alike: Buckets) -> Iterator[_Turn]:
        """New jobs that may run in the same places; equally urgent ones go by the models that are at hand."""
        count, like = 0, self.state.needs.like(*kind)
        for (priority, path_s), devices, bucket in alike.buckets():
            waiting = {affinity: iter(names) for affinity, names in bucket.items()}
            while waiting:
                affinity = self._next_model(waiting)
                if (job_id := next(waiting[affinity], None)) is None:
                    del waiting[affinity]
                    continue
                if not self._in_vain_s.get(like, 1) and not self._may_promise(kind):
                    return
                count += 1
                yield -priority, True, -path_s, -devices, count, job_id

    def _next_model(self, models: Collection[str]) -> str:
        if len(models) == 1:
            return next(iter(models))
        # Else one that few workers hold: two models for two workers rather than both on each.
        return min(models, key=lambda name: (not self._at_hand[name], self._holders[name]))

    def _may_promise(self, kind: Kind) -> bool:
        """Whether a job of a kind that has to wait may be promised a machine."""
        machines = len(self.state.layout.devices_by_node)
        return (kind[0] > 1 or not self.room.is_plain) and len(self._promised) < machines

    def _promise(self, job_id: str, node: int | None = None) -> None:
        """Promise a job a machine that no other was promised: that of before, or where it could start first."""
        left = self.state.layout.devices_by_node.keys() - self._promised.keys()
        if not left or self._job(job_id).devices > self.state.most_devices(self._job(job_id)):
            return
        due_s = self.room.start_s(job_id, node) if node is not None and node in left else math.inf
        if node is None or due_s == math.inf:
            due_s, node = min((self.room.start_s(job_id, one), one) for one in left)
            if due_s == math.inf:
                return
            self.actions.append(Reserve(job_id, node))
        self._promised[node] = job_id, due_s + _SAME_S

    def _start(self, job_id: str) -> bool:
        """Start a job in the place that suits it best, if there is one that delays no promised job."""
        job, room = self._job(job_id), self.room
        # A job that is tried again may run in fewer places than others like it, one with a promise in more.
        apart = job_id in self.state.retries or job_id in self.state.reserved
        if room.is_plain and job.devices == 1 and not (apart or self._promised):
            idle = list(room.idle.values())
            if self._at_hand[job.affinity]:
                idle = [one for one in idle if job.affinity in one.holds]
            worker = min(idle, key=lambda one: len(one.holds))
            self._take(job_id, [Seat(self.state.layout.device_of(worker.index), worker.index, EXCLUSIVE)])
            return True
        like = None if apart else self.state.needs.like(*kind_of(job))
        if like is not None and job.seconds >= self._in_vain_s.get(like, math.inf):
            return False
        options = room.options(job_id)
        for option in sorted(options, key=lambda option: max(map(self._nearness, option))):
            if not self._would_delay(job_id, option):
                self._take(job_id, option)
                return True
        if like is not None:
            self._in_vain_s[like] = job.seconds if options else 0
        return False

    def _nearness(self, seat: Seat) -> int:
        """2 for a place that was promised, 1 for one on the same machine beside it, 0 for all others."""
        promised, _ = self._promised.get(self.state.layout.node_of(seat.device), ("", 0))
        return 0 if not promised else 2 if seat.device in self.room.allowed(promised) else 1

    def _would_delay(self, job_id: str, option: Sequence[Seat]) -> bool:
        node = self.state.layout.node_of(option[0].device)
        promised, due_s = self._promised.get(node, ("", 0))
        return promised != "" and not self.room.could_start_by(due_s, promised, node, job_id, option)

    def _take(self, job_id: str, seats: list[Seat]) -> None:
        for seat in seats:
            for index in (seat.worker, *seat.emptied):
                self._at_hand.subtract(self.room.idle[index].holds)
        self._holders[self._job(job_id).affinity] += 1
        leader, *members = sorted(seat.worker for seat in seats)  # which is the order of ranks
        emptied = tuple(sorted(worker for seat in seats for worker in seat.emptied))
        self.room.add(job_id, seats)
        self.actions.append(Start(job_id, leader, tuple(members), emptied))

    def _job(self, job_id: str) -> Job:
        return self.state.plan.jobs[job_id]
