"""How figures look: as wide as a column of a paper, in colours that the colour-blind tell apart, text as text."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.figures.data import OPTIMUM
from pipeline.runs.looks import COLOURS, DASHES, MARKS, PATTERNS

COLUMN_IN, PAGE_IN = 3.25, 6.75
"""Widths in inches: of a column of a paper of two, and of its page."""
_SETTINGS: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is there and the same everywhere
    "font.size": 7,
    "axes.labelsize": 7,
    "axes.titlesize": 7,
    "legend.fontsize": 6.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "lines.linewidth": 1.1,
    "lines.markersize": 4.5,
    "lines.markeredgecolor": "white",
    "lines.markeredgewidth": 0.4,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # fonts are embedded whole, so that text can be searched and edited
    "svg.fonttype": "none",
    "svg.hashsalt": "pipeline",  # names inside would else be random
    "text.parse_math": False,  # a dollar in a name is a dollar
    "text.usetex": False,
}


@dataclass(frozen=True)
class Look:
    """How a method is drawn, by more than its colour."""

    colour: str
    marker: str
    line: Any = "-"


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style, whatever the user's own settings of matplotlib are."""
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each method, by its place among them; for the reference and the optimum too."""
    found = {name: _look(at) for at, name in enumerate(methods)}
    return {**found, REFERENCE: Look("#777777", "o", "--"), OPTIMUM: Look("#000000", "*")}


def _look(at: int) -> Look:
    colours, marks, dashes = COLOURS, list(MARKS.values()), list(DASHES.values())
    turn = at // len(colours)
    return Look(colours[at % len(colours)], marks[(at + turn) % len(marks)], dashes[turn % len(dashes)])


def in_order(numbers: Sequence[int]) -> dict[int, Any]:
    """A colour for each of some numbers; where there are many, from dark to light by their order."""
    if len(numbers) <= len(COLOURS):
        return dict(zip(numbers, COLOURS, strict=False))
    from matplotlib import colormaps

    return {number: colormaps["viridis"](0.9 * at / (len(numbers) - 1)) for at, number in enumerate(numbers)}


def some_of(numbers: Sequence[int]) -> set[int]:
    """Those that a legend has room for: all, or as many as there are colours, the first and last among them."""
    if len(numbers) <= len(COLOURS):
        return set(numbers)
    most = len(COLOURS) - 1
    return {numbers[round(at * (len(numbers) - 1) / most)] for at in range(most + 1)}


def fills(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and hatching for each kind of bar."""
    hatches = list(PATTERNS.values())
    return {
        name: (COLOURS[at % len(COLOURS)], hatches[at // len(COLOURS) % len(hatches)])
        for at, name in enumerate(dict.fromkeys(names))
    }
