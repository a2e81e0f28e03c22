"""The plan as a table: what `dry_run=true` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from pipeline.plan.summary import PlanRow
from pipeline.runs.report.format import count, duration, jobs
from pipeline.terminal.columns import EXTRA, Column, FittedTable, shorten
from pipeline.terminal.streams import printable

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


# -- plan picture ------------------------------------------------------------------------------------------------
# The plan as a picture: rounds as columns, chains as rows, a box for each stage with its shards folded. Pure.
# An SVG without scripts, fonts or links of any kind; light where the viewer is light, dark where that is
# dark.


MOST_CHAINS = 200
"""Rows; what comes after them is counted."""
MOST_ROUNDS = 8
"""Columns; where there are more, those in the middle are left out."""

_BOX, _GAP, _ROW, _PAD = 104, 8, 26, 12
_LETTER = 6.7
"""Width of a letter of the font, about."""
_NAME = 44
_STYLE = """\
text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#1f2937}
.head{font-weight:700}.soft{fill:#6b7280}.line{stroke:#9ca3af;stroke-width:1}
.box{fill:#f3f4f6;stroke:#9ca3af}.there{fill:#86c5a4}.edge{fill:none;stroke:#6b7280}.back{fill:#ffffff}
@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.soft{fill:#9ca3af}.box{fill:#374151;stroke:#6b7280}
.there{fill:#2f6f4f}.edge{stroke:#9ca3af}.back{fill:#111827}}"""


@dataclass(frozen=True)
class _Column:
    """A round.

    Attributes:
        heading: What stands above it.
        number: The round; None for those that are left out.
        left: Where it begins.
        boxes: Stages of the chain that has most of them there.
    """

    heading: str
    number: int | None
    left: float
    boxes: int


def plan_svg(rows: Sequence[PlanRow], title: str, caption: str = "") -> str:
    """Draw a plan.

    Args:
        rows: Its stages by round and chain, see `plan.summary.summarize`.
        title: What it is the plan of; foreign text.
        caption: What stands below the title.
    """
    chains = list(dict.fromkeys(row.chain for row in rows))
    shown = chains[:MOST_CHAINS]
    cells: dict[tuple[str, int], list[PlanRow]] = {}
    for row in rows:
        cells.setdefault((row.chain, row.round), []).append(row)
    names = shorten([printable(chain).replace("\n", " ") for chain in shown], _NAME)
    left = _PAD + _LETTER * max(map(len, [*names.values(), "chain"]), default=0) + 2 * _GAP
    columns = _plan_picture_columns(cells, left)
    width = max(columns[-1].left + _width(columns[-1]), 560) if columns else 560
    more = len(chains) - len(shown)
    height = 4.5 * _ROW + _ROW * (len(shown) + bool(more)) + _PAD
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{_shown(title)}</title>",
        f"<style>{_STYLE}</style>",
        '<rect class="back" width="100%" height="100%"/>',
        _text(_PAD, 20, title, "head"),
        _text(_PAD, 20 + _ROW * 0.7, caption, "soft"),
        *_legend(_PAD, 20 + _ROW * 1.4),
        *(_text(column.left, 3.6 * _ROW, column.heading, "head") for column in columns),
        _text(_PAD, 3.6 * _ROW, "chain", "head"),
    ]
    for place, chain in enumerate(shown):
        parts += _row(chain, names[printable(chain).replace("\n", " ")], 4 * _ROW + place * _ROW, cells, columns)
    if more:
        parts.append(_text(_PAD, 4.6 * _ROW + len(shown) * _ROW, f"and {count(more, 'more chain')}", "soft"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _plan_picture_columns(cells: dict[tuple[str, int], list[PlanRow]], left: float) -> list[_Column]:
    numbers: list[int | None] = [*sorted({number for _, number in cells})]
    if len(numbers) > MOST_ROUNDS:
        numbers = [*numbers[: MOST_ROUNDS - 2], None, numbers[-1]]
    columns: list[_Column] = []
    for number in numbers:
        boxes = max((len(rows) for (_, at), rows in cells.items() if at == number), default=0)
        columns.append(_Column("..." if number is None else f"round {number}", number, left, boxes))
        left += _width(columns[-1]) + _GAP
    return columns


def _width(column: _Column) -> float:
    return max(column.boxes * (_BOX + _GAP), 40) + _GAP


def _row(
    chain: str, name: str, top: float, cells: dict[tuple[str, int], list[PlanRow]], columns: Iterable[_Column]
) -> list[str]:
    """A chain: its name, a line through all rounds that it has, and a box for each stage."""
    parts, ends = [_text(_PAD, top + 0.65 * _ROW, name)], []
    for column in columns:
        stages = cells.get((chain, column.number), []) if column.number is not None else []
        for place, stage in enumerate(stages):
            left = column.left + place * (_BOX + _GAP)
            ends += [left, left + _BOX]
            parts += _box(stage, left, top)
    if not ends:
        return parts
    middle = top + 0.5 * _ROW
    line = f'<line class="line" x1="{min(ends):g}" y1="{middle:g}" x2="{max(ends):g}" y2="{middle:g}"/>'
    return [line, *parts]


def _box(row: PlanRow, left: float, top: float) -> list[str]:
    """A stage, filled as far as its jobs are stored, with its figures for whoever points at it."""
    there, height = row.jobs - row.missing, _ROW - 6
    label = row.stage if row.jobs == 1 else f"{row.stage} x{row.jobs}"
    if there:  # in letters too, for who cannot tell the colours
        label = f"{label} ✓" if there == row.jobs else f"{row.stage} {there}/{row.jobs}"
    about = [f"{row.chain}, round {row.round}, {row.stage}: {jobs(row.jobs)}"]
    about += [f"{there} stored"] if there else []
    about += [f"{row.samples:,} samples"] if row.samples else []
    about += [f"{row.devices} devices each"] if row.devices > 1 else []
    about += [f"about {duration(row.seconds)} of work"] if row.missing else []
    where = f'x="{left:g}" y="{top + 3:g}" height="{height}"'
    parts = [f"<g><title>{_shown(', '.join(about))}</title>", f'<rect class="box" {where} width="{_BOX}" rx="3"/>']
    if there:
        parts.append(f'<rect class="there" {where} width="{_BOX * there / row.jobs:g}" rx="3"/>')
    parts.append(f'<rect class="edge" {where} width="{_BOX}" rx="3"/>')
    return [*parts, _text(left + 4, top + 0.64 * _ROW, shorten([label], int(_BOX / _LETTER))[label]), "</g>"]


def _legend(left: float, top: float) -> list[str]:
    place = f'y="{top - 10:g}" width="14" height="12" rx="2"'
    return [
        f'<rect class="there" x="{left:g}" {place}/><rect class="edge" x="{left:g}" {place}/>',
        _text(left + 20, top, "stored ✓"),
        f'<rect class="box" x="{left + 80:g}" {place}/>',
        _text(left + 100, top, "to run; x10: ten shards, each a job of its own"),
    ]


def _text(left: float, top: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{left:g}" y="{top:g}">{_shown(text)}</text>'


def _shown(text: str) -> str:
    return escape(printable(text).replace("\n", " ").replace("\t", " "), quote=False)
