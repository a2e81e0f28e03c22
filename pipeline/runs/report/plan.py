"""The plan as a table: what `dry_run=true` prints."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.plan.summary import PlanRow
from pipeline.runs.report.format import duration
from pipeline.terminal.columns import EXTRA, Column, FittedTable

_LEAST_CHAIN = 16


def plan_table(rows: Iterable[PlanRow]) -> FittedTable:
    """Jobs per round, chain and stage, with what is stored already; and their devices where any takes several."""
    rows = list(rows)
    several = any(row.devices > 1 for row in rows)
    table = FittedTable(_columns(several=several), title="plan")
    last: tuple[int, str] | None = None
    for row in rows:
        at = (row.round, row.chain)
        if last is not None and at[0] != last[0]:
            table.end_section()
        head = ("", "") if at == last else (str(row.round) if last is None or at[0] != last[0] else "", row.chain)
        table.add_row(
            *head,
            row.stage,
            str(row.jobs),
            *([f"{row.devices}" if row.devices > 1 else ""] if several else []),
            str(row.jobs - row.missing) if row.missing < row.jobs else "",
            f"{row.samples:,}" if row.samples else "",
            duration(row.seconds) if row.missing else "",
        )
        last = at
    return table


def _columns(*, several: bool) -> Iterable[Column]:
    yield Column(heading="round")
    yield Column(heading="chain", rank=1, least=_LEAST_CHAIN)
    yield Column(heading="stage", rank=2)
    yield Column(heading="jobs", right=True, rank=3)
    if several:
        yield Column(heading="devices", right=True, rank=6)
    yield Column(heading="stored", right=True, rank=5)
    yield Column(heading="samples", right=True, rank=EXTRA)
    yield Column(heading="estimate", right=True, rank=4)
