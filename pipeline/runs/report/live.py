"""What a run shows while it works: one live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pipeline.runs.live_run import LiveRun
from pipeline.runs.report.format import jobs
from pipeline.runs.report.gpus import gpu_loads, memory
from pipeline.runs.report.screen import headline, screen


class Reporter(Protocol):
    """Shows a run that is under way; a context manager."""

    def __enter__(self) -> Self:
        """Start showing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop showing and leave the terminal as it was."""

    def update(self, run: LiveRun) -> None:
        """Show where it is now."""


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

    def update(self, run: LiveRun) -> None:
        """Redraw."""
        size = self._console.size
        # A terminal shows ^C where the cursor waits: at the end of a full line it would wrap, and shift the view.
        self._live.update(Group(screen(run, size.width, size.height), Text("")), refresh=True)


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

    def update(self, run: LiveRun) -> None:
        """Print what is new."""
        view, elapsed_s = run.view, run.view.elapsed_s(run.now)
        lines = []
        for (chain, number), cell in view.cells.items():
            if cell.settled and (chain, number) not in self._finished:
                self._finished.add((chain, number))
                if cell.stored < cell.total:
                    outcome = f"{cell.given_up} of {jobs(cell.total)} not done" if cell.given_up else "done"
                    lines.append(f"{chain} round {number}: {outcome}")
        if elapsed_s >= self._next_s:
            self._next_s = elapsed_s + self._every_s
            lines.append(headline(run))
            if loads := gpu_loads(view):
                lines.append("; ".join(map(memory, loads)))
        for line in lines:
            self._console.print(f"[{elapsed_s:7.1f} s] {line}", markup=False, highlight=False, soft_wrap=True)
