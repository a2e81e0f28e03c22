"""Handing ahead: where jobs are short a worker has the next ones before it needs them, and never waits. Pure.

    engine -- RunJob, after A --> worker, which has A       begins it once A has ended well, else drops it
           -- TakeBack ---------> worker                    drops what it has not begun
           <-- OrdersDropped ----                           and says what that was

Both sides follow one rule, so nothing need be said where a job fails: an order ahead counts only if the job that
it is to follow was the last of its worker and ended well. Whatever else becomes of a worker, the engine takes the
orders back, and the jobs are as if they had never been given to it: only one that had begun can be blamed.

Orders are handed ahead only of the most urgent jobs that are ready, and are taken back where something is better
done first or elsewhere: a more urgent job has become ready or is tried again, a worker has nothing to do, or the
job before them turns out to be long. What is not ready holds nothing up: the most urgent jobs may be evaluations,
and the last of them wait for much that is short.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain, islice, takewhile

from pipeline.config.schema import Backend
from pipeline.engine.scheduler.effects import ProcessOrder, ReleaseClaim
from pipeline.engine.scheduler.policy import Start
from pipeline.engine.scheduler.run import Run
from pipeline.engine.scheduler.worker_state import WorkerPhase, WorkerState
from pipeline.engine.workers.messages import JobFinished
from pipeline.plan.job import Job

DEPTH = 16
"""Orders that a worker has ahead at most; more are handed when half of them are left, so several at a time."""
LEAST_DEPTH = 4
"""The same where workers are so many that together they would have too many ahead."""
MOST = 200
"""Orders that all workers together have ahead at most: the claim on the key of each takes a descriptor."""
SHORT_S = 0.05
"""A job that takes longer does not notice the millisecond in which its worker waits for the engine."""
LATE_S = 0.2
"""After so long at the job before them orders are taken back."""
_FORGET = 0.7
"""A kind's time is the longest of its last jobs, each of which counts for this much of the one before it."""


def note_time(run: Run, message: JobFinished) -> None:
    """Remember how long a job of its kind takes; the first of a worker imports what later ones find there."""
    kind = _kind(run.state.plan.jobs[message.job_id])
    run.took_s[kind] = max(message.run_s, _FORGET * run.took_s.get(kind, 0.0))


def orders_ahead(run: Run) -> list[Start]:
    """Which jobs to hand ahead now, and to whom: as many as workers have room for, while enough stay for all."""
    state = run.state
    if not state.ready or state.retries or run.delayed or state.reserved or run.gathering or run.stopping:
        return []
    if run.settings.backend is Backend.inline or not state.is_plain or state.idle_workers():
        return []
    urgency, devices, bucket = next(state.ready.buckets())
    if devices > 1:
        return []
    given = sum(len(state.workers[index].ahead) for index in state.with_orders)
    left = min(len(state.ready) - len(state.workers), MOST - given)
    fit = takewhile(lambda name: _is_fit(run, name), bucket.get("", ()))
    if left <= 0 or (first := next(fit, None)) is None:
        return []
    names = chain([first], fit)
    depth = _depth(run)
    found: list[Start] = []
    for worker in state.workers:
        room = depth - len(worker.ahead)
        if worker.phase is not WorkerPhase.running or worker.recalled or 2 * room < depth:
            continue
        if worker.ahead and state.ready.urgency[worker.ahead[0]] < urgency:
            continue  # what it has is taken back first
        if worker.index not in run.doomed and not _is_late(run, worker) and _is_short(run, worker.job_id):
            number = min(room, max(0, left - len(found)))
            found += [Start(name, worker.index) for name in islice(names, number)]
    return found


def _depth(run: Run) -> int:
    return max(LEAST_DEPTH, min(DEPTH, MOST // len(run.state.workers)))


def _is_late(run: Run, worker: WorkerState) -> bool:
    return run.now_s - worker.started_s > LATE_S


def _is_fit(run: Run, job_id: str) -> bool:
    """Whether it may be handed ahead: not what was tried before, which is to go elsewhere, or is watched."""
    return not run.state.jobs[job_id].attempts and _is_short(run, job_id)


def _is_short(run: Run, job_id: str) -> bool:
    job = run.state.plan.jobs[job_id]
    return job.devices == 1 and run.took_s.get(_kind(job), SHORT_S) < SHORT_S


def _kind(job: Job) -> tuple[str, str, str]:
    return job.entry, job.algo, job.stage


def go_on(run: Run, index: int, *, well: bool) -> None:
    """A worker's job is over: it goes on to the next by itself if that ended well, else it drops what it has."""
    worker = run.state.workers[index]
    if not (well and worker.ahead and worker.phase is WorkerPhase.idle):
        give_back(run, index)
        return
    run.state.begin_ahead(index, run.now_s)
    run.watchdog.began(index, run.now_s)


def give_back(run: Run, index: int) -> None:
    """Take all orders back that a worker has ahead: it begins none of them any more."""
    _give_back(run, index, list(run.state.workers[index].ahead))


def dropped(run: Run, index: int, jobs: Collection[str]) -> None:
    """A worker says which jobs it will not begin, as it was asked to.

    Where another end of a job came in between, the answer is about orders that were taken back then.
    """
    worker = run.state.workers[index]
    worker.unanswered = max(0, worker.unanswered - 1)
    if not worker.recalled or worker.unanswered:
        return
    if worker.by_itself and not worker.begun and worker.job_id in jobs:
        # It was done with the job before them by the time, and said so first.
        give_back_next(run, index)
    _give_back(run, index, [job_id for job_id in worker.ahead if job_id in jobs])


def give_back_next(run: Run, index: int) -> None:
    """A worker will not begin the job that it has: as if it had not been given to it."""
    run.watchdog.ended(index)
    run.do(ReleaseClaim(run.state.workers[index].job_id))
    run.state.give_back_next(index)


def _give_back(run: Run, index: int, jobs: Collection[str]) -> None:
    run.state.workers[index].recalled = False
    for job_id in jobs:
        run.do(ReleaseClaim(job_id))
        run.state.give_back(job_id, index)


def recall(run: Run, *, everything: bool = False) -> None:
    """Ask for orders back that another worker could carry out sooner, or that something else is to come before.

    Args:
        run: What is known of the run.
        everything: Ask for all orders that are not begun: what they hold is needed now.
    """
    state = run.state
    state.with_orders = {index for index in state.with_orders if state.workers[index].ahead}
    someone_idles = bool(state.with_orders) and not state.ready and bool(state.idle_workers())
    most_urgent = state.ready.most_urgent
    for index in sorted(state.with_orders):
        worker = state.workers[index]
        if worker.recalled:
            continue
        if (
            everything
            or _is_late(run, worker)
            or someone_idles
            or state.retries
            or state.ready.urgency[worker.ahead[0]] < most_urgent
        ):
            worker.recalled = True
            worker.unanswered += 1
            run.do(ProcessOrder("take_back", worker.index))
