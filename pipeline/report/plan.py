"""The plan as a table: what `dry_run=true` prints."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.table import Table

from pipeline.plan.summary import PlanRow
from pipeline.report.words import duration


def plan_table(rows: Iterable[PlanRow]) -> Table:
    """Jobs per round, chain and stage, with what is stored already; and their devices where any takes several."""
    rows = list(rows)
    several = any(row.devices > 1 for row in rows)
    table = Table(title="plan", title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD)
    for name in ("round", "chain", "stage"):
        table.add_column(name, no_wrap=True)
    for name in ("jobs", *(["devices"] if several else []), "stored", "samples", "estimate"):
        table.add_column(name, justify="right", no_wrap=True)
    last: tuple[int, str] | None = None
    for row in rows:
        at = (row.round, row.chain)
        if last is not None and at[0] != last[0]:
            table.add_section()
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
