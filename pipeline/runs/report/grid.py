"""Chains x rounds: how far each chain is in each round, as the live view and `status` show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.cells import cell_len
from rich.text import Text

from pipeline.runs.progress import Progress
from pipeline.runs.report.format import jobs, percent, roughly
from pipeline.runs.run_view import JobCounts
from pipeline.terminal.columns import AMPLE, EXTRA, Column, FittedTable

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
