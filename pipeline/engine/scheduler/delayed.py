"""Jobs that wait although all that they read is there: for a moment, or for their round."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable


class DelayedJobs:
    """Jobs by the time at which they may go on, on the engine's monotonic clock."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, job_id: str, due_s: float) -> None:
        """Let a job go on at a time."""
        heapq.heappush(self._queue, (due_s, job_id))

    def next_s(self) -> float | None:
        """When the first may go on, or None."""
        return self._queue[0][0] if self._queue else None

    def due(self, now_s: float) -> list[str]:
        """Take out the jobs whose time has come."""
        found = []
        while self._queue and self._queue[0][0] <= now_s:
            found.append(heapq.heappop(self._queue)[1])
        return found


class RoundGate:
    """Jobs that wait for their round: it is open at once, or where rounds are strict, after all earlier ones."""

    def __init__(self, rounds: Iterable[int], *, strict: bool) -> None:
        """Hold nothing yet.

        Args:
            rounds: Of every job.
            strict: Whether a round is open only when all jobs of earlier ones are settled.
        """
        self._strict = strict
        self._unsettled = Counter(rounds)
        self._held: dict[int, list[str]] = {}

    def settled(self, number: int, change: int) -> None:
        """So many more jobs of a round are settled, or fewer."""
        self._unsettled[number] -= change

    def hold(self, number: int, job_id: str) -> None:
        """Keep a job of a round."""
        self._held.setdefault(number, []).append(job_id)

    def let_go(self) -> list[str]:
        """Take out the jobs whose rounds are open, in the order of rounds."""
        first = min((number for number, left in self._unsettled.items() if left), default=0)
        opened = sorted(number for number in self._held if not self._strict or number <= first)
        return [job_id for number in opened for job_id in self._held.pop(number)]
