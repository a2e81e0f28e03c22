"""Runs that are under way, as far as they are shown."""

from collections.abc import Iterable, Mapping

from pipeline.plan.graph import Plan
from pipeline.runs.progress import LiveRun
from pipeline.runs.run_view import AttemptView, JobCounts, JobView, WorkerView
from tests.doubles.runs import START


def live_run(
    cells: Mapping[tuple[str, int], JobCounts] | None = None,
    workers: Iterable[WorkerView] = (),
    attempts: Iterable[AttemptView] = (),
    *,
    elapsed_s: float = 3.0,
    part: float = 0.0,
    remaining_s: float = 0.0,
    samples_per_s: float = 0,
    tokens_per_s: float = 0,
) -> LiveRun:
    """A run of which this was told.

    Args:
        cells: Its jobs by chain and round.
        workers: Its workers.
        attempts: What those of them do that have a job, in their order.
        elapsed_s: Seconds since it began.
        part: How far it is, from 0 to 1.
        remaining_s: Seconds that are left.
        samples_per_s: Its speed.
        tokens_per_s: The same in tokens.
    """
    run = LiveRun(Plan([], []), ())
    run.now, run.part, run.remaining_s = START + elapsed_s, part, remaining_s
    run.samples_per_s, run.tokens_per_s, run.is_known = samples_per_s, tokens_per_s, True
    view = run.view
    view.started, view.cells = START, dict(cells or {})
    view.total = sum(cell.total for cell in view.cells.values())
    view.workers = {worker.index: worker for worker in workers}
    busy = [worker.job_id for worker in view.workers.values() if worker.job_id]
    view.jobs = {
        job_id: JobView(id=job_id, status="running", attempts=[attempt])
        for job_id, attempt in zip(busy, attempts, strict=True)
    }
    return run
