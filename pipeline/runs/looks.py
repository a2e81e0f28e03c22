"""How methods, stages and times look, on pages and in figures alike: their order, and what goes by it. Pure.

The first six differ by colour; further ones have the same colours again with other dashes, marks or patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


_FINEST = 1 / 4000
"""Part of a run: where the folding of bars begins."""


@dataclass(kw_only=True)
class Bar:
    """A time in which a worker was taken, in seconds from the begin of the run.

    Attributes:
        worker: Which one.
        device: Its device in words.
        stage: What it did.
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
    jobs: int = 0
    busy: float = 0.0
    first: str
    last: str = ""


def bars(spans: Iterable[Span], began: float, until: float, most: int) -> list[Bar]:
    """Who was taken when, folded until it can be drawn: attempts of one stage that nearly touch are one bar.

    Args:
        spans: Of the whole run.
        began: Seconds since 1970 at which it began.
        until: Likewise what ends those that go on.
        most: Bars that there may be; every worker has one for each stage and outcome at least.
    """
    ordered = sorted(spans, key=lambda span: (span.start, span.end or until))
    whole, width = max([until - began, *(span.end - began for span in ordered if span.end)]), 0.0
    while len(found := _folded(ordered, began, until, width)) > most and width <= whole:
        width = 2 * width or _FINEST * whole
    return found


def _folded(spans: Sequence[Span], began: float, until: float, width: float) -> list[Bar]:
    found: list[Bar] = []
    latest: dict[tuple[int, str, str], Bar] = {}
    for span in spans:
        start = max(0.0, span.start - began)
        end = max(start, (until if span.end is None else span.end) - began)
        kind = (span.worker, span.stage, span.outcome)
        bar = latest.get(kind)
        if bar is None or not width or start - bar.end > width:
            where = {"worker": span.worker, "device": span.device, "stage": span.stage, "outcome": span.outcome}
            bar = latest[kind] = Bar(**where, start=start, end=end, first=span.job)  # type: ignore[arg-type]
            found.append(bar)
        bar.end, bar.last = max(bar.end, end), span.job
        bar.jobs, bar.busy = bar.jobs + 1, bar.busy + end - start
    return sorted(found, key=lambda bar: bar.worker)
