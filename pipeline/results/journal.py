"""Every state change of a run, one JSON object a line, on disk before the engine acts on it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Appends events to ``journal.jsonl``. One writer."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with its wall-clock time, and have it on disk when this returns."""
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields}, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; nothing is buffered."""
        self._file.close()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a journal. A last line that was cut off by a crash is left out."""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield json.loads(line)
