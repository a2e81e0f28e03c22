"""Snapshots of a running plan for whoever watches it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from pipeline.engine.scheduler.job_state import JobStatus
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.status import CellStatus, RunStatus, WorkerStatus

RATE_WINDOW_S = 10.0


class Observer:
    """Makes snapshots, and remembers enough of the past to give rates."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._past: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])
        self._planned_s = 0.0
        self._measured_s = 0.0

    def measured(self, planned_s: float, actual_s: float) -> None:
        """A job that was estimated at `planned_s` took `actual_s`."""
        self._planned_s += planned_s
        self._measured_s += actual_s

    def snapshot(self, elapsed_s: float, running_s: Mapping[int, float]) -> RunStatus:
        """The run now.

        Args:
            elapsed_s: Seconds since it began.
            running_s: Worker -> seconds since it was given its job.
        """
        samples_per_s, tokens_per_s = self._rates(elapsed_s)
        cells = {cell: _cell(counts) for cell, counts in self._state.cells.items()}
        return RunStatus(
            elapsed_s=elapsed_s,
            remaining_s=self._remaining(running_s),
            samples_per_s=samples_per_s,
            tokens_per_s=tokens_per_s,
            total=_cell(sum(self._state.cells.values(), Counter[JobStatus]())),
            cells=cells,
            workers=tuple(
                WorkerStatus(
                    index=worker.index,
                    device=worker.device,
                    state=worker.phase.value,
                    job_id=worker.job_id,
                    running_s=running_s.get(worker.index, 0.0),
                    done=worker.done,
                    total=worker.total,
                    rss_bytes=worker.rss_bytes,
                    gpu=worker.gpu,
                )
                for worker in self._state.workers
            ),
        )

    def _rates(self, elapsed_s: float) -> tuple[float, float]:
        workers = [worker for worker in self._state.workers if worker.job_id]
        samples = self._state.samples + sum(worker.done for worker in workers)
        tokens = self._state.tokens + sum(worker.tokens for worker in workers)
        while len(self._past) > 1 and self._past[1][0] <= elapsed_s - RATE_WINDOW_S:
            self._past.popleft()
        since_s, samples_then, tokens_then = self._past[0]
        self._past.append((elapsed_s, samples, tokens))
        window_s = max(elapsed_s - since_s, 1e-9)
        # A lost attempt takes its progress back, which is no negative speed.
        return max(0, samples - samples_then) / window_s, max(0, tokens - tokens_then) / window_s

    def _remaining(self, running_s: Mapping[int, float]) -> float | None:
        """The larger of the longest path and the work per worker, at the pace seen so far."""
        state = self._state
        if not self._planned_s:
            return None
        pace = self._measured_s / self._planned_s
        path_s, work_s = state.ready.longest_s() * pace, state.seconds_left * pace
        for worker in state.workers:
            if worker.job_id:
                planned_s = state.plan.jobs[worker.job_id].seconds * pace
                spent_s = min(running_s.get(worker.index, 0.0), planned_s)
                path_s = max(path_s, state.plan.path_s[worker.job_id] * pace - spent_s)
                work_s -= spent_s
        return max(0.0, path_s, work_s / len(state.workers))


def _cell(counts: Mapping[JobStatus, int]) -> CellStatus:
    return CellStatus(
        total=sum(counts.values()),
        stored=counts.get(JobStatus.stored, 0),
        done=counts.get(JobStatus.done, 0),
        running=counts.get(JobStatus.running, 0),
        failed=counts.get(JobStatus.failed, 0),
        blocked=counts.get(JobStatus.blocked, 0),
    )
