"""The code of a job: what it is given, how it is called, and where copies of the process that it makes end."""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.engine.store.store import Store
from pipeline.engine.workers.messages import JobProgress, RunJob
from pipeline.engine.workers.work import Work
from pipeline.errors import JobError
from pipeline.machine.garbage import imported_for_good

PROGRESS_INTERVAL_S = 0.25

Entry = Callable[[Work], None]


def work_of(
    order: RunJob,
    out: Path,
    device: str,
    *,
    memory: dict[str, Any],
    send: Callable[[JobProgress], None],
    stopping: Callable[[], bool],
    rank: int = 0,
) -> Work:
    """What the code of a job is given.

    Args:
        order: The job.
        out: Folder for the output.
        device: As `torch.device` takes it.
        memory: What stays for the job after it.
        send: Takes its progress.
        stopping: Whether the run is about to end.
        rank: Which of the processes of the job this is.
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
    """The store whose root an order names: the same for every job of a run."""
    return Store(Path(root))


def call_entry(order: RunJob, work: Work) -> None:
    """Import the entry of a job and call it; a module may take long to import.

    Raises:
        JobError: The path does not name a function.
    """
    loaded = order.entry.partition(":")[0] in sys.modules
    with nullcontext() if loaded else work.loading():
        entry = _load_entry(order.entry)
    entry(work)


@contextmanager
def contained() -> Iterator[None]:
    """Run a job's code; a copy of this process that the code has made by forking ends where it leaves that code.

    It is a process of the job's own, and no second worker: it would report the job a second time, commit or remove
    the output, and take further jobs. It ends at once, so that nothing which both processes hold is closed or
    flushed a second time.
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
    """Sends progress, but no more often than anyone can read it."""

    def __init__(self, order: RunJob, send: Callable[[JobProgress], None]) -> None:
        self._order = order
        self._send = send
        self._next = 0.0
        self._pid = os.getpid()
        self._last: dict[str, Any] = {"done": 0, "total": 0, "tokens": 0}

    def __call__(self, done: int, total: int, tokens: int, numbers: Mapping[str, float | None]) -> None:
        """Tell how far the job is, unless that was just done, or this is a process that the job has forked."""
        now = time.monotonic()
        self._last = {"done": done, "total": total, "tokens": tokens, "numbers": numbers}
        if now >= self._next:
            self._next = now + PROGRESS_INTERVAL_S
            self._tell(loading=False)

    def loading(self, begins: bool) -> None:
        """Tell that the job loads something, or works again. That is told at once: it may take long."""
        self._tell(loading=begins)

    def _tell(self, *, loading: bool) -> None:
        if os.getpid() == self._pid:
            job_id, attempt = self._order.job_id, self._order.attempt
            self._send(JobProgress(job_id=job_id, attempt=attempt, loading=loading, **self._last))


def _load_entry(path: str) -> Entry:
    module, _, name = path.partition(":")
    with nullcontext() if module in sys.modules else imported_for_good():
        entry: Any = getattr(importlib.import_module(module), name, None)
    if not callable(entry):
        raise JobError(f"'{path}' does not name a function; an entry is written module:function")
    checked: Entry = entry
    return checked
