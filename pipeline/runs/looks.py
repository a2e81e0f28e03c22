"""How methods, stages and times look, on pages and in figures alike: their order, and what goes by it. Pure.

The first six differ by colour; further ones have the same colours again with other dashes, marks or patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.tables import by_settings, point_of
from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.record import Results
from pipeline.runs.run_view import Span

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")
"""Of Okabe and Ito, which people of every colour vision can tell apart; the orange darker, to be seen on white."""
ON_DARK = ("#4ba6e0", "#f0803c", "#2fc496", "#e39cc4", "#e6b93c", "#9bd4f5")
"""The same for a dark ground."""
DASHES: Mapping[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdash": (0, (8, 3)),
    "longdashdot": (0, (8, 3, 1, 3)),
}
"""What plotly calls a line -> what matplotlib does."""
MARKS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "x": "X"}
"""Likewise of a point,"""
PATTERNS = {"": "", "/": "////", "x": "xxxx", ".": "...."}
"""and of what fills a bar."""
_STAGES = ("prepare", "check", "tokenize", "generate", "score", "reward", "train", "sweep", "evaluate", "metrics")
"""Of a round's work."""


@dataclass(frozen=True, kw_only=True)
class Looks:
    """The same by their names in plotly, for the scripts of a page.

    Attributes:
        light: Colours.
        dark: Those for a dark ground.
        dashes: Of lines.
        marks: Of points.
        patterns: Of bars.
    """

    light: Sequence[str] = COLOURS
    dark: Sequence[str] = ON_DARK
    dashes: Sequence[str] = tuple(DASHES)
    marks: Sequence[str] = tuple(MARKS)
    patterns: Sequence[str] = tuple(PATTERNS)


def reading_order(name: str) -> tuple[object, ...]:
    """What methods are sorted by where they are read: the reference first, points of a front beside each other."""
    return (name != REFERENCE, *by_settings(name))


def drawn_methods(results: Results) -> list[str]:
    """The methods of a run in the order of their looks, without the reference.

    Points of fronts come after all methods, so that they change the look of none; a method that ran at several
    points alone is there too, as the name of its front.
    """
    names = {row.algo for row in results.pooled} | {row.front for row in results.fronts}
    return sorted(names - {REFERENCE}, key=lambda name: (point_of(name)[1] != "", by_settings(name)))


def in_order_of_work(stages: Iterable[str]) -> list[str]:
    """Each stage once: those that ship in the order of a round's work, then others as they come."""
    found = list(dict.fromkeys(stages))
    return sorted(found, key=lambda stage: _STAGES.index(stage) if stage in _STAGES else len(_STAGES))


# -- times -----------------------------------------------------------------------------------------------------


SEVERAL = "several"
_FINEST, _ONE_STAGE = 1 / 4000, 1 / 100
"""Parts of a run: where the folding of bars begins, and up to where only those of one stage are folded."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A time in which a worker was taken, in seconds from the begin of the run.

    Attributes:
        worker: Which one.
        device: Its device in words.
        stage: What it did; `SEVERAL` where that differs.
        outcome: As of a `Span`.
        start: Begin.
        end: End.
        jobs: How many attempts at jobs are folded into it.
        busy: Seconds between begin and end in which one ran.
        first: Id of the job, or of the first.
        last: Of the last.
    """

    worker: int
    device: str
    stage: str
    outcome: str
    start: float
    end: float
    jobs: int = 1
    busy: float
    first: str
    last: str


def bars(spans: Iterable[Span], began: float, until: float, most: int, *, across: bool = True) -> list[Bar]:
    """Who was taken when, folded until it can be drawn: neighbours too short to be told apart are one bar.

    Args:
        spans: Of the whole run.
        began: Seconds since 1970 at which it began.
        until: Likewise what ends those that go on.
        most: Bars that there may be; every worker has one for each outcome at least.
        across: Whether neighbours of different stages may be folded too, where those of one do not suffice.
    """
    lanes: dict[int, list[Bar]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.end or until)):
        start = max(0.0, span.start - began)
        end = max(start, (until if span.end is None else span.end) - began)
        kind = {"worker": span.worker, "device": span.device, "stage": span.stage, "outcome": span.outcome}
        bar = Bar(**kind, start=start, end=end, busy=end - start, first=span.job, last=span.job)  # type: ignore[arg-type]
        lanes.setdefault(span.worker, []).append(bar)
    whole = max((bar.end for own in lanes.values() for bar in own), default=0.0)
    part = _FINEST
    while sum(map(len, lanes.values())) > most and part <= (2 if across else _ONE_STAGE):
        lanes = {lane: _folded(own, part * whole, part > _ONE_STAGE) for lane, own in lanes.items()}
        part *= 2
    return [bar for _, own in sorted(lanes.items()) for bar in own]


def _folded(own: list[Bar], width: float, across: bool) -> list[Bar]:
    """Join neighbours of a worker that are shorter and nearer than a width, where both came out alike."""
    found: list[Bar] = []
    latest: dict[str, int] = {}
    for bar in own:
        at = latest.get(bar.outcome)
        before = None if at is None else found[at]
        near = before is not None and bar.start - before.end <= width
        if before and near and (across or before.stage == bar.stage) and min(_long(before), _long(bar)) <= width:
            found[latest[bar.outcome]] = replace(
                before,
                end=max(before.end, bar.end),
                stage=before.stage if before.stage == bar.stage else SEVERAL,
                jobs=before.jobs + bar.jobs,
                busy=before.busy + bar.busy,
                last=bar.last,
            )
        else:
            latest[bar.outcome] = len(found)
            found.append(bar)
    return found


def _long(bar: Bar) -> float:
    return bar.end - bar.start
