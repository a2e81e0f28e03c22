"""What tells of the workers of a pool: their descriptors, waited on together, looked up when one is replaced."""

from __future__ import annotations

import math
import select
from collections.abc import Sequence

from pipeline.engine.workers.slot import Slot


class Descriptors:
    """The descriptors of workers that live, and others that end a wait as well."""

    def __init__(self, slots: Sequence[Slot], also: Sequence[int]) -> None:
        """Look up what is there now. Good until one of these workers ends, or another starts.

        Args:
            slots: The workers.
            also: Further descriptors.
        """
        self.also = tuple(also)
        self._slots = slots
        self._owners = {source: slot for slot in slots for source in slot.worker.sources()}
        self._poll = select.poll()
        for descriptor in (*self._owners, *also):
            self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout_s: float | None) -> list[Slot]:
        """Those that have something to say; none where the time is over or a further descriptor ends the wait."""
        speaking = {id(slot): slot for slot in self._slots if slot.worker.pending()}
        # Rounded up: a wait that ends just before something is due would be followed by another.
        patience_ms = 0 if speaking else None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1e3)
        for descriptor, _ in self._poll.poll(patience_ms):
            if slot := self._owners.get(descriptor):
                speaking[id(slot)] = slot
        return list(speaking.values())
