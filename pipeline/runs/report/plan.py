"""Tables of what a run would do, with a picture of it, and of what a store holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape

from rich.filesize import decimal

from pipeline.engine.store.gc import Garbage, Space, StoreUsage
from pipeline.plan.durations import PlanRow
from pipeline.runs.report.format import count, duration, jobs
from pipeline.terminal.columns import EXTRA, Column, FittedTable, shorten
from pipeline.terminal.streams import on_one_line, printable

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


# -- as a picture ----------------------------------------------------------------------------------------------
# Rounds as columns, chains as rows, a box for each stage with its shards folded. An SVG without scripts, fonts or
# links of any kind; light where the viewer is light, dark where that is dark.


MOST_CHAINS, MOST_ROUNDS = 200, 8
"""Rows and columns; what comes after them is counted."""
_BOX, _GAP, _ROW, _PAD = 104, 8, 26, 12
_LETTER = 6.7
"""Width of a letter of the font, about."""
_NAME = 44
_STYLE = """\
text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#1f2937}
.head{font-weight:700}.soft{fill:#6b7280}
.box{fill:#f3f4f6;stroke:#9ca3af}.there{fill:#86c5a4}.edge{fill:none;stroke:#6b7280}.back{fill:#ffffff}
@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.soft{fill:#9ca3af}.box{fill:#374151;stroke:#6b7280}
.there{fill:#2f6f4f}.edge{stroke:#9ca3af}.back{fill:#111827}}"""


def plan_svg(rows: Sequence[PlanRow], title: str, caption: str = "") -> str:
    """Draw a plan.

    Args:
        rows: Its stages by round and chain, see `plan.durations.summarize`.
        title: What it is the plan of; foreign text.
        caption: What stands below the title.
    """
    cells: dict[tuple[str, int], list[PlanRow]] = {}
    for row in rows:
        cells.setdefault((row.chain, row.round), []).append(row)
    chains, numbers = list(dict.fromkeys(row.chain for row in rows)), sorted({row.round for row in rows})
    more = [count(len(chains) - MOST_CHAINS, "more chain")] if len(chains) > MOST_CHAINS else []
    more += [count(len(numbers) - MOST_ROUNDS, "more round")] if len(numbers) > MOST_ROUNDS else []
    shown = chains[:MOST_CHAINS]
    names = shorten(list(map(_plain, shown)), _NAME)
    left = _PAD + _LETTER * max(map(len, [*names.values(), "chain"])) + 2 * _GAP
    lefts: dict[int, float] = {}
    for number in numbers[:MOST_ROUNDS]:
        lefts[number] = left
        boxes = max(len(own) for (_, at), own in cells.items() if at == number)
        left += boxes * (_BOX + _GAP) + 2 * _GAP
    width, height = max(left, 560), 4.5 * _ROW + _ROW * (len(shown) + bool(more)) + _PAD
    legend = "filled and ✓: stored; x10: ten shards, each a job of its own"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{_shown(title)}</title>",
        f"<style>{_STYLE}</style>",
        '<rect class="back" width="100%" height="100%"/>',
        _text(_PAD, 20, title, "head"),
        _text(_PAD, 20 + _ROW * 0.7, caption, "soft"),
        _text(_PAD, 20 + _ROW * 1.4, legend, "soft"),
        _text(_PAD, 3.6 * _ROW, "chain", "head"),
        *(_text(at, 3.6 * _ROW, f"round {number}", "head") for number, at in lefts.items()),
    ]
    for place, chain in enumerate(shown):
        top = 4 * _ROW + place * _ROW
        parts.append(_text(_PAD, top + 0.65 * _ROW, names[_plain(chain)]))
        for number, at in lefts.items():
            for box, stage in enumerate(cells.get((chain, number), [])):
                parts += _box(stage, at + box * (_BOX + _GAP), top)
    if more:
        parts.append(_text(_PAD, 4.6 * _ROW + len(shown) * _ROW, f"and {', '.join(more)}", "soft"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(row: PlanRow, left: float, top: float) -> list[str]:
    """A stage, filled as far as its jobs are stored, with its figures for whoever points at it."""
    there = row.jobs - row.missing
    label = row.stage if row.jobs == 1 else f"{row.stage} x{row.jobs}"
    if there:  # in letters too, for who cannot tell the colours
        label = f"{label} ✓" if there == row.jobs else f"{row.stage} {there}/{row.jobs}"
    about = [f"{row.chain}, round {row.round}, {row.stage}: {jobs(row.jobs)}"]
    about += [f"{there} stored"] if there else []
    about += [f"{row.samples:,} samples"] if row.samples else []
    about += [f"{row.devices} devices each"] if row.devices > 1 else []
    about += [f"about {duration(row.seconds)} of work"] if row.missing else []
    widths = {"box": _BOX, "there": _BOX * there / row.jobs, "edge": _BOX}
    rectangles = [
        f'<rect class="{kind}" x="{left:g}" y="{top + 3:g}" height="{_ROW - 6}" width="{width:g}" rx="3"/>'
        for kind, width in widths.items()
        if width
    ]
    text = _text(left + 4, top + 0.64 * _ROW, shorten([label], int(_BOX / _LETTER))[label])
    return [f"<g><title>{_shown(', '.join(about))}</title>", *rectangles, text, "</g>"]


def _text(left: float, top: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{left:g}" y="{top:g}">{_shown(text)}</text>'


def _plain(text: str) -> str:
    return printable(text).replace("\n", " ").replace("\t", " ")


def _shown(text: str) -> str:
    return escape(_plain(text), quote=False)


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
