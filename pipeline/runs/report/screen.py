"""A run as it fits a terminal: the run in short, chains x rounds, and what each worker does.

The live view, `status` and `status --watch` show the same tables, from what the engine tells or from what it has
left in the run's folder.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.text import Text

from pipeline.engine.workers.messages import GpuLoad
from pipeline.runs.progress import LiveRun, Progress
from pipeline.runs.report import format as words
from pipeline.runs.report.format import count, duration, gibibytes, percent
from pipeline.runs.run_view import JobCounts, RunView, WorkerView
from pipeline.terminal.columns import EXTRA, Column, FittedTable, in_lines
from pipeline.terminal.console import in_place, say

Cells = Mapping[tuple[str, int], JobCounts]
"""(chain, round) -> its jobs by state."""
_Lines = Sequence[Text]
_Row = TypeVar("_Row")
_BAR = 16
_LEAST_CHAINS = 3
"""Rows that chains get, at least, where there are more workers than lines."""
EVERY_S = 60.0
"""Between two summaries of the GPUs."""

log = logging.getLogger("pipeline")


# -- in words ----------------------------------------------------------------------------------------------------


def jobs_done(counts: JobCounts) -> str:
    """Return text such as ``3/10 jobs done``."""
    return f"{counts.there:,}/{count(counts.total, 'job')} done"


def how_far(counts: JobCounts, progress: Progress) -> list[str]:
    """Return texts such as ``37 %`` and ``about 2 h left``; neither before enough was timed to tell."""
    parts = [] if progress.remaining_s is None else [percent(progress.part)]
    if progress.stopping and (counts.left or counts.running):
        parts.append("stopping")
    elif counts.left or counts.running:
        remaining_s = progress.remaining_s
        parts.append("time left unknown" if remaining_s is None else f"about {words.roughly(remaining_s)} left")
    return parts


def headline(view: RunView, progress: Progress | None) -> list[str]:
    """Describe the run in one line, in parts that must not be broken."""
    counts = view.counts()
    parts = how_far(counts, progress) if progress else []
    parts += [jobs_done(counts), f"{counts.running} running", f"{counts.left:,} to come"]
    if counts.given_up:
        parts.append(f"{counts.failed} failed, {counts.blocked} blocked")
    if progress:
        rates = {"samples": progress.samples_per_s, "tokens": progress.tokens_per_s}
        parts += [f"{words.rate(per_s)} {unit}/s" for unit, per_s in rates.items() if per_s > 0]
    return [f"{part}," for part in parts[:-1]] + parts[-1:]


_ANSWERS = 3


def notices(view: RunView, progress: LiveRun | Progress | None) -> list[str]:
    """Return notices: the last requests to change the run, and what delays it, such as other runs."""
    lines = [str(answer) for answer in view.answers[-_ANSWERS:]]
    for job_id, reason in list(view.waiting.items())[:1]:
        others = len(view.waiting) - 1
        more = f"; and for {count(others, 'more job')} of others" if others else ""
        lines.append(f"waiting for {job_id}: {reason}{more}")
    return [*lines, *([progress.shared_store] if progress and progress.shared_store else [])]


# -- tables ------------------------------------------------------------------------------------------------------


def chains_of(cells: Cells) -> list[str]:
    """Return the chains, in order."""
    return list(dict.fromkeys(chain for chain, _ in cells))


def grid(cells: Cells, shown: Sequence[str]) -> FittedTable:
    """Return some chains in one table; if not all rounds fit, those near the current work are shown."""
    rounds = sorted({number for _, number in cells})
    unfinished = [number for (_, number), cell in cells.items() if not cell.settled]
    now = min(unfinished, default=rounds[-1] if rounds else 0)
    ranks = {number: 1 if number == now else EXTRA + 2 * abs(number - now) + (number < now) for number in rounds}
    columns = [Column(heading=f"round {number}", right=True, rank=ranks[number]) for number in rounds]
    table = FittedTable([Column(heading="chain", least=16), *columns], lines=False)
    for chain in shown:
        table.add_row(chain, *(_cell(cells.get((chain, number))) for number in rounds))
    return table


def _cell(cell: JobCounts | None) -> Text:
    """Return text such as ``3/10``, ``10/10 ✓`` or ``4/10 failed``."""
    if cell is None:
        return Text("")
    if cell.given_up:
        return Text(f"{cell.there}/{cell.total} {'failed' if cell.failed else 'blocked'}", style="bold red")
    if cell.there == cell.total:
        return Text(f"{cell.there}/{cell.total} ✓", style="green")
    return Text(f"{cell.there}/{cell.total}", style="bold" if cell.running else "")


def worker_table(
    view: RunView, shown: Sequence[WorkerView], now: float, *, live: bool = True, title: str = ""
) -> FittedTable:
    """Return a row for each of some workers; in a live view column widths stay the same."""
    running = view.running()
    widest = max(map(len, running), default=0) if live else 0
    columns = [
        Column(heading="worker", right=True),
        Column(heading="device", rank=7, least=8),
        Column(heading="job", rank=1, least=26, width=widest),
        Column(heading="done", right=True, rank=4, width=len("loading")),
        Column(heading="", rank=EXTRA + 1, width=_BAR),
        Column(heading="loss", right=True, rank=5, width=len("-1.23e-05")),
        Column(heading="time", right=True, rank=2, width=len("59 min 59 s")),
        Column(heading="memory", right=True, rank=EXTRA, width=len("999.9 GiB")),
        Column(heading="GPU memory", right=True, rank=3, width=len("140.0/140.0 GiB")),
        Column(heading="load", right=True, rank=6, width=len("100 %")),
    ]
    rows = []
    for worker in shown:
        attempt, gpu, doing = running.get(worker.job_id), worker.gpu, ["", "", "", ""]
        if worker.state != "running":
            attempt = None
        if attempt:
            done = round(attempt.part * _BAR)
            loss = attempt.numbers.get("loss", "")
            doing = [words.done_in_words(attempt), "━" * done + "·" * (_BAR - done)]
            doing += ["nan" if loss is None else f"{loss:.3g}" if loss != "" else ""]
            doing += [duration(attempt.elapsed_s(now))]
        load = "" if gpu is None or gpu.utilization is None else f"{gpu.utilization} %"
        row = [str(worker.index), gpu.label if gpu else words.brief_device(worker.device)]
        row += [worker.job_id if attempt else worker.state, *doing]
        row += [gibibytes(worker.rss_bytes) if worker.rss_bytes else ""]
        row += [f"{gpu.used_bytes / 2**30:.1f}/{gibibytes(gpu.total_bytes)}" if gpu else "", load]
        rows.append(row)
    kept = [
        at
        for at, column in enumerate(columns)
        if (live and at < len(columns) - 2) or (column.heading and any(row[at] for row in rows))
    ]
    table = FittedTable([columns[at] for at in kept], title=title, lines=False)
    for row in rows:
        table.add_row(*(row[at] for at in kept))
    return table


# -- as much as a terminal has room for --------------------------------------------------------------------------


def live_screen(run: LiveRun, width: int, height: int) -> list[RenderableType]:
    """Return the live view for a terminal of some size; it leaves the last line free."""
    first, *rest = headline(run.view, run.progress)
    top = in_lines([f"{duration(run.view.elapsed_s(run.now))}: {first}", *rest], width)
    lines = [*notices(run.view, run), *([run.stopping] if run.stopping else [])]
    warnings = [Text(part, style="bold yellow") for line in lines for part in in_lines(line.split(), width)]
    return screen(run.view, run.now, [*map(Text, top)], warnings, height, list(run.view.workers.values()))


def screen(
    view: RunView, now: float, top: _Lines, warnings: _Lines, height: int, workers: Sequence[WorkerView]
) -> list[RenderableType]:
    """Return the view of a run for a terminal of some height; the last line stays free.

    Args:
        view: The run.
        now: Wall-clock seconds.
        top: First lines; if there are too many, the last are left out.
        warnings: Lines below them.
        height: Lines of the terminal.
        workers: Workers to show.
    """
    warnings = warnings[: max(0, height - 2)]
    top = top[: max(1, height - 1 - len(warnings))]
    parts: list[RenderableType] = []
    for line in (*top, *warnings):
        line.no_wrap, line.overflow = True, "ellipsis"
        parts.append(line)
    chains = chains_of(view.cells)
    for_chains, for_workers = share_lines(height - 1 - len(parts), len(chains), len(workers))
    if for_chains:
        ranks: dict[str, int] = {}
        for (chain, _), cell in view.cells.items():
            rank = 0 if cell.running else 1 if cell.given_up else 2 if not cell.settled else 3
            ranks[chain] = min(rank, ranks.get(chain, rank))
        shown, more = first(chains, for_chains, ranks.__getitem__)
        parts += [grid(view.cells, shown), *_and_more(more, "chains")]
    if for_workers:
        some, more = first(workers, for_workers, lambda worker: worker.state != "running")
        parts += [worker_table(view, some, now), *_and_more(more, "workers")]
    return parts


def _and_more(number: int, what: str) -> list[Text]:
    return [Text(f"and {number} more {what}", no_wrap=True, overflow="ellipsis")] if number else []


def share_lines(lines: int, chains: int, workers: int) -> tuple[int, int]:
    """Return how many lines chains and workers get, without headings; 0 hides them."""
    room = lines - 2
    if room < 2 or not chains or not workers:
        return (min(chains, lines - 1), 0) if chains and lines > 1 else (0, max(0, min(workers, lines - 1)))
    for_workers = min(workers, max(room - chains, room - max(_LEAST_CHAINS, room // 3), 1))
    return min(chains, room - for_workers), for_workers


def first(rows: Sequence[_Row], lines: int, rank: Callable[[_Row], int]) -> tuple[list[_Row], int]:
    """Return the rows that fit, of low rank first, and the number of others, which takes a line to show."""
    if len(rows) <= lines:
        return list(rows), 0
    shown = sorted(rows, key=rank)[: lines - 1]
    return shown, len(rows) - len(shown)


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
        yield lambda run: draw([Group(*live_screen(run, *console.size))])


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
        """Return the lines that are new since the last call."""
        elapsed_s, lines = view.elapsed_s(now), []
        for (chain, number), cell in view.cells.items():
            if cell.settled and (chain, number) not in self._finished:
                self._finished.add((chain, number))
                if cell.stored < cell.total:
                    outcome = (
                        f"{cell.given_up} of {count(cell.total, 'job')} not done" if cell.given_up else "done"
                    )
                    lines.append(f"{chain} round {number}: {outcome}")
        noticed = notices(view, progress)
        lines += [line for line in noticed if line not in self._noticed]
        self._noticed = noticed
        if elapsed_s >= self._next_s:
            self._next_s = elapsed_s + self._every_s
            lines.append(" ".join(headline(view, progress)))
            if loads := gpu_loads(view):
                lines.append("; ".join(map(memory, loads)))
        return lines


# -- gpus --------------------------------------------------------------------------------------------------------


class GpuLog:
    """Writes about the GPUs to the run's log, now and then and at the end; without GPUs nothing."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._most, self._seen, self._used = dict[str, int](), Counter[str](), Counter[str]()

    def update(self, view: RunView, elapsed_s: float) -> None:
        """Look at the run, `elapsed_s` seconds after its start."""
        loads = gpu_loads(view)
        for load in loads:
            self._most[load.label] = max(load.used_bytes, self._most.get(load.label, 0))
            self._seen[load.label] += load.utilization is not None
            self._used[load.label] += load.utilization or 0
        if loads and elapsed_s >= self._next_s:
            self._next_s = elapsed_s + EVERY_S
            log.info("GPU Memory Summary:\n%s", "\n".join(f"  {line}" for line in map(memory, loads)))
            shares = (f"{load.label} {_part(load.utilization)}" for load in loads)
            log.info("GPU utilization: %s", ", ".join(shares))

    def conclude(self) -> None:
        """Write the last summary."""
        means = {label: self._used[label] / seen if (seen := self._seen[label]) else None for label in self._most}
        summaries = (
            f"{label} {_part(means[label], ' on average')}, at most {_gb(most)} used"
            for label, most in sorted(self._most.items())
        )
        if self._most:
            log.info("GPU utilization over the run: %s", "; ".join(summaries))


def gpu_loads(view: RunView) -> list[GpuLoad]:
    """Return the last reports of the workers on their GPUs, each GPU once, in the order of workers."""
    return list({worker.gpu.label: worker.gpu for worker in view.workers.values() if worker.gpu}.values())


def memory(load: GpuLoad) -> str:
    """Return text such as ``GPU 0: 45.23 GB used, 80.00 GB total``."""
    return f"{load.label}: {_gb(load.used_bytes)} used, {_gb(load.total_bytes)} total"


def _part(utilization: float | None, how: str = "") -> str:
    return "not told" if utilization is None else f"{utilization:.0f} %{how}"


def _gb(number: int) -> str:
    return f"{number / 1e9:.2f} GB"
