"""Tables about a store: what takes its space, and what a clean-up would remove."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table

from pipeline.results.collect import Garbage
from pipeline.results.contents import Space, Usage

_NAMED = 2


def usage_table(usage: Usage) -> Table:
    """Outputs by experiment, chain, algorithm and stage, then everything else, with a total."""
    table = _table("store", ("experiment", "dataset/model", "algorithm", "stage"), ("number", "size"))
    for kind, space in sorted(usage.outputs.items()):
        where = (_experiments(kind.experiments), kind.chain, kind.algo, kind.stage)
        table.add_row(*where, *_space(space))
    table.add_section()
    for name, space in (
        ("damaged, set aside", usage.aside),
        ("checkpoints", usage.checkpoints),
        ("unfinished", usage.unfinished),
    ):
        table.add_row(f"({name})", "", "", "", *_space(space))
    table.add_row("(other)", "", "", "", "", decimal(usage.other.size))
    table.add_section()
    table.add_row("total", "", "", "", "", decimal(usage.total), style="bold")
    return table


def garbage_table(garbage: Iterable[Garbage]) -> Table:
    """What may be removed, by reason and by what it was, with a total."""
    table = _table("no longer needed", ("why", "what"), ("number", "size"))
    grouped: dict[tuple[str, str], Space] = {}
    for thing in garbage:
        grouped.setdefault((thing.kind.value, thing.what), Space()).add(thing.size)
    last = ""
    for (why, what), space in grouped.items():
        table.add_row("" if why == last else why, what, *_space(space))
        last = why
    total = Space(sum(space.number for space in grouped.values()), sum(space.size for space in grouped.values()))
    table.add_section()
    table.add_row("total", "", *_space(total), style="bold")
    return table


def _table(title: str, left: Iterable[str], right: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _space(space: Space) -> tuple[str, str]:
    return f"{space.number:,}", decimal(space.size)


def _experiments(names: tuple[str, ...]) -> str:
    if not names:
        return "(no run)"
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest
