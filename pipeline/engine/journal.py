"""Write and read the journal: every state change of a run, as one JSON object per line.

    append --> lines in memory --flush--> the file, which other processes read --force--> the disk

After a kill, everything that was flushed is there; after a loss of power, everything that was forced. In both
cases readers get whole lines from the first one on.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypedDict

from msgspec import Meta
from msgspec.json import Encoder

from pipeline.errors import StoreError, explaining
from pipeline.files import LocksUnsupportedError, json_text, lock, open_plain
from pipeline.foreign import ForeignDataError, converted, parse_json

# -- events ------------------------------------------------------------------------------------------------------
# The events of a run, the types of their fields, and how a line of a journal is parsed. The engine passes each
# event to the listener once it is written to the journal. A few events are too frequent, or do not change the
# state of a job; these are passed on but not written: ``WorkerStarting``, ``JobProgress`` and ``Heartbeat``. A
# journal may be from another version: unknown fields and events are skipped, and a missing field has its empty
# value. A field of the wrong type makes its line unreadable, but no other line.


Event = Mapping[str, Any]

LINE = 16 << 20
"""Largest size of a line in bytes; the longest lines hold a traceback, which is much shorter."""

_Time = Annotated[float, Meta(ge=0, le=2.5e11)]
"""Seconds since 1970, up to the year 9892."""
_Seconds = Annotated[float, Meta(ge=0, le=1e12)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Attempt = Annotated[int, Meta(ge=0, le=2**31)]
_Index = Annotated[int, Meta(ge=-1, le=2**31)]
_Pid = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Id = Annotated[str, Meta(min_length=1, max_length=4096)]


FOLLOWS_FROM_STORE = frozenset(
    {
        *("JobStarted", "JobFinished", "JobFoundStored", "JobWaits", "JobStopped"),
        *("WorkerStarted", "WorkerExited", "WorkerWaits"),
    }
)
"""Events that may be lost with the power: the store shows what is done, and no worker is alive. All other events
are recorded in the journal alone: what failed and why, which devices are suspect, how the run ended."""


_FIELDS: dict[str, Any] = {
    "event device node host kind reason traceback root_cause request text by": str,
    "interrupted halted log": str | None,
    "job": _Id,
    "time": _Time | None,
    "worker": _Index,
    "pid": _Pid,
    "members": list[_Index],
    "attempt": _Attempt | None,
    "jobs unsettled pending ready running done stored failed blocked": _Count,
    "rss_bytes total tokens samples attempts": _Count,
    "exit_code": int | None,
    "numbers": dict[str, float | None],
    "loading retry": bool,
    "load_s run_s wait_s": _Seconds,
    "failed_jobs": list[str],
}
"""Fields of events, and their types. The writer of an event decides which of them it has."""
if TYPE_CHECKING:
    EventFields = dict[str, Any]
else:  # this type is checked where a line is read
    EventFields = TypedDict(
        "EventFields", {name: kind for names, kind in _FIELDS.items() for name in names.split()}, total=False
    )


def read_event(line: bytes) -> dict[str, Any]:
    """Read one line of a journal.

    Raises:
        ForeignDataError: The line is no event.
    """
    if len(line) > LINE:
        raise ForeignDataError(f"longer than {LINE:,} bytes")
    event = converted(parse_json(line), dict[str, Any])
    if not isinstance(event.get("event"), str):
        raise ForeignDataError("it does not say which event it is")
    converted(event, EventFields)
    return event


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines of a file, overlong ones truncated, and stop after the last of them."""
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
# Callbacks that follow a run while it goes on.


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Callbacks of a run. They run in its only thread, so each should return soon.

    Attributes:
        on_event: Called with every event, see `_KINDS`.
        on_tick: Called a few times a second, to update a display.
        on_stop: Called with one line that says what happens now, when a signal asks the run to stop.
    """

    on_event: Callable[[Event], object] = lambda _: None
    on_tick: Callable[[], object] = lambda: None
    on_stop: Callable[[str], object] = lambda _: None


_ENCODER = Encoder()


class Journal:
    """Appends events to ``journal.jsonl``. There is one writer, which holds an exclusive lock on the file.

    Attributes:
        unforced: Whether something was written that may not be on disk yet.
    """

    def __init__(self, path: Path) -> None:
        """Open a journal, or continue an existing one.

        Raises:
            StoreError: The file cannot be written, or another process is writing it.
        """
        self._path = path
        with explaining(StoreError, f"cannot write {path}"):
            self._file = open(path, "ab", buffering=0, opener=_plainly)  # noqa: SIM115 - open as long as the run
        with suppress(LocksUnsupportedError):
            if not lock(self._file.fileno(), wait=False):
                self._file.close()
                raise StoreError(f"another process is writing {path}; a run has a folder of its own")
        try:
            whole = _whole_bytes(path)
        except OSError as error:
            self._file.close()
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        self._lines: list[bytes] = []
        self._cut(whole)
        self.unforced = False

    def write(self, event: str, **fields: Any) -> Event:
        """Append one event, force it to disk, and return it as written.

        Raises:
            StoreError: The event could not be written. Earlier events are intact, and no part of this one is in
                the file.
        """
        written = self.append(event, **fields)
        self.force()
        return written

    def append(self, event: str, **fields: Any) -> Event:
        """Add one event with its wall-clock time for the next `flush`, and return it as it will be written."""
        written: Event = {"event": event, "time": round(time.time(), 3), **fields}
        self._lines.append(_line(written) + b"\n")
        return written

    def flush(self) -> None:
        """Write the appended events in one system call.

        Raises:
            StoreError: The events could not be written. Earlier events are intact, and no part of these is in the
                file.
        """
        data, self._lines = b"".join(self._lines), []
        if data:
            self._do(data, force=False)

    def force(self) -> None:
        """Write the appended events and force everything written to disk.

        Raises:
            StoreError: As `flush`.
        """
        data, self._lines = b"".join(self._lines), []
        if data or self.unforced:
            self._do(data, force=True)

    def _do(self, data: bytes, *, force: bool) -> None:
        try:
            if data and self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, "only a part was written")
            if force:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._cut(self._length)
            raise StoreError(f"cannot write {self._path}: {error.strerror}") from error
        self._length += len(data)
        self.unforced = not force

    def _cut(self, length: int) -> None:
        """Truncate the file to whole lines."""
        self._length = length
        with suppress(OSError):
            os.ftruncate(self._file.fileno(), length)

    def close(self) -> None:
        """Close the file. Events that were appended but never flushed are not in it."""
        self._file.close()


def _line(event: Event) -> bytes:
    try:
        return _ENCODER.encode(event)
    except (UnicodeEncodeError, OverflowError):  # half of a surrogate pair; a number that is not finite
        return json_text(event, separators=(",", ":")).encode()


def _plainly(path: str, flags: int) -> int:
    """Open a journal, refusing rather than waiting for anything that is not a regular file."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file", path)
    return descriptor


def _whole_bytes(path: Path) -> int:
    """Return the number of bytes up to the end of the last whole line."""
    with open_plain(path) as file:
        for _ in whole_lines(file):
            pass
        return file.tell()


class JournalReader:
    """Reads the events of a journal as they are written. An incomplete last line is left for the next call.

    Attributes:
        unreadable: Number of lines so far that are no events.
    """

    def __init__(self, path: Path, read: Callable[[bytes], dict[str, Any]] = read_event) -> None:
        """Start at the first line.

        Args:
            path: The journal, which need not exist yet.
            read: Parses a line to an event, or raises a `ForeignDataError`.
        """
        self.unreadable = 0
        self._path, self._read = path, read
        self._offset = 0

    def new_events(self) -> Iterator[dict[str, Any]]:
        """Yield the events since the last call.

        Raises:
            StoreError: The journal cannot be read.
        """
        told = explaining(StoreError, f"cannot read {self._path}")
        with told, suppress(FileNotFoundError), open_plain(self._path, follow=True) as file:
            file.seek(self._offset)
            for line in whole_lines(file):
                self._offset = file.tell()
                try:
                    yield self._read(line)
                except ForeignDataError:
                    self.unreadable += 1
