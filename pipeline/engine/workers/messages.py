"""Messages on the pipe between the engine and a worker: small frozen records, encoded as JSON.

The encoding is JSON rather than pickle: a damaged or hostile byte stream can at worst fail to parse, and only
plain data can be sent. Tensors are passed in files.

The engine does not trust messages of a worker, as the code of any job can write to the pipe. Every field is
checked when it is read, and writers send only what readers accept.
"""

import errno
import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from msgspec import Meta, Raw, Struct, field
from msgspec.json import Encoder
from msgspec.structs import asdict, force_setattr

from pipeline import errors
from pipeline.foreign import ForeignDataError, converted, parse_json

# -- failure -----------------------------------------------------------------------------------------------------
# Classify exceptions as kinds of failure, where they happen and are still objects. Does not import torch.


class FailureKind(Enum):
    """Kind of a job's failure; each kind has a retry budget of its own (`execution.retry`)."""

    bug = "bug"  # the job's own code raised, and would again
    lost = "lost"  # its worker died; another one may survive
    hang = "hang"  # its worker had to be killed
    out_of_memory = "out_of_memory"  # device or host memory ran out, with the smallest batches
    device = "device"  # a device error that this process cannot recover from
    transient = "transient"  # a connection or a file system, which may recover soon
    storage = "storage"  # outputs cannot be written: no other job would fare better
    damaged_input = "damaged_input"  # a stored output that it reads was found damaged


NEEDS_FRESH_WORKER = frozenset({FailureKind.out_of_memory, FailureKind.device, FailureKind.damaged_input})
"""Failures after which memory may be fragmented, a CUDA context broken, or a cached model damaged."""

_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
_TEXT_READ = 10_000
"""Characters of an exception's text to read, which may have millions."""
# Libraries in Rust and C++ raise their own types, with the system's error only as text.
_STORAGE_TEXTS = re.compile(
    "|".join(
        [
            *(rf"\(os error {code}\)" for code in sorted(_STORAGE)),
            "No space left on device",
            "Disk quota exceeded",
            # The disk is full, or a file reached its size limit.
            "database or disk is full",
            r"^\d+ requested and \d+ written",
            "PytorchStreamWriter failed writing",
            r"inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+",
        ]
    )
)
_TRANSIENT = {
    *(errno.EAGAIN, errno.EBUSY, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENFILE, errno.EREMOTEIO),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTUNREACH, errno.EHOSTDOWN),
}
_TRANSIENT_CLASSES = {
    *("httpx.TransportError", "httpx2.TransportError", "urllib3.exceptions.HTTPError"),
    *("requests.exceptions.ConnectionError", "requests.exceptions.Timeout"),
}
# Errors of a collective operation after one of its processes has died.
_LOST_PEER_CLASSES = {"torch.distributed.DistNetworkError", "torch.distributed.DistStoreError"}
_LOST_PEER_TEXTS = (
    "gloo/transport",
    "Connection closed by peer",
    "NCCL communicator was aborted",
    "remote process exited",
)
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_OUT_OF_MEMORY_CLASSES = {"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"}
_DEVICE_CLASSES = {"torch.AcceleratorError"}
_DEVICE_TEXTS = ("CUDA error", "CUDA driver error", "NCCL error", "cuDNN error", "CUBLAS_STATUS_")


def classify(error: BaseException) -> FailureKind:
    """Return the kind of failure of an exception, from its own type or from its causes.

    A full disk counts even if it is only the context of the exception, not its cause: an exception while files are
    cleaned up or closed has only a context.
    """
    try:
        kinds = [_kind(cause) for cause in causes(error)]
        kind = next((kind for kind in kinds if kind is not FailureKind.bug), FailureKind.bug)
        if kind is FailureKind.bug and any(map(_is_storage, causes(error, context=True))):
            return FailureKind.storage
    except BaseException:  # an exception is the job's own code, down to its attributes
        return FailureKind.bug
    return kind


def causes(error: BaseException | None, *, context: bool = False) -> Iterator[BaseException]:
    """Yield an exception and its causes; with `context`, also the exceptions that were being handled."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        implicit = error.__context__ if context and not error.__suppress_context__ else None
        error = error.__cause__ or implicit


def class_name(kind: type[BaseException]) -> str:
    """Return the name of an exception's class as people write it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_storage(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _STORAGE
    # keep the end of the text, as the end of a log is the informative part
    if isinstance(error, errors.GangError):
        return False
    return _STORAGE_TEXTS.search(str(error)[:_TEXT_READ]) is not None


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, errors.DamagedOutput):
        return FailureKind.damaged_input
    if isinstance(error, errors.GangError):
        return FailureKind(error.kind)
    if isinstance(error, errors.RanksDisagree):
        return FailureKind.device
    # By name, so that these libraries need not be imported.
    names = {class_name(base) for base in type(error).__mro__}
    text = str(error)
    if isinstance(error, MemoryError) or names & _OUT_OF_MEMORY_CLASSES or "OutOfMemory" in type(error).__name__:
        return FailureKind.out_of_memory
    if isinstance(error, RuntimeError):
        if names & _LOST_PEER_CLASSES or any(part in text for part in _LOST_PEER_TEXTS):
            return FailureKind.transient
        if any(part in text for part in errors.OUT_OF_MEMORY_TEXTS):
            return FailureKind.out_of_memory
        if names & _DEVICE_CLASSES or any(part in text for part in _DEVICE_TEXTS):
            return FailureKind.device
    if _is_storage(error):
        return FailureKind.storage
    if isinstance(error, errors.StoreError) and isinstance(error.__cause__, PermissionError):
        return FailureKind.storage
    if isinstance(error, (ConnectionError, TimeoutError)) or names & _TRANSIENT_CLASSES:
        return FailureKind.transient
    if isinstance(error, OSError) and error.errno in _TRANSIENT:
        return FailureKind.transient
    status = getattr(getattr(error, "response", None), "status_code", None)
    return FailureKind.transient if status in _TRANSIENT_STATUS else FailureKind.bug


MAX_MESSAGE_BYTES = 64 << 20
SEND_TIMEOUT_S = 5.0
"""Seconds after which a worker that takes no message counts as stuck; its reader thread takes them at once."""
MAX_COUNT = 2**53
"""Largest count: up to here a float is exact, so no arithmetic on counts can overflow."""
MAX_SECONDS = 1e12
MAX_FLOPS = 1e30
MAX_FIGURE = 1e100
MAX_NUMBERS = 8
MAX_TEXT = 100_000
MAX_LINE = 2_000
_SHOWN_BYTES = 200
# Characters that a terminal may take for a command, and lone surrogates, which no file can hold.
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"
_NO_TEXT = re.compile(f"[{_CONTROLS}]")
_NO_LINE = re.compile(rf"[{_CONTROLS}\t\n\u2028\u2029]")
_NUMBER_NAME = re.compile(r"^[A-Za-z0-9_./@-]{1,40}\Z")

_T = TypeVar("_T")

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Number = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Figure = Annotated[float, Meta(ge=-MAX_FIGURE, le=MAX_FIGURE)]
Flops = Annotated[float, Meta(ge=0, le=MAX_FLOPS)]
Text = Annotated[str, Meta(max_length=MAX_TEXT, pattern=rf"^[^{_CONTROLS}]*\Z")]
Line = Annotated[str, Meta(max_length=MAX_LINE, pattern=rf"^[^{_CONTROLS}\t\n\u2028\u2029]*\Z")]
Label = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*\Z")]
NumberName = Annotated[str, Meta(pattern=_NUMBER_NAME.pattern)]


def _plain_text(text: str, *, keep_end: bool = False) -> str:
    """Return a text for a message: truncated, with unprintable characters escaped as in Python's literals."""
    part = slice(-MAX_TEXT, None) if keep_end else slice(MAX_TEXT)
    return _NO_TEXT.sub(_escaped, text[part])[part]


def _plain_line(text: str) -> str:
    """Return a text for a message as a single line."""
    return _NO_LINE.sub(_escaped, text[:MAX_LINE])[:MAX_LINE]


def _escaped(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


class _Message(Struct, frozen=True, forbid_unknown_fields=True):
    """Base class. Every job makes some and every worker defines them.

    Dataclasses would take ten times as long for both.
    """

    _lines: ClassVar[tuple[str, ...]] = ()
    """Fields that are reduced to one line."""

    def __post_init__(self) -> None:
        for name in self._lines:
            if text := getattr(self, name):
                force_setattr(self, name, _plain_line(text))


class _OfJob(_Message, frozen=True, kw_only=True):
    """Message about an attempt at a job."""

    job_id: str
    attempt: Number


class RunJob(_OfJob, frozen=True, kw_only=True):
    """Engine -> worker: run a job, after those that it was sent before."""

    key: str
    entry: str
    payload: Mapping[str, Any]
    inputs: Mapping[str, list[str]]
    store: str
    """Root of the store, where the worker finds inputs by key and commits the output."""
    scratch: str
    """Folder in which to write the unfinished output, on the store's file system."""
    verified: str
    """Folder of notes on which stored outputs were found good in this run."""
    log_path: str
    """File that receives everything the job writes to its standard output and error, native code included."""
    gang: list[str] = field(default_factory=list)
    """CUDA_VISIBLE_DEVICES of each rank of a multi-GPU job; empty for one device."""
    keep_models: bool = True
    """Whether models of earlier jobs may stay in memory; otherwise the worker drops them first."""
    slots: int = 1
    """Workers on its device, including this one; memory that one of several keeps between jobs is missing to the
    others."""
    shared: bool = False
    """Whether other jobs may run on its device meanwhile, so that memory may run out through no fault of this job.
    """
    limit_mb: int = 0
    """MiB of its device reserved for it in that case, including its CUDA context; 0 sets no limit."""


class Shutdown(_Message, frozen=True, kw_only=True):
    """Engine -> worker: take no further job; let the present one finish or save a checkpoint, then exit."""

    at_once: bool = False
    """Whether to interrupt the present job without waiting."""


class WorkerReady(_Message, frozen=True, kw_only=True):
    """Worker -> engine: the process is up, its device is pinned; nothing heavy is imported yet."""

    pid: Number
    device: Line
    """Device as the worker itself sees it, for the log: ``GPU-... as cuda:0`` or ``cpu slot 3, 1 thread``."""
    visible: Line = ""
    """CUDA_VISIBLE_DEVICES of the process, which gives others the same device."""
    node: Line = ""
    """The machine that it is on, in words, if a run has several."""
    unfit: Line = ""
    """Why its device should be given no jobs, in words; "" if it is fit for them."""

    _lines = ("device", "visible", "node", "unfit")


class JobStarted(_OfJob, frozen=True, kw_only=True):
    """Worker -> engine: the job's log is open and its code is about to run."""


class JobProgress(_OfJob, frozen=True, kw_only=True):
    """Worker -> engine: how far a job is. Sent at most a few times a second."""

    done: Count
    """Samples finished, of `total`."""
    total: Count
    tokens: Count
    """Tokens generated or trained on since the job began."""
    numbers: Annotated[Mapping[NumberName, Figure | None], Meta(max_length=MAX_NUMBERS)] = field(
        default_factory=dict
    )
    """Metrics of the present step, such as its loss; None for a number that is not finite."""
    loading: bool = False
    """Whether it is importing libraries or loading a model."""


class GpuLoad(_Message, frozen=True, kw_only=True):
    """Use of a GPU a moment ago, by all processes.

    Attributes:
        label: Name of the GPU, such as ``GPU 0``.
        used_bytes: Memory in use.
        total_bytes: Total memory.
        utilization: Share of time with a kernel running, in percent; None where the driver does not tell.
    """

    label: Label
    used_bytes: Count
    total_bytes: Count
    utilization: Count | None = None


class Heartbeat(_Message, frozen=True, kw_only=True):
    """Worker -> engine: the process is alive; sent on a timer from its own thread."""

    rss_bytes: Count
    """Resident memory of the worker, in bytes."""
    gpu: GpuLoad | None = None
    """Current use of its GPU; None without a GPU, or if the driver does not report it."""


class _End(_OfJob, frozen=True, kw_only=True):
    """Message about an attempt that is over."""

    run_s: Seconds
    """Seconds from start to end, loading included."""
    held_mb: Count = 0
    """MiB of device memory that the process still holds, for the models that it keeps."""
    left_changed: Line = ""
    """Changes of the job to the process, in words, because of which no other job may run in it; "" for none."""

    _lines: ClassVar[tuple[str, ...]] = ("left_changed",)

    @property
    def spoils(self) -> bool:
        """Whether the process is unfit for other jobs."""
        return bool(self.left_changed)


class JobFinished(_End, frozen=True, kw_only=True):
    """Worker -> engine: the output is committed under the job's key."""

    load_s: Seconds
    """Seconds spent importing libraries and loading models for this job."""
    samples: Count
    tokens: Count
    answers: Count = 0
    """Number of completions of an evaluation."""
    flops: Annotated[Mapping[Line, Flops], Meta(max_length=100)] = field(default_factory=dict)
    """FLOPs by purpose."""
    peak_mb: Count | None = None
    """Most memory of its device that the process held during the job, in MiB; None on a CPU."""


class JobRaised(_End, frozen=True, kw_only=True):
    """Worker -> engine: the job's code raised; the worker itself works and can take another job."""

    error_type: Line
    """Qualified class name of the exception; "" for an exception of this package, whose message is written for
    users."""
    message: Text
    traceback: Text
    kind: FailureKind
    """Kind of failure, decided in the worker, where the exception is still an object."""
    damaged_key: Line = ""
    """Key of the stored output that the job could not use, for the kind ``damaged_input``."""
    rank: Count | None = None
    """Number of the rank that failed first, if a job has several."""

    @property
    def spoils(self) -> bool:
        """Whether the process is unfit for other jobs."""
        return bool(self.left_changed) or self.kind in NEEDS_FRESH_WORKER

    @property
    def said(self) -> str:
        """The exception as shown to users: its class, if that is informative, and its message."""
        return ": ".join(part for part in (self.error_type, self.message.strip()) if part)

    _lines = ("error_type", "damaged_key", "left_changed")

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "message", _plain_text(self.message))
        force_setattr(self, "traceback", _plain_text(self.traceback, keep_end=True))


class AttemptStopped(_OfJob, frozen=True, kw_only=True):
    """Worker -> engine: the job was asked to stop and has saved what it needs to go on later."""


class WorkerWaits(_Message, frozen=True, kw_only=True):
    """Made by the pool, never sent: the worker has to wait until a cluster has a place for its process."""


class WorkerUnusable(_Message, frozen=True, kw_only=True):
    """Made by the pool, never sent: workers cannot be started in this slot, so it is given up."""

    reason: str


class WorkerUnreadable(_Message, frozen=True, kw_only=True):
    """Made by the pool, never sent: the process sent something unreadable, so it is killed.

    `WorkerExited` follows.
    """

    reason: str


class WorkerExited(_Message, frozen=True, kw_only=True):
    """Made by the pool, never sent: the process ended. Everything that it sent before was delivered first."""

    exit_code: int | None
    """Exit code as in `subprocess`: negative is a signal number. None if it is unknown."""
    how: str = ""
    """Other facts on the end, in words that replace the exit code."""
    elsewhere: bool = False
    """Whether its machine was lost, so that neither its job nor its device is at fault."""

    @property
    def said(self) -> str:
        """Return how the process ended, in words."""
        return self.how or errors.describe_exit(self.exit_code)


ToWorker = RunJob | Shutdown
End = JobFinished | JobRaised | AttemptStopped
"""Last message of a worker, or of a rank, about a job."""
OfJob = JobStarted | JobProgress | End
Report = WorkerReady | Heartbeat | OfJob
"""Messages that a worker may send."""
FromWorker = Report | WorkerWaits | WorkerExited | WorkerUnusable | WorkerUnreadable

_ORDERS: dict[str, type[ToWorker]] = {kind.__name__: kind for kind in get_args(ToWorker)}
_REPORTS: dict[str, type[Report]] = {kind.__name__: kind for kind in get_args(Report)}


def encode(message: ToWorker | FromWorker) -> bytes:
    """Turn a message into bytes for `Channel.send`."""
    fields: Any = message
    # a payload may have numbers that are not finite, which msgspec would encode as null
    if isinstance(message, RunJob):
        fields = {**asdict(message), "payload": Raw(_ENCODER.encode(message.payload).encode())}
    try:
        return _FAST.encode([type(message).__name__, fields])
    except UnicodeEncodeError:  # a lone surrogate, as in a path that is not valid text
        return _ENCODER.encode([type(message).__name__, message]).encode()


def decode_order(data: bytes) -> ToWorker:
    """Decode a message of the engine; its payload may contain infinite numbers, such as a temperature.

    Raises:
        WorkerError: The bytes are not a valid message of an engine.
    """
    return _decoded(data, _ORDERS, infinite=True)


def decode_report(data: bytes) -> Report:
    """Decode a message of a worker.

    Raises:
        WorkerError: The bytes are not a valid message of a worker.
    """
    return _decoded(data, _REPORTS)


def is_number_name(name: object) -> bool:
    """Return whether a metric of a step may have this name."""
    return isinstance(name, str) and bool(_NUMBER_NAME.match(name))


def _decoded(data: bytes, kinds: Mapping[str, type[_T]], *, infinite: bool = False) -> _T:
    try:
        match parse_json(data, infinite=infinite):
            case [str(name), dict(fields)] if name in kinds:
                return converted(fields, kinds[name])
        raise ForeignDataError(f"a message here is the name of one of {', '.join(kinds)}, and its fields")
    except ForeignDataError as error:
        problem = f"it sent what is no message ({_plain_line(str(error))})"
        raise errors.WorkerError(f"{problem}: {data[:_SHOWN_BYTES]!r}") from error


def _plain_data(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else asdict(value)


_FAST = Encoder()
# `json.dumps` would make an encoder for every call.
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain_data)
