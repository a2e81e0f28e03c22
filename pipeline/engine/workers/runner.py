"""Runs one job after the other, in a worker process or in the engine's own: log, entry, commit, answer."""

from __future__ import annotations

import importlib
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pipeline
from pipeline import arithmetic
from pipeline.config.place import own_place
from pipeline.engine.store.store import ANSWERS, FLOPS, Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.changed import ProcessState
from pipeline.engine.workers.copies import contained
from pipeline.engine.workers.device_memory import begin_measuring, give_back, held_mb, peak_mb
from pipeline.engine.workers.failure import FailureKind, causes, class_name, classify
from pipeline.engine.workers.messages import (
    FromWorker,
    JobFinished,
    JobProgress,
    JobRaised,
    JobStarted,
    JobStopped,
    RunJob,
)
from pipeline.engine.workers.output import OutputTo
from pipeline.engine.workers.work import Work
from pipeline.errors import DamagedOutput, GangError, JobError, PipelineError
from pipeline.errors import JobStopped as StopJob
from pipeline.files import remove_tree
from pipeline.outputs.check import check_output

PROGRESS_INTERVAL_S = 0.25

Entry = Callable[[Work], None]


class JobRunner:
    """Runs jobs one at a time and keeps between them what they load.

    Attributes:
        memory: Handed to every job as `Work.memory`.
        stop_requested: No further job will come, and the present one should save a checkpoint or finish.
        cut_off: The patience with the present job is over, so a `KeyboardInterrupt` is not the job's own.
    """

    def __init__(self, send: Callable[[FromWorker], None], device: str, *, own_process: bool = True) -> None:
        """Prepare to run jobs.

        Args:
            send: Takes what happens during a job.
            device: ``cpu`` or ``cuda``.
            own_process: Whether the standard streams are this worker's alone. Otherwise they are given back
                while `send` runs.
        """
        self.memory: dict[str, Any] = {}
        self.stop_requested = False
        self.cut_off = False
        self._in_body = False
        self._send = send
        self._device = device
        self._own_process = own_process
        self._as_begun: ProcessState | None = None

    def interrupt(self) -> None:
        """Called in a signal handler: leave the job that runs in this thread, now or at its next step.

        Raises:
            KeyboardInterrupt: In the middle of the job's own code, but never between the steps around it, which
                would be left half done.
        """
        self.stop_requested = self.cut_off = True
        if self._in_body:
            raise KeyboardInterrupt

    def run(self, order: RunJob) -> JobFinished | JobRaised | JobStopped:
        """Run a job to its end.

        Raises:
            KeyboardInterrupt: The worker was told to stop.
        """
        start = time.monotonic()
        if self._as_begun is None and self._own_process:  # there is no replacing of the engine's own process
            self._as_begun = ProcessState()
        said: JobFinished | JobRaised | JobStopped | None = None
        try:
            with OutputTo(Path(order.log_path)) as output:
                said = self._run_logged(order, output, start)
        except Exception as error:  # the log cannot be written; or its descriptors were closed, when all is said
            said = said or raised(order, error, start)
        changed = self._as_begun.changed() if self._as_begun else ""
        return said if isinstance(said, JobStopped) or not changed else replace(said, changed=changed)

    def _run_logged(self, order: RunJob, output: OutputTo, start: float) -> JobFinished | JobRaised | JobStopped:
        def send(message: FromWorker) -> None:
            with self._streams(output):
                self._send(message)

        def report(message: FromWorker) -> None:
            with self._outside_body():
                send(message)

        try:
            send(JobStarted(job_id=order.job_id, attempt=order.attempt))
            work = self._execute(order, report, start)
        except BaseException as error:  # SystemExit too: a job may end itself, not its worker
            if is_kind(error, KeyboardInterrupt) and self.cut_off:
                raise
            if is_kind(error, StopJob) and self.stop_requested:
                return stopped(order, error)
            print_traceback()
            failed = raised(order, error, start)
        else:
            done = finished(order, work, start)
            return replace(done, held_mb=self._held_mb(order) if work.held_mb is None else work.held_mb)
        # Not inside `except`: the traceback there holds the frames of the job and all their tensors.
        return replace(failed, held_mb=self._held_mb(order))

    def _held_mb(self, order: RunJob) -> int:
        """What stays on a device with other workers; where there are none it is nobody's concern."""
        if order.slots == 1:
            return 0
        give_back(self._device)
        return held_mb(self._device)

    def _streams(self, output: OutputTo) -> AbstractContextManager[None]:
        return nullcontext() if self._own_process else output.paused()

    @contextmanager
    def _body(self) -> Iterator[None]:
        """The job's own code, where `interrupt` may strike."""
        self._in_body = True
        try:
            if self.cut_off:
                raise KeyboardInterrupt
            with contained():
                yield
        finally:
            self._in_body = False

    @contextmanager
    def _outside_body(self) -> Iterator[None]:
        self._in_body = False
        yield
        self._in_body = True
        if self.cut_off:
            raise KeyboardInterrupt

    def _execute(self, order: RunJob, report: Callable[[FromWorker], None], start: float) -> Work:
        store, scratch = Store(Path(order.store)), Path(order.scratch)
        out = store.begin(scratch, order.key, order.attempt) if order.key else scratch
        work = Work(
            job_id=order.job_id,
            attempt=order.attempt,
            payload=order.payload,
            inputs={name: tuple(map(store.path, keys)) for name, keys in order.inputs.items()},
            out=out,
            device=self._device,
            checkpoints=store.checkpoints(order.key),
            hints=store.hints,
            memory=self.memory,
            report=RegularProgress(order, report),
            stopping=lambda: self.stop_requested,
            shared=order.shared,
        )
        if not order.keep_models:
            self.memory.clear()
            give_back(self._device)
        begin_measuring(self._device)
        try:
            self._check_inputs(order, store)
            with self._body():
                if order.gang:
                    from pipeline.engine.workers.gang import run_gang  # most workers never lead one

                    run_gang(order, work)
                else:
                    with work.loading():
                        entry = load_entry(order.entry)
                    entry(work)
            work.check_counts()
            if order.key:
                check_output(out)
                _link(Path(order.log_path).parent, store.commit(order.key, out, _about(order, self._device)))
                store.note_cost(order.key, _cost(work, start))
                remove_tree(work.checkpoints)
        except BaseException:
            if order.key:
                remove_tree(out)
            raise
        return work

    @staticmethod
    def _check_inputs(order: RunJob, store: Store) -> None:
        """Trust no input that was not read whole in this run and is as it was then."""
        verified = Verified(store, Path(order.verified))
        for keys in order.inputs.values():
            for key in keys:
                verified.require(key)


class RegularProgress:
    """Sends progress, but no more often than anyone can read it."""

    def __init__(self, order: RunJob, send: Callable[[FromWorker], None]) -> None:
        self._order = order
        self._send = send
        self._next = 0.0
        self._pid = os.getpid()

    def __call__(self, done: int, total: int, tokens: int) -> None:
        """Tell how far the job is, unless that was just done, or this is a process that the job has forked."""
        now = time.monotonic()
        if now < self._next or os.getpid() != self._pid:
            return
        self._next = now + PROGRESS_INTERVAL_S
        job_id, attempt = self._order.job_id, self._order.attempt
        self._send(JobProgress(job_id=job_id, attempt=attempt, done=done, total=total, tokens=tokens))


def load_entry(path: str) -> Entry:
    """Import ``module:function``.

    Raises:
        JobError: The path does not name a function.
    """
    module, _, name = path.partition(":")
    entry: Any = getattr(importlib.import_module(module), name, None)
    if not callable(entry):
        raise JobError(f"'{path}' does not name a function; an entry is written module:function")
    checked: Entry = entry
    return checked


def _link(folder: Path, output: Path) -> None:
    """Let the folder of a job's log point to its output; for people only, so a failure costs nothing."""
    with suppress(OSError):
        (folder / "output").symlink_to(os.path.relpath(output.resolve(), folder.resolve()))


def _about(order: RunJob, device: str) -> dict[str, str]:
    return {"job": order.job_id, "arithmetic": arithmetic.describe(os.environ, device), **_versions()}


def _cost(work: Work, start: float) -> dict[str, float]:
    run_s = round(time.monotonic() - start, 3)
    flops = {f"{FLOPS}/{purpose}": count for purpose, count in work.flops.items()}
    counts = {"tokens": work.tokens, ANSWERS: work.answers, FLOPS: sum(flops.values()), **flops}
    return {"run_s": run_s, "load_s": round(work.load_s, 3), **counts}


@cache
def _versions() -> dict[str, str]:
    """Of what results may depend on; not whether it was imported, which differs between workers."""
    from importlib.metadata import PackageNotFoundError, version  # 10 ms that the start of a worker does not need

    versions = {"pipeline": pipeline.__version__, "python": platform.python_version()}
    for package in ("torch", "transformers"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def finished(order: RunJob, work: Work, start: float) -> JobFinished:
    """What to say of a job that is done.

    Args:
        order: The job.
        work: What it has counted.
        start: When it began, on the monotonic clock.
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
    )


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
        message=_said(lambda: _with_place(error), "its message cannot be read, as __str__ raises"),
        traceback=_said(lambda: "".join(traceback.format_exception(error)), "its traceback cannot be read"),
        run_s=round(time.monotonic() - start, 6),
    )


def _rank(error: BaseException, ranks: int) -> int | None:
    """The process that failed first, where that is told."""
    try:
        return error.rank if isinstance(error, GangError) and error.rank in range(ranks) else None
    except BaseException:  # code of the job's own, as in `_said`
        return None


def stopped(order: RunJob, error: BaseException) -> JobStopped:
    """Tell, in the job's log too, that it has saved what it needs to go on later."""
    what = _said(lambda: str(error), "")
    with suppress(OSError, ValueError):  # the job may have closed the stream
        print(f"stopped: {what}" if what else "stopped", flush=True)  # noqa: T201 - the job's log
    return JobStopped(job_id=order.job_id, attempt=order.attempt)


def is_kind(error: BaseException, kind: type[BaseException]) -> bool:
    """As `isinstance`, which asks the exception itself: that may be code of the job's own, and raise."""
    return issubclass(type(error), kind)


def print_traceback() -> None:
    """Write the exception that is being handled to the job's log, as far as it lets itself be written."""
    with suppress(BaseException):  # the stream may be closed, and what the exception says of itself may raise
        traceback.print_exc()


def _class_for_users(error: BaseException) -> str:
    return "" if is_kind(error, PipelineError) and str(error).strip() else class_name(type(error))


def _said(ask: Callable[[], str], otherwise: str) -> str:
    try:
        return str.__str__(ask())
    except BaseException:  # KeyboardInterrupt too: the engine's own strikes in a job's body alone
        return otherwise


def _with_place(error: BaseException) -> str:
    """What an exception says; in its first line, which is shown alone, where in the user's code it comes from."""
    first, line, rest = str(error).strip().partition("\n")
    place = own_place(error)
    return f"{first} ({place})".lstrip() + line + rest if place else str(error)


def _damaged_key(error: BaseException) -> str:
    for one in causes(error):
        if isinstance(one, DamagedOutput):
            return one.key
        if isinstance(one, GangError):
            return one.damaged_key
    return ""
