"""Numbers, and names of devices and files, as people read them."""

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.tables import by_settings, point_of
from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.record import Results
from pipeline.runs.run_view import AttemptView

_PREFIXES = ["", *"kMGTPEZYRQ"]
_MANY_HOURS = 100
"""Hours from which on days say more."""
_LARGE = 1e7
"""Number from which on digits are more than anyone reads."""
_DEVICE = re.compile(r"cpu slot (\d+)|((?:GPU|MIG)-\w{8})")


def duration(seconds: float) -> str:
    """Format seconds as ``8.2 s``, ``3 min 05 s``, ``2 h 04 min`` or ``85 d 06 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < _MANY_HOURS:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(hours + minutes / 60), 24)
    return f"{days:,} d {hours:02d} h"


def roughly(seconds: float) -> str:
    """Format an estimate in few digits: ``35 s``, ``4 min 20 s``, ``34 min``, ``2 h 05 min``."""
    step = 5 if seconds < 120 else 10 if seconds < 600 else 60
    whole = max(step, step * round(seconds / step))
    return (
        f"{whole} s" if whole < 60 else duration(whole) if whole < 600 or whole >= 3600 else f"{whole // 60} min"
    )


def percent(part: float) -> str:
    """Format a fraction as ``37 %``; never 100 before it is done."""
    return f"{int(100 * part)} %"


def done_in_words(attempt: AttemptView) -> str:
    """Format the progress of a running job: ``37 %``, ``loading``, or "" if it reports none."""
    if attempt.loading:
        return "loading"
    return percent(attempt.part) if attempt.total else ""


def rate(per_second: float) -> str:
    """Format a rate in few digits: ``0.25``, ``7``, ``942``, ``18.5k``, ``1.2M``."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if per_second >= limit:
            return f"{per_second / limit:.1f}{unit}"
    return f"{per_second:.2g}" if per_second < 10 else f"{per_second:.0f}"


def si(number: float) -> str:
    """Format a number with three digits and an SI prefix: ``942``, ``18.5 k``, ``1.20 T``."""
    value, power = float(f"{number:.3g}"), 0
    while value >= 1000 and power + 1 < len(_PREFIXES):
        value, power = float(f"{value / 1000:.3g}"), power + 1
    digits = max(0, 2 - int(math.log10(value))) if value >= 1 else 0
    return f"{value:.{digits if power else 0}f} {_PREFIXES[power]}".rstrip()


def decimal(number: float, sign: str = "", places: int = 3) -> str:
    """Format a number as ``0.400``, with ``sign="+"`` as ``+0.400``; large ones as ``1.0e+30``, no ``-0.000``."""
    return f"{number:{sign}.1e}" if abs(number) >= _LARGE else f"{number:{sign}z.{places}f}"


def places_of(numbers: Iterable[float | None]) -> int:
    """Return the decimals of a column: three, or as many as show three digits of its largest number.

    Numbers that are all below 1e-9 are taken for 0.
    """
    largest = max((abs(number) for number in numbers if number is not None), default=0.0)
    return 2 - math.floor(math.log10(largest)) if 1e-9 < largest < 0.01 else 3


def short(number: float, digits: int = 4) -> str:
    """Format a setting with some digits, as ``0.0003`` or ``1.235e-05``."""
    return f"{number:.{digits}g}"


def interval(low: float | None, high: float | None, sign: str = "", places: int = 3) -> str:
    """Format an interval as ``[0.380, 0.420]``, with ``sign="+"`` as ``[+0.380, +0.420]``; "" for none."""
    return "" if low is None or high is None else f"[{decimal(low, sign, places)}, {decimal(high, sign, places)}]"


def title(*parts: str) -> str:
    """Return the title of a table, as ``addition · tiny · 3 seeds``; empty parts are left out."""
    return " · ".join(part for part in parts if part)


def gibibytes(number: int) -> str:
    """Format bytes as ``0.4 GiB``."""
    return f"{number / 2**30:.1f} GiB"


def count(number: int, noun: str) -> str:
    """Format a count as ``1 run``, ``12 runs``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def brief_device(words: str) -> str:
    """Shorten a device's name: ``cpu 0``, or the beginning of the UUID of a GPU."""
    match = _DEVICE.match(words)
    if match is None:
        return words
    return f"cpu {match[1]}" if match[1] else match[2]


def beginning(text: str, most: int) -> str:
    """Truncate a text to some characters, and say so."""
    return text if len(text) <= most else f"{text[:most]} … (the first {most:,} of {len(text):,} characters)"


def shown_path(path: Path) -> str:
    """Return a path as typed here: relative if it is below the current folder."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def typed_command(words: Iterable[str]) -> str:
    """Quote a command line for bash and zsh; zsh expands a word that begins with ``=``."""
    quoted = ((word, shlex.quote(word)) for word in words)
    return " ".join(f"'{word}'" if typed.startswith("=") else typed for word, typed in quoted)


def logs_command(output_dir: Path, name: str, job_id: str) -> str:
    """Return the command that shows the log of a job."""
    return command(f"logs {name} {job_id}", output_dir)


def command(words: str, output_dir: Path) -> str:
    """Return a command for that output folder."""
    where = "" if shown_path(output_dir) == "outputs" else f" --output-dir {shlex.quote(shown_path(output_dir))}"
    return f"python -m pipeline {words}{where}"


# -- looks -------------------------------------------------------------------------------------------------------
# How methods, stages and times look, on pages and in figures alike: their order, and what goes by it. Pure.
# The first six differ by colour; further ones have the same colours again with other dashes, marks or
# patterns.


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")
"""Colours of Okabe and Ito, which everybody can tell apart; the orange darker, to be seen on white."""
ON_DARK = ("#4ba6e0", "#f0803c", "#2fc496", "#e39cc4", "#e6b93c", "#9bd4f5")
"""Colours for a dark ground."""
DASHES: Mapping[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdash": (0, (8, 3)),
    "longdashdot": (0, (8, 3, 1, 3)),
}
"""Name of a line style in plotly -> in matplotlib."""
MARKS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "x": "X"}
"""Name of a point's symbol, likewise."""
PATTERNS = {"": "", "/": "////", "x": "xxxx", ".": "...."}
"""Name of a bar's pattern, likewise."""
_STAGES = ("prepare", "check", "tokenize", "generate", "score", "reward", "train", "sweep", "evaluate", "metrics")
"""Stages of a round, in order."""


LOOKS: Mapping[str, Sequence[str]] = {
    "light": COLOURS,
    "dark": ON_DARK,
    "dashes": list(DASHES),
    "marks": list(MARKS),
    "patterns": list(PATTERNS),
}
"""The same by their names in plotly, for the scripts of a page."""


def reading_order(name: str) -> tuple[object, ...]:
    """Return the sort key of methods: the reference first, points of a front beside each other."""
    return (name != REFERENCE, *by_settings(name))


def drawn_methods(results: Results) -> list[str]:
    """Return the methods of a run in the order of their looks, without the reference.

    Points of fronts come after all methods, so that they change the look of none; a method that ran at several
    points alone is there too, as the name of its front.
    """
    names = {row.algo for row in results.pooled} | {row.front for row in results.fronts}
    return sorted(names - {REFERENCE}, key=lambda name: (point_of(name)[1] != "", by_settings(name)))


def in_order_of_work(stages: Iterable[str]) -> list[str]:
    """Return each stage once: shipped ones in the order of a round's work, then others in order of appearance."""
    names = list(dict.fromkeys(stages))
    return sorted(names, key=lambda stage: _STAGES.index(stage) if stage in _STAGES else len(_STAGES))
