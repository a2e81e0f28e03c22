"""Notices workers that hang: no sign of life, no progress, or too long at one job. Pure: it has no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.config.schema import ExecutionConfig


@dataclass
class _Watch:
    sent_s: float
    heard_s: float
    moved_s: float
    progress: tuple[int, int] = (0, 0)


class Watchdog:
    """Watches the workers that have a job."""

    def __init__(self, settings: ExecutionConfig) -> None:
        self._settings = settings
        self._watches: dict[int, _Watch] = {}
        self._earliest_s = math.inf
        """Nothing is due before: what workers say puts that off, and nothing brings it on but a new job."""

    def began(self, worker: int, now_s: float) -> None:
        """A worker was given a job."""
        watch = self._watches[worker] = _Watch(now_s, now_s, now_s)
        self._earliest_s = min(self._earliest_s, self._due_s(watch))

    def heard(self, worker: int, now_s: float) -> None:
        """A worker has said something."""
        if worker in self._watches:
            self._watches[worker].heard_s = now_s

    def moved(self, worker: int, now_s: float, done: int, tokens: int) -> None:
        """A worker has told how far its job is; only a change counts as progress."""
        watch = self._watches.get(worker)
        if watch and (done, tokens) != watch.progress:
            watch.progress, watch.moved_s = (done, tokens), now_s

    def ended(self, worker: int) -> None:
        """A worker's job is over, however it went."""
        self._watches.pop(worker, None)

    def overdue(self, now_s: float) -> dict[int, str]:
        """Workers that hang, with what was seen of each; each is told once."""
        if now_s < self._earliest_s:
            return {}
        found = {}
        for worker, watch in self._watches.items():
            reason = self._reason(watch, now_s)
            if reason:
                found[worker] = reason
        for worker in found:
            del self._watches[worker]
        self._earliest_s = min(map(self._due_s, self._watches.values()), default=math.inf)
        return found

    def next_s(self) -> float | None:
        """When to look again: one of them may be overdue then, and none is before; None where there is none."""
        return self._earliest_s if self._watches else None

    def _due_s(self, watch: _Watch) -> float:
        settings = self._settings
        times = [watch.heard_s + settings.heartbeat_timeout_s]
        if settings.progress_timeout_s is not None:
            times.append(watch.moved_s + settings.progress_timeout_s)
        if settings.job_timeout_s is not None:
            times.append(watch.sent_s + settings.job_timeout_s)
        return min(times)

    def _reason(self, watch: _Watch, now_s: float) -> str:
        settings = self._settings
        if settings.job_timeout_s is not None and now_s - watch.sent_s >= settings.job_timeout_s:
            return f"took longer than execution.job_timeout_s={settings.job_timeout_s:g}"
        if now_s - watch.heard_s >= settings.heartbeat_timeout_s:
            return f"no sign of life for execution.heartbeat_timeout_s={settings.heartbeat_timeout_s:g}"
        if settings.progress_timeout_s is not None and now_s - watch.moved_s >= settings.progress_timeout_s:
            return f"no progress for execution.progress_timeout_s={settings.progress_timeout_s:g}"
        return ""
