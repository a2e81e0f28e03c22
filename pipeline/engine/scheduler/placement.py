"""Where there is room for a job now, and where there will be: idle workers, and memory beside the jobs that run.

    on each device:  set aside for the jobs that run  +  for the next one  +  held by idle workers  <=  usable

What idle workers hold, the models of their last jobs, can be had by ending their processes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from pipeline.engine.scheduler.ready import EXCLUSIVE, Kind, kind_of
from pipeline.engine.scheduler.state import RunState, WorkerState
from pipeline.plan.graph import Job


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
