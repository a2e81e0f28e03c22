"""Names that are too wide for their place, cut in the middle so that they can still be told apart.

Widths are cells of a terminal: a letter takes one, most of Chinese, Japanese, Korean and emoji two, a combining
mark none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import takewhile

from rich.cells import cell_len

ELLIPSIS = "…"
_LEAST_PART = 4
"""Cells to which parts of a path are cut at most; where that is too wide still, the path is cut as a whole."""

_SEPARATORS = re.compile("([/ ])")
"""What stands between the parts of a path, as in ``addition/tiny PITA generate``."""

_Cut = Callable[[str], str]


def shorten(names: Iterable[str], width: int) -> dict[str, str]:
    """Cut those of some names that are wider than their place; the others stay as they are.

    Paths are cut in their longest parts, other names in the middle, and those that look the same then, up to where
    they differ.

    Args:
        names: The names that stand together.
        width: Cells that each of them may take.

    Returns:
        Each name as it is to be shown. No two are alike, unless the place is too narrow to tell them apart.
    """
    every = list(dict.fromkeys(names))
    wide = [name for name in every if cell_len(name) > width]
    found: list[dict[str, str]] = []
    for cut in _ways(wide, width):
        found.append({**dict(zip(every, every, strict=True)), **{name: cut(name) for name in wide}})
        if _apart(found[-1]):
            return found[-1]
    return found[-1] if found else {name: name for name in every}


def least_width(names: Collection[str], at_least: int) -> int:
    """The least width, from `at_least` on, at which shortened names can be told apart."""
    widest = max(map(cell_len, names), default=0)
    return next((width for width in range(at_least, widest) if _apart(shorten(names, width))), widest)


def cut_middle(name: str, width: int) -> str:
    """A name in at most so many cells, its beginning and its end kept."""
    if cell_len(name) <= width:
        return name
    if width < 1:
        return ""
    tail = (width - 1) // 2
    return _beginning(name, width - 1 - tail) + ELLIPSIS + _end(name, tail)


def _ways(wide: Collection[str], width: int) -> Iterator[_Cut]:
    part = _widest_part(wide, width)
    if part is not None:
        yield lambda name: _cut_parts(name, part)
    looks = {name: cut_middle(name, width) for name in wide}
    yield lambda name: looks[name]
    alike = {name: [other for other in wide if looks[other] == looks[name]] for name in wide}
    yield lambda name: _cut_where_they_differ(name, alike[name], width)
    yield lambda name: looks[name]


def _apart(shown: dict[str, str]) -> bool:
    return len(set(shown.values())) == len(shown)


def _widest_part(paths: Iterable[str], width: int) -> int | None:
    """The greatest width of a part with which all paths fit; None if there is none, or if they have no parts."""
    split = [parts for path in paths if len(parts := _SEPARATORS.split(path)) > 1]
    widest = max((cell_len(part) for parts in split for part in parts), default=0)
    fitting = (
        part
        for part in range(min(widest, width), _LEAST_PART - 1, -1)
        if all(cell_len(_cut_parts(path, part)) <= width for path in paths)
    )
    return next(fitting, None)


def _cut_parts(path: str, width: int) -> str:
    return "".join(cut_middle(part, width) for part in _SEPARATORS.split(path))


def _cut_where_they_differ(name: str, alike: list[str], width: int) -> str:
    """The beginning, then what comes from the first character on that not all of those names have."""
    if len(alike) < 2:
        return cut_middle(name, width)
    head = _beginning(name, (width - 1) // 3)
    same = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*alike, strict=False)))
    rest = name[same:]
    return head + ELLIPSIS + cut_middle(rest, width - 1 - cell_len(head))


def _beginning(name: str, width: int) -> str:
    if name.isascii():
        return name[:width]
    end = 0
    while end < len(name) and cell_len(name[: end + 1]) <= width:
        end += 1
    return name[:end]


def _end(name: str, width: int) -> str:
    """The last cells; without a mark whose letter would be cut off."""
    if name.isascii():
        return name[len(name) - width :]
    start = len(name)
    while start > 0 and cell_len(name[start - 1 :]) <= width:
        start -= 1
    while start < len(name) and cell_len(name[start]) == 0:
        start += 1
    return name[start:]
