"""A snapshot of a run in progress, as plain data: made by the scheduler, shown by the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**53)]
Label = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*\Z")]


@dataclass(frozen=True, kw_only=True)
class GpuLoad:
    """What a GPU did a moment ago, whoever uses it; its worker tells of it in a message.

    Attributes:
        label: As in ``GPU 0``.
        used_bytes: Memory in use.
        total_bytes: All of it.
        utilization: Share of time with a kernel running, in percent; None where the driver does not tell.
    """

    label: Label
    used_bytes: Count
    total_bytes: Count
    utilization: Count | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What one worker is doing.

    Attributes:
        index: Number of the worker.
        device: Its device in words.
        state: ``starting``, ``idle``, ``running``, ``lent``, ``gone`` or ``quarantined``.
        job_id: The job it runs, or whose ranks have its device; or "".
        running_s: Seconds since that job was sent.
        done: Samples of it that are finished.
        total: Samples it has.
        rss_bytes: Resident memory at the last heartbeat.
        gpu: Its GPU at the last heartbeat; None without one, or without a driver that tells.
    """

    index: int
    device: str
    state: str
    job_id: str = ""
    running_s: float = 0.0
    done: int = 0
    total: int = 0
    rss_bytes: int = 0
    gpu: GpuLoad | None = None


@dataclass(frozen=True, kw_only=True)
class CellStatus:
    """One chain in one round: how many of its jobs are in which state."""

    total: int = 0
    stored: int = 0
    """Were in the store before the run began."""
    done: int = 0
    running: int = 0
    failed: int = 0
    blocked: int = 0


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The whole run at one moment.

    Attributes:
        elapsed_s: Seconds since the run began.
        remaining_s: Estimate of the seconds left, or None while there is nothing to base it on.
        samples_per_s: Over the last seconds.
        tokens_per_s: Over the last seconds.
        total: Jobs over all cells, by state.
        cells: (chain, round) -> its jobs by state.
        workers: By index.
    """

    elapsed_s: float
    remaining_s: float | None
    samples_per_s: float
    tokens_per_s: float
    total: CellStatus
    cells: Mapping[tuple[str, int], CellStatus] = field(default_factory=dict)
    workers: tuple[WorkerStatus, ...] = ()
