"""The events of a run: which fields each has, and of what type; how a line of a journal becomes one.

The engine tells each event to whoever watches, once it is written to the journal. A few that pass too fast, or
that say nothing of where a job stands, it tells and does not write: ``WorkerStarting``, ``JobProgress`` and
``Heartbeat``.

A journal may be of another version: fields and events that are not known are passed over, and a field that is
missing has its empty value. A field of a wrong type makes its line unreadable, which costs that line alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, TypedDict

from msgspec import Meta

from pipeline.foreign import ForeignDataError, converted, parse_json

Event = Mapping[str, Any]

LINE = 16 << 20
"""Bytes of a line; the longest has a traceback in it, which is much shorter."""

_Time = Annotated[float, Meta(ge=0, le=2.5e11)]
"""Seconds since 1970, up to the year 9892."""
_Seconds = Annotated[float, Meta(ge=0, le=1e12)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Attempt = Annotated[int, Meta(ge=0, le=2**31)]
_Index = Annotated[int, Meta(ge=-1, le=2**31)]
_Pid = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Id = Annotated[str, Meta(min_length=1, max_length=4096)]


SHARED_STORE = "SharedStore"
"""What has come from and gone to the shared store so far, see `answers.Traffic`; also after the end of the run."""
FOLLOWS_FROM_STORE = frozenset(
    {
        *("JobStarted", "JobFinished", "JobFoundStored", "JobWaits", "JobStopped"),
        *("WorkerStarted", "WorkerExited", SHARED_STORE),
    }
)
"""Events that nobody misses of a machine that has lost power: what is done is in the store, and no worker lives.

Of all others nothing but the journal tells: what failed and why, which devices are suspect, how the run ended.
"""


class _Any(TypedDict, total=False):
    """What every event may have."""

    event: str
    time: _Time | None
    job: _Id
    worker: _Index
    attempt: _Attempt | None


class _RunStarted(_Any, total=False):
    jobs: _Count
    unsettled: _Count
    pid: _Pid | None
    host: str


class _RunFinished(_Any, total=False):
    interrupted: str | None
    halted: str | None
    stored: _Count | None
    done: _Count | None
    failed: _Count | None
    blocked: _Count | None
    pending: _Count | None
    ready: _Count | None
    running: _Count | None


class _WorkerStarted(_Any, total=False):
    pid: _Pid | None
    device: str
    node: str


class _DeviceQuarantined(_Any, total=False):
    device: str
    reason: str
    jobs: list[str] | None


class _JobStarted(_Any, total=False):
    members: list[_Index] | None


class JobProgress(_Any, total=False):
    """How far a job is, as `RunView` takes it."""

    done: _Count
    total: _Count
    tokens: _Count
    numbers: dict[str, float | None]
    loading: bool


class _Heartbeat(_Any, total=False):
    rss_bytes: _Count


class _JobFinished(_Any, total=False):
    load_s: _Seconds | None
    run_s: _Seconds | None
    samples: _Count | None
    tokens: _Count | None


class _AttemptFailed(_Any, total=False):
    device: str | None
    kind: str
    reason: str
    exit_code: int | None
    log: str | None
    traceback: str | None
    retry: bool | None
    wait_s: _Seconds | None


class _JobFailed(_Any, total=False):
    attempts: _Count
    kind: str
    reason: str


class _SharedStore(_Any, total=False):
    fetched: _Count
    fetched_bytes: _Count
    uploaded: _Count
    uploaded_bytes: _Count
    left: _Count
    over: bool


class _WithReason(_Any, total=False):
    reason: str


class _JobBlocked(_Any, total=False):
    root_cause: str


_KINDS: Mapping[str, Any] = {
    "RunStarted": _RunStarted,
    "RunFinished": _RunFinished,
    "WorkerStarted": _WorkerStarted,
    "DeviceQuarantined": _DeviceQuarantined,
    "JobStarted": _JobStarted,
    "JobProgress": JobProgress,
    "Heartbeat": _Heartbeat,
    "JobFinished": _JobFinished,
    "AttemptFailed": _AttemptFailed,
    "JobFailed": _JobFailed,
    "JobBlocked": _JobBlocked,
    "JobReopened": _WithReason,
    "JobWaits": _WithReason,
    SHARED_STORE: _SharedStore,
}


def read_event(line: bytes) -> dict[str, Any]:
    """Read one line of a journal.

    Raises:
        ForeignDataError: It is no event.
    """
    if len(line) > LINE:
        raise ForeignDataError(f"longer than {LINE:,} bytes")
    event = converted(parse_json(line), dict[str, Any])
    name = event.get("event")
    if not isinstance(name, str):
        raise ForeignDataError("it does not say which event it is")
    converted(event, _KINDS.get(name, _Any))
    return event


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file that have their end, an overlong one cut off; the position is after the last of them."""
    while True:
        begin = file.tell()
        line = file.readline(LINE + 1)
        kept = line
        while line and not line.endswith(b"\n"):
            line = file.readline(LINE)
        if not line:
            file.seek(begin)
            return
        yield kept


# -- listener ----------------------------------------------------------------------------------------------------
# Who is told of a run while it goes on.


@dataclass(frozen=True, kw_only=True)
class Listener:
    """What a run calls, in its one thread: each should return soon.

    Attributes:
        on_event: Told every event, see `engine.events`.
        on_tick: Called a few times a second, to show what was told.
        on_stop: Told in a line what happens now when a signal asks the run to stop.
    """

    on_event: Callable[[Event], object] = lambda _: None
    on_tick: Callable[[], object] = lambda: None
    on_stop: Callable[[str], object] = lambda _: None
