"""Fit tables to the width at hand: the least important columns are left out, and long names are cut.

Shown numbers are whole: a number without room is left out with its column, never cut or broken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.terminal.streams import on_one_line, printable

ELLIPSIS = "…"


def shorten(names: Iterable[str], width: int) -> dict[str, str]:
    """Cut those of some names in the middle that are wider than their place.

    Args:
        names: The names that stand together.
        width: Cells that each of them may take: a letter takes one, most of Chinese, Japanese, Korean and emoji
            two, a combining mark none.

    Returns:
        Each name as it is to be shown. Those that would look the same are cut up to where they differ; no two are
        alike, unless the place is too narrow for that.
    """
    shown = {name: cut_middle(name, width) for name in names}
    alike: dict[str, list[str]] = {}
    for name, text in shown.items():
        alike.setdefault(text, []).append(name)
    for same in (group for group in alike.values() if len(group) > 1):
        letters = enumerate(zip(*same, strict=False))
        begin = next((at for at, signs in letters if len(set(signs)) > 1), min(map(len, same)))
        for name in same:
            head = _fitting(name, (width - 1) // 3)
            shown[name] = head + ELLIPSIS + cut_middle(name[begin:], width - 1 - cell_len(head))
    return shown


def least_width(names: Collection[str], at_least: int) -> int:
    """Return the least width, at least `at_least`, at which shortened names can be distinguished."""
    widest = max(map(cell_len, names), default=0)
    apart = len(set(names))
    return next(
        (width for width in range(at_least, widest) if len({*shorten(names, width).values()}) == apart), widest
    )


def cut_middle(name: str, width: int) -> str:
    """Shorten a name to some cells by cutting its middle."""
    if cell_len(name) <= width or width < 1:
        return name if width > 0 else ""
    tail = _fitting(name[::-1], (width - 1) // 2)[::-1]
    while tail and cell_len(tail[0]) == 0:  # a mark whose letter is cut off
        tail = tail[1:]
    return _fitting(name, width - 1 - (width - 1) // 2) + ELLIPSIS + tail


def _fitting(name: str, width: int) -> str:
    """Return as many first characters as fit."""
    return name[: next((end for end in range(len(name)) if cell_len(name[: end + 1]) > width), len(name))]


EXTRA = 10
"""Columns of this rank and above are left out before any name is cut to less than `AMPLE`."""
AMPLE = 24
"""Cells that do for most names."""

Cell = str | Text
"""A text, never taken for markup."""
Caption = str | Callable[[Collection[str]], str]
"""Text below a table, or a function that makes it of the headings shown, to explain no others."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        heading: Text of the heading.
        right: Whether cells end at the right, as numbers do.
        rank: Columns of the highest rank are left out first, of equal ones the last; the first of all never is.
        least: Cells to which names in it may be cut, though never so far that two look the same; None where
            nothing may be cut.
        width: Cells that it takes in any case, so that it stays where it is while its cells change.
    """

    heading: str
    right: bool = False
    rank: int = 0
    least: int | None = None
    width: int = 0


@dataclass(frozen=True)
class Need:
    """The room that a column takes, in cells.

    Attributes:
        rank: Rank of the column.
        least: Least room to show it at all.
        whole: Room in which nothing of it is cut.
    """

    rank: int
    least: int
    whole: int

    @property
    def ample(self) -> int:
        """Return the room to give it while there are extra columns."""
        return min(self.whole, max(self.least, AMPLE))

    def beside(self, other: Need) -> Need:
        """Return the need that covers both."""
        return Need(self.rank, max(self.least, other.least), max(self.whole, other.whole))


def fit(needs: Sequence[Need], width: int, *, between: int, around: int = 0) -> dict[int, int]:
    """Choose the columns that have room, and how wide each of them is.

    Args:
        needs: Room that each column takes.
        width: Cells that the table may take.
        between: Cells between two columns.
        around: Cells at both edges together.

    Returns:
        Place of each column that is shown -> its width in cells. The first is always there, however narrow.
    """
    kept = list(range(len(needs)))

    def widths() -> dict[int, int]:
        extras = any(needs[at].rank >= EXTRA for at in kept)
        return {at: needs[at].ample if extras else needs[at].least for at in kept}

    def free() -> int:
        return width - around - between * (len(kept) - 1) - sum(widths().values())

    while free() < 0 and len(kept) > 1:
        kept.remove(max(kept[1:], key=lambda at: (needs[at].rank, at)))
    cells, room = widths(), free()
    for at in sorted(kept, key=lambda at: needs[at].rank):
        more = max(min(room, needs[at].whole - cells[at]), 1 - cells[at])
        cells[at], room = cells[at] + more, room - more
    return cells


class FittedTable:
    """A table for the console that it is printed to."""

    def __init__(
        self,
        columns: Iterable[Column],
        *,
        title: str = "",
        caption: Caption = "",
        elsewhere: str = "",
        lines: bool = True,
    ) -> None:
        """Make an empty table.

        Args:
            columns: Columns of the table.
            title: Text above it.
            caption: Text below it.
            elsewhere: Where to find columns without room; if given, they are named below the table.
            lines: Whether there is a line below the headings, and room between sections.
        """
        self.columns = list(columns)
        self.title, self.notes, self.elsewhere = title, caption, elsewhere
        self.alike: dict[str, Need] = {}
        self._lines = lines
        self._rows: list[tuple[tuple[Cell, ...], str]] = []
        self._ends: set[int] = set()

    def add_row(self, *cells: Cell, style: str = "") -> None:
        """Add a row; cells that are left out at its end are empty."""
        self._rows.append((cells + ("",) * (len(self.columns) - len(cells)), style))

    def end_section(self) -> None:
        """Leave room before the next row."""
        self._ends.add(len(self._rows) - 1)

    @property
    def texts(self) -> list[list[str]]:
        """Return the texts of the rows, in all columns and with nothing cut off."""
        return [[_plain(cell) for cell in cells] for cells, _ in self._rows]

    @property
    def ends(self) -> list[int]:
        """Rows after which a section ends."""
        return sorted(self._ends)

    @property
    def caption(self) -> str:
        """Return the text below the table where all columns have room."""
        return self._caption([column.heading for column in self.columns])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Give rich what to print; a table without rows has no title and no headings."""
        if self.title and self._rows:
            yield Text(self.title, style="bold")
        if self._rows:
            yield self.fitted(options.max_width)
            if self.elsewhere and (missing := ", ".join(self.left_out(options.max_width))):
                yield Text(f"No room for {printable(missing)}: {self.elsewhere}.", style="italic")
        if caption := self._caption(self.shown(options.max_width)):
            yield Text(caption, style="italic")

    def _caption(self, headings: Collection[str]) -> str:
        return self.notes if isinstance(self.notes, str) else self.notes(headings)

    def shown(self, width: int) -> list[str]:
        """Headings of the columns that have room in so many cells."""
        return [self.columns[at].heading for at in self._fit(width)]

    def left_out(self, width: int) -> list[str]:
        """Headings of the columns that have no room in so many cells."""
        shown = self._fit(width)
        return [column.heading for at, column in enumerate(self.columns) if at not in shown]

    def _fit(self, width: int) -> dict[int, int]:
        around, between = (4, 3) if self._lines else (2, 2)
        return fit(self.needs(), width, between=between, around=around)

    def fitted(self, width: int) -> Table:
        """Return the table for some width in cells."""
        widths = self._fit(width)
        table = Table(
            box=SIMPLE_HEAD if self._lines else None,
            padding=(0, 1) if self._lines else (0, 2, 0, 0),
            header_style="bold",
        )
        for at, cells in widths.items():
            column = self.columns[at]
            heading = Text(cut_middle(column.heading, cells))
            table.add_column(heading, justify="right" if column.right else "left", width=cells, no_wrap=True)
        shown = {at: self._shown(at, cells) for at, cells in widths.items()}
        for number, (_, style) in enumerate(self._rows):
            table.add_row(*(shown[at][number] for at in widths), style=style, end_section=number in self._ends)
        return table

    def needs(self) -> list[Need]:
        """Return the needs of each column, in this table and those aligned with it."""
        own = [self._need(at) for at in range(len(self.columns))]
        pairs = zip(self.columns, own, strict=True)
        return [need.beside(self.alike.get(column.heading, need)) for column, need in pairs]

    def _need(self, at: int) -> Need:
        column, names = self.columns[at], {_plain(cells[at]) for cells, _ in self._rows}
        heading = cell_len(column.heading)
        whole = least = max([1, heading, column.width, *map(cell_len, names)])
        if column.least is not None:
            least = min(whole, max(heading, least_width(names, max(1, column.least))))
        return Need(column.rank, least, whole)

    def _shown(self, at: int, width: int) -> list[Text]:
        cells = [cells[at] for cells, _ in self._rows]
        names = shorten(map(_plain, cells), width)
        return [Text(names[_plain(cell)], style=cell.style if isinstance(cell, Text) else "") for cell in cells]


Told = tuple[Column, Callable[[Any], Cell]]
"""A column, and what stands in it of a row."""


def told_table(columns: Iterable[Told], sections: Iterable[Iterable[Any]], **options: Any) -> FittedTable:
    """Return a table with rows in sections, and notes as for `FittedTable`."""
    every = list(columns)
    table = FittedTable((column for column, _ in every), **options)
    for rows in sections:
        for row in rows:
            table.add_row(*(cell(row) for _, cell in every))
        table.end_section()
    return table


def align(tables: Iterable[FittedTable]) -> None:
    """Make columns of the same heading equally wide in several tables, which stand one below the other."""
    tables, alike = list(tables), dict[str, Need]()
    for table in tables:
        for column, need in zip(table.columns, table.needs(), strict=True):
            alike[column.heading] = need.beside(alike.get(column.heading, need))
    for table in tables:
        table.alike = alike


def in_lines(pieces: Iterable[str], width: int) -> list[str]:
    """Put pieces of text side by side, a space between, into as few lines as will do."""
    lines: list[str] = []
    for piece in pieces:
        if lines and cell_len(longer := f"{lines[-1]} {piece}") <= width:
            lines[-1] = longer
        else:
            lines.append(piece)
    return lines


def whole_words(text: Text, width: int) -> Text:
    """Return the whole words of each line that fit in a width: a truncated number would be another number."""
    lines = list(text.split("\n"))
    for at, line in enumerate(lines):
        if cell_len(line.plain) > width:
            kept = in_lines(line.plain.split(" "), width - len(_MORE))[0]
            lines[at] = line[: len(kept)].append(_MORE)
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


_MORE = " …"
"""Stands at the end of a line for words that have no room."""


def _plain(cell: Cell) -> str:
    return on_one_line(cell.plain if isinstance(cell, Text) else cell)
