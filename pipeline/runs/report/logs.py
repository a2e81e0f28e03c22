"""Prints logs: of the engine, or of one attempt at a job; and follows them while they grow.

A log is whatever a job wrote: bytes that are no UTF-8 are replaced, and what it is printed to sees to the rest.
"""

import codecs
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from pipeline.errors import StoreError
from pipeline.files import open_plain
from pipeline.runs.loaded import LoadedRun, logs_of
from pipeline.terminal.streams import LogOutput

POLL_S = 0.25
_QUIET_S = 1.0
_CHUNK = 1 << 16

Out = LogOutput | TextIO
Sleep = Callable[[float], None]
Look = Callable[[], tuple[str, Mapping[int, Path]]]
Note = Callable[[str], None]
"""Shows the user a message that is no part of the log."""


class Tail:
    """Follows a growing file; the file need not exist yet."""

    def __init__(self, path: Path, lines: int | None = None) -> None:
        """Begin `lines` lines before the end; at the start if None."""
        self._path, self._lines = path, lines
        self._offset: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def print_new(self, out: Out) -> bool:
        """Print new text; return whether there was any.

        Raises:
            StoreError: The path is no plain file, or cannot be read.
        """
        try:
            file = open_plain(self._path, follow=True)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        with file:
            if self._offset is None and self._lines is not None:
                last = deque(file, self._lines)
                self._offset = file.tell() - sum(map(len, last))
            begun = file.seek(self._offset or 0)
            while chunk := file.read(_CHUNK):
                out.write(self._decoder.decode(chunk))
            self._offset = file.tell()
        if self._offset > begun:
            out.flush()
        return self._offset > begun

    def end(self, out: Out) -> None:
        """Print the rest of a character whose other bytes never came."""
        out.write(self._decoder.decode(b"", final=True))
        out.flush()


def print_log(path: Path, out: Out, lines: int | None = None) -> None:
    """Print a file, or its last lines."""
    tail = Tail(path, lines)
    tail.print_new(out)
    tail.end(out)


def follow_run(run: LoadedRun, out: Out, note: Note, lines: int | None, sleep: Sleep) -> None:
    """Print the engine's log until the run is over."""

    def look() -> tuple[str, Mapping[int, Path]]:
        run.refresh()
        over = run.engine_runs() is False
        if over:  # the engine ends its journal first and then has a few more words to say
            sleep(_QUIET_S)
        return f"the run is over: {run.state}" if over else "", {1: run.folder.log}

    follow_attempts(run.name, look, out, note, lines=lines, sleep=sleep)


def follow_job(
    run: LoadedRun, job_id: str, out: Out, note: Note, *, attempt: int | None, lines: int | None, sleep: Sleep
) -> None:
    """Print the log of a job until the job or the run is over, going on with the next attempt when one begins.

    Args:
        run: The run.
        job_id: The job.
        out: Gets the log.
        note: Told of what is no part of the log: that the job has not begun, that another attempt has.
        attempt: Follow this one only.
        lines: Number of present last lines that come first; None for all.
        sleep: Waits for a number of seconds.
    """

    def look() -> tuple[str, Mapping[int, Path]]:
        run.refresh()
        return _over(run, job_id, attempt), logs_of(run.folder, job_id)

    follow_attempts(job_id, look, out, note, attempt=attempt, lines=lines, sleep=sleep)


def follow_attempts(
    what: str, look: Look, out: Out, note: Note, *, attempt: int | None = None, lines: int | None, sleep: Sleep
) -> None:
    """Print the log of what may be tried several times until it is over; see `follow_job`.

    Args:
        what: Name of what is tried.
        look: Why there is nothing more to come, or "", and after that number of attempt -> its log.
        out: Gets the log.
        note: Told of what is no part of it.
        attempt: Follow this one only.
        lines: Number of present last lines that come first; None for all.
        sleep: Waits for a number of seconds.
    """
    tail: Tail | None = None
    shown = 0
    waiting = False
    while True:
        over, logs = look()  # before reading, so that what came last is still read
        for number in _to_show(logs, attempt, shown):
            if tail is not None:
                tail.print_new(out)
                tail.end(out)
                note(f"attempt {number} of {what}")
            tail, shown, lines = Tail(logs[number], lines), number, None
        if tail is not None:
            tail.print_new(out)
        elif not over and not waiting:
            waiting = True
            note(f"{what} has not begun yet; waiting for it")
        if over:
            if tail is not None:
                tail.end(out)
            note(over)
            return
        sleep(POLL_S)


def _to_show(logs: Mapping[int, Path], attempt: int | None, shown: int) -> list[int]:
    """Attempts whose logs come next: the last one at first, then each that begins."""
    if attempt is not None:
        return [attempt] if attempt in logs and not shown else []
    return [number for number in logs if number > shown] if shown else list(logs)[-1:]


def _over(run: LoadedRun, job_id: str, attempt: int | None) -> str:
    """Say why nothing more will come, or ""."""
    job = run.view.jobs.get(job_id)
    if job is not None and job.settled:
        reason = f": {job.reason}" if job.status == "failed" else ""
        reason = f" by {job.root_cause}" if job.status == "blocked" else reason
        return f"{job_id}: {job.status}{reason}"
    if attempt is not None and job is not None:
        ended = [view for view in job.attempts if view.number == attempt and view.ended is not None]
        if ended:
            return f"attempt {attempt} of {job_id}: {ended[0].outcome} {ended[0].reason}".rstrip()
    if run.engine_runs() is False:
        return f"the run is over: {run.state}"
    return ""
