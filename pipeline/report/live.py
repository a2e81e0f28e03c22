"""What a run shows while it works: one live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.report.gpus import gpu_loads, memory
from pipeline.report.words import duration, gibibytes, jobs, rate
from pipeline.results.status import CellStatus, RunStatus, WorkerStatus


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
        self._live.update(render(status, self._console.height), refresh=True)


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
            if _settled(cell) and (chain, number) not in self._finished:
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


def headline(status: RunStatus) -> str:
    """The run in one line."""
    total = status.total
    finished = total.done + total.stored
    left = total.total - finished - total.running - total.failed - total.blocked
    parts = [f"{finished}/{jobs(total.total)} done", f"{total.running} running", f"{left} left"]
    if total.failed or total.blocked:
        parts.append(f"{total.failed} failed, {total.blocked} blocked")
    parts.append(f"{rate(status.samples_per_s)} samples/s")
    parts.append(f"{rate(status.tokens_per_s)} tokens/s")
    if status.remaining_s is not None:
        parts.append(f"about {duration(status.remaining_s)} left")
    return ", ".join(parts)


def render(status: RunStatus, height: int) -> RenderableType:
    """The live view for a terminal of so many lines."""
    room = max(4, height - len(status.workers) - 10)
    return Group(
        Text(f"{duration(status.elapsed_s)}: {headline(status)}", overflow="ellipsis", no_wrap=True),
        _grid(status, room),
        _workers(status.workers),
    )


def _grid(status: RunStatus, room: int) -> Table:
    rounds = sorted({number for _, number in status.cells})
    chains: dict[str, dict[int, CellStatus]] = {}
    for (chain, number), cell in status.cells.items():
        chains.setdefault(chain, {})[number] = cell
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("chain", no_wrap=True)
    for number in rounds:
        table.add_column(f"round {number}", justify="right", no_wrap=True)
    # Where there are more chains than lines, those that are at work come first.
    shown = sorted(chains, key=lambda chain: not any(cell.running for cell in chains[chain].values()))
    for chain in shown[:room] if len(shown) > room else chains:
        table.add_row(chain, *(_cell(chains[chain].get(number)) for number in rounds))
    if len(shown) > room:
        table.add_row(Text(f"and {len(shown) - room} more chains", style="dim"))
    return table


def _cell(cell: CellStatus | None) -> Text:
    if cell is None:
        return Text("")
    text = f"{cell.done + cell.stored}/{cell.total}"
    if cell.failed or cell.blocked:
        return Text(f"{text} failed" if cell.failed else f"{text} blocked", style="red")
    if cell.done + cell.stored == cell.total:
        return Text(f"{text} ✓", style="green")
    return Text(text, style="bold yellow" if cell.running else "dim")


def _workers(workers: tuple[WorkerStatus, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    gpus = any(worker.gpu for worker in workers)
    for name in (
        "worker",
        "device",
        "job",
        "progress",
        "time",
        "memory",
        *(["GPU memory", "load"] if gpus else []),
    ):
        left = name in ("worker", "device", "job", "progress")
        table.add_column(name, no_wrap=True, justify="left" if left else "right")
    for worker in workers:
        busy = worker.state == "running"
        table.add_row(
            str(worker.index),
            worker.device,
            worker.job_id if busy else Text(worker.state, style="dim"),
            ProgressBar(total=max(1, worker.total), completed=worker.done, width=16) if busy else "",
            duration(worker.running_s) if busy else "",
            gibibytes(worker.rss_bytes) if worker.rss_bytes else "",
            *(_gpu(worker) if gpus else ()),
        )
    return table


def _gpu(worker: WorkerStatus) -> tuple[str, str]:
    if worker.gpu is None:
        return "", ""
    load = "" if worker.gpu.utilization is None else f"{worker.gpu.utilization} %"
    return f"{worker.gpu.used_bytes / 2**30:.1f} of {gibibytes(worker.gpu.total_bytes)}", load


def _settled(cell: CellStatus) -> bool:
    return cell.done + cell.stored + cell.failed + cell.blocked == cell.total
