"""Standard streams that last: a broken one takes what it is given, and drops it.

A terminal is closed, the reader of a pipe has seen enough, a disk is full. Whoever prints need not know, and the
interpreter, which flushes in the end, finds nothing to complain of. This is in the lowest layer, below encoding
and buffers, so it holds for every way to print: rich, typer, Hydra, tracebacks, ``print``.

A terminal that is stopped (Ctrl-S) and a pipe whose reader sleeps hold whoever writes. That is right for a report,
which has to come whole, and wrong while jobs run: inside of `never_waiting` what is not taken is kept for later.
"""

import errno
import io
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

# -- text --------------------------------------------------------------------------------------------------------
# Foreign text made fit to be shown: without what a terminal obeys, in an encoding that may lack characters.


_OBEYED = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed; ESC and CSI begin whole commands
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what turns the direction of text, or ends its line
    r"\ud800-\udfff"  # halves of characters, which stand for bytes that are no text
)
_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
_OBEYED_BY_A_TERMINAL = re.compile(f"[{_OBEYED}]")
_COLOUR_OR_OBEYED = re.compile(f"({_COLOUR})|[{_OBEYED}]")


def printable(text: str) -> str:
    r"""Foreign text as it may be printed: an ESC becomes ``\x1b``; line feeds and tabs stay."""
    return _OBEYED_BY_A_TERMINAL.sub(_escaped, text)


def on_one_line(text: str) -> str:
    r"""As `printable`, but a line feed becomes ``\n`` and a tab ``\t``, and so they have a width."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable_but_colours(text: str) -> str:
    """Escape text as `printable`, but keep colours."""
    return _COLOUR_OR_OBEYED.sub(lambda match: match[1] or _escaped(match), text)


def without_colours(text: str) -> str:
    """Escape text as `printable`, and remove colours."""
    return _COLOUR_OR_OBEYED.sub(lambda match: "" if match[1] else _escaped(match), text)


def obeyed(text: str) -> bool:
    """Return whether a text contains control sequences for a terminal."""
    return _OBEYED_BY_A_TERMINAL.search(text) is not None


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


_STDIN, _STDOUT, _STDERR = range(3)
_GONE = {errno.EPIPE, errno.EIO, errno.ECONNRESET, errno.ENXIO}
"""Errors of a pipe, a terminal or a connection with nobody at its other end."""


_ROOM = 1 << 20
"""Bytes that are kept for a reader who takes none; what comes after them is left out."""
_LEFT_OUT = b"\n[what came here was left out: nothing was taken for too long]\n"
_not_waiting = 0


@contextmanager
def never_waiting() -> Iterator[None]:
    """Let no stream block this process: text not taken at once goes out with a later write, or in the end."""
    global _not_waiting
    _not_waiting += 1
    try:
        yield
    finally:
        _not_waiting -= 1


class LastingFile(io.FileIO):
    """A descriptor to write to, whoever is still there.

    Attributes:
        failure: Why nothing is written any more, or None.
    """

    def __init__(self, descriptor: int, on_failure: Callable[[OSError], None] | None = None) -> None:
        """Write to a descriptor, which stays open when this is closed.

        Args:
            descriptor: The descriptor.
            on_failure: Told when it cannot be written any more, once.
        """
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None
        self._on_failure = on_failure
        self._kept = b""
        self._left_out = False

    def write(self, data: Any) -> int:
        """Write, keep or drop all of the data."""
        # Taken out first: what Ctrl-C interrupts is lost rather than written twice.
        kept, self._kept = self._kept, b""
        self._send(kept)
        if self._left_out and not self._kept:
            self._left_out = False
            self._send(_LEFT_OUT)
        if len(self._kept) >= _ROOM:
            self._left_out = True
        elif self._kept:
            self._kept += bytes(data)
        else:
            self._send(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Write what was kept."""
        if self._kept:
            self.write(b"")

    def _send(self, data: bytes) -> None:
        unwritten = memoryview(data)
        try:
            while unwritten and self.failure is None:
                if (written := self._write(unwritten)) is None:
                    self._kept = bytes(unwritten)
                    return
                unwritten = unwritten[written:]
        except OSError as error:
            self.failure = error
            if self._on_failure is not None:
                self._on_failure(error)

    def _write(self, data: memoryview) -> int | None:
        """Return how many bytes were written; None if none were and the stream must not block."""
        if _not_waiting and (own := _own_descriptor(self.fileno())) is not None:
            try:
                return os.write(own, data)
            except BlockingIOError:
                return None
            finally:
                os.close(own)
        # Whoever shares the descriptor with this process may have made it one that does not wait.
        while (written := super().write(data)) is None:
            if _not_waiting:
                return None
            select.select([], [self.fileno()], [])
        return written

    def gone(self) -> bool:
        """Return whether nobody reads any more, if that can be seen without a failing write."""
        if self.failure is not None:
            return self.failure.errno in _GONE
        poll = select.poll()
        poll.register(self.fileno(), 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _own_descriptor(descriptor: int) -> int | None:
    """Open the same terminal or pipe again, without blocking; None for a file that never blocks.

    The descriptor itself must stay as it is: it is shared with the shell and with other programs.
    """
    if not (stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor)):
        return None
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except PermissionError:  # a terminal of another user, as after `su`
        return None


class LastingStream(io.TextIOWrapper):
    """Text to a descriptor; control characters of what is written are escaped, colours stay.

    Attributes:
        raw_file: File that the text goes to.
        unfiltered: The same stream for text that is fit to go out, or is to go out as it is.
    """

    def __init__(self, file: LastingFile, encoding: str) -> None:
        # Nothing stays in this layer, so that the two of them keep the order of what is written. Nor is there a
        # buffer below: one whose writing is interrupted by Ctrl-C does not know what is out, and writes it again.
        how = {"encoding": encoding, "errors": "backslashreplace", "line_buffering": True, "write_through": True}
        super().__init__(file, **how)  # type: ignore[arg-type]
        self.unfiltered = io.TextIOWrapper(file, **how)  # type: ignore[arg-type]
        self.raw_file = file

    def write(self, text: str) -> int:
        """Write, with what a terminal would obey escaped."""
        super().write(printable_but_colours(text))
        return len(text)


def install() -> None:
    """Make the standard streams of this process lasting ones; to be called before it opens anything.

    Streams that somebody has put in their place, such as a notebook or a test runner, stay.
    """
    _open_missing_descriptors()
    if sys.stdin is None:
        sys.stdin = open(_STDIN, closefd=False)  # noqa: SIM115 - for the life of the process
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout, _STDOUT, "standard output")
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr, _STDERR, "standard error")


@contextmanager
def installed() -> Iterator[None]:
    """Have lasting streams for a while, in a program that has its own before and after."""
    before = sys.stdin, sys.stdout, sys.stderr
    for stream in before[1:]:
        if stream is not None:
            stream.flush()  # what was printed before comes first
    install()
    try:
        yield
    finally:
        for now, own in zip((sys.stdout, sys.stderr), before[1:], strict=True):
            if now is not own:
                now.flush()
        sys.stdin, sys.stdout, sys.stderr = before


def _open_missing_descriptors() -> None:
    """Fill descriptors 0, 1 and 2, lest later files and sockets get these numbers, and printed text."""
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free, which is this one, since those below are taken by now.
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)


def _lasting(stream: TextIO | None, descriptor: int, name: str) -> TextIO:
    encoding = getattr(stream, "encoding", None) or "utf-8"

    def tell(error: OSError) -> None:
        import logging

        # Below the level that is printed where no log is open.
        logging.getLogger("pipeline").info("%s is written no more: %s", name, error.strerror)

    return LastingStream(LastingFile(descriptor, tell), encoding)


def failure(stream: object) -> OSError | None:
    """Return why printed output is incomplete although somebody may read it, as on a full disk; else None."""
    file = getattr(stream, "raw_file", None)
    lost = file.failure if isinstance(file, LastingFile) else None
    return lost if lost is not None and lost.errno not in _GONE else None


def is_gone(stream: object) -> bool:
    """Return whether nobody reads a stream any more."""
    file = getattr(stream, "raw_file", None)
    return isinstance(file, LastingFile) and file.gone()


# -- log ---------------------------------------------------------------------------------------------------------
# Logs on their way out: as they are where another program reads them, harmless where a terminal does.


_UNFINISHED = re.compile(r"(\r|\x1b(\[[0-9;:]{0,64})?)\Z")
"""End of a piece that may go on in the next one: a line ending, or a colour sequence."""


class NobodyReads(Exception):  # noqa: N818 - it tells of no error
    """Whoever the output was for has seen enough, as in ``logs NAME -f | head``."""


class LogOutput:
    """Standard output for a log, piece by piece.

    On a terminal colours are left out and other control characters escaped; and since progress bars return to the
    start of their line again and again, a carriage return begins a new line. Elsewhere a log goes out raw.
    """

    def __init__(self, *, raw: bool) -> None:
        """Prepare; raw is the log as it is, whatever is in it."""
        self._stream = sys.stdout
        self._out: TextIO = getattr(self._stream, "unfiltered", self._stream)
        self._raw, self._unfinished = raw, ""

    def write(self, text: str) -> None:
        """Print some text.

        Raises:
            NobodyReads: It would be in vain.
        """
        if is_gone(self._stream):
            raise NobodyReads
        self._out.write(text if self._raw else self._harmless(text))

    def flush(self) -> None:
        """Show it."""
        self._out.flush()

    def close(self) -> None:
        """Print what is still held back; no more follows."""
        self._out.write(printable(self._unfinished.replace("\r", "\n")))
        self._out.flush()

    def pause(self, seconds: float) -> None:
        """Wait, until there may be more to print.

        Raises:
            NobodyReads: It would be in vain.
        """
        poll = select.poll()
        if isinstance(self._stream, LastingStream):
            poll.register(self._stream.fileno(), 0)
        poll.poll(seconds * 1000)
        if is_gone(self._stream):
            raise NobodyReads

    def _harmless(self, text: str) -> str:
        text = self._unfinished + text
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        text, self._unfinished = text[:cut], text[cut:]
        return without_colours(text.replace("\r\n", "\n").replace("\r", "\n"))
