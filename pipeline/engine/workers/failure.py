"""What kind of failure an exception is: decided where it happened, while it is still an object. Free of torch."""

from __future__ import annotations

import errno
import re
import resource
from collections.abc import Iterator
from enum import Enum

from pipeline.errors import OUT_OF_MEMORY_TEXTS, DamagedOutput, GangError, RanksDisagree, StoreError


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

_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_FILE_LIMIT = resource.getrlimit(resource.RLIMIT_FSIZE)
"""As the user has set it: this module is loaded before any code of a job."""
_TEXT_READ = 10_000
"""Characters of an exception's text, which may have millions."""
# Libraries in Rust and C++ raise errors of their own types, which say in words what the system had said.
_STORAGE_TEXTS = re.compile(
    "|".join(
        [
            *(rf"\(os error {code}\)" for code in sorted(_STORAGE)),
            "No space left on device",
            "Disk quota exceeded",
        ]
    )
)
# The disk, or the largest size that a file may have.
_UNCLEAR_TEXTS = re.compile(
    "|".join(
        [
            rf"\(os error {errno.EFBIG}\)",
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
        return error.errno in _STORAGE or (error.errno == errno.EFBIG and _has_the_users_limit())
    if isinstance(error, GangError):  # the end of a log is in its text
        return False
    text = str(error)[:_TEXT_READ]
    if _STORAGE_TEXTS.search(text):
        return True
    return _UNCLEAR_TEXTS.search(text) is not None and _has_the_users_limit()


def storage_errno(error: BaseException) -> int | None:
    """The system's error that keeps outputs from being written; None where none is told, as by some libraries."""
    for one in causes(error, context=True):
        if isinstance(one, OSError) and one.errno is not None:
            return one.errno
        text = str(one)[:_TEXT_READ]
        if found := re.search(r"\(os error (\d+)\)", text):
            return int(found[1])
        if _STORAGE_TEXTS.search(text):
            return errno.ENOSPC
    return None


def _has_the_users_limit() -> bool:
    """Whether files here may be as large as in every other worker; otherwise the job has seen to that itself."""
    return resource.getrlimit(resource.RLIMIT_FSIZE) == _FILE_LIMIT


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, DamagedOutput):
        return FailureKind.damaged_input
    if isinstance(error, GangError):
        return FailureKind(error.kind)
    if isinstance(error, RanksDisagree):
        return FailureKind.device
    # By name, so that nobody has to import these libraries to tell their errors.
    names = {class_name(base) for base in type(error).__mro__}
    text = str(error)
    if isinstance(error, MemoryError) or names & _OUT_OF_MEMORY_CLASSES or "OutOfMemory" in type(error).__name__:
        return FailureKind.out_of_memory
    if isinstance(error, RuntimeError):
        if names & _LOST_PEER_CLASSES or any(part in text for part in _LOST_PEER_TEXTS):
            return FailureKind.transient
        if any(part in text for part in OUT_OF_MEMORY_TEXTS):
            return FailureKind.out_of_memory
        if names & _DEVICE_CLASSES or any(part in text for part in _DEVICE_TEXTS):
            return FailureKind.device
    if _is_storage(error):
        return FailureKind.storage
    if isinstance(error, StoreError) and isinstance(error.__cause__, PermissionError):
        return FailureKind.storage
    if isinstance(error, (ConnectionError, TimeoutError)) or names & _TRANSIENT_CLASSES:
        return FailureKind.transient
    if isinstance(error, OSError) and error.errno in _TRANSIENT:
        return FailureKind.transient
    status = getattr(getattr(error, "response", None), "status_code", None)
    return FailureKind.transient if status in _TRANSIENT_STATUS else FailureKind.bug
