"""Where there is room for a job now, and where there will be: idle workers, and memory beside the jobs that run.

    on each device:  set aside for the jobs that run  +  for the next one  +  held by idle workers  <=  usable

What idle workers hold, the models of their last jobs, can be had by ending their processes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pipeline.engine.scheduler.memory_needs import EXCLUSIVE
from pipeline.engine.scheduler.ready import Kind, kind_of
from pipeline.engine.scheduler.state import RunState
from pipeline.plan.job import Job


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
        self._added: list[tuple[int, _Guest]] = []
        self._nodes: dict[str, dict[int, list[int]]] = {}
        """Job -> machine -> devices there on which it may run next."""
        self._starts: dict[str, dict[int, float]] = {}
        """Job -> machine -> when it could start there at the earliest, until something starts there."""

    @cached_property
    def _slots(self) -> Counter[int]:
        """Places that are left on each device."""
        return Counter(map(self._layout.device_of, self._state.table.usable_workers()))

    @cached_property
    def _guests(self) -> dict[int, list[_Guest]]:
        """The jobs on each device. Where every job has a device to itself nobody asks, unless one must wait."""
        found: dict[int, list[_Guest]] = {device: [] for device in range(len(self._layout.places))}
        jobs, now_s, alone = self._state.plan.jobs, self._now_s, self._layout.slots == 1
        for worker in self._state.workers:
            if worker.job_id:
                device = self._layout.device_of(worker.index)
                # One that is overdue ends from now on.
                until_s = max(now_s, worker.started_s + jobs[worker.job_id].seconds)
                charge = EXCLUSIVE if alone else self._state.charge(worker.job_id, device)
                found[device].append(_Guest(charge, until_s))
        for device, guest in self._added:
            found[device].append(guest)
        return found

    # -- where a job may run -----------------------------------------------------------------------------------

    def fitting(self, job_id: str) -> list[int]:
        """Devices on which a job may ever run."""
        return self._usable if self.is_plain else self._state.fitting_devices(self._job(job_id))

    def allowed(self, job_id: str) -> Collection[int]:
        """Those of them on which it may run next: where it has failed only if the others are too few."""
        fitting = self.fitting(job_id)
        failed_on = self._state.blame.failed_on(job_id)
        elsewhere = [device for device in fitting if device not in failed_on] if failed_on else []
        if elsewhere and self._layout.most_together(elsewhere) >= self._job(job_id).devices:
            return set(elsewhere)
        if (kind := kind_of(self._job(job_id))) not in self._allowed:
            self._allowed[kind] = set(fitting)
        return self._allowed[kind]

    # -- now ---------------------------------------------------------------------------------------------------

    def seats(self, job_id: str) -> list[Seat]:
        """Where a job could start now, one place on each device, the best first."""
        allowed, idle = self.allowed(job_id), dict.fromkeys(map(self._layout.device_of, self.idle))
        found = [seat for device in idle if device in allowed and (seat := self._seat_on(job_id, device))]
        return sorted(found, key=lambda seat: self._rank(job_id, seat))

    def together(self, job_id: str, seats: Sequence[Seat]) -> list[Seat]:
        """As many of some seats as a job has devices, on one machine: on that whose seats are better."""
        found: dict[int, list[Seat]] = {}
        for seat in seats:
            chosen = found.setdefault(self._layout.places[seat.device].node, [])
            chosen.append(seat)
            if len(chosen) == self._job(job_id).devices:
                return chosen
        return []

    def seat(self, job_id: str, worker: int) -> Seat:
        """The place of an idle worker, whatever there is room for."""
        device = self._layout.device_of(worker)
        return Seat(device, worker, self._state.charge(job_id, device))

    def _seat_on(self, job_id: str, device: int) -> Seat | None:
        idle = [self.idle[index] for index in self._layout.workers_of(device) if index in self.idle]
        if not idle:
            return None
        charge = self._state.charge(job_id, device)
        if self._layout.slots > 1 and not self._has_room(charge, device, self._guests[device]):
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
        over = sum(guest.charge for guest in self._guests[device]) + charge + sum(held.values()) - usable
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
        guests = len(self._guests[seat.device])
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
        guests = vars(self).get("_guests")
        until_s = self._now_s + self._job(job_id).seconds
        for seat in seats:
            guest = _Guest(seat.charge, until_s)
            self._added.append((seat.device, guest))
            if guests is not None:
                guests[seat.device].append(guest)
            for index in (seat.worker, *seat.emptied):
                del self.idle[index]
            for known in self._starts.values():
                known.pop(self._layout.places[seat.device].node, None)

    def would_start_s(self, job_id: str, beside: str, seats: Sequence[Seat]) -> float:
        """When by the estimates a job could start at the earliest if another one started now."""
        until_s = self._now_s + self._job(beside).seconds
        nodes = {self._layout.places[seat.device].node for seat in seats}
        elsewhere_s = min((s for node, s in self._by_node(job_id).items() if node not in nodes), default=math.inf)
        for seat in seats:
            self._guests[seat.device].append(_Guest(seat.charge, until_s))
        there_s = min(self._start_on(job_id, node) for node in nodes)
        for seat in seats:
            self._guests[seat.device].pop()
        return min(elsewhere_s, there_s)

    # -- later -------------------------------------------------------------------------------------------------

    def earliest_s(self, job_id: str) -> float:
        """When by the estimates a job could start at the earliest, with what runs and starts now."""
        return min(self._by_node(job_id).values(), default=math.inf)

    def _by_node(self, job_id: str) -> dict[int, float]:
        """The same for each machine; only that of one on which something has started since is found anew."""
        known = self._starts.setdefault(job_id, {})
        for node in self._allowed_by_node(job_id).keys() - known.keys():
            known[node] = self._start_on(job_id, node)
        return known

    def _start_on(self, job_id: str, node: int) -> float:
        devices = self._allowed_by_node(job_id).get(node, ())
        width = self._job(job_id).devices
        if len(devices) < width:
            return math.inf
        return sorted(self._earliest_on(job_id, device) for device in devices)[width - 1]

    def _allowed_by_node(self, job_id: str) -> dict[int, list[int]]:
        if job_id not in self._nodes:
            found = self._nodes[job_id] = {}
            for device in self.allowed(job_id):
                found.setdefault(self._layout.places[device].node, []).append(device)
        return self._nodes[job_id]

    def _earliest_on(self, job_id: str, device: int) -> float:
        if self._layout.slots == 1:
            return max((guest.until_s for guest in self._guests[device]), default=self._now_s)
        guests = sorted(self._guests[device], key=lambda guest: -guest.until_s)
        charge = self._state.charge(job_id, device)
        time_s = self._now_s
        while guests and not (len(guests) < self._slots[device] and self._has_room(charge, device, guests)):
            time_s = guests.pop().until_s
        return time_s

    def _job(self, job_id: str) -> Job:
        return self._state.plan.jobs[job_id]
