"""A run that is under way: its view, how fast it goes, and how long it will still take. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from pipeline.engine.events import Event
from pipeline.plan.graph import Plan
from pipeline.runs.run_view import RunView

RATE_WINDOW_S = 10.0


class LiveRun:
    """Takes what an engine tells of its run, with the plan's estimates and enough of the past to give rates.

    Attributes:
        view: What was told.
        now: The moment that the rest is of, in wall-clock seconds.
        samples_per_s: Over the last seconds.
        tokens_per_s: Over the last seconds.
        remaining_s: Estimate of the seconds left, or None while there is nothing to base it on.
    """

    def __init__(self, plan: Plan, stored: Collection[str] = (), slots: int = 1) -> None:
        """Begin before the first event.

        Args:
            plan: The plan.
            stored: Ids of the jobs that need not run.
            slots: Workers on each device.
        """
        self.view = RunView(plan.jobs.values(), stored)
        self.now = self.samples_per_s = self.tokens_per_s = 0.0
        self.remaining_s: float | None = None
        self._plan, self._path_s = plan, plan.path_s
        self._work_s = {
            job.id: job.seconds * (job.devices * slots if job.devices > 1 else 1) for job in plan.jobs.values()
        }
        """Job -> estimated seconds, times the workers whose places it takes."""
        self._work_left_s = sum(self._work_s[job.id] for job in self.view.jobs.values() if not job.settled)
        by_path = sorted(self._path_s, key=self._path_s.__getitem__, reverse=True)
        self._ranks = {job_id: rank for rank, job_id in enumerate(by_path)}
        self._by_path, self._begun = by_path, 0
        """Jobs from the longest path on, and how many of them at least are not pending."""
        self._samples = self._tokens = 0
        self._past: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])
        self._planned_s = self._measured_s = 0.0

    def take(self, event: Event) -> None:
        """Change the state as one event says."""
        job = self.view.jobs.get(event.get("job", ""))
        was_settled = job is not None and job.settled
        self.view.take(event)
        if job is None:
            return
        self._work_left_s -= (job.settled - was_settled) * self._work_s[job.id]
        if job.status == "pending":
            self._begun = min(self._begun, self._ranks[job.id])
        if event["event"] == "JobFinished":
            self._samples += event["samples"]
            self._tokens += event["tokens"]
            self._planned_s += self._plan.jobs[job.id].seconds
            self._measured_s += job.attempts[-1].elapsed_s(self.view.last)

    def tick(self, now: float) -> None:
        """It is later now."""
        self.now = now
        self._measure_rates(self.view.elapsed_s(now))
        self.remaining_s = self._remaining()

    def _measure_rates(self, elapsed_s: float) -> None:
        running = self.view.running()
        samples = self._samples + sum(attempt.done for attempt in running.values())
        tokens = self._tokens + sum(attempt.tokens for attempt in running.values())
        while len(self._past) > 1 and self._past[1][0] <= elapsed_s - RATE_WINDOW_S:
            self._past.popleft()
        since_s, samples_then, tokens_then = self._past[0]
        self._past.append((elapsed_s, samples, tokens))
        window_s = max(elapsed_s - since_s, 1e-9)
        # A lost attempt takes its progress back, which is no negative speed.
        self.samples_per_s = max(0, samples - samples_then) / window_s
        self.tokens_per_s = max(0, tokens - tokens_then) / window_s

    def _remaining(self) -> float | None:
        """The larger of the longest path and the work per worker, at the pace seen so far."""
        if not self._planned_s:
            return None
        pace = self._measured_s / self._planned_s
        path_s, work_s = self._longest_pending_s() * pace, self._work_left_s * pace
        for job_id, attempt in self.view.running().items():
            planned_s = self._plan.jobs[job_id].seconds * pace
            part = min(1.0, attempt.elapsed_s(self.now) / planned_s) if planned_s else 1.0
            path_s = max(path_s, self._path_s[job_id] * pace - part * planned_s)
            work_s -= part * self._work_s[job_id] * pace
        return max(0.0, path_s, work_s / len(self.view.workers))

    def _longest_pending_s(self) -> float:
        """Length of the longest path that begins with a job which is still to be begun."""
        jobs, by_path = self.view.jobs, self._by_path
        while self._begun < len(by_path) and jobs[by_path[self._begun]].status != "pending":
            self._begun += 1
        return self._path_s[by_path[self._begun]] if self._begun < len(by_path) else 0.0
