"""Whether what a worker says can be true: a pure rule.

The code of any job can write to its worker's pipe, and a message that reads well may still speak of a job that the
worker was not given, or of one that is over. Whoever acts on messages need not think of that.
"""

from __future__ import annotations

from collections.abc import Collection

from pipeline.engine.scheduler.state import RunState
from pipeline.engine.scheduler.worker_state import WorkerState
from pipeline.engine.workers.failure import FailureKind
from pipeline.engine.workers.messages import (
    Heartbeat,
    JobRaised,
    JobStarted,
    LeftChanged,
    OrdersDropped,
    Report,
    WorkerReady,
)


def objection(state: RunState, gathering: Collection[str], index: int, message: Report) -> str:
    """Say why a message cannot be true.

    Args:
        state: The run.
        gathering: Jobs that have workers, but were not sent to them yet.
        index: The worker that sent it.
        message: The message.

    Returns:
        What is wrong with it; "" where nothing is, or where it is about an attempt that the worker no longer has.
    """
    if isinstance(message, Heartbeat):
        return ""
    if isinstance(message, OrdersDropped):
        return _untrue_answer(state.workers[index], message)
    if isinstance(message, WorkerReady):
        return "it said twice that it is ready" if state.workers[index].up else ""
    said = type(message).__name__
    if message.job_id not in state.jobs:
        return f"it sent {said} of {message.job_id[:200]!a}, which is no job of this run"
    if isinstance(message, LeftChanged):
        return _untrue_change(state, gathering, state.workers[index])
    if not state.is_current(index, message.job_id, message.attempt):
        return ""
    if state.workers[index].lent or message.job_id in gathering:
        return f"it sent {said} of {message.job_id}, which it was not given"
    if isinstance(message, JobRaised):  # before the job has started too: its log could not be written
        return _untrue_failure(state, message)
    begun = state.workers[index].begun
    if isinstance(message, JobStarted):
        return f"it said twice that {message.job_id} has started" if begun else ""
    return "" if begun else f"it sent {said} of {message.job_id}, which had not started"


def _untrue_answer(worker: WorkerState, message: OrdersDropped) -> str:
    if not worker.unanswered:
        return "it sent OrdersDropped, and was not asked for any"
    if not worker.recalled or worker.unanswered > 1:
        return ""  # about orders that were taken back meanwhile
    # What it was given last is what it has not begun.
    has = [worker.job_id] * (worker.by_itself and not worker.begun) + worker.ahead
    if message.jobs != has[max(0, len(has) - len(message.jobs)) :]:
        return "it sent OrdersDropped of other jobs than those that it was given last"
    return ""


def _untrue_change(state: RunState, gathering: Collection[str], worker: WorkerState) -> str:
    if worker.fresh:
        return "it sent LeftChanged, and has had no job"
    if not worker.job_id or worker.job_id in gathering:
        return ""
    # A job of several devices is sent to processes that have had none.
    if worker.begun or len(state.jobs[worker.job_id].workers) > 1:
        return f"it sent LeftChanged while it has {worker.job_id}"
    return ""


def _untrue_failure(state: RunState, message: JobRaised) -> str:
    job = state.jobs[message.job_id]
    if message.rank is not None and message.rank >= len(job.workers):
        return f"it sent JobRaised of rank {message.rank}, and {message.job_id} has {len(job.workers)}"
    keys = {key for keys in job.job.inputs.values() for key in keys}
    damaged = message.kind is FailureKind.damaged_input or message.damaged_key
    if damaged and message.damaged_key not in keys:
        return f"it sent JobRaised of a damaged input, which {message.job_id} does not read"
    return ""
