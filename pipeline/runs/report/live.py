"""What a run shows while it works: one live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from pipeline.runs.progress import LiveRun, Progress
from pipeline.runs.report.format import jobs
from pipeline.runs.report.gpus import gpu_loads, memory
from pipeline.runs.report.screen import headline, notices, screen
from pipeline.runs.run_view import RunView
from pipeline.terminal.console import in_place, say


@contextmanager
def shown_on(console: Console) -> Iterator[Callable[[LiveRun], None]]:
    """Show a run: one view that is redrawn in place; plain lines where a terminal cannot do that, or is none.

    Yields:
        What shows where the run is now.
    """
    if not console.is_interactive:
        yield PlainLines(console).update
        return
    with in_place(console) as draw:
        yield lambda run: draw([screen(run, *console.size)])


class PlainLines:
    """Prints a line when a chain ends a round, and now and then in between."""

    def __init__(self, console: Console, every_s: float = 15.0) -> None:
        self._console = console
        self._every_s = every_s
        self._next_s = every_s
        self._finished: set[tuple[str, int]] = set()
        self._noticed: list[str] = []

    def update(self, run: LiveRun) -> None:
        """Print what is new."""
        elapsed_s = run.view.elapsed_s(run.now)
        for line in self.new(run.view, run.progress, run.now):
            say(self._console, f"[{elapsed_s:7.1f} s] {line}")

    def new(self, view: RunView, progress: Progress | None, now: float) -> list[str]:
        """What is new since the last time."""
        elapsed_s, lines = view.elapsed_s(now), []
        for (chain, number), cell in view.cells.items():
            if cell.settled and (chain, number) not in self._finished:
                self._finished.add((chain, number))
                if cell.stored < cell.total:
                    outcome = f"{cell.given_up} of {jobs(cell.total)} not done" if cell.given_up else "done"
                    lines.append(f"{chain} round {number}: {outcome}")
        noticed = notices(view, progress)
        lines += [line for line in noticed if line not in self._noticed]
        self._noticed = noticed
        if elapsed_s >= self._next_s:
            self._next_s = elapsed_s + self._every_s
            lines.append(headline(view, progress))
            if loads := gpu_loads(view):
                lines.append("; ".join(map(memory, loads)))
        return lines
