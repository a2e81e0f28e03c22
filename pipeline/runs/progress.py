"""How far a run is while it goes on: one reckoning, by the engine's process, for everybody who looks.

    engine --> LiveRun --> Progress --+--> live view
                                      '--> progress.json --> status, in any other terminal

The journal has no progress inside of jobs, so nobody could reckon the same from it. The file is rewritten about
once a second, is never forced to disk, and goes when the run ends: what is missing or damaged costs a percentage.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Annotated

from msgspec import Meta

from pipeline.engine.events import JobProgress
from pipeline.engine.run_folder import RunFolder
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json, read_plain

EVERY_S = 1.0
_LARGEST = 4 << 20
"""Bytes; a worker takes some 300 of them."""

log = logging.getLogger("pipeline")

_Amount = Annotated[float, Meta(ge=0, le=1e15)]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is, and how long it will still take.

    Attributes:
        part: Of the work that was to do, what is done, from 0 to 1.
        remaining_s: Estimate of the seconds left; None while nothing has told of work yet, as everything loads.
        samples_per_s: Over the last seconds, of what draws or judges samples.
        tokens_per_s: Over the last seconds, drawn and trained on.
        stopping: What was said when the run was asked to stop, or "".
        shared_store: What there is to say of the way to its shared store, or "".
        cluster: What there is to say of where its workers live, or "".
        running: How far the jobs are that run, those that have told it.
        time: When this was so, in seconds of the clock: of an engine that was killed nothing later is known.
    """

    part: Annotated[float, Meta(ge=0, le=1)]
    remaining_s: _Amount | None
    samples_per_s: _Amount = 0.0
    tokens_per_s: _Amount = 0.0
    stopping: str = ""
    shared_store: str = ""
    cluster: str = ""
    running: tuple[JobProgress, ...] = ()
    time: _Amount = 0.0


def read_progress(folder: RunFolder) -> Progress | None:
    """What the engine of a run told last; None where it has told nothing that can be read."""
    try:
        return read_json(read_plain(folder.progress, _LARGEST, follow=True), Progress)
    except (OSError, ForeignDataError):
        return None


class ProgressFile:
    """Leaves the progress of a run in its folder, for as long as the run goes on."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._next_s = 0.0
        self._stopping, self._failed = "", False

    def __enter__(self) -> ProgressFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._folder.progress.unlink()

    def update(self, progress: Progress, now: float) -> None:
        """Write it if it is time to; that the run is about to stop is always written."""
        if now < self._next_s and progress.stopping == self._stopping:
            return
        self._next_s, self._stopping = now + EVERY_S, progress.stopping
        try:
            write_whole(self._folder.progress, json_text(asdict(progress)), durable=False)
        except OSError as error:
            if not self._failed:
                log.warning("status cannot tell how far the run is: %s", error)
            self._failed = True
