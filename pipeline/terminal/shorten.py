"""Names that are too wide for their place, cut in the middle so that they can still be told apart.

Widths are cells of a terminal: a letter takes one, most of Chinese, Japanese, Korean and emoji two, a combining
mark none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import takewhile

from rich.cells import cell_len

ELLIPSIS = "…"
_LEAST_PART = 4
"""Parts of a path are cut to no fewer cells; where that is too wide still, the path is cut as a whole."""
_SEPARATORS = re.compile("([/ ])")
"""What stands between the parts of a path, as in ``addition/tiny PITA generate``."""


def shorten(names: Iterable[str], width: int) -> dict[str, str]:
    """Cut those of some names that are wider than their place; the others stay as they are.

    Paths are cut in their longest parts, first in those that all of them have; other names in the middle. Where
    two would look the same, they are cut up to where they differ.

    Args:
        names: The names that stand together.
        width: Cells that each of them may take.

    Returns:
        Each name as it is to be shown. No two are alike, unless the place is too narrow to tell them apart.
    """
    every = list(dict.fromkeys(names))
    wide = [name for name in every if cell_len(name) > width]
    kept = {name: name for name in every}
    shown = {**kept, **_cut_parts(wide, width)}
    return shown if _apart(shown) and _fits(shown, width) else {**kept, **_cut_each(wide, width)}


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


def _apart(shown: dict[str, str]) -> bool:
    return len(set(shown.values())) == len(shown)


def _fits(shown: dict[str, str], width: int) -> bool:
    return all(cell_len(text) <= width for text in shown.values())


def _cut_parts(paths: Collection[str], width: int) -> dict[str, str]:
    """Cut the parts of paths as little as will do, those first that all paths have; as far as parts may be cut."""
    split = {path: _SEPARATORS.split(path) for path in paths}
    parts = {part for each in split.values() for part in each}
    shared = set.intersection(*map(set, split.values())) if split else set()
    limits = range(min(max(map(cell_len, parts), default=0), width), _LEAST_PART - 1, -1)
    shown = dict.fromkeys(paths, "")
    for common, own in (*((limit, width) for limit in limits), *((_LEAST_PART, limit) for limit in limits)):
        cut = {**_cut_each(shared, common), **_cut_each(parts - shared, own)}
        shown = {path: "".join(cut[part] for part in each) for path, each in split.items()}
        if _fits(shown, width):
            break
    return shown


def _cut_each(names: Collection[str], width: int) -> dict[str, str]:
    """Each in the middle; those that look the same then up to where they differ."""
    looks = {name: cut_middle(name, width) for name in names}
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(looks[name], []).append(name)
    return {name: _cut_where_they_differ(name, alike[looks[name]], width) for name in names}


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
