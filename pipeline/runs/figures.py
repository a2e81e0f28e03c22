"""Figures of a run for a paper: the same bytes from the same run, without a date.

They are one column wide, in colours for the colour-blind, with text as text. A method that ran at several values
of its settings has a Pareto front; in other figures each of its points is a method of its own.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.config.tables import point_of
from pipeline.errors import ConfigError, install_command
from pipeline.files import replacing
from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.cost import CostRow
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.record import KL, Methods, PooledRow, Results, by_method, cells_of, primary_metric
from pipeline.runs.report import format as words
from pipeline.runs.report.tables import HEADINGS
from pipeline.terminal.streams import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""Metadata without dates and versions, so that equal data give equal files."""
Format = Enum("Format", {"pdf": "pdf", "svg": "svg", "png": "png"})
_SIZE_IN = (3.25, 2.5)
"""Width and height in inches: of a column of a paper of two."""
_SETTINGS: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is there and the same everywhere
    "font.size": 7,
    "legend.fontsize": 6.5,
    **dict.fromkeys(("axes.labelsize", "axes.titlesize"), 7),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 6.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "lines.linewidth": 1.1,
    "lines.markersize": 4.5,
    "lines.markeredgecolor": "white",
    "lines.markeredgewidth": 0.4,
    "hatch.linewidth": 0.5,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # fonts are embedded whole, so that text can be searched and edited
    "svg.fonttype": "none",
    "svg.hashsalt": "pipeline",  # names inside would else be random
    "text.parse_math": False,  # a dollar in a name is a dollar
    "text.usetex": False,
}
_BAND = 0.18
_OPTIMUM = "optimum"

Place = tuple[str, str]
"""Dataset and model."""


class Point(NamedTuple):
    """A measured point; ends of intervals are None where there are none."""

    x: float
    y: float
    x_low: float | None = None
    x_high: float | None = None
    y_low: float | None = None
    y_high: float | None = None


Series = Mapping[str, Sequence[Point]]
"""Method, front, ``reference`` or ``optimum`` -> its points, in the order of the line."""


def write_figures(run: LoadedRun, out: Path, formats: Sequence[str]) -> list[Path]:
    """Write every figure that a run has data for.

    Args:
        run: The run.
        out: Folder to write to; made where it is missing.
        formats: Names of `Format`.

    Returns:
        The files.

    Raises:
        ConfigError: matplotlib is not installed, or the folder cannot be written to.
        PipelineError: The run's results cannot be read.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(f"figures need matplotlib, which is not installed: {install_command('figures')}")
    written = []
    with styled():
        for name, draw in _figures(run):
            for kind in formats:
                figure = draw()  # anew, as its layout depends on what was saved before
                written.append(out / f"{name}.{kind}")
                try:
                    out.mkdir(parents=True, exist_ok=True)
                    with replacing(written[-1], durable=False) as temporary:
                        figure.savefig(temporary, format=kind, metadata=_METADATA[kind])
                except OSError as error:
                    raise ConfigError(f"cannot write {written[-1]}: {error.strerror or error}") from error
    return written


def _figures(run: LoadedRun) -> Iterator[tuple[str, Callable[[], Figure]]]:
    results, compute = run.results, run.compute
    look = looks(words.drawn_methods(results))
    for place in _places(results):
        methods = methods_of(results, place)
        metric = _metric(methods)
        heading = HEADINGS.get(metric, metric)
        # A name that every file system takes, whatever a dataset is called.
        where = re.sub(r"[^\w.-]+", "-", "_".join(place), flags=re.ASCII).strip("-.")[:100] or "run"
        if series := reward_against_kl(results, place):
            yield f"front_{where}", partial(_front, series, heading, look)
        series = _over_rounds(methods)
        if any(len(points) > 1 for points in series.values()):
            yield f"rounds_{where}", partial(_rounds, series, heading, look)
        trained = {name: rounds for name, rounds in methods.items() if name != REFERENCE}
        if series := _against_cost(trained, compute.costs, place, "flops"):
            yield f"flops_{where}", partial(_flops, series, heading, look, "FLOPs of training")
        last = {name: {max(rounds): rounds[max(rounds)]} for name, rounds in methods.items()}
        if series := _against_cost(last, compute.costs, place, "answer"):
            yield f"answers_{where}", partial(_flops, series, heading, look, "FLOPs of an answer")


# -- data --------------------------------------------------------------------------------------------------------


def _places(results: Results) -> list[Place]:
    return sorted({(row.dataset, row.model) for row in results.pooled})


def methods_of(results: Results, place: Place) -> Methods:
    """Return the numbers of methods for a dataset and model, in reading order."""
    methods = by_method(results.pooled).get(place, {})
    return {name: methods[name] for name in sorted(methods, key=words.reading_order)}


def _metric(methods: Methods) -> str:
    return primary_metric(cells_of(methods)) or ""


def reward_against_kl(results: Results, place: Place) -> Series:
    """Return fronts, methods after their last round, the reference, and the optimum if known."""
    methods = methods_of(results, place)
    metric = _metric(methods)
    series: dict[str, list[Point]] = {}
    for row in sorted(results.fronts, key=lambda row: row.kl):
        if (row.dataset, row.model) == place and row.point != REFERENCE:
            point = Point(row.kl, row.value, row.kl_low, row.kl_high, row.ci_low, row.ci_high)
            series.setdefault(row.front, []).append(point)
    for name, rounds in methods.items():
        last = rounds[max(rounds)]
        if name not in series and not point_of(name)[1] and KL in last and metric in last:
            series[name] = [_against(last[KL], last[metric])]
    reference = methods.get(REFERENCE, {}).get(0, {})
    if (kl := reference.get(f"{_OPTIMUM}/{KL}")) and (best := reference.get(f"{_OPTIMUM}/{metric}")):
        series[_OPTIMUM] = [_against(kl, best)]
    return series


def _against(x: PooledRow, y: PooledRow) -> Point:
    return Point(x.value or 0.0, y.value or 0.0, x.ci_low, x.ci_high, y.ci_low, y.ci_high)


def _over_rounds(methods: Methods) -> Series:
    """Return the result of each method after every round; the reference at round 0."""
    metric = _metric(methods)
    return {
        name: [_at(number, cell[metric]) for number, cell in rounds.items() if metric in cell]
        for name, rounds in methods.items()
    }


def _against_cost(methods: Methods, costs: Iterable[CostRow], place: Place, cost: str) -> Series:
    """Return the result of each method after every round, against its cost, as far as that is known."""
    metric = _metric(methods)
    spent = {(row.algo, row.round): getattr(row, cost) for row in costs if (row.dataset, row.model) == place}
    series = {
        name: [
            _at(flops, cell[metric])
            for number, cell in rounds.items()
            if (flops := spent.get((name, number))) and metric in cell
        ]
        for name, rounds in methods.items()
    }
    return {name: points for name, points in series.items() if points}


def _at(x: float, y: PooledRow) -> Point:
    return Point(x, y.value or 0.0, y_low=y.ci_low, y_high=y.ci_high)


# -- drawing -----------------------------------------------------------------------------------------------------


Look = Mapping[str, Any]
"""Style of a line with points in matplotlib: ``color``, ``marker``, ``linestyle``."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style inside, regardless of the user's matplotlib settings."""
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Return a style for each method, by its index; also for the reference and the optimum."""
    marks, dashes = list(words.MARKS.values()), list(words.DASHES.values())
    styles: dict[str, Look] = {}
    for at, name in enumerate(methods):
        turn, colour = divmod(at, len(words.COLOURS))
        mark, line = marks[(at + turn) % len(marks)], dashes[turn % len(dashes)]
        styles[name] = {"color": words.COLOURS[colour], "marker": mark, "linestyle": line}
    styles[REFERENCE] = {"color": "#777777", "marker": "o", "linestyle": "--"}
    return {**styles, _OPTIMUM: {"color": "#000000", "marker": "*", "linestyle": "-"}}


def _front(series: Series, metric: str, look: Mapping[str, Look]) -> Figure:
    """Draw reward against KL divergence, with both intervals; the points of a front are joined."""
    figure, axes = _figure()
    _points(axes, {name: points for name, points in series.items() if name != _OPTIMUM}, look)
    (low, high), (bottom, top) = seen = axes.get_xlim(), axes.get_ylim()
    for best in series.get(_OPTIMUM, ()):
        _points(axes, {_OPTIMUM: [best]}, look)
        if best.x > high + (high - low) / 4 or best.y > top + (top - bottom) / 4:  # it would squeeze all others
            axes.set(xlim=seen[0], ylim=seen[1])
            where = f"optimum: {best.y:.3g} at {best.x:.3g} nats"
            axes.text(0.98, 0.02, where, transform=axes.transAxes, ha="right", va="bottom", fontsize=6)
    axes.set_xlabel("KL from the reference (nats per sequence)")
    axes.set_ylabel(metric)
    return _with_legend(figure, axes)


def _rounds(series: Series, metric: str, look: Mapping[str, Look]) -> Figure:
    """Draw results over rounds, with bands; the reference is a horizontal line."""
    figure, axes = _figure()
    for name, points in series.items():
        own = look[name]
        if name == REFERENCE:
            for point in points[:1]:
                line = {"color": own["color"], "linestyle": own["linestyle"], "linewidth": 0.9}
                axes.axhline(point.y, label=_label(name), **line)
                if point.y_low is not None and point.y_high is not None:
                    axes.axhspan(point.y_low, point.y_high, color=own["color"], alpha=_BAND, linewidth=0)
            continue
        axes.plot([point.x for point in points], [point.y for point in points], label=_label(name), **own)
        if band := [(point.x, point.y_low, point.y_high) for point in points if point.y_low is not None]:
            axes.fill_between(*zip(*band, strict=True), color=own["color"], alpha=_BAND, linewidth=0)
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(metric)
    return _with_legend(figure, axes)


def _flops(series: Series, metric: str, look: Mapping[str, Look], label: str) -> Figure:
    """Draw results against FLOPs."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    figure, axes = _figure()
    _points(axes, series, look)
    xs = [point.x for points in series.values() for point in points]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(xs) / min(xs) < 100 else (1,)))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)
    axes.set_ylabel(metric)
    return _with_legend(figure, axes)


# -- parts -----------------------------------------------------------------------------------------------------


def _points(axes: Axes, series: Series, look: Mapping[str, Look]) -> None:
    """Draw points with their intervals; a bootstrap interval need not contain the estimate."""

    def off(value: float, low: float | None, high: float | None) -> tuple[float, float]:
        return (0.0 if low is None else max(0.0, value - low), 0.0 if high is None else max(0.0, high - value))

    for name, points in series.items():
        axes.errorbar(
            [point.x for point in points],
            [point.y for point in points],
            xerr=list(zip(*(off(point.x, point.x_low, point.x_high) for point in points), strict=True)),
            yerr=list(zip(*(off(point.y, point.y_low, point.y_high) for point in points), strict=True)),
            markersize=8 if name == _OPTIMUM else 4,
            elinewidth=0.7,
            label=_label(name),
            zorder=3 if name == _OPTIMUM else 2,
            **look[name],
        )


def _figure() -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_IN, layout="constrained")
    return figure, figure.subplots()


def _with_legend(figure: Figure, axes: Axes) -> Figure:
    """Add a legend below; the figure grows for a long one, so that the axes keep their size."""
    handles, labels = axes.get_legend_handles_labels()
    width, height = _SIZE_IN
    longest = max(map(len, labels), default=1)
    # An inch has some 17 characters of a name; a line and the room around it take 0.45, a further row 0.14.
    columns = max(1, min(8, int(width / (longest / 17 + 0.45))))
    figure.set_size_inches(width, height + 0.14 * max(0, math.ceil(len(labels) / columns) - 2))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2)
    return figure


def _label(name: str) -> str:
    """Return a name as a label; a legend would leave out one that begins with an underscore."""
    text = printable(name)
    return f" {text}" if text.startswith("_") else text
