"""The journal of a run, read as far as its engine has come: what it tells, folded into a view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.engine.events import LINE, SHARED_STORE, Event, read_event
from pipeline.engine.journal import JournalReader
from pipeline.engine.run_folder import RunFolder
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError
from pipeline.plan.recorded import RecordedPlan
from pipeline.runs.progress import Progress, read_progress
from pipeline.runs.run_view import RunView

_TAIL_BYTES = 1 << 16


class FollowedJournal:
    """A journal and the state of its run, as far as it was read.

    Attributes:
        view: What it told up to the last `refresh`; of jobs that run also how far they are, as `progress` has it.
        progress: What the engine told last of how far the run is; None where it has told nothing.
    """

    def __init__(self, folder: RunFolder, plan: RecordedPlan | None) -> None:
        """Read what there is.

        Args:
            folder: Of the run.
            plan: That of the run. Without it only counts are known, for which of a finished run the ends of its
                journal will do.

        Raises:
            StoreError: It cannot be read.
        """
        self._folder, self._reader = folder, JournalReader(folder.journal)
        self.view = RunView() if plan is None else RunView(plan.jobs.values(), plan.stored)
        self.progress: Progress | None = None
        ends = [] if plan is not None else list(_ends(folder.journal))
        if any(event.get("event") == "RunFinished" for event in ends[1:]):
            self.view.feed(ends)
        else:
            self.refresh()

    @property
    def unreadable(self) -> int:
        """How many of its lines are no events, as far as it was read."""
        return self._reader.unreadable

    def refresh(self) -> None:
        """Take what it has got since the last time.

        Raises:
            StoreError: It cannot be read.
        """
        self.view.feed(self._reader.new_events())
        self.progress = read_progress(self._folder)
        if self.progress and self.view.finished is None:
            self.view.last = max(self.view.last, self.progress.time)
        running = self.view.running()
        for told in self.progress.running if self.progress else ():
            attempt = running.get(told.get("job", ""))
            if attempt is not None and attempt.number == told.get("attempt"):
                self.view.take({**told, "event": "JobProgress"})


def _ends(path: Path) -> Iterator[Event]:
    """The first event of a journal and the last, with what was told after it of uploads that went on."""
    try:
        with open_plain(path, follow=True) as file:
            first = file.readline(LINE + 1)
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines(keepends=True)
        yield read_event(first)
        if lines and lines[-1].endswith(b"\n"):
            last: list[Event] = []
            while lines and (not last or last[0].get("event") == SHARED_STORE):
                last.insert(0, read_event(lines.pop()))
            yield from last
    except (OSError, ForeignDataError):
        return  # it is read from end to end then, which says what is wrong
