"""The live view of a run as it fits a terminal: the run in short, chains x rounds, and what each worker does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
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
from pipeline.terminal.columns import AMPLE, EXTRA, Column, FittedTable, in_lines
from pipeline.terminal.console import in_place, say

# -- grid --------------------------------------------------------------------------------------------------------
# Chains x rounds: how far each chain is in each round, as the live view and `status` show it.


LEAST_CHAIN = 16
_BETWEEN = 2

Cells = Mapping[tuple[str, int], JobCounts]
"""(chain, round) -> its jobs by state."""


def chains_of(cells: Cells) -> list[str]:
    """The chains, in their order."""
    return list(dict.fromkeys(chain for chain, _ in cells))


def rounds_of(cells: Cells) -> list[int]:
    """The rounds, in their order."""
    return sorted({number for _, number in cells})


def current_grid(cells: Cells, shown: list[str]) -> FittedTable:
    """Some chains in one table; where not all rounds have room, those next to where the work is.

    Args:
        cells: All chains and rounds.
        shown: The chains that have a row.
    """
    rounds = rounds_of(cells)
    unfinished = [number for (_, number), cell in cells.items() if not cell.settled]
    now = min(unfinished, default=rounds[-1] if rounds else 0)
    columns = [Column(heading=f"round {number}", right=True, rank=_rank(number - now)) for number in rounds]
    return _table(cells, shown, rounds, columns)


def whole_grids(cells: Cells, width: int) -> Iterator[FittedTable]:
    """All chains and all rounds; in several tables, one below the other, where they do not fit side by side."""
    chains, rounds = chains_of(cells), rounds_of(cells)
    chain_width = min(AMPLE, max(map(cell_len, ["chain", *chains])))
    texts = [cell_text(cell).plain for cell in cells.values()]
    round_width = max(map(cell_len, [*(f"round {number}" for number in rounds), *texts]))
    beside = max(1, (width - chain_width) // (round_width + _BETWEEN))
    for first in range(0, len(rounds), beside):
        shown = rounds[first : first + beside]
        columns = [Column(heading=f"round {number}", right=True, rank=1) for number in shown]
        own = [chain for chain in chains if any((chain, number) in cells for number in shown)]
        yield _table(cells, own, shown, columns)


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


def _table(cells: Cells, chains: list[str], rounds: list[int], columns: list[Column]) -> FittedTable:
    table = FittedTable([Column(heading="chain", least=LEAST_CHAIN), *columns], lines=False)
    for chain in chains:
        table.add_row(chain, *(cell_text(cells.get((chain, number))) for number in rounds))
    return table


def _rank(ahead: int) -> int:
    """Of a round: the one where the work is stays longest, then those that come next."""
    if ahead == 0:
        return 1
    return EXTRA + 2 * ahead if ahead > 0 else EXTRA - 2 * ahead + 1


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
    """Lines for a screen.

    Args:
        view: The run.
        told: What its engine says of its shared store.
    """
    return [line for line in (waited_for(view), *said_of(told)) if line]


def said_of(told: LiveRun | Progress | None) -> list[str]:
    """What an engine says of its shared store."""
    return [told.shared_store] if told and told.shared_store else []


_Row = TypeVar("_Row")

_BAR = 16
_LEAST_JOB = 26
_LEAST_DEVICE = 8
_STAGE = len("/r10/generate/000")
_LEFT_OUT = "…/"
"""Stands for what all chains begin with."""
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
        parts += _workers(run, for_workers, chains, width)
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
    yield current_grid(cells, shown)
    if more:
        yield Text(f"and {more} more chains", no_wrap=True, overflow="ellipsis")


def _workers(run: LiveRun, lines: int, chains: Sequence[str], width: int) -> Iterator[RenderableType]:
    """What workers do. Where ids of jobs have no room, they lack what all chains have, which stands above."""
    table, more = _worker_table(run, lines, chains)
    if (shared := _shared(chains)) and table.cuts(width):
        table, more = _worker_table(run, lines, chains, shared)
    yield table
    if more:
        yield Text(f"and {more} more workers", no_wrap=True, overflow="ellipsis")


def _shared(chains: Sequence[str]) -> str:
    """The parts with which all chains begin, as ``addition/tiny/``."""
    parts = takewhile(
        lambda same: len(set(same)) == 1, zip(*(chain.split("/")[:-2] for chain in chains), strict=False)
    )
    return "".join(f"{same[0]}/" for same in parts)


def _worker_table(run: LiveRun, lines: int, chains: Sequence[str], without: str = "") -> tuple[FittedTable, int]:
    """A row for each worker that has room, and how many more there are."""
    job_width = max(map(cell_len, chains), default=0) + _STAGE - (len(without) - len(_LEFT_OUT) if without else 0)
    workers, running = list(run.view.workers.values()), run.view.running()
    shown, more = first(workers, lines, lambda worker: worker.state != "running")
    gpus = any(worker.gpu for worker in workers)
    table = FittedTable(_columns(job_width, gpus=gpus), lines=False)
    for worker in shown:
        attempt = running[worker.job_id] if worker.state == "running" else None
        table.add_row(
            str(worker.index),
            worker.gpu.label if worker.gpu else brief_device(worker.device),
            _brief(worker.job_id, without) if attempt else worker.state,
            done_in_words(attempt) if attempt else "",
            _bar(attempt.part) if attempt else "",
            _loss(attempt) if attempt else "",
            duration(attempt.elapsed_s(run.now)) if attempt else "",
            gibibytes(worker.rss_bytes) if worker.rss_bytes else "",
            *(_gpu(worker) if gpus else ()),
        )
    return table, more


def _brief(job_id: str, without: str) -> str:
    return f"{_LEFT_OUT}{job_id.removeprefix(without)}" if without and job_id.startswith(without) else job_id


def _columns(job_width: int, *, gpus: bool) -> Iterator[Column]:
    """Of widths that do not change from one moment to the next."""
    yield Column(heading="worker", right=True)
    yield Column(heading="device", rank=7, least=_LEAST_DEVICE)
    yield Column(heading="job", rank=1, least=_LEAST_JOB, width=job_width)
    yield Column(heading="done", right=True, rank=4, width=len("loading"))
    yield Column(heading="", rank=EXTRA + 1, width=_BAR)
    yield Column(heading="loss", right=True, rank=5, width=len("-1.23e-05"))
    yield Column(heading="time", right=True, rank=2, width=len("59 min 59 s"))
    yield Column(heading="memory", right=True, rank=EXTRA, width=len("999.9 GiB"))
    if gpus:
        yield Column(heading="GPU memory", right=True, rank=3, width=len("140.0/140.0 GiB"))
        yield Column(heading="load", right=True, rank=6, width=len("100 %"))


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


@dataclass
class _Past:
    """What one GPU did so far."""

    most_bytes: int = 0
    seen: int = 0
    utilization: int = 0


class GpuLog:
    """Writes about the GPUs to the run's log; without GPUs nothing."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._past: dict[str, _Past] = {}

    def update(self, view: RunView, elapsed_s: float) -> None:
        """Look at the run, so many seconds after its begin."""
        loads = gpu_loads(view)
        for load in loads:
            past = self._past.setdefault(load.label, _Past())
            past.most_bytes = max(past.most_bytes, load.used_bytes)
            if load.utilization is not None:
                past.seen += 1
                past.utilization += load.utilization
        if loads and elapsed_s >= self._next_s:
            self._next_s = elapsed_s + EVERY_S
            log.info("GPU Memory Summary:\n%s", "\n".join(f"  {line}" for line in map(memory, loads)))
            log.info("GPU utilization: %s", utilization(loads))

    def conclude(self) -> None:
        """The run is over."""
        if self._past:
            each = (
                f"{label} {f'{past.utilization / past.seen:.0f} % on average' if past.seen else 'not told'}, "
                f"at most {_gb(past.most_bytes)} used"
                for label, past in sorted(self._past.items())
            )
            log.info("GPU utilization over the run: %s", "; ".join(each))


def gpu_loads(view: RunView) -> list[GpuLoad]:
    """What the workers said last of their GPUs, each GPU once, in the order of workers."""
    return list({worker.gpu.label: worker.gpu for worker in view.workers.values() if worker.gpu}.values())


def memory(load: GpuLoad) -> str:
    """``GPU 0: 45.23 GB used, 80.00 GB total``."""
    return f"{load.label}: {_gb(load.used_bytes)} used, {_gb(load.total_bytes)} total"


def utilization(loads: Iterable[GpuLoad]) -> str:
    """``GPU 0 97 %, GPU 1 not told``."""
    return ", ".join(
        f"{load.label} {'not told' if load.utilization is None else f'{load.utilization} %'}" for load in loads
    )


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
