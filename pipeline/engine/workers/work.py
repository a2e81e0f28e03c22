"""Interface between the engine and the code of a job inside a worker. Does not import torch."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import io
import operator
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from msgspec.structs import replace

from pipeline.engine.store.store import REMEDY, Store
from pipeline.engine.workers import messages
from pipeline.errors import DamagedOutput, GangError, JobError, JobStopped, PipelineError, StoreError, own_place
from pipeline.files import in_folder
from pipeline.machine.memory import imported_for_good, no_garbage_collection

# -- device memory -----------------------------------------------------------------------------------------------
# Device memory of a process, through torch if a job has imported it; this module does not import it. peak = what
# tensors took at most since the job began, and a little more + the CUDA context. If nobody else needs the memory,
# torch's allocator reserves more than that, mostly garbage of earlier batches. A job can do without it when it
# must stay within its reservation, so the lower of both figures counts.


CONTEXT_MB = 800
"""MiB of a process's CUDA context and loaded kernels, which torch does not count: 0.3 to 0.8 GB by GPU and
libraries."""
FRAGMENTS = 1.25
"""Memory that the allocator needs at least, as a multiple of what tensors take."""
_MB = 2**20


def begin_measuring(device: str) -> None:
    """Reset the peak of the job before, and free its cached memory, which would count for the next job."""
    cuda = _cuda(device)
    if cuda is not None:
        cuda.empty_cache()
        cuda.reset_peak_memory_stats(device)


def peak_mb(device: str) -> int | None:
    """Return the peak MiB since `begin_measuring`; 0 if the GPU was not used, None on a CPU."""
    if not device.startswith("cuda"):
        return None
    cuda = _cuda(device)
    if cuda is None:
        return 0
    reserved, used = int(cuda.max_memory_reserved(device)), int(cuda.max_memory_allocated(device))
    return min(reserved, int(FRAGMENTS * used)) // _MB + CONTEXT_MB


def held_mb(device: str) -> int:
    """Return the MiB held now."""
    cuda = _cuda(device)
    return 0 if cuda is None else int(cuda.memory_reserved(device)) // _MB + CONTEXT_MB


def limit(device: str, mb: int) -> None:
    """Limit this process to a part of its device, including its CUDA context, so that neighbours have theirs.

    Args:
        device: ``cpu`` or ``cuda``.
        mb: MiB; 0 sets no limit.
    """
    cuda = _cuda(device)
    if cuda is not None:
        whole = int(cuda.get_device_properties(device).total_memory)
        share = max(mb - CONTEXT_MB, 1) * _MB / whole if mb else 1.0
        cuda.set_per_process_memory_fraction(min(1.0, share), cuda.current_device())  # "cuda" has no index


def give_back(device: str) -> None:
    """Free cached device memory for other processes."""
    cuda = _cuda(device)
    if cuda is not None:
        gc.collect()
        cuda.empty_cache()


def _cuda(device: str) -> Any:
    """Return `torch.cuda` if this process has a context, else None: further calls would create one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
        return None
    return torch.cuda


@dataclass(kw_only=True)
class Work:
    """One attempt at one job. A job's entry is a function ``entry(work: Work) -> None``.

    Attributes:
        job_id: The job.
        attempt: Number of the attempt, from 1.
        payload: The job's own plain data.
        inputs: Input name -> folders of the stored outputs.
        out: Folder to write the output to; committed whole when the entry returns, dropped when it raises.
        device: ``cpu`` or ``cuda``, as `torch.device` takes it. A worker sees one GPU, always as ``cuda:0``; each
            process of a multi-GPU job has ``cuda:<rank>``.
        checkpoints: Folder that survives a failed attempt and the run itself, for checkpoints from which the next
            attempt continues; may not exist yet. Removed when the output is committed.
        hints: Folder shared by all jobs of the store, for data that make later jobs faster but change no result.
        memory: Objects that live as long as the worker, such as loaded models, by name.
        report: Sends progress: samples done, samples in all, tokens so far, `numbers`. Rate-limited by the worker.
        report_loading: Sends that loading begins, or that it is over.
        stopping: Returns whether the run is about to end. A long job then saves a checkpoint and raises
            `JobStopped`; a job that neither does this nor finishes is interrupted after the grace period.
        rank: Number of this process among those of the job. All run the same entry; what rank 0 writes to `out` is
            the job's output, the other ranks write to folders that are dropped.
        world_size: Number of processes of the job: one for each device it needs.
        load_s: Seconds spent in `loading`, for the accounting of device time.
        samples: Samples reported last.
        tokens: Tokens reported last.
        numbers: Metrics of the present step, by name; None for a number that is not finite.
        answers: Number of completions of an evaluation; 0 if the job does not count them.
        flops: FLOPs of the whole job, by purpose; empty if the job does not count them.
        shared: Whether other jobs may run on the device meanwhile. If memory runs out then, the job should fail
            rather than use smaller batches: it is retried with the device to itself, with the same result.
        limit_mb: MiB of its device reserved for it in that case; 0 sets no limit.
        peak_mb: Most memory of its device that the process held during the job, in MiB. Measured through torch
            where the job does not say; None on a CPU.
        held_mb: MiB that it still holds afterwards, measured likewise.
    """

    job_id: str
    attempt: int
    payload: Mapping[str, Any]
    inputs: Mapping[str, tuple[Path, ...]]
    out: Path
    device: str
    checkpoints: Path
    hints: Path
    memory: dict[str, Any]
    report: Callable[[int, int, int, Mapping[str, float | None]], None] = field(repr=False)
    report_loading: Callable[[bool], None] = field(repr=False, default=lambda _: None)
    stopping: Callable[[], bool] = field(repr=False, default=lambda: False)
    rank: int = 0
    world_size: int = 1
    load_s: float = 0.0
    samples: int = 0
    tokens: int = 0
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    answers: int = 0
    flops: Mapping[str, float] = field(default_factory=dict)
    shared: bool = False
    limit_mb: int = 0
    peak_mb: int | None = None
    held_mb: int | None = None

    def progress(self, done: int, total: int, tokens: int = 0) -> None:
        """Report how far the job is; cheap enough for every step.

        Raises:
            TypeError: A value is not a number, or not a whole one.
            ValueError: A number is negative, or larger than any count.
        """
        self.samples, self.tokens = _count("done", done), _count("tokens", tokens)
        self.report(self.samples, _count("total", total), self.tokens, self.numbers)

    def show(self, numbers: Mapping[str, float | None]) -> None:
        """Show some metrics of the present step, such as its loss, with the next progress.

        Args:
            numbers: Metrics by name, each a plain word; they replace the previous ones.

        Raises:
            TypeError: A value is not a number.
            ValueError: There are too many, or a name is not a plain word.
        """
        if len(numbers) > messages.MAX_NUMBERS or not all(map(messages.is_number_name, numbers)):
            raise ValueError(f"{list(numbers)!r}: must be at most {messages.MAX_NUMBERS} names, each a plain word")
        self.numbers = {name: _figure(name, value) for name, value in numbers.items()}

    def hold_to_limit(self) -> None:
        """Limit torch's allocator to `limit_mb`; this process must have begun to use the GPU."""
        limit(self.device, self.limit_mb)

    def check_counts(self) -> None:
        """Check the types and ranges of the counts that the job has left.

        Raises:
            TypeError: A count is not a number.
            ValueError: A count is negative, or larger than the limit.
        """
        self.samples, self.tokens = _count("samples", self.samples), _count("tokens", self.tokens)
        self.answers = _count("answers", self.answers)
        self.peak_mb = None if self.peak_mb is None else _count("peak_mb", self.peak_mb)
        self.held_mb = None if self.held_mb is None else _count("held_mb", self.held_mb)
        self.flops = {str(purpose): float(count) for purpose, count in self.flops.items()}
        if not all(0 <= count <= messages.MAX_FLOPS for count in self.flops.values()):
            raise ValueError(f"flops={self.flops!r}: must be numbers from 0 to {messages.MAX_FLOPS:g}")
        self.load_s = float(self.load_s)
        if not 0 <= self.load_s <= messages.MAX_SECONDS:
            raise ValueError(f"load_s={self.load_s!r}: must be seconds of at least 0")

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Count the time inside as loading (imports, models) rather than as work, and report it.

        The cyclic garbage collector is paused inside: importing torch and transformers makes hundreds of thousands
        of objects and hardly any garbage, and collections would take a fifth of the time.
        """
        self.report_loading(True)
        start = time.monotonic()
        try:
            with no_garbage_collection():
                yield
        finally:
            self.load_s += time.monotonic() - start
            self.report_loading(False)


def _figure(name: str, value: object) -> float | None:
    """Convert a number for a message; None if it is not finite."""
    if value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}: must be a number") from None
    return number if abs(number) <= messages.MAX_FIGURE else None


def _count(name: str, value: object) -> int:
    """Convert a whole number for a message, also one of NumPy or torch."""
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}={value!r}: must be a whole number of at least 0") from None
    if not 0 <= count <= messages.MAX_COUNT:
        raise ValueError(f"{name}={value!r}: must be a whole number from 0 to 2^53")
    return count


# -- body --------------------------------------------------------------------------------------------------------
# Calling the code of a job: its `Work`, its entry, and where forked copies of the process end.


PROGRESS_INTERVAL_S = 0.25

Entry = Callable[[Work], None]


def work_of(
    order: messages.RunJob,
    out: Path,
    device: str,
    *,
    memory: dict[str, Any],
    send: Callable[[messages.JobProgress], None],
    stopping: Callable[[], bool],
    rank: int = 0,
) -> Work:
    """Return the `Work` of a job.

    Args:
        order: The job.
        out: Folder for the output.
        device: Device, as `torch.device` takes it.
        memory: Objects that stay for later jobs.
        send: Receives its progress.
        stopping: Whether the run is about to end.
        rank: Number of this process among those of the job.
    """
    store, progress = store_at(order.store), _RegularProgress(order, send)
    return Work(
        job_id=order.job_id,
        attempt=order.attempt,
        payload=order.payload,
        inputs={name: tuple(map(store.path, keys)) for name, keys in order.inputs.items()},
        out=out,
        device=device,
        checkpoints=store.checkpoints(order.key),
        hints=store.hints,
        memory=memory,
        report=progress,
        report_loading=progress.loading,
        stopping=stopping,
        rank=rank,
        world_size=len(order.gang) or 1,
        shared=order.shared,
        limit_mb=order.limit_mb,
    )


@cache
def store_at(root: str) -> Store:
    """Open the store whose root a message names: the same for every job of a run."""
    return Store(Path(root))


def call_entry(order: messages.RunJob, work: Work) -> None:
    """Import the entry of a job and call it; importing a module may take long.

    Raises:
        JobError: The path does not name a function.
    """
    loaded = order.entry.partition(":")[0] in sys.modules
    with nullcontext() if loaded else work.loading():
        entry = _load_entry(order.entry)
    entry(work)


@contextmanager
def contained() -> Iterator[None]:
    """Run a job's code; a forked copy of this process ends when it leaves that code.

    Such a copy belongs to the job and must not act as a second worker: it would report the job again, commit or
    remove the output, and take further jobs. It ends at once, so that no resource held by both processes is closed
    or flushed twice.
    """
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != pid:
            _end(error)
        raise
    if os.getpid() != pid:
        os._exit(0)


def _end(error: BaseException) -> None:
    try:
        if isinstance(error, SystemExit):
            os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
        with suppress(BaseException):
            traceback.print_exc()
    finally:
        os._exit(1)


class _RegularProgress:
    """Sends progress at a limited rate, and not from a process that the job has forked."""

    def __init__(self, order: messages.RunJob, send: Callable[[messages.JobProgress], None]) -> None:
        self._send = send
        self._next = 0.0
        self._pid = os.getpid()
        self._last = messages.JobProgress(job_id=order.job_id, attempt=order.attempt, done=0, total=0, tokens=0)

    def __call__(self, done: int, total: int, tokens: int, numbers: Mapping[str, float | None]) -> None:
        """Send progress, unless that was just done."""
        now = time.monotonic()
        self._last = replace(self._last, done=done, total=total, tokens=tokens, numbers=numbers, loading=False)
        if now >= self._next and os.getpid() == self._pid:
            self._next = now + PROGRESS_INTERVAL_S
            self._send(self._last)

    def loading(self, begins: bool) -> None:
        """Send that the job loads something, or works again; not rate-limited, as loading may take long."""
        if os.getpid() == self._pid:
            self._send(replace(self._last, loading=begins))


def _load_entry(path: str) -> Entry:
    module, _, name = path.partition(":")
    with nullcontext() if module in sys.modules else imported_for_good():
        entry: Any = getattr(importlib.import_module(module), name, None)
    if not callable(entry):
        raise JobError(f"'{path}' does not name a function; an entry is written module:function")
    checked: Entry = entry
    return checked


# -- answers -----------------------------------------------------------------------------------------------------
# Last message about a job: it is done, it raised, or it has stopped with a checkpoint.


def finished(order: messages.RunJob, work: Work, start: float, held_mb: int = 0) -> messages.JobFinished:
    """Return the message for a finished job.

    Args:
        order: The job.
        work: Its `Work`, with counts.
        start: When it began, on the monotonic clock.
        held_mb: MiB still held on a device with other workers.
    """
    return messages.JobFinished(
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


def ended_by(order: messages.RunJob, error: BaseException, start: float, *, stop_requested: bool) -> messages.End:
    """Return the message for a job whose code raised, and log it. Called while the exception is handled.

    Args:
        order: The job.
        error: The exception.
        start: As in `finished`.
        stop_requested: Whether the job was asked to stop.
    """
    if is_kind(error, JobStopped) and stop_requested:
        with suppress(Exception):  # the job may have closed the stream
            print(f"stopped: {error}".removesuffix(": "), flush=True)  # noqa: T201 - the job's log
        return messages.AttemptStopped(job_id=order.job_id, attempt=order.attempt)
    with suppress(BaseException):  # the stream may be closed, and the exception's own text may raise
        traceback.print_exc()
    return raised(order, error, start)


def raised(order: messages.RunJob, error: BaseException, start: float) -> messages.JobRaised:
    """Return the message for an exception that ended a job."""
    name, rank, key = messages.class_name(type(error)), None, ""
    try:
        kind = messages.classify(error)
        if kind is messages.FailureKind.damaged_input:
            key = _damaged_key(error)
            if not any(key in keys for keys in order.inputs.values()):
                kind, key = messages.FailureKind.bug, ""  # only inputs of the job can be made again
        if isinstance(error, GangError) and error.rank in range(len(order.gang)):
            rank = error.rank
        text, trace = str.__str__(_message(order, error, kind)), "".join(traceback.format_exception(error))
        if is_kind(error, PipelineError) and text.strip():
            name = ""
    # The text of an exception is computed by code of the job. KeyboardInterrupt is caught too: the engine's own is
    # raised only inside a job's body.
    except BaseException:
        kind, rank, key = messages.FailureKind.bug, None, ""
        text, trace = "its message cannot be read, as its own code raises", "its traceback cannot be read"
    return messages.JobRaised(
        job_id=order.job_id,
        attempt=order.attempt,
        error_type=name,
        kind=kind,
        damaged_key=key,
        rank=rank,
        message=text,
        traceback=trace,
        run_s=round(time.monotonic() - start, 6),
    )


def is_kind(error: BaseException, kind: type[BaseException]) -> bool:
    """Do `isinstance` safely: it asks the exception itself, which may be code of the job and raise."""
    return issubclass(type(error), kind)


def _message(order: messages.RunJob, error: BaseException, kind: messages.FailureKind) -> str:
    """Return the message of an exception.

    Its first line, which is shown alone, has the place in the code and advice.
    """
    first, line, rest = str(error).strip().partition("\n")
    where = own_place(error)
    more = f" ({where})" if where else ""
    if kind is messages.FailureKind.storage and not any(
        is_kind(cause, StoreError) for cause in messages.causes(error, context=True)
    ):
        more += f"; outputs go to {order.store}. {REMEDY}"
    return f"{first}{more}".lstrip() + line + rest if more else str(error)


def _damaged_key(error: BaseException) -> str:
    for cause in messages.causes(error):
        if isinstance(cause, DamagedOutput):
            return cause.key
        if isinstance(cause, GangError):
            return cause.damaged_key
    return ""


# -- output ------------------------------------------------------------------------------------------------------
# Redirect everything that a job writes to its log: Python's streams, and by descriptor the output of native code.


def log_stacks() -> None:
    """Have the stack of a crash written to the log of the current job, and on SIGUSR1 the stacks of all threads.

    The handler is in C, so it works even if the job hangs.
    """
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


class OutputTo:
    """Context manager in which descriptors 1 and 2 and Python's standard streams write to a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._saved: list[int] = []
        self._log = -1
        self._streams: tuple[TextIO, TextIO] | None = None

    def __enter__(self) -> OutputTo:
        # In append mode, so that processes that the job starts do not overwrite each other's output.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._log = in_folder(self._path.rpartition("/")[0], lambda: os.open(self._path, flags, 0o644))
        self._saved = [os.dup(1), os.dup(2)]
        self._streams = (sys.stdout, sys.stderr)
        self._redirect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        for descriptor in (*self._saved, self._log):
            os.close(descriptor)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Restore the old streams inside, for output of the engine while a job runs in its process."""
        self._restore()
        try:
            yield
        finally:
            self._redirect()

    def _redirect(self) -> None:
        _flush()
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        # Text of streams that are not those of the process (a notebook, a test runner) would be missed.
        if not _writes_to(sys.stdout, 1):
            sys.stdout = _stream(1)
        if not _writes_to(sys.stderr, 2):
            sys.stderr = _stream(2)

    def _restore(self) -> None:
        assert self._streams is not None
        _flush()
        os.dup2(self._saved[0], 1)
        os.dup2(self._saved[1], 2)
        sys.stdout, sys.stderr = self._streams


def _stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _writes_to(stream: Any, descriptor: int) -> bool:
    """Return whether it is a plain stream; a changed one would also change the text of the job."""
    try:
        return type(stream) is io.TextIOWrapper and stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # The C library buffers the output of native code separately.
    _c_library().fflush(None)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
