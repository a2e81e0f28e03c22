"""The live view of a run as it fits a terminal: the run in short, chains x rounds, and what each worker does."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from pipeline.engine.workers.messages import GpuLoad
from pipeline.runs.progress import LiveRun, Progress
from pipeline.runs.report.format import (
    brief_device,
    count,
    done_in_words,
    duration,
    gibibytes,
    jobs,
    percent,
    rate,
    roughly,
)
from pipeline.runs.run_view import AttemptView, JobCounts, RunView, WorkerView
from pipeline.terminal.columns import EXTRA, Column, FittedTable, in_lines
from pipeline.terminal.console import in_place, say

# -- grid --------------------------------------------------------------------------------------------------------
# Chains x rounds: how far each chain is in each round, as the live view and `status` show it.


LEAST_CHAIN = 16

Cells = Mapping[tuple[str, int], JobCounts]
"""(chain, round) -> its jobs by state."""


def chains_of(cells: Cells) -> list[str]:
    """The chains, in their order."""
    return list(dict.fromkeys(chain for chain, _ in cells))


def grid(cells: Cells, shown: Sequence[str]) -> FittedTable:
    """Some chains in one table; where not all rounds have room, those next to where the work is stay."""
    rounds = sorted({number for _, number in cells})
    unfinished = [number for (_, number), cell in cells.items() if not cell.settled]
    now = min(unfinished, default=rounds[-1] if rounds else 0)
    ranks = {number: 1 if number == now else EXTRA + 2 * abs(number - now) + (number < now) for number in rounds}
    columns = [Column(heading=f"round {number}", right=True, rank=ranks[number]) for number in rounds]
    table = FittedTable([Column(heading="chain", least=LEAST_CHAIN), *columns], lines=False)
    for chain in shown:
        table.add_row(chain, *(cell_text(cells.get((chain, number))) for number in rounds))
    return table


def jobs_done(counts: JobCounts) -> str:
    """As in ``3/10 jobs done``."""
    return f"{counts.there:,}/{jobs(counts.total)} done"


def how_far(counts: JobCounts, progress: Progress) -> list[str]:
    """As in ``37 %`` and ``about 2 h left``; no time before anything has told how fast it goes."""
    parts = [percent(progress.part)]
    if progress.stopping and (counts.left or counts.running):
        parts.append("stopping")
    elif progress.remaining_s is not None and (counts.left or counts.running):
        parts.append(f"about {roughly(progress.remaining_s)} left")
    return parts


def cell_text(cell: JobCounts | None) -> Text:
    """As in ``3/10``, ``10/10 ✓`` or ``4/10 failed``."""
    if cell is None:
        return Text("")
    if cell.given_up:
        return Text(f"{cell.there}/{cell.total} {'failed' if cell.failed else 'blocked'}", style="bold red")
    if cell.there == cell.total:
        return Text(f"{cell.there}/{cell.total} ✓", style="green")
    return Text(f"{cell.there}/{cell.total}", style="bold" if cell.running else "")


# -- notices -----------------------------------------------------------------------------------------------------
# What keeps a run from going on as planned: work of others, a shared store or a cluster that is away.


def waited_for(view: RunView) -> str:
    """Which job is waited for, as another run or machine makes it, and whose that is; "" where none is."""
    if not view.waiting:
        return ""
    job_id, reason = next(iter(view.waiting.items()))
    others = len(view.waiting) - 1
    more = f"; and for {count(others, 'more job')} of others" if others else ""
    return f"waiting for {job_id}: {reason}{more}"


def notices(view: RunView, told: LiveRun | Progress | None) -> list[str]:
    """Lines for a screen: what is waited for, and what the engine says of its shared store."""
    return [line for line in (waited_for(view), *said_of(told)) if line]


def said_of(told: LiveRun | Progress | None) -> list[str]:
    """What an engine says of its shared store."""
    return [told.shared_store] if told and told.shared_store else []


_Row = TypeVar("_Row")

_BAR = 16
_LEAST_JOB = 26
_STAGE = len("/r10/generate/000")
_LEAST_CHAINS = 3
"""Rows that chains get, at least, where there are more workers than lines."""


def headline(view: RunView, progress: Progress | None) -> str:
    """The run in one line."""
    return " ".join(_headline(view, progress))


def screen(run: LiveRun, width: int, height: int) -> RenderableType:
    """The live view for a terminal of so many columns and lines; it leaves the last line free."""
    view = run.view
    first, *rest = _headline(view, run.progress)
    top = in_lines([f"{duration(view.elapsed_s(run.now))}: {first}", *rest], width)
    lines = [*notices(view, run), *([run.stopping] if run.stopping else [])]
    said = [part for line in lines for part in in_lines(line.split(), width)]
    top, said = top[: max(1, height - 1 - len(said))], said[: max(0, height - 2)]
    parts: list[RenderableType] = [Text("\n".join(top), no_wrap=True, overflow="ellipsis")]
    if said:
        parts.append(Text("\n".join(said), style="bold yellow", no_wrap=True, overflow="ellipsis"))
    top += said
    chains = chains_of(view.cells)
    for_chains, for_workers = share_lines(height - 1 - len(top), len(chains), len(view.workers))
    if for_chains:
        parts += chain_lines(view.cells, chains, for_chains)
    if for_workers:
        parts += _workers(run, for_workers, chains)
    return Group(*parts)


def share_lines(lines: int, chains: int, workers: int) -> tuple[int, int]:
    """How many lines chains and workers get, headings not counted; 0 for those that are not shown at all."""
    room = lines - 2
    if room < 2 or not chains or not workers:
        return (min(chains, lines - 1), 0) if chains and lines > 1 else (0, max(0, min(workers, lines - 1)))
    for_workers = min(workers, max(room - chains, room - max(_LEAST_CHAINS, room // 3), 1))
    return min(chains, room - for_workers), for_workers


def _headline(view: RunView, progress: Progress | None) -> list[str]:
    counts = view.counts()
    parts = how_far(counts, progress) if progress else []
    parts += [jobs_done(counts), f"{counts.running} running", f"{counts.left:,} to come"]
    if counts.given_up:
        parts.append(f"{counts.failed} failed, {counts.blocked} blocked")
    if progress:
        rates = {"samples": progress.samples_per_s, "tokens": progress.tokens_per_s}
        parts += [f"{rate(per_s)} {unit}/s" for unit, per_s in rates.items() if per_s > 0]
    return [f"{part}," for part in parts[:-1]] + parts[-1:]


def chain_lines(cells: Cells, chains: list[str], lines: int) -> Iterator[RenderableType]:
    """Chains in so many lines; where these do not do for all, the last says how many more there are."""
    # Where there are more chains than lines, those come first that are at work, that failed, that are still to do.
    ranks: dict[str, int] = {}
    for (chain, _), cell in cells.items():
        rank = 0 if cell.running else 1 if cell.given_up else 2 if not cell.settled else 3
        ranks[chain] = min(rank, ranks.get(chain, rank))
    shown, more = first(chains, lines, ranks.__getitem__)
    yield grid(cells, shown)
    if more:
        yield Text(f"and {more} more chains", no_wrap=True, overflow="ellipsis")


def _workers(run: LiveRun, lines: int, chains: Sequence[str]) -> Iterator[RenderableType]:
    """A row for each worker that has room; widths do not change from one moment to the next."""
    workers, running = list(run.view.workers.values()), run.view.running()
    shown, more = first(workers, lines, lambda worker: worker.state != "running")
    widest = max(map(cell_len, chains), default=0) + _STAGE
    columns = [
        Column(heading="worker", right=True),
        Column(heading="device", rank=7, least=8),
        Column(heading="job", rank=1, least=_LEAST_JOB, width=widest),
        Column(heading="done", right=True, rank=4, width=len("loading")),
        Column(heading="", rank=EXTRA + 1, width=_BAR),
        Column(heading="loss", right=True, rank=5, width=len("-1.23e-05")),
        Column(heading="time", right=True, rank=2, width=len("59 min 59 s")),
        Column(heading="memory", right=True, rank=EXTRA, width=len("999.9 GiB")),
        Column(heading="GPU memory", right=True, rank=3, width=len("140.0/140.0 GiB")),
        Column(heading="load", right=True, rank=6, width=len("100 %")),
    ]
    gpus = any(worker.gpu for worker in workers)
    table = FittedTable(columns if gpus else columns[:-2], lines=False)
    for worker in shown:
        attempt = running[worker.job_id] if worker.state == "running" else None
        job = ["", "", "", ""]
        if attempt:
            took = duration(attempt.elapsed_s(run.now))
            job = [done_in_words(attempt), _bar(attempt.part), _loss(attempt), took]
        table.add_row(
            str(worker.index),
            worker.gpu.label if worker.gpu else brief_device(worker.device),
            worker.job_id if attempt else worker.state,
            *job,
            gibibytes(worker.rss_bytes) if worker.rss_bytes else "",
            *(_gpu(worker) if gpus else ()),
        )
    yield table
    if more:
        yield Text(f"and {more} more workers", no_wrap=True, overflow="ellipsis")


def first(rows: Sequence[_Row], lines: int, rank: Callable[[_Row], int]) -> tuple[list[_Row], int]:
    """The rows that have room, of low rank first, and how many more there are, which takes a line to say."""
    if len(rows) <= lines:
        return list(rows), 0
    shown = sorted(rows, key=rank)[: lines - 1]
    return shown, len(rows) - len(shown)


def _bar(part: float) -> str:
    done = round(part * _BAR)
    return "━" * done + "·" * (_BAR - done)


def _loss(attempt: AttemptView) -> str:
    """Of what trains; "" for a job that tells none."""
    if "loss" not in attempt.numbers:
        return ""
    loss = attempt.numbers["loss"]
    return "nan" if loss is None else f"{loss:.3g}"


def _gpu(worker: WorkerView) -> tuple[str, str]:
    if worker.gpu is None:
        return "", ""
    load = "" if worker.gpu.utilization is None else f"{worker.gpu.utilization} %"
    return f"{worker.gpu.used_bytes / 2**30:.1f}/{gibibytes(worker.gpu.total_bytes)}", load


# -- gpus --------------------------------------------------------------------------------------------------------
# What the GPUs of a run do, in its log: a summary now and then, and how they were used in all at the end.


EVERY_S = 60.0

log = logging.getLogger("pipeline")


class GpuLog:
    """Writes about the GPUs to the run's log; without GPUs nothing."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._most, self._seen, self._used = dict[str, int](), Counter[str](), Counter[str]()

    def update(self, view: RunView, elapsed_s: float) -> None:
        """Look at the run, so many seconds after its begin."""
        loads = gpu_loads(view)
        for load in loads:
            self._most[load.label] = max(load.used_bytes, self._most.get(load.label, 0))
            self._seen[load.label] += load.utilization is not None
            self._used[load.label] += load.utilization or 0
        if loads and elapsed_s >= self._next_s:
            self._next_s = elapsed_s + EVERY_S
            log.info("GPU Memory Summary:\n%s", "\n".join(f"  {line}" for line in map(memory, loads)))
            told = (f"{one.label} {_part(one.utilization)}" for one in loads)
            log.info("GPU utilization: %s", ", ".join(told))

    def conclude(self) -> None:
        """The run is over."""
        means = {label: self._used[label] / seen if (seen := self._seen[label]) else None for label in self._most}
        each = (
            f"{label} {_part(means[label], ' on average')}, at most {_gb(most)} used"
            for label, most in sorted(self._most.items())
        )
        if self._most:
            log.info("GPU utilization over the run: %s", "; ".join(each))


def gpu_loads(view: RunView) -> list[GpuLoad]:
    """What the workers said last of their GPUs, each GPU once, in the order of workers."""
    return list({worker.gpu.label: worker.gpu for worker in view.workers.values() if worker.gpu}.values())


def memory(load: GpuLoad) -> str:
    """``GPU 0: 45.23 GB used, 80.00 GB total``."""
    return f"{load.label}: {_gb(load.used_bytes)} used, {_gb(load.total_bytes)} total"


def _part(utilization: float | None, how: str = "") -> str:
    return "not told" if utilization is None else f"{utilization:.0f} %{how}"


def _gb(number: int) -> str:
    return f"{number / 1e9:.2f} GB"


# -- live --------------------------------------------------------------------------------------------------------
# What a run shows while it works: one live view on a terminal, plain lines elsewhere.


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
