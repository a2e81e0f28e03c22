"""What a worker answers of a job that is over: it is done, it raised, or it has stopped to go on later."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from pipeline.config.place import own_place
from pipeline.engine.store.store import remedy
from pipeline.engine.workers.device_memory import peak_mb
from pipeline.engine.workers.failure import FailureKind, causes, class_name, classify, storage_errno
from pipeline.engine.workers.messages import AttemptStopped, JobFinished, JobRaised, RunJob
from pipeline.engine.workers.work import Work
from pipeline.errors import DamagedOutput, GangError, JobStopped, PipelineError, StoreError


def finished(order: RunJob, work: Work, start: float, held_mb: int = 0) -> JobFinished:
    """What to say of a job that is done.

    Args:
        order: The job.
        work: What it has counted.
        start: When it began, on the monotonic clock.
        held_mb: What stays on a device with other workers.
    """
    return JobFinished(
        job_id=order.job_id,
        attempt=order.attempt,
        load_s=round(work.load_s, 6),
        run_s=round(time.monotonic() - start, 6),
        samples=work.samples,
        tokens=work.tokens,
        answers=work.answers,
        flops=work.flops,
        peak_mb=peak_mb(work.device) if work.peak_mb is None else work.peak_mb,
        held_mb=held_mb,
    )


def ended_by(
    order: RunJob, error: BaseException, start: float, *, stop_requested: bool
) -> JobRaised | AttemptStopped:
    """What to say, in the job's log too, of a job whose code has raised. Called while that is handled.

    Args:
        order: The job.
        error: What was raised.
        start: As in `finished`.
        stop_requested: Whether the job was asked to stop.
    """
    if is_kind(error, JobStopped) and stop_requested:
        return _stopped(order, error)
    with suppress(BaseException):  # the stream may be closed, and what the exception says of itself may raise
        traceback.print_exc()
    return raised(order, error, start)


def raised(order: RunJob, error: BaseException, start: float) -> JobRaised:
    """Tell of an exception that ended a job. What it says of itself is code of the job's own, and may raise."""
    kind = classify(error)
    key = _said(lambda: _damaged_key(error), "") if kind is FailureKind.damaged_input else ""
    if kind is FailureKind.damaged_input and not any(key in keys for keys in order.inputs.values()):
        kind, key = FailureKind.bug, ""  # only what the job was given can be made again
    return JobRaised(
        job_id=order.job_id,
        attempt=order.attempt,
        error_type=_said(lambda: _class_for_users(error), "an exception without a name"),
        kind=kind,
        damaged_key=key,
        rank=_rank(error, len(order.gang)),
        message=_said(lambda: _message(order, error, kind), "its message cannot be read, as __str__ raises"),
        traceback=_said(lambda: "".join(traceback.format_exception(error)), "its traceback cannot be read"),
        run_s=round(time.monotonic() - start, 6),
    )


def _rank(error: BaseException, ranks: int) -> int | None:
    """The process that failed first, where that is told."""
    try:
        return error.rank if isinstance(error, GangError) and error.rank in range(ranks) else None
    except BaseException:  # code of the job's own, as in `_said`
        return None


def _stopped(order: RunJob, error: BaseException) -> AttemptStopped:
    what = _said(lambda: str(error), "")
    with suppress(OSError, ValueError):  # the job may have closed the stream
        print(f"stopped: {what}" if what else "stopped", flush=True)  # noqa: T201 - the job's log
    return AttemptStopped(job_id=order.job_id, attempt=order.attempt)


def is_kind(error: BaseException, kind: type[BaseException]) -> bool:
    """As `isinstance`, which asks the exception itself: that may be code of the job's own, and raise."""
    return issubclass(type(error), kind)


def _class_for_users(error: BaseException) -> str:
    return "" if is_kind(error, PipelineError) and str(error).strip() else class_name(type(error))


def _said(ask: Callable[[], str], otherwise: str) -> str:
    try:
        return str.__str__(ask())
    except BaseException:  # KeyboardInterrupt too: the engine's own strikes in a job's body alone
        return otherwise


def _message(order: RunJob, error: BaseException, kind: FailureKind) -> str:
    """What an exception says; in its first line, which is shown alone, also where it comes from and what to do."""
    first, line, rest = str(error).strip().partition("\n")
    place = own_place(error)
    more = f" ({place})" if place else ""
    if kind is FailureKind.storage and not any(is_kind(one, StoreError) for one in causes(error, context=True)):
        more += f"; outputs go to {order.store}. {remedy(storage_errno(error))}"
    return f"{first}{more}".lstrip() + line + rest if more else str(error)


def _damaged_key(error: BaseException) -> str:
    for one in causes(error):
        if isinstance(one, DamagedOutput):
            return one.key
        if isinstance(one, GangError):
            return one.damaged_key
    return ""
