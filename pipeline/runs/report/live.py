"""What a run shows while it works: one live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pipeline.engine.status import RunStatus
from pipeline.runs.report.format import jobs
from pipeline.runs.report.gpus import gpu_loads, memory
from pipeline.runs.report.grid import is_settled
from pipeline.runs.report.screen import headline, screen


class Reporter(Protocol):
    """Shows snapshots of a run; a context manager."""

    def __enter__(self) -> Self:
        """Start showing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop showing and leave the terminal as it was."""

    def update(self, status: RunStatus) -> None:
        """Show a new snapshot."""


def make_reporter(console: Console) -> Reporter:
    """The live view on a terminal that can redraw; plain lines on a simpler one, in a pipe and in a file."""
    return LiveView(console) if console.is_interactive else PlainLines(console)


class LiveView:
    """Redraws one view in place: the run, rounds x chains, and what each worker does."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def update(self, status: RunStatus) -> None:
        """Redraw."""
        size = self._console.size
        # A terminal shows ^C where the cursor waits: at the end of a full line it would wrap, and shift the view.
        self._live.update(Group(screen(status, size.width, size.height), Text("")), refresh=True)


class PlainLines:
    """Prints a line when a chain ends a round, and now and then in between."""

    def __init__(self, console: Console, every_s: float = 15.0) -> None:
        self._console = console
        self._every_s = every_s
        self._next_s = every_s
        self._finished: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to restore."""

    def update(self, status: RunStatus) -> None:
        """Print what is new."""
        for (chain, number), cell in status.cells.items():
            if is_settled(cell) and (chain, number) not in self._finished:
                self._finished.add((chain, number))
                if cell.stored < cell.total:
                    bad = cell.failed + cell.blocked
                    outcome = f"{bad} of {jobs(cell.total)} not done" if bad else "done"
                    self._print(status, f"{chain} round {number}: {outcome}")
        if status.elapsed_s >= self._next_s:
            self._next_s = status.elapsed_s + self._every_s
            self._print(status, headline(status))
            if loads := gpu_loads(status):
                self._print(status, "; ".join(map(memory, loads)))

    def _print(self, status: RunStatus, text: str) -> None:
        self._console.print(f"[{status.elapsed_s:7.1f} s] {text}", markup=False, highlight=False, soft_wrap=True)
