"""A table as HTML, for notebooks: what a console shows of it where there is room, every text escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pipeline.terminal.columns import FittedTable
from pipeline.terminal.text import printable


def html_table(table: FittedTable) -> str:
    """The table with its title and caption; nothing in it refers to anything outside."""
    parts = [f"<p><b>{html_text(table.title)}</b></p>" if table.title else ""]
    if table.texts:
        head = "".join(f"<th{_side(column.right)}>{html_text(column.heading)}</th>" for column in table.columns)
        body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(_rows(table))}</tbody>"
        # A notebook breaks intervals in two to make a table fit, and lets a wide one run out of its place.
        parts.append(f'<div style="overflow-x:auto"><table style="white-space:nowrap">{body}</table></div>')
    if table.caption:
        parts.append(f"<p><small>{html_text(table.caption).replace(chr(10), '<br>')}</small></p>")
    return "".join(parts)


def html_text(text: str) -> str:
    """Foreign text in HTML: shown letter by letter, never taken for markup, control characters written out."""
    return escape(printable(text))


def _rows(table: FittedTable) -> Iterator[str]:
    for cells in table.texts:
        shown = [
            f"<td{_side(column.right)}>{html_text(cell)}</td>"
            for column, cell in zip(table.columns, cells, strict=True)
        ]
        yield f"<tr>{''.join(shown)}</tr>"


def _side(right: bool) -> str:
    return ' style="text-align:right"' if right else ' style="text-align:left"'
