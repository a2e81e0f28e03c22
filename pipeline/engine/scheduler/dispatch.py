"""What it takes to start a job: of several runs one computes it, and only what is not stored. Pure rules."""

from __future__ import annotations

import logging

from pipeline.engine.scheduler.policy import Reserve, Start
from pipeline.engine.scheduler.recovery import gather, give_up, have_again
from pipeline.engine.scheduler.run import OnDisk, ReleaseClaim, Run
from pipeline.engine.scheduler.runnable import too_few_devices, too_wide
from pipeline.engine.workers.failure import FailureKind

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
        run.state.start(action.job_id, action.worker, action.members, run.now_s)
        gather(run, action.job_id, action.emptied)


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
