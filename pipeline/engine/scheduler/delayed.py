"""Jobs that wait for a moment rather than for another job."""

from __future__ import annotations

import heapq


class Later:
    """A queue of jobs by the time at which they may go on, on the engine's monotonic clock."""

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
