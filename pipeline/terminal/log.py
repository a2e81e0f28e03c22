"""Logs on their way out: as they are where another program reads them, harmless where a terminal does."""

from __future__ import annotations

import re
import select
import sys
from typing import Protocol

from pipeline.terminal.streams import LastingStream, is_gone
from pipeline.terminal.text import printable, printable_but_colours, without_colours

_UNFINISHED = re.compile(r"(\r|\x1b(\[[0-9;:]{0,64})?)\Z")
"""What may go on in the next piece: the end of a line, or what sets a colour."""
_RESET = "\x1b[0m"


class NobodyReads(Exception):  # noqa: N818 - it tells of no error
    """Whoever the output was for has seen enough, as in ``logs NAME -f | head``."""


class Out(Protocol):
    """What a log is printed to."""

    def write(self, text: str, /) -> object:
        """Take some text, of which more may follow."""

    def flush(self) -> None:
        """Show what was taken."""


class LogOutput:
    """Standard output for a log, piece by piece.

    On a terminal control characters are escaped, except what only sets colours; and since progress bars return to
    the start of their line again and again, a carriage return begins a new line. Elsewhere a log goes out raw.
    """

    def __init__(self, *, raw: bool, colours: bool) -> None:
        """Prepare.

        Args:
            raw: The log as it is, whatever is in it.
            colours: Keep what sets colours; it is left out otherwise.
        """
        self._stream = sys.stdout
        self._out: Out = getattr(self._stream, "unfiltered", self._stream)
        self._raw, self._shown = raw, printable_but_colours if colours else without_colours
        self._colours = colours and not raw
        self._held = ""

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
        """No more follows."""
        self._out.write(printable(self._held.replace("\r", "\n")) + (_RESET if self._colours else ""))
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
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        text, self._held = text[:cut], text[cut:]
        return self._shown(text.replace("\r\n", "\n").replace("\r", "\n"))
