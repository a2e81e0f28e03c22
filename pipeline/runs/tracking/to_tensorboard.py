"""TensorBoard: a folder of events for every chain, written anew from the first batch on whenever it is begun.

Who writes on after a kill cannot know how much of the last file counts. So a new file takes the place of all
others of the chain once it holds as much. It begins with the word that a run was started again at step 0, which
has a TensorBoard that is open forget what it had read.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.runs.tracking.batches import Batch, TrackedChain
from pipeline.runs.tracking.trackers import TrackerPlace


@contextmanager
def _missing(module: str) -> Iterator[None]:
    known = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment] # so that its import fails
    try:
        yield
    finally:
        del sys.modules[module]
        if known is not None:
            sys.modules[module] = known


with _missing("torch"):
    # It imports torch where there is one, which takes seconds and hundreds of megabytes, for tensors alone.
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter
    from tensorboardX.summary import text as text_summary

_PENDING = ".pending"
_ODD = re.compile(r"[^\w.@=+-]")


class TensorBoard:
    """Writes files that TensorBoard reads."""

    def __init__(self, place: TrackerPlace) -> None:
        self._folder = place.folder

    def begin(self, chain: TrackedChain, name: str) -> _Events:
        """See `Tracker.begin`."""
        # No part is empty or a folder above; what is no letter would be one to some system.
        parts = [_ODD.sub("_", part).lstrip(".") or "_" for part in name.split("/")]
        return _Events(self._folder.joinpath(*parts), chain)

    def close(self) -> None:
        """Nothing was started."""


class _Events:
    """The events of one chain."""

    def __init__(self, folder: Path, chain: TrackedChain) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_PENDING}*"):
            left.unlink()
        self._earlier = list(folder.glob("*tfevents*"))
        self._path = folder / f"{_PENDING}.{os.getpid()}"
        self._writer: Any = RecordWriter(str(self._path))
        now = time.time()
        self._write(Event(wall_time=now, file_version="brain.Event:2"))
        self._write(Event(wall_time=now, step=0, session_log=SessionLog(status=SessionLog.START)))
        self._told = chain.settings

    def add(self, batch: Batch, _first_row: int, /) -> None:
        """See `TrackerRun.add`."""
        if self._told:
            told, self._told = json.dumps(self._told, indent=1), {}
            self._text("settings", _literal(told), 0, batch.time)
        for row in batch.rows:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            self._write(Event(wall_time=batch.time, step=row.at, summary=Summary(value=values)))
        if batch.samples:
            self._text("samples", "\n\n".join(map(_in_words, batch.samples)), batch.round, batch.time)

    def keep(self) -> bool:
        """See `TrackerRun.keep`."""
        self._writer.flush()  # and forces it to disk
        if self._path.name.startswith(_PENDING):
            # Later than all others by its name, which is the order in which they are read.
            stamp = max([int(time.time()), *(_stamp(path) + 1 for path in self._earlier)])
            self._path = self._path.rename(
                self._folder / f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}.0"
            )
            for path in self._earlier:
                path.unlink(missing_ok=True)
        return True

    def close(self) -> None:
        """See `TrackerRun.close`."""
        self.keep()
        self._writer.close()

    def _text(self, name: str, markdown: str, step: int, when: float) -> None:
        self._write(Event(wall_time=when, step=step, summary=text_summary(name, markdown)))

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())


def _stamp(path: Path) -> int:
    found = re.search(r"tfevents\.(\d{1,12})\.", path.name)
    return int(found[1]) if found else 0


def _in_words(sample: Mapping[str, str | float | None]) -> str:
    """A sample as Markdown in which its texts are taken letter by letter."""
    told = ", ".join(f"{name} {sample[name]:g}" for name in ("reward", "correct") if sample.get(name) is not None)
    parts = [f"**{told or 'sample'}**", _literal(str(sample["prompt"])), "*answered*"]
    return "\n\n".join([*parts, _literal(str(sample["completion"]))])


def _literal(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))
