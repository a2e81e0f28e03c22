"""Write a page around data: one file without requests, in which foreign text is never markup.

All data is in one element that browsers do not run, as JSON without `<`, `>` and `&`. The scripts put it into the
page as text alone. The policy of the page allows its own scripts and styles by their hashes and nothing else: no
request, no further script, whatever the data holds.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pipeline.files import replacing
from pipeline.terminal.columns import FittedTable
from pipeline.terminal.streams import printable

ASSETS = Path(__file__).parent / "assets"
PLOTLY = "plotly-basic-4.1.1.min.js"
FRAME = tuple(ASSETS / name for name in ("dom.js", "charts.js", "frame.js"))
"""Scripts of every page, in order; with those of its kind they are one."""
OF_RUNS = tuple(ASSETS / name for name in ("results.js", "work.js", "samples.js", "main.js"))
"""Scripts that draw the page of runs."""
MOST_POINTS, FEWEST = 60_000, 20
"""Most points of all curves of a page together, and fewest that each keeps."""
Numbers = list[float | None]
_SLOT = re.compile(r"\{\{(\w+)\}\}")
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_T = TypeVar("_T")


def page_table(
    table: FittedTable, marks: Mapping[int, str] | None = None, *, results_first: bool = False
) -> dict[str, Any]:
    """Convert a terminal table with all its columns to texts.

    Args:
        table: The table.
        marks: Row -> ``better`` or ``worse`` than the reference, where a test says so.
        results_first: Move what rows are judged by behind their names, as a narrow page ends soon.
    """
    order = list(range(len(table.columns)))
    if results_first:
        order.sort(key=lambda at: min(table.columns[at].rank, 2))
    return {
        "title": table.title,
        "caption": table.caption,
        "headings": [table.columns[at].heading for at in order],
        "right": [table.columns[at].right for at in order],
        "rows": [[row[at] for at in order] for row in table.texts],
        "ends": table.ends,
        "marks": marks or {},
    }


def points_each(curves: int, most: int = MOST_POINTS) -> int:
    """Return how many points each of some curves may have."""
    return max(FEWEST, most // max(1, curves))


def thinned(steps: Sequence[_T], most: int) -> list[_T]:
    """Return evenly spaced steps, including the first and the last."""
    if len(steps) <= most:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(at * last / (most - 1))] for at in range(most)]


def write_page(path: Path, page: object, scripts: tuple[Path, ...] = OF_RUNS) -> None:
    """Write a page; a browser finds the one before or this one, never a part.

    Args:
        path: The file.
        page: The data that its scripts draw from, a mapping or a dataclass.
        scripts: Scripts that draw it, after those of the frame.

    Raises:
        OSError: It cannot be written.
    """
    with replacing(path, durable=False) as temporary:  # it can be made anew
        temporary.write_text(page_html(page, scripts), encoding="utf-8", newline="")


def page_html(page: object, scripts: tuple[Path, ...] = OF_RUNS) -> str:
    """Return the whole page, see `write_page`."""
    parts = _SLOT.split(_text(ASSETS / "page.html"))
    filled = {**_fixed(scripts), "data": _data(page)}
    return "".join(part if at % 2 == 0 else filled[part] for at, part in enumerate(parts))


def _data(page: object) -> str:
    text = msgspec.json.encode(_shown(msgspec.to_builtins(page))).decode()
    for sign, escape in _ESCAPED.items():
        text = text.replace(sign, escape)
    return text


def _shown(value: Any) -> Any:
    """Return data with control characters in texts written out."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_shown(name): _shown(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return value


@cache
def _fixed(scripts: tuple[Path, ...]) -> dict[str, str]:
    """Return the parts that are the same on every page of a kind."""
    ours = "".join(map(_text, (*FRAME, *scripts)))
    parts = {
        "style": _text(ASSETS / "page.css"),
        "plotly": _text(ASSETS / PLOTLY),
        "script": f'(() => {{\n"use strict";\n{ours}}})();\n',
    }
    allowed = " ".join(_hash(parts[name]) for name in ("plotly", "script"))
    parts["policy"] = (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(parts['style'])} {_hash('')}; "
        "base-uri 'none'; form-action 'none'"
    )
    return parts


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
