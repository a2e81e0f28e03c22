"""Tables of what a run would do, and of what a store holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rich.filesize import decimal

from pipeline.engine.store.gc import Garbage, Space, StoreUsage
from pipeline.plan.durations import PlanRow
from pipeline.runs.report.format import duration
from pipeline.terminal.columns import EXTRA, Column, FittedTable
from pipeline.terminal.streams import on_one_line

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


# -- store -------------------------------------------------------------------------------------------------------
# Tables about a store: what takes its space, and what a clean-up would remove.


_NAMED = 2
_LEAST_NAME, _LEAST_STAGE = 12, 8
_SPACE = (Column(heading="number", right=True, rank=EXTRA), Column(heading="size", right=True, rank=1))
_ELSEWHERE = "a wider terminal shows all"
_REMOVED = "(weights removed)"


def usage_table(usage: StoreUsage) -> FittedTable:
    """Outputs by experiment, chain, algorithm and stage, then everything else, with a total.

    Of several outputs the title names the experiment and the chain where these are the same for all.
    """
    rows = [
        ((_experiments(kind.experiments), (kind.chain,), (kind.algo,), (kind.stage,)), space)
        for kind, space in sorted(usage.outputs.items())
    ]
    alike = [at for at in (0, 1) if len(rows) > 1 and len({where[at] for where, _ in rows}) == 1]
    kinds = [
        Column(heading="experiment", least=_LEAST_NAME),
        Column(heading="dataset/model", rank=4, least=_LEAST_NAME),
        Column(heading="algorithm", rank=2, least=_LEAST_NAME),
        Column(heading="stage", rank=3, least=_LEAST_STAGE),
    ]
    columns = [column for at, column in enumerate(kinds) if at not in alike]
    columns[0] = replace(columns[0], least=len(_REMOVED))  # which names what is no output, too
    title = " · ".join(["store", *(" ".join(rows[0][0][at]) for at in alike)])
    table = FittedTable([*columns, *_SPACE], title=on_one_line(title), elsewhere=_ELSEWHERE)
    for where, space in rows:
        table.add_row(*(names for at, names in enumerate(where) if at not in alike), *_space(space))
    table.end_section()
    between = ("",) * (len(columns) - 1)
    for name, space in (
        ("damaged", usage.aside),
        ("checkpoints", usage.checkpoints),
        ("unfinished", usage.unfinished),
    ):
        table.add_row(f"({name})", *between, *_space(space))
    table.add_row("(other)", *between, "", decimal(usage.other.size))
    if usage.removed.number:
        table.add_row(_REMOVED, *between, f"{usage.removed.number:,}", "")
    table.end_section()
    table.add_row("total", *between, "", decimal(usage.total), style="bold")
    return table


def garbage_table(garbage: Iterable[Garbage]) -> FittedTable:
    """What may be removed, by reason and by what it was, with a total."""
    kinds = [Column(heading="why"), Column(heading="what", rank=2, least=_LEAST_NAME)]
    table = FittedTable([*kinds, *_SPACE], title="no longer needed", elsewhere=_ELSEWHERE)
    grouped: dict[tuple[str, str], Space] = {}
    for thing in garbage:
        grouped.setdefault((thing.kind.value, thing.what), Space()).add(thing.size)
    last = ""
    for (why, what), space in grouped.items():
        table.add_row("" if why == last else why, what, *_space(space))
        last = why
    total = Space(sum(space.number for space in grouped.values()), sum(space.size for space in grouped.values()))
    table.end_section()
    table.add_row("total", "", *_space(total), style="bold")
    return table


def _space(space: Space) -> tuple[str, str]:
    return f"{space.number:,}", decimal(space.size)


def _experiments(names: tuple[str, ...]) -> tuple[str, ...]:
    """In pieces, so that names stand one below the other rather than cut."""
    if not names:
        return ("(no run)",)
    *before, last = names[:_NAMED]
    rest = (f"and {len(names) - _NAMED} more",) if len(names) > _NAMED else ()
    return *(f"{name}," for name in before), last, *rest
