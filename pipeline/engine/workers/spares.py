"""Workers that wait beside those of a pool, started and with their libraries imported, for one that is lost.

None is started before all workers of the pool have begun a job: first those that work. They are started one after
the other, and where that fails again and again there are none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.engine.workers.messages import WorkerReady
from pipeline.engine.workers.protocol import Worker
from pipeline.engine.workers.reaper import Reaper
from pipeline.engine.workers.slot import Slot
from pipeline.errors import WorkerError

MAX_FAILED_STARTS = 3
"""Workers that may end in a place before they begin a job, until the place is given up; likewise spares."""

MakeWorker = Callable[[int, Reaper], Worker]

log = logging.getLogger("pipeline")


@dataclass(frozen=True)
class Spares:
    """What spares there are to be.

    Attributes:
        number: How many.
        make: Makes one, of a negative index.
        settle: Has one serve in a place; says what it would if it became ready there.
        have_room: Whether the machine has memory for another process of so many bytes.
    """

    number: int
    make: MakeWorker
    settle: Callable[[Worker, int], WorkerReady]
    have_room: Callable[[int], bool]


class SpareWorkers:
    """The spares of a pool.

    Attributes:
        slots: Those that live.
    """

    def __init__(self, wanted: Spares | None) -> None:
        """Describe them; nothing starts yet.

        Args:
            wanted: What there are to be; none if None.
        """
        self.slots: list[Slot] = []
        self._wanted = wanted
        self._made = self._lost = 0

    def lost(self, spare: Slot) -> None:
        """One has ended while it waited."""
        self.slots.remove(spare)
        self._lost += 1

    def settle(self, slot: Slot) -> WorkerReady | None:
        """Have one take the place of a worker that has ended.

        Returns:
            What it says there; None where no spare is ready.
        """
        spare = next((one for one in self.slots if one.ready), None)
        if spare is None or self._wanted is None:
            return None
        self.slots.remove(spare)
        spare.alive = False
        slot.worker, slot.alive, slot.used, slot.dismissed = spare.worker, True, False, False
        return self._wanted.settle(spare.worker, slot.worker_index)

    def start_missing(self, workers: Sequence[Slot], reaper: Reaper, deadline: Callable[[], float | None]) -> bool:
        """Start one that is missing, if every worker has begun a job and all that were started are ready.

        Args:
            workers: Those of the pool.
            reaper: Is told what to end.
            deadline: When one that is started now must be ready.

        Returns:
            Whether one was started.
        """
        wanted = self._wanted
        if wanted is None or len(self.slots) >= wanted.number:
            return False
        if self._lost >= MAX_FAILED_STARTS or not all(slot.used or slot.closed for slot in workers):
            return False
        if any(not spare.ready for spare in self.slots):
            return False
        if not wanted.have_room(max(slot.rss_bytes for slot in workers)):
            self._wanted = None  # rather none than one that is started whenever another process has ended
            return False
        self._made += 1
        spare = Slot(wanted.make(-self._made, reaper), -self._made)
        try:
            spare.start(deadline())
        except WorkerError as error:
            self._lost += 1
            log.warning("no worker waits beside the others: %s", error)
            return False
        self.slots.append(spare)
        return True
