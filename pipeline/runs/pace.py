"""How much longer jobs take than was planned, for each kind of job; so that one wrong estimate spoils no other."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

_TRUST = 0.5
"""Part of the planned work that counts as done as planned, for kinds of which nothing is known yet."""
_NOTABLE = 0.1
"""Change of a pace that makes paths be measured again."""


@dataclass
class Seen:
    """What is done of jobs, in seconds."""

    planned_s: float = 0.0
    took_s: float = 0.0


class Pace:
    """What jobs take, as a multiple of what was planned.

    Attributes:
        seen: Kind -> what one that runs tells of its pace.
        running: The part that is done of those that run.
    """

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self.running = Seen()
        self._done: defaultdict[str, Seen] = defaultdict(Seen)
        self._left_s: defaultdict[str, float] = defaultdict(float)
        self._all = Seen()
        self._expected_s = 0.0
        self._noted: dict[str, float] = {}

    def expect(self, kind: str, planned_s: float) -> None:
        """There is so much more, or less, to do."""
        self._left_s[kind] += planned_s
        self._expected_s += max(0.0, planned_s)

    def finished(self, kind: str, planned_s: float, took_s: float) -> None:
        """A job is done."""
        for each in (self._done[kind], self._all):
            each.planned_s += planned_s
            each.took_s += took_s

    def knows(self, kind: str) -> bool:
        """Whether a job of that kind is done."""
        return kind in self._done

    def of(self, kind: str) -> float:
        """Of a kind: as those took that are done; else as one that runs; else as all others, if they are much."""
        done = self._done.get(kind)
        if done is not None and done.planned_s:
            return done.took_s / done.planned_s
        if kind in self.seen:
            return self.seen[kind]
        prior_s = _TRUST * self._expected_s
        known_s = self._all.planned_s + self.running.planned_s + prior_s
        return (self._all.took_s + self.running.took_s + prior_s) / known_s if known_s else 1.0

    def left_s(self) -> float:
        """What is left to do, by one worker."""
        return sum(planned_s * self.of(kind) for kind, planned_s in self._left_s.items())

    def note(self) -> None:
        """Remember every pace, for `changed`."""
        self._noted = {kind: self.of(kind) for kind in self._left_s}

    def changed(self) -> bool:
        """Whether one is notably different from when it was noted."""
        return any(abs(self.of(kind) - was) > _NOTABLE * was for kind, was in self._noted.items())
