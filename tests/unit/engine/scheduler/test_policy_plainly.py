"""The policy decides as a plain one does that remembers nothing and looks at everything."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pipeline.engine.devices.select import Layout, Place
from pipeline.engine.scheduler import policy
from pipeline.engine.scheduler.policy import Action, Promises, Reserve, Room, Seat, Start, _Guest, next_actions
from pipeline.engine.scheduler.reactions import too_wide
from pipeline.engine.scheduler.ready import Kind, Needs
from pipeline.engine.scheduler.state import RunState, WorkerPhase, WorkerState
from pipeline.engine.workers.messages import FailureKind
from pipeline.plan.graph import Job, Plan

STEPS = 120


class _PlainRoom(Room):
    """Finds out who is idle and what runs where from all workers, each time that it is asked."""

    def __init__(self, state: RunState, now_s: float) -> None:
        super().__init__(state, now_s)
        self.idle = {one.index: one for one in state.workers if one.phase is WorkerPhase.idle}
        left = [one.index for one in state.workers if not one.quarantined]
        self._usable = sorted({self._layout.device_of(index) for index in left})

    def fitting(self, job_id: str) -> list[int]:
        return self._state.needs.fitting(self._job(job_id), self._usable)

    def _on(self, device: int) -> list[_Guest]:
        running = [
            one for one in self._state.workers if one.job_id and self._layout.device_of(one.index) == device
        ]
        found = [self._guest(one, device) for one in running]
        return [*found, *self._added.get(device, ())]

    def seats(self, job_id: str) -> list[Seat]:
        allowed = self.allowed(job_id)
        devices = {
            self._layout.device_of(index) for index in self.idle if self._layout.device_of(index) in allowed
        }
        found = [seat for device in devices if (seat := self._seat_on(job_id, device))]
        return sorted(found, key=lambda seat: self._rank(job_id, seat))

    def nodes_with_idle(self, job_id: str) -> None:
        """All are looked at closely."""

    def could_start_by(self, time_s: float, job_id: str, node: int, beside: str, seats: Sequence[Seat]) -> bool:
        until_s = self._now_s + self._job(beside).seconds
        before = {device: list(guests) for device, guests in self._added.items()}
        for seat in seats:
            self._added.setdefault(seat.device, []).append(_Guest(seat.charge, until_s))
        start_s = self.start_s(job_id, node)
        self._added = before
        return start_s <= time_s

    def _free_on(self, job_id: str, node: int) -> list[float]:
        return sorted(self._earliest_on(job_id, device) for device in self._allowed_on(job_id, node))


class _PlainDraft(policy._Draft):
    """Asks anew for each job whether it may start, and for each promise when it is due."""

    def __init__(self, state: RunState, now_s: float) -> None:
        super().__init__(state, now_s)
        self.room = _PlainRoom(state, now_s)
        self.promises = Promises(state, self.room, now_s)

    def _known(self, kind: Kind, takes_s: float) -> None:
        return None

    def _could_ever(self, job_id: str) -> bool:
        width = self._job(job_id).devices
        return width <= self.state.layout.most_together(self.room.fitting(job_id))

    def _take(self, job_id: str, seats: list[Seat]) -> None:
        for node, promised in self.promises.by_node.items():
            self.promises.due_s(node, promised)
        super()._take(job_id, seats)

    def _start_promised(self, job_id: str, in_vain: set[tuple[Kind, float]]) -> None:
        super()._start_promised(job_id, set())

    def _unpromised(self) -> dict[int, WorkerState]:
        idle = self.room.idle.items()
        return {index: one for index, one in idle if self.room.node_of(index) not in self.promises.by_node}


def plain_actions(state: RunState, now_s: float) -> list[Action]:
    """What `next_actions` is to decide."""
    draft = _PlainDraft(state, now_s)
    if state.can_start and draft.room.idle:
        draft.fill()
    return draft.actions


class Trial:
    """A random run in which jobs and workers fail, devices are given up, and estimates are wrong."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.draw = draw = random.Random(seed)
        each, slots = draw.choice((2, 3, 4)), draw.choice((1, 1, 2))
        sizes = (80,) if draw.random() < 0.5 else (24, 80)
        counted = draw.random() < 0.6
        places = []
        for index in range(each * nodes):
            size = draw.choice(sizes) if counted else None
            places.append(Place(label=str(index), free_mb=size, usable_mb=size, node=index // each))
        self.layout = Layout(places=tuple(places), slots=slots, vouched=draw.random() < 0.5)
        self.plan = self._plan(each)
        self.state = RunState(
            self.plan, (), self.layout.workers, layout=self.layout, needs=Needs(self.layout), models_in_memory=2
        )
        for index in range(self.layout.workers):
            self.state.worker_ready(index, str(index))
        self.now_s = 0.0
        self.ends: dict[str, tuple[float, int]] = {}
        self.actions: list[Action] = []

    def _plan(self, widest: int) -> Plan:
        draw, jobs = self.draw, []
        for number in range(50):
            width = draw.randint(2, widest) if draw.random() < 0.3 else 1
            jobs.append(
                Job(
                    id=f"j{number}", key="", entry="m:f", payload={}, devices=width,
                    seconds=draw.choice((1.0, 2.0, 5.0, 9.0)), affinity=draw.choice(("", "a", "b", "c")),
                    priority=draw.choice((0, 0, 0, 1)), memory_kind=draw.choice(("k", "l")),
                    memory_mb=draw.choice((None, 5, 20)),
                )
            )  # fmt: skip
        edges = [
            (f"j{up}", f"j{down}")
            for down in range(50)
            for up in draw.sample(range(down), min(down, draw.choice((0, 0, 1))))
        ]
        return Plan(jobs, edges)

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Reserve):
                self.state.reserve(action.job_id, action.node)
                continue
            self.state.start(action.job_id, action.worker, action.members, self.now_s)
            for index in action.emptied:
                self.state.workers[index].ends()
                self.state.worker_ready(index, str(index))
            takes_s = self.plan.jobs[action.job_id].seconds * self.draw.choice((0.5, 1.0, 1.0, 1.6))
            self.ends[action.job_id] = self.now_s + takes_s, action.worker

    def goes_on(self) -> None:
        """What happens next: mostly the end of a job."""
        state, draw = self.state, self.draw
        what = draw.random()
        if what < 0.05:
            state.table.quarantine(draw.randrange(self.layout.workers))
        if 0.05 < what < 0.15 or not self.ends or too_wide(state):  # which the engine would give up
            for index in range(self.layout.workers):
                if state.workers[index].quarantined:
                    state.table.release(index)
        if not self.ends:
            return
        job_id = min(self.ends, key=lambda name: (self.ends[name], name))
        self.now_s, worker = self.ends.pop(job_id)
        if what < 0.75:
            state.finished(worker, draw.choice((None, 4, 15)), draw.choice((0, 0, 3)))
            return
        if what < 0.85:
            state.raised(worker)
        else:
            state.worker_lost(worker)
            state.worker_ready(worker, str(worker))
        if draw.random() < 0.7:
            state.blame.failed(job_id, self.layout.device_of(worker), FailureKind.lost)
        state.retry(job_id)

    def compare(self) -> None:
        for _ in range(STEPS):
            if not self.state.unsettled:
                return
            expected = plain_actions(self.state, self.now_s)
            actions = next_actions(self.state, self.now_s)
            assert actions == expected
            self.actions += actions
            self.carry_out(actions)
            self.goes_on()


@pytest.mark.parametrize(
    ("nodes", "trials"),
    [
        *((nodes, 6) for nodes in (1, 2, 3)),
        *(pytest.param(nodes, 200, marks=pytest.mark.exhaustive) for nodes in (1, 2, 3)),
    ],
)
def test_what_is_remembered_changes_no_decision(nodes: int, trials: int) -> None:
    promised = 0
    for seed in range(trials):
        trial = Trial(seed, nodes)
        trial.compare()
        promised += sum(isinstance(action, Reserve) for action in trial.actions)
        assert any(isinstance(action, Start) for action in trial.actions)
    assert promised > 20
