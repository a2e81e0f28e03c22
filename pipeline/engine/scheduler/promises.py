"""Machines that are promised to jobs which have to wait, and whether another job may start there until then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.engine.scheduler.placement import Room, Seat
from pipeline.engine.scheduler.state import RunState

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
        return list(dict.fromkeys(self.by_node.values()))

    def nodes_of(self, job_id: str) -> list[int]:
        """What a job was promised."""
        return [node for node, one in self.by_node.items() if one == job_id]

    def free_nodes(self) -> set[int]:
        """The machines that nobody was promised."""
        return self._state.layout.devices_by_node.keys() - self.by_node.keys()

    def give(self, job_id: str, nodes: Iterable[int]) -> None:
        """Promise a job some machines."""
        self.by_node |= dict.fromkeys(nodes, job_id)

    def take_back(self, job_id: str) -> list[int]:
        """Promise a job nothing any more, and say what it was."""
        nodes = self.nodes_of(job_id)
        for node in nodes:
            del self.by_node[node]
        return nodes

    def forget(self, job_id: str) -> None:
        """What was promised to a job is another thing now, so it may start at another time."""
        for known in (self._due_s, self._spare):
            for place in [place for place in known if place[1] == job_id]:
                del known[place]

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
            # One that takes several machines starts when the last of them is idle.
            start_s = max(self._room.start_s(promised, one) for one in self.nodes_of(promised))
            self._due_s[node, promised] = start_s + _SAME_S
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
