"""What it takes to start a job: of several runs one computes it, and only what is not stored. Pure rules."""

from __future__ import annotations

import logging
from collections.abc import Collection
from itertools import chain, islice, takewhile

from pipeline.config.schema import Backend
from pipeline.engine.scheduler.policy import Reserve, Start
from pipeline.engine.scheduler.recovery import gather, give_up, have_again, order_for
from pipeline.engine.scheduler.run import OnDisk, ProcessOrder, ReleaseClaim, Run, Send
from pipeline.engine.scheduler.runnable import too_few_devices, too_wide
from pipeline.engine.scheduler.state import WorkerPhase, WorkerState
from pipeline.engine.workers.failure import FailureKind
from pipeline.engine.workers.messages import JobFinished
from pipeline.plan.graph import Job

_OTHER_RUN_S = 1.0
"""How often to look whether another run is done with a job; a lock on a file cannot be waited on with the rest."""


def release_due(run: Run) -> None:
    """Let jobs go on that have waited long enough."""
    due = [job_id for job_id, due_s in run.delayed.items() if due_s <= run.now_s]
    for job_id in sorted(due, key=run.delayed.__getitem__):
        del run.delayed[job_id]
        run.state.retry(job_id)


def give_up_too_wide(run: Run) -> None:
    """Have jobs fail that could start, but need more devices, or larger ones, than are left."""
    state = run.state
    for job_id in too_wide(state):
        said = too_few_devices(state.plan.jobs[job_id], state.usable_devices(), state.layout, state.needs)
        state.wait(job_id)
        give_up(run, job_id, FailureKind.device, said)


def reserve(run: Run, action: Reserve) -> None:
    """Promise the next free devices to a job."""
    # Where devices are shared this is said of every job that waits for another to end.
    level = logging.INFO if run.state.plan.jobs[action.job_id].devices > 1 else logging.DEBUG
    run.say(f"{action.job_id}: the next free devices are kept for it", level)
    run.state.reserve(action.job_id, action.node)


def start(run: Run, action: Start, on_disk: OnDisk) -> None:
    """Give a job to its workers, unless another run computes it now or has stored it.

    Args:
        run: The run.
        action: Which job, and which workers.
        on_disk: What the store says of the job's output.
    """
    if _is_to_run(run, action.job_id, on_disk):
        run.state.whereabouts.weighs(on_disk.sizes)
        run.state.start(action.job_id, action.worker, action.members, run.now_s)
        gather(run, action.job_id, action.emptied)


def hand_ahead(run: Run, action: Start, on_disk: OnDisk) -> None:
    """Give a job to a worker that is to begin it after those that it has, otherwise as `start`."""
    if _is_to_run(run, action.job_id, on_disk):
        run.state.whereabouts.weighs(on_disk.sizes)
        after = run.state.hand_ahead(action.job_id, action.worker)
        run.do(Send(action.worker, order_for(run, action.job_id, after)))


def _is_to_run(run: Run, job_id: str, on_disk: OnDisk) -> bool:
    """Whether this run is to compute a job that could start; if not, what follows from that."""
    if not on_disk.claimed:
        _wait(run, job_id, on_disk.waits)
    elif on_disk.lost:
        run.do(ReleaseClaim(job_id))
        have_again(run, on_disk.lost)
    elif on_disk.stored:
        run.do(ReleaseClaim(job_id))
        run.say(
            f"{job_id}: it is stored already, by another run or by an attempt that was lost before it said so",
            logging.INFO,
        )
        run.record("JobFoundStored", job=job_id)
        run.state.found(job_id)
    return on_disk.claimed and not on_disk.stored and not on_disk.lost


def _wait(run: Run, job_id: str, reason: str) -> None:
    if reason and run.told_waiting.get(job_id) != reason:  # another machine may take the claim over
        run.told_waiting[job_id] = reason
        run.say(f"{job_id}: {reason}; waiting for that", logging.INFO)
        run.record("JobWaits", job=job_id, reason=reason)
    run.state.wait(job_id)
    run.delayed[job_id] = run.now_s + _OTHER_RUN_S


# -- ahead -------------------------------------------------------------------------------------------------------
# Handing ahead: where jobs are short a worker has the next ones before it needs them, and never waits. Pure.
# engine -- RunJob, after A --> worker, which has A begins it once A has ended well, else drops it -- TakeBack
# ---------> worker drops what it has not begun <-- OrdersDropped ---- and says what that was Both sides
# follow one rule, so nothing need be said where a job fails: an order ahead counts only if the job that it is
# to follow was the last of its worker and ended well. Whatever else becomes of a worker, the engine takes the
# orders back, and the jobs are as if they had never been given to it: only one that had begun can be blamed.
# Orders are handed ahead only of the most urgent jobs that are ready, and are taken back where something is
# better done first or elsewhere: a more urgent job has become ready or is tried again, a worker has nothing
# to do, or the job before them turns out to be long. What is not ready holds nothing up: the most urgent jobs
# may be evaluations, and the last of them wait for much that is short.


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


def begin_next_jobs(run: Run, index: int, *, well: bool) -> None:
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
