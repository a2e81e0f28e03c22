"""The end of a log, for a message about the process that wrote it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pipeline.terminal.streams import without_colours

_BYTES = 4000
_LINES = 15


def tail(log: Path) -> str:
    """Its last lines, each after a line feed and indented, without what a terminal obeys; "" where there is none.

    Args:
        log: A file of any size, in which a process may have written anything.
    """
    lines: list[str] = []
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _BYTES))
        lines = file.read(_BYTES).decode(errors="replace").strip().splitlines()[-_LINES:]
    return "".join(f"\n    {without_colours(line)}" for line in lines)
