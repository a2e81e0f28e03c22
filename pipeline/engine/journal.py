"""Every state change of a run, one JSON object a line.

    append --> lines in memory --flush--> the file, which other processes read --force--> the disk

A process that is killed leaves all that was flushed, a machine that loses power all that was forced, and of either
whole lines from the first on.
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

from pipeline.errors import StoreError
from pipeline.files import LocksUnsupportedError, json_text, lock, open_plain
from pipeline.foreign import ForeignDataError, converted, parse_json

# -- events ------------------------------------------------------------------------------------------------------
# The events of a run: which fields each has, and of what type; how a line of a journal becomes one. The
# engine tells each event to whoever watches, once it is written to the journal. A few that pass too fast, or
# that say nothing of where a job stands, it tells and does not write: ``WorkerStarting``, ``JobProgress`` and
# ``Heartbeat``. A journal may be of another version: fields and events that are not known are passed over,
# and a field that is missing has its empty value. A field of a wrong type makes its line unreadable, which
# costs that line alone.


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


FOLLOWS_FROM_STORE = frozenset(
    {
        *("JobStarted", "JobFinished", "JobFoundStored", "JobWaits", "JobStopped"),
        *("WorkerStarted", "WorkerExited"),
    }
)
"""Events that nobody misses of a machine that has lost power: what is done is in the store, and no worker lives.

Of all others nothing but the journal tells: what failed and why, which devices are suspect, how the run ended.
"""


_FIELDS: dict[str, Any] = {
    "event device node host kind reason traceback root_cause": str,
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
"""Fields that events have, and their types; which event has what, whoever writes it says."""
if TYPE_CHECKING:
    EventFields = dict[str, Any]
else:  # a type that is checked where a line is read
    EventFields = TypedDict(
        "EventFields", {name: kind for names, kind in _FIELDS.items() for name in names.split()}, total=False
    )


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
    converted(event, EventFields)
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
        on_event: Told every event, see `_KINDS`.
        on_tick: Called a few times a second, to show what was told.
        on_stop: Told in a line what happens now when a signal asks the run to stop.
    """

    on_event: Callable[[Event], object] = lambda _: None
    on_tick: Callable[[], object] = lambda: None
    on_stop: Callable[[str], object] = lambda _: None


_ENCODER = Encoder()


class Journal:
    """Appends events to ``journal.jsonl``. One writer, which holds an exclusive lock on the file meanwhile.

    Attributes:
        unforced: Whether something was written that may not be on disk yet.
    """

    def __init__(self, path: Path) -> None:
        """Open a journal, or go on with one.

        Raises:
            StoreError: It cannot be written, or another process is writing it.
        """
        self._path = path
        try:
            self._file = open(path, "ab", buffering=0, opener=_plainly)  # noqa: SIM115 - open as long as the run
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error
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
        """Append one event, have it on disk, and return it as it was written.

        Raises:
            StoreError: It could not be written. What was written before stands, and no part of this event.
        """
        written = self.append(event, **fields)
        self.force()
        return written

    def append(self, event: str, **fields: Any) -> Event:
        """Add one event with its wall-clock time, to be written by the next `flush`; returns it as it will be."""
        written: Event = {"event": event, "time": round(time.time(), 3), **fields}
        self._lines.append(_line(written) + b"\n")
        return written

    def flush(self) -> None:
        """Write what was appended, in one go.

        Raises:
            StoreError: It could not be written. What was written before stands, and none of this.
        """
        data, self._lines = b"".join(self._lines), []
        if data:
            self._do(data, force=False)

    def force(self) -> None:
        """Write what was appended, and have all that was written on disk.

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
        """Leave whole lines only."""
        self._length = length
        with suppress(OSError):
            os.ftruncate(self._file.fileno(), length)

    def close(self) -> None:
        """Close the file. What was appended and never flushed is not in it."""
        self._file.close()


def _line(event: Event) -> bytes:
    try:
        return _ENCODER.encode(event)
    except (UnicodeEncodeError, OverflowError):  # half of a character; a number that has no end
        return json_text(event, separators=(",", ":")).encode()


def _plainly(path: str, flags: int) -> int:
    """Refuse, rather than wait for, what is in the place of a journal and is no file."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file", path)
    return descriptor


def _whole_bytes(path: Path) -> int:
    """Bytes up to the end of the last whole line."""
    with open_plain(path) as file:
        for _ in whole_lines(file):
            pass
        return file.tell()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a journal. What is no event is left out, as is a last line that a crash cut off.

    Raises:
        OSError: It is missing, or no plain file.
    """
    with open_plain(path, follow=True) as file:
        for line in whole_lines(file):
            with suppress(ForeignDataError):
                yield read_event(line)


class JournalReader:
    """Reads the events of a journal as they come. A line without its end is left for the next time.

    Attributes:
        unreadable: Lines so far that are no events.
    """

    def __init__(self, path: Path, read: Callable[[bytes], dict[str, Any]] = read_event) -> None:
        """Begin at its first line.

        Args:
            path: The journal, which need not be there yet.
            read: Makes an event of a line, or raises a `ForeignDataError`.
        """
        self.unreadable = 0
        self._path, self._read = path, read
        self._offset = 0

    def new_events(self) -> Iterator[dict[str, Any]]:
        """What came since the last time.

        Raises:
            StoreError: The journal cannot be read.
        """
        try:
            with open_plain(self._path, follow=True) as file:
                file.seek(self._offset)
                for line in whole_lines(file):
                    self._offset = file.tell()
                    try:
                        yield self._read(line)
                    except ForeignDataError:
                        self.unreadable += 1
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror or error}") from error
