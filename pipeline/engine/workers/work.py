"""What the code of a job is given inside a worker: the engine's side of the contract, free of torch."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.engine.workers.device_memory import limit
from pipeline.engine.workers.messages import (
    MAX_COUNT,
    MAX_FIGURE,
    MAX_FLOPS,
    MAX_NUMBERS,
    MAX_SECONDS,
    is_number_name,
)
from pipeline.machine import garbage


@dataclass(kw_only=True)
class Work:
    """One attempt at one job. A job's entry is a function ``entry(work: Work) -> None``.

    Attributes:
        job_id: The job.
        attempt: 1 for the first try.
        payload: The job's own plain data.
        inputs: Input name -> folders of the stored outputs.
        out: Folder to write the output to; committed whole when the entry returns, dropped when it raises.
        device: ``cpu`` or ``cuda``: what `torch.device` takes. A worker sees one GPU, always as ``cuda:0``;
            of a job that needs several each process has ``cuda:<rank>``.
        checkpoints: Folder that outlives a failed attempt and the run itself, for whatever lets the next attempt
            go on from where this one was; may not exist yet. Removed when the output is committed.
        hints: Folder shared by all jobs of the store, for what makes later jobs faster but changes no result.
        memory: Lives as long as the worker: loaded models and the like, by name.
        report: Sends progress: samples done, samples in all, tokens so far, `numbers`. Rate-limited by the worker.
        report_loading: Sends that loading begins, or that it is over.
        stopping: Whether the run is about to end. A job that would take long saves a checkpoint then and raises
            `JobStopped`; one that does neither is cut off when the grace period is over.
        rank: Which of the job's processes this is. All run the same entry; what rank 0 writes to `out` is the
            job's output, the others have a folder of their own that is dropped.
        world_size: How many processes the job has: one for each device it needs.
        load_s: Seconds spent in `loading`, for the accounting of device time.
        samples: Samples reported last.
        tokens: Tokens reported last.
        numbers: Of the present step, by name; None for one that is no finite number.
        answers: Completions that an evaluation gives; 0 where the job does not count them.
        flops: FLOPs of the whole job, by what they went into; empty where the job does not count them.
        shared: Whether other jobs may run on the device meanwhile. If memory runs out then, the job is to fail
            rather than to do with less: it is tried again with the device to itself, and comes out the same.
        limit_mb: MiB of its device that are set aside for it then; 0 sets no limit.
        peak_mb: Most memory of its device that the process held during the job, in MiB. Measured through torch
            where the job does not say; None on a CPU.
        held_mb: What of that it still holds afterwards, likewise.
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
            TypeError: A number is none, or no whole one.
            ValueError: A number is negative, or larger than any count.
        """
        self.samples, self.tokens = _count("done", done), _count("tokens", tokens)
        self.report(self.samples, _count("total", total), self.tokens, self.numbers)

    def show(self, numbers: Mapping[str, float | None]) -> None:
        """Have a few numbers of the present step, as its loss, go along with the next progress.

        Args:
            numbers: By name, a plain word; instead of those before.

        Raises:
            TypeError: One of them is no number.
            ValueError: There are too many, or a name is no plain word.
        """
        if len(numbers) > MAX_NUMBERS or not all(map(is_number_name, numbers)):
            raise ValueError(f"{list(numbers)!r}: must be at most {MAX_NUMBERS} names, each a plain word")
        self.numbers = {name: _figure(name, value) for name, value in numbers.items()}

    def hold_to_limit(self) -> None:
        """Let the allocator of torch take no more than `limit_mb`; the GPU must be in use by this process."""
        limit(self.device, self.limit_mb)

    def check_counts(self) -> None:
        """See that the job has left in its counts what they are for.

        Raises:
            TypeError: One of them is no number.
            ValueError: One of them is negative, or larger than any count.
        """
        self.samples, self.tokens = _count("samples", self.samples), _count("tokens", self.tokens)
        self.answers = _count("answers", self.answers)
        self.peak_mb = None if self.peak_mb is None else _count("peak_mb", self.peak_mb)
        self.held_mb = None if self.held_mb is None else _count("held_mb", self.held_mb)
        self.flops = {str(purpose): float(count) for purpose, count in self.flops.items()}
        if not all(0 <= count <= MAX_FLOPS for count in self.flops.values()):
            raise ValueError(f"flops={self.flops!r}: must be numbers from 0 to {MAX_FLOPS:g}")
        self.load_s = float(self.load_s)
        if not 0 <= self.load_s <= MAX_SECONDS:
            raise ValueError(f"load_s={self.load_s!r}: must be seconds of at least 0")

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Count the time inside as loading (imports, models) rather than as work, and tell of it.

        Imports of torch and transformers make hundreds of thousands of objects and hardly any garbage, and to look
        for garbage in cycles meanwhile takes a fifth of their time, so it waits until they are done.
        """
        self.report_loading(True)
        start = time.monotonic()
        try:
            with garbage.kept():
                yield
        finally:
            self.load_s += time.monotonic() - start
            self.report_loading(False)


def _figure(name: str, value: object) -> float | None:
    """A number as messages have it; None for what is no finite one."""
    if value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}: must be a number") from None
    return number if abs(number) <= MAX_FIGURE else None


def _count(name: str, value: object) -> int:
    """A number as messages have it, from whatever counts as a whole one: NumPy and torch have their own."""
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}={value!r}: must be a whole number of at least 0") from None
    if not 0 <= count <= MAX_COUNT:
        raise ValueError(f"{name}={value!r}: must be a whole number from 0 to 2^53")
    return count
