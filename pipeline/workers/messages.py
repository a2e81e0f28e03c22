"""What crosses the pipe between the engine and a worker: small frozen records, encoded as JSON.

JSON rather than pickle: a damaged or hostile byte stream can at worst fail to parse, and nothing that is not
plain data can be sent by accident. Tensors travel through files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import WorkerError


@dataclass(frozen=True, kw_only=True)
class RunJob:
    """Engine -> worker: run one job. A worker has at most one at a time."""

    job_id: str
    attempt: int
    key: str
    entry: str
    payload: Mapping[str, Any]
    inputs: Mapping[str, list[str]]
    store: str
    """Root of the store: the worker resolves input keys and commits the output there."""
    scratch: str
    """Folder in which the unfinished output is written; on the store's file system."""
    verified: str
    """Folder of notes on which stored outputs were found good in this run."""
    log_path: str
    """File that receives everything the job writes to its standard output and error, native code included."""
    gang: list[str] = field(default_factory=list)
    """For a job of several devices, what each of its ranks sees in CUDA_VISIBLE_DEVICES; empty for one device."""
    keep_models: bool = True
    """Whether models of earlier jobs may stay in memory; otherwise the worker lets go of them first."""
    slots: int = 1
    """Workers on its device, this one included; what one of several holds between jobs the others lack."""
    shared: bool = False
    """Whether other jobs may run on its device meanwhile, and memory run out for no fault of this one."""


@dataclass(frozen=True, kw_only=True)
class Shutdown:
    """Engine -> worker: take no further job; let the present one finish or save a checkpoint, then exit."""


@dataclass(frozen=True, kw_only=True)
class WorkerReady:
    """Worker -> engine: the process is up, its device is pinned; nothing heavy is imported yet."""

    pid: int
    device: str
    """The device as the worker itself sees it, for the log: ``GPU-... as cuda:0`` or ``cpu slot 3, 1 thread``."""
    visible: str = ""
    """Its CUDA_VISIBLE_DEVICES, by which other processes can be given the same device."""
    not_free: str = ""
    """What the process before it left on its device and did not come back in time, in words; "" for nothing."""


@dataclass(frozen=True, kw_only=True)
class JobStarted:
    """Worker -> engine: the job's log is open and its code is about to run."""

    job_id: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """Worker -> engine: how far a job is. Sent at most a few times a second."""

    job_id: str
    attempt: int
    done: int
    """Samples finished, of `total`."""
    total: int
    tokens: int
    """Tokens generated or trained on since the job began."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Worker -> engine: the process is alive; sent on a timer from its own thread."""

    rss_bytes: int
    """Resident memory of the worker, in bytes."""
    gpu: dict[str, Any] | None = None
    """Fields of a `GpuLoad`: what its GPU is doing; None without one, or without a driver that tells."""


@dataclass(frozen=True, kw_only=True)
class JobFinished:
    """Worker -> engine: the output is committed under the job's key."""

    job_id: str
    attempt: int
    load_s: float
    """Seconds spent importing libraries and loading models for this job."""
    run_s: float
    """Seconds from start to commit, loading included."""
    samples: int
    tokens: int
    peak_mb: int | None = None
    """Most memory of its device that the process held during the job, in MiB; None on a CPU."""
    held_mb: int = 0
    """What of that it still holds, for the models that it keeps."""


@dataclass(frozen=True, kw_only=True)
class JobRaised:
    """Worker -> engine: the job's code raised; the worker itself is fine and can take another job."""

    job_id: str
    attempt: int
    error_type: str
    """Qualified class name of the exception."""
    message: str
    traceback: str
    run_s: float
    kind: str
    """Name of a `FailureKind`: decided in the worker, where the exception is still an object."""
    damaged_key: str = ""
    """Key of the stored output that the job could not use, for the kind ``damaged_input``."""
    rank: int | None = None
    """The process that failed first, where a job has several."""
    held_mb: int = 0
    """As in `JobFinished`."""


@dataclass(frozen=True, kw_only=True)
class JobStopped:
    """Worker -> engine: the job was asked to stop and has saved what it needs to go on later."""

    job_id: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class WorkerUnusable:
    """Made by the pool, never sent: workers cannot be started in this place, and it is given up."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class WorkerExited:
    """Made by the pool, never sent: the process ended. Everything it sent before was delivered first."""

    exit_code: int | None
    """As in `subprocess`: negative is a signal number."""


ToWorker = RunJob | Shutdown
FromWorker = (
    WorkerReady
    | JobStarted
    | JobProgress
    | Heartbeat
    | JobFinished
    | JobRaised
    | JobStopped
    | WorkerExited
    | WorkerUnusable
)

_TYPES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        RunJob,
        Shutdown,
        WorkerReady,
        JobStarted,
        JobProgress,
        Heartbeat,
        JobFinished,
        JobRaised,
        JobStopped,
    )
}


def encode(message: ToWorker | FromWorker) -> bytes:
    """Turn a message into bytes for `Connection.send_bytes`."""
    return json.dumps([type(message).__name__, vars(message)], separators=(",", ":")).encode()


def decode(data: bytes) -> Any:
    """Read a message that `encode` wrote.

    Raises:
        WorkerError: The bytes are not a message.
    """
    try:
        name, fields = json.loads(data)
        return _TYPES[name](**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise WorkerError(f"unreadable message on the worker's pipe: {data[:80]!r}") from error
