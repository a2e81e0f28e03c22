"""Decide which job goes to which worker next: a pure function of the state.

Jobs are ordered by priority (`plan.build`), and at equal priority by the longest remaining path. This is list
scheduling: no device is idle while a job is ready, so the makespan stays within Graham's bound. Among jobs of
equal urgency a worker gets one whose model it holds, which saves loading and delays nothing. A job that has failed
on a device goes to another device if there is one, to find out whether the job or the device is at fault.

Priorities are fixed before anything starts. No job starves: a plan is finite and each job has a bounded number of
attempts, so every job gets its turn.

Where a device has several workers, or devices differ in size, a job starts only on a device with enough memory for
it beside the jobs that run there. Empty devices are preferred. If a ready job needs a large device, other jobs
prefer the smallest device that is large enough.

A job that must wait for several devices or for memory gets a reservation on the machine where it could start first
(EASY backfill). Each machine is reserved for at most one job at a time. Until that job starts, others may start
there only if their estimates say that they do not delay it: they end before it could start, or leave enough room
for it. The reservation is kept even if more urgent jobs become ready. So, if the estimates are right, the job
starts as soon as enough of the jobs that ran there at the time of the reservation have ended, or sooner elsewhere.
With one worker per device, a machine never has as many idle devices as the widest job needs while a job is ready.
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
# Placement: where a job fits now, and where it will fit: idle workers, and memory beside the running jobs.
#
#     on each device:  reserved for running jobs + for the next one + held by idle workers <= usable
#
# Idle workers hold the models of their last jobs. Ending their processes frees this memory.


@dataclass(frozen=True)
class Seat:
    """A place where a job could start now.

    Attributes:
        device: The device.
        worker: An idle worker on it.
        charge: MiB reserved for the job, or `EXCLUSIVE`.
        emptied: Other idle workers on the device whose processes must end first, to free their memory.
    """

    device: int
    worker: int
    charge: float
    emptied: tuple[int, ...] = ()


class _Guest(NamedTuple):
    """A job on a device: its reserved memory, and its estimated end."""

    charge: float
    until_s: float


class Room:
    """Idle workers and the jobs on each device, including the jobs that are about to start.

    Attributes:
        idle: Workers that could take a job.
        is_plain: Whether each device has one worker and is large enough for every job, so that memory need not be
            checked.
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
        """Jobs on each device that was asked for."""

    @cached_property
    def _slots(self) -> Counter[int]:
        """Free slots on each device."""
        return Counter(map(self._layout.device_of, self._state.usable_workers()))

    def _on(self, device: int) -> list[_Guest]:
        """Return the jobs on a device; needed only if devices are shared or a job must wait."""
        if device not in self._guests:
            workers = map(self._state.workers.__getitem__, self._layout.workers_of(device))
            self._guests[device] = [self._guest(worker, device) for worker in workers if worker.job_id]
        return self._guests[device]

    def _guest(self, worker: WorkerState, device: int) -> _Guest:
        # An overdue job is assumed to end now.
        until_s = max(self._now_s, self._state.jobs[worker.job_id].sent_s + self._job(worker.job_id).seconds)
        alone = self._layout.slots == 1
        return _Guest(EXCLUSIVE if alone else self._state.charge(worker.job_id, device), until_s)

    def allowed(self, job_id: str) -> Collection[int]:
        """Return the devices on which a job may run next; those where it failed only if the others are too few."""
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
        """Return the choices of where a job could start now, each with one seat per device, all on one machine.

        For a job of one device these are all seats, the best first; for a multi-GPU job one choice per machine.
        """
        job, allowed = self._job(job_id), self.allowed(job_id)
        idle: dict[int, list[int]] = {}
        for device in dict.fromkeys(map(self._layout.device_of, self.idle)):
            if device in allowed:
                idle.setdefault(self._layout.node_of(device), []).append(device)
        # For most multi-GPU jobs no machine has enough idle devices; this check is cheap.
        enough = [devices for devices in idle.values() if len(devices) >= job.devices]
        groups = [[seat for device in devices if (seat := self._seat_on(job_id, device))] for devices in enough]
        if job.devices == 1:
            groups = [[seat] for seats in groups for seat in seats]
        options = [sorted(seats, key=lambda seat: self._rank(job, seat))[: job.devices] for seats in groups]
        options = [seats for seats in options if len(seats) == job.devices]
        return sorted(options, key=lambda seats: self._rank(job, seats[-1]))

    def _seat_on(self, job_id: str, device: int) -> Seat | None:
        idle = [self.idle[index] for index in self._layout.workers_of(device) if index in self.idle]
        charge = self._state.charge(job_id, device)
        if self._layout.slots > 1 and not self._has_room(charge, device, self._on(device)):
            return None
        job = self._job(job_id)
        if job.devices > 1:
            worker = min(idle, key=lambda spare: (len(spare.holds), spare.index))
        else:
            # A worker without the model drops the models that it holds, so choose the worker that holds most.
            worker = min(idle, key=lambda spare: (job.affinity not in spare.holds, -spare.held_mb, spare.index))
        others = {other.index: other.held_mb for other in idle if other is not worker and other.held_mb}
        return Seat(device, worker.index, charge, self._emptied(charge, device, others))

    def _emptied(self, charge: float, device: int, held_mb: dict[int, int]) -> tuple[int, ...]:
        """Return the fewest idle workers to end so that a job fits, those that hold most first."""
        usable = self._layout.places[device].usable_mb
        if math.isinf(charge):
            return tuple(held_mb)
        if usable is None:
            return ()
        over = sum(guest.charge for guest in self._on(device)) + charge + sum(held_mb.values()) - usable
        emptied = []
        for worker in sorted(held_mb, key=lambda index: -held_mb[index]):
            if over <= 0:
                break
            emptied.append(worker)
            over -= held_mb[worker]
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
        # Prefer a worker that holds little, so that no other model is pushed out of its memory.
        holds = (job.devices == 1 and job.affinity not in worker.holds, len(worker.holds), seat.worker)
        if self.is_plain:
            return holds
        free, need = self._layout.places[seat.device].free_mb or 0, self._state.needs.of(job)
        guests = len(self._on(seat.device))
        return (
            # Leave large devices to jobs that need them, if any could start now.
            free if need is not None and self._most_needed > need else 0,
            guests > 0,
            # A job of unknown need has the best chance on the largest device.
            -free if need is None else 0,
            len(seat.emptied),
            guests,
            *holds,
        )

    @cached_property
    def _most_needed(self) -> int:
        """MiB of a device that the most demanding ready job needs, as far as is known."""
        state = self._state
        needs = [state.needs.of_kind(*kind[1:]) for kind in state.ready.alike]
        needs += [state.needs.of(state.jobs[job_id].job) for job_id in state.retries]
        return max([need or 0 for need in needs], default=0)

    def add(self, job_id: str, seats: Sequence[Seat]) -> None:
        """Count a job as started, for the rest of this decision."""
        until_s = self._now_s + self._job(job_id).seconds
        for seat in seats:
            self._on(seat.device).append(_Guest(seat.charge, until_s))
            for index in (seat.worker, *seat.emptied):
                del self.idle[index]

    # -- later -------------------------------------------------------------------------------------------------

    def could_start_by(self, time_s: float, job_id: str, node: int, beside: str, seats: Sequence[Seat]) -> bool:
        """Return whether a job could start on a machine by a given time if another job took some seats there."""
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
        """Estimate when a job could start on a machine, given the jobs that run or start there now.

        Return infinity if it never could.
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
"""Number of ready jobs to search for one that may start, beyond those that do start."""
_SAME_S = 1e-6


class Start(Struct, frozen=True):
    """Start a job on a worker.

    Attributes:
        job_id: The job.
        worker: Worker that is given the job.
        members: Further workers whose devices the job uses as well, each on its own device.
        emptied: Idle workers on the same devices whose processes must end first, to free their memory.
        ahead: Whether the job is prefetched: the worker begins it by itself, after the jobs that it already has.
    """

    job_id: str
    worker: int
    members: tuple[int, ...] = ()
    emptied: tuple[int, ...] = ()
    ahead: bool = False


class Reserve(Struct, frozen=True):
    """Reserve the next free place on a machine for a job that has to wait.

    Attributes:
        job_id: The job.
        node: The machine, see `Place.node`.
    """

    job_id: str
    node: int = 0


Action = Start | Reserve


def next_actions(state: RunState, now_s: float = 0.0) -> list[Action]:
    """Decide what to start now: as many jobs as fit.

    Reads only as far into the queue as there are idle workers, and `BACKFILL_DEPTH` jobs beyond.

    Args:
        state: State of the run.
        now_s: Current time, on the clock of job starts.
    """
    if not state.can_start or not state.idle_workers():  # as in most turns
        return []
    draft = _Draft(state, now_s)
    draft.fill()
    return draft.actions


_Turn = tuple[float, bool, float, int, int, str]
"""Sort key of a job's turn, followed by the job."""


class _Draft:
    """Decisions of one call."""

    def __init__(self, state: RunState, now_s: float) -> None:
        self.state = state
        self.room = Room(state, now_s)
        self.actions: list[Action] = []
        self._promised: dict[int, tuple[str, float]] = {}
        """Machine -> the job that was promised it, and until when it must be able to start there."""
        self._in_vain_s: dict[object, float] = {}
        """Needs of a job -> seconds from which on such jobs may start nowhere; 0 if no place is free. Room only
        shrinks during a decision."""

    @cached_property
    def _holders(self) -> Counter[str]:
        """Model -> number of workers that hold it."""
        return Counter(affinity for worker in self.state.workers for affinity in worker.holds)

    @cached_property
    def _at_hand(self) -> Counter[str]:
        """Model -> number of idle workers that hold it."""
        return Counter(affinity for worker in self.room.idle.values() for affinity in worker.holds)

    def fill(self) -> None:
        """Assign jobs to idle workers until no worker is idle, or no job may start."""
        for job_id, node in self.state.reserved.items():
            self._promise(job_id, node)
        for node, promise in list(self._promised.items()):
            del self._promised[node]
            if not self._start(promise[0]):  # on this machine or another
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
        """Return the jobs to retry; they come before new jobs of the same priority."""
        urgency = self.state.ready.urgency
        return sorted((-urgency[name][0], False, -urgency[name][1], 0, 0, name) for name in self.state.retries)

    def _of_kind(self, kind: Kind, alike: Buckets) -> Iterator[_Turn]:
        """Yield new jobs that may run in the same places.

        Among equally urgent jobs, those whose model an idle worker holds come first.
        """
        count, like = 0, self.state.needs.like(*kind)
        for (priority, path_s), devices, bucket, takes_s in alike.buckets():
            if min(takes_s) >= self._in_vain_s.get(like, math.inf) and not self._may_promise(kind):
                continue
            waiting = {affinity: iter(names) for affinity, names in bucket.items()}
            while waiting:
                affinity = self._next_model(waiting)
                if (job_id := next(waiting[affinity], None)) is None:
                    del waiting[affinity]
                    continue
                if min(takes_s) >= self._in_vain_s.get(like, math.inf) and not self._may_promise(kind):
                    break
                count += 1
                yield -priority, True, -path_s, -devices, count, job_id

    def _next_model(self, models: Collection[str]) -> str:
        if len(models) == 1:
            return next(iter(models))
        # Otherwise a job whose model few workers hold: two models on two workers rather than both on each.
        return min(models, key=lambda name: (not self._at_hand[name], self._holders[name]))

    def _may_promise(self, kind: Kind) -> bool:
        """Return whether a waiting job of a kind may get a reservation."""
        machines = len(self.state.layout.devices_by_node)
        return (kind[0] > 1 or not self.room.is_plain) and len(self._promised) < machines

    def _promise(self, job_id: str, node: int | None = None) -> None:
        """Reserve a free machine for a job: the one reserved before, or the one where it could start first."""
        nodes = self.state.layout.devices_by_node.keys() - self._promised.keys()
        if not nodes or self._job(job_id).devices > self.state.most_devices(self._job(job_id)):
            return
        due_s = self.room.start_s(job_id, node) if node is not None and node in nodes else math.inf
        if node is None or due_s == math.inf:
            due_s, node = min((self.room.start_s(job_id, node), node) for node in nodes)
            if due_s == math.inf:
                return
            self.actions.append(Reserve(job_id, node))
        self._promised[node] = job_id, due_s + _SAME_S

    def _start(self, job_id: str) -> bool:
        """Start a job in the seat that suits it best, if a seat delays no job with a reservation."""
        job, room = self._job(job_id), self.room
        # A retried job may run in fewer places than others of its kind, a job with a reservation in more.
        apart = job_id in self.state.retries or job_id in self.state.reserved
        if room.is_plain and job.devices == 1 and not (apart or self._promised):
            idle = list(room.idle.values())
            if self._at_hand[job.affinity]:
                idle = [worker for worker in idle if job.affinity in worker.holds]
            worker = min(idle, key=lambda worker: len(worker.holds))
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
        """Return 0 on a machine without a reservation, else 2 if the waiting job may use the device, or 1."""
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
        leader, *members = sorted(seat.worker for seat in seats)  # in rank order
        emptied = tuple(sorted(worker for seat in seats for worker in seat.emptied))
        self.room.add(job_id, seats)
        self.actions.append(Start(job_id, leader, tuple(members), emptied))

    def _job(self, job_id: str) -> Job:
        return self.state.plan.jobs[job_id]
