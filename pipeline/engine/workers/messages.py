"""What crosses the pipe between the engine and a worker: small frozen records, encoded as JSON.

JSON rather than pickle: a damaged or hostile byte stream can at worst fail to parse, and nothing that is not
plain data can be sent by accident. Tensors travel through files.

What a worker says is foreign to the engine, as the code of any job can write to the pipe: every field is checked
when it is read, and what is written is what a reader will take.
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
# What kind of failure an exception is: decided where it happened, while it is still an object. Free of torch.


class FailureKind(Enum):
    """How an attempt at a job failed; each kind has a budget of its own (`execution.retry`)."""

    bug = "bug"  # the job's own code raised: it would again
    lost = "lost"  # its worker ended under it: another may live
    hang = "hang"  # its worker had to be killed
    out_of_memory = "out_of_memory"  # of the device or the machine, with the smallest batches
    device = "device"  # an error of the device, which this process cannot recover from
    transient = "transient"  # a connection or a file system, which may be back soon
    storage = "storage"  # outputs cannot be written: no other job would fare better
    damaged_input = "damaged_input"  # a stored output that it reads was found damaged


NEEDS_FRESH_WORKER = frozenset({FailureKind.out_of_memory, FailureKind.device, FailureKind.damaged_input})
"""Failures after which memory may be fragmented, a CUDA context broken, or a kept model be of damaged files."""

_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
_TEXT_READ = 10_000
"""Characters of an exception's text, which may have millions."""
# Libraries in Rust and C++ raise errors of their own types, which say in words what the system had said.
_STORAGE_TEXTS = re.compile(
    "|".join(
        [
            *(rf"\(os error {code}\)" for code in sorted(_STORAGE)),
            "No space left on device",
            "Disk quota exceeded",
            # The disk, or the largest size that a file may have.
            "database or disk is full",
            r"^\d+ requested and \d+ written",
            "PytorchStreamWriter failed writing",
            r"inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+",
        ]
    )
)
_TRANSIENT = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENETRESET,
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENFILE,
    errno.EREMOTEIO,
}
_TRANSIENT_CLASSES = {
    "httpx.TransportError",
    "httpx2.TransportError",
    "requests.exceptions.ConnectionError",
    "requests.exceptions.Timeout",
    "urllib3.exceptions.HTTPError",
}
# What is left of a collective when one of its processes is gone.
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
    """Say what kind of failure an exception is, by itself or by what it was raised from.

    A full disk counts even if the exception was raised without naming it as its cause: what fails while files are
    cleaned up, or closed, has no other.
    """
    try:
        kinds = [_kind(one) for one in causes(error)]
        kind = next((kind for kind in kinds if kind is not FailureKind.bug), FailureKind.bug)
        if kind is FailureKind.bug and any(map(_is_storage, causes(error, context=True))):
            return FailureKind.storage
    except BaseException:  # an exception is code of the job's own, down to its attributes
        return FailureKind.bug
    return kind


def causes(error: BaseException | None, *, context: bool = False) -> Iterator[BaseException]:
    """An exception and what it was raised from; with `context`, also what was being handled when it was raised."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        implicit = error.__context__ if context and not error.__suppress_context__ else None
        error = error.__cause__ or implicit


def class_name(kind: type[BaseException]) -> str:
    """The name of an exception's class as people write it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_storage(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _STORAGE
    if isinstance(error, errors.GangError):  # the end of a log is in its text
        return False
    return _STORAGE_TEXTS.search(str(error)[:_TEXT_READ]) is not None


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, errors.DamagedOutput):
        return FailureKind.damaged_input
    if isinstance(error, errors.GangError):
        return FailureKind(error.kind)
    if isinstance(error, errors.RanksDisagree):
        return FailureKind.device
    # By name, so that nobody has to import these libraries to tell their errors.
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
"""A worker's reader takes messages at once, so one that takes none for so long is stuck."""
MAX_COUNT = 2**53
"""No count is larger: up to here a float is exact, so nothing that is computed from counts can overflow."""
MAX_SECONDS = 1e12
MAX_FLOPS = 1e30
MAX_FIGURE = 1e100
MAX_NUMBERS = 8
MAX_TEXT = 100_000
MAX_LINE = 2_000
_SHOWN_BYTES = 200
# All that a terminal may take for a command, and halves of characters, which no file can hold.
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
    """A text as a message may have it: not too long, and what is no text written as in Python's literals."""
    part = slice(-MAX_TEXT, None) if keep_end else slice(MAX_TEXT)
    return _NO_TEXT.sub(_escaped, text[part])[part]


def _plain_line(text: str) -> str:
    """The same for a single line."""
    return _NO_LINE.sub(_escaped, text[:MAX_LINE])[:MAX_LINE]


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


class _Message(Struct, frozen=True, forbid_unknown_fields=True):
    """Made for every job, and defined in every worker: of a dataclass either takes ten times as long."""

    _lines: ClassVar[tuple[str, ...]] = ()
    """Fields of one line, which are made such."""

    def __post_init__(self) -> None:
        for name in self._lines:
            if text := getattr(self, name):
                force_setattr(self, name, _plain_line(text))


class _OfJob(_Message, frozen=True, kw_only=True):
    """About an attempt at a job."""

    job_id: str
    attempt: Number


class RunJob(_OfJob, frozen=True, kw_only=True):
    """Engine -> worker: run a job, after those that it was sent before."""

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
    limit_mb: int = 0
    """MiB of its device that are set aside for it then, its CUDA context included; 0 sets no limit."""


class Shutdown(_Message, frozen=True, kw_only=True):
    """Engine -> worker: take no further job; let the present one finish or save a checkpoint, then exit."""

    at_once: bool = False
    """The patience with the present job is over."""


class WorkerReady(_Message, frozen=True, kw_only=True):
    """Worker -> engine: the process is up, its device is pinned; nothing heavy is imported yet."""

    pid: Number
    device: Line
    """The device as the worker itself sees it, for the log: ``GPU-... as cuda:0`` or ``cpu slot 3, 1 thread``."""
    visible: Line = ""
    """Its CUDA_VISIBLE_DEVICES, by which other processes can be given the same device."""
    node: Line = ""
    """The machine that it is on, in words, where a run has several."""
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
    """Of the present step, as its loss; None for one that is no finite number."""
    loading: bool = False
    """Whether it imports libraries or loads a model just now."""


class GpuLoad(_Message, frozen=True, kw_only=True):
    """What a GPU did a moment ago, whoever uses it.

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


class Heartbeat(_Message, frozen=True, kw_only=True):
    """Worker -> engine: the process is alive; sent on a timer from its own thread."""

    rss_bytes: Count
    """Resident memory of the worker, in bytes."""
    gpu: GpuLoad | None = None
    """What its GPU is doing; None without one, or without a driver that tells."""


class _End(_OfJob, frozen=True, kw_only=True):
    """About one that is over."""

    run_s: Seconds
    """Seconds from start to end, loading included."""
    held_mb: Count = 0
    """What of the device's memory the process still holds, in MiB, for the models that it keeps."""
    left_changed: Line = ""
    """What the job has left changed in the process, in words, so that no other may run in it; "" for nothing."""

    _lines: ClassVar[tuple[str, ...]] = ("left_changed",)

    @property
    def spoils(self) -> bool:
        """Whether no other job may run in the process."""
        return bool(self.left_changed)


class JobFinished(_End, frozen=True, kw_only=True):
    """Worker -> engine: the output is committed under the job's key."""

    load_s: Seconds
    """Seconds spent importing libraries and loading models for this job."""
    samples: Count
    tokens: Count
    answers: Count = 0
    """Completions that an evaluation gives."""
    flops: Annotated[Mapping[Line, Flops], Meta(max_length=100)] = field(default_factory=dict)
    """What was computed, by purpose."""
    peak_mb: Count | None = None
    """Most memory of its device that the process held during the job, in MiB; None on a CPU."""


class JobRaised(_End, frozen=True, kw_only=True):
    """Worker -> engine: the job's code raised; the worker itself is fine and can take another job."""

    error_type: Line
    """Qualified class name of the exception; "" for one of ours, whose message was written for users."""
    message: Text
    traceback: Text
    kind: FailureKind
    """Decided in the worker, where the exception is still an object."""
    damaged_key: Line = ""
    """Key of the stored output that the job could not use, for the kind ``damaged_input``."""
    rank: Count | None = None
    """The process that failed first, where a job has several."""

    @property
    def spoils(self) -> bool:
        """Whether no other job may run in the process."""
        return bool(self.left_changed) or self.kind in NEEDS_FRESH_WORKER

    @property
    def said(self) -> str:
        """The exception as users read it: its class, where that says something, and its message."""
        return ": ".join(part for part in (self.error_type, self.message.strip()) if part)

    _lines = ("error_type", "damaged_key", "left_changed")

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "message", _plain_text(self.message))
        force_setattr(self, "traceback", _plain_text(self.traceback, keep_end=True))


class AttemptStopped(_OfJob, frozen=True, kw_only=True):
    """Worker -> engine: the job was asked to stop and has saved what it needs to go on later."""


class WorkerUnusable(_Message, frozen=True, kw_only=True):
    """Made by the pool, never sent: workers cannot be started in this place, and it is given up."""

    reason: str


class WorkerUnreadable(_Message, frozen=True, kw_only=True):
    """Made by the pool, never sent: what the process sent is no message, so it is killed. Its end follows."""

    reason: str


class WorkerExited(_Message, frozen=True, kw_only=True):
    """Made by the pool, never sent: the process ended. Everything it sent before was delivered first."""

    exit_code: int | None
    """As in `subprocess`: negative is a signal number. None where there is none to know."""
    how: str = ""
    """What else is known of the end, in words that take the place of the exit code."""
    elsewhere: bool = False
    """Whether its machine was lost, so that neither its job nor its device is to blame."""

    @property
    def said(self) -> str:
        """How it ended, in words."""
        return self.how or errors.describe_exit(self.exit_code)


ToWorker = RunJob | Shutdown
Said = JobFinished | JobRaised | AttemptStopped
"""What a worker, or a rank, answers of a job that is over."""
OfJob = JobStarted | JobProgress | Said
Report = WorkerReady | Heartbeat | OfJob
"""What a worker may send."""
FromWorker = Report | WorkerExited | WorkerUnusable | WorkerUnreadable

_ORDERS: dict[str, type[ToWorker]] = {kind.__name__: kind for kind in get_args(ToWorker)}
_REPORTS: dict[str, type[Report]] = {kind.__name__: kind for kind in get_args(Report)}


def encode(message: ToWorker | FromWorker) -> bytes:
    """Turn a message into bytes for `Channel.send`."""
    fields: Any = message
    if isinstance(message, RunJob):  # a payload may have numbers that are not finite, which msgspec makes null
        fields = {**asdict(message), "payload": Raw(_ENCODER.encode(message.payload).encode())}
    try:
        return _FAST.encode([type(message).__name__, fields])
    except UnicodeEncodeError:  # half of a surrogate pair, as in a path that is no text
        return _ENCODER.encode([type(message).__name__, message]).encode()


def decode_order(data: bytes) -> ToWorker:
    """Read what the engine sent to a worker, in whose payload a temperature may be infinite.

    Raises:
        WorkerError: The bytes are no message that an engine sends.
    """
    return _decoded(data, _ORDERS, infinite=True)


def decode_report(data: bytes) -> Report:
    """Read what a worker sent to the engine.

    Raises:
        WorkerError: The bytes are no message that a worker sends.
    """
    return _decoded(data, _REPORTS)


def is_number_name(name: object) -> bool:
    """Whether a number of a step may have this name."""
    return isinstance(name, str) and bool(_NUMBER_NAME.match(name))


def _decoded(data: bytes, kinds: Mapping[str, type[_T]], *, infinite: bool = False) -> _T:
    try:
        match parse_json(data, infinite=infinite):
            case [str(name), dict(fields)] if name in kinds:
                return converted(fields, kinds[name])
        raise ForeignDataError(f"a message here is the name of one of {', '.join(kinds)}, and its fields")
    except ForeignDataError as error:
        said = f"it sent what is no message ({_plain_line(str(error))})"
        raise errors.WorkerError(f"{said}: {data[:_SHOWN_BYTES]!r}") from error


def _plain_data(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else asdict(value)


_FAST = Encoder()
# `json.dumps` would make one for every call.
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain_data)
