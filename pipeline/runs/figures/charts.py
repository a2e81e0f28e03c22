"""The figures, drawn: series become axes with intervals, and a legend below that says what is what.

They are as wide as a column of a paper, in colours that the colour-blind tell apart, with text as text.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.config.tables import point_of
from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import TrainingStep, by_training
from pipeline.plan.graph import Job
from pipeline.runs.cost import ComputeRow, CostRow
from pipeline.runs.looks import COLOURS, DASHES, MARKS, PATTERNS, Bar, reading_order
from pipeline.runs.record import FrontRow, PooledRow, Results, primary_metric
from pipeline.runs.report.format import si
from pipeline.terminal.streams import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# -- data --------------------------------------------------------------------------------------------------------
# What the figures of a run show, as plain series. Pure. results, compute, curves -> series -> charts A method
# that ran at several values of its settings has a front; elsewhere each of its points stands for itself.


Place = tuple[str, str]
"""Dataset and model."""
KL = "kl_per_sequence"
OPTIMUM = "optimum"


@dataclass(frozen=True)
class Point:
    """A measured point; ends of intervals are None where there are none."""

    x: float
    y: float
    x_low: float | None = None
    x_high: float | None = None
    y_low: float | None = None
    y_high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one method, by x where they are joined.

    Attributes:
        name: The method or a point of its front, ``reference`` or ``optimum``.
        points: Its points.
        is_front: Whether they are settings of the method rather than its rounds.
    """

    name: str
    points: list[Point]
    is_front: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The trainings of one kind of a method: a curve for each seed, reference and round.

    Attributes:
        title: Method, and which of its trainings.
        curves: Round -> curves, each of steps and losses; a step that has no finite loss is left out.
    """

    title: str
    curves: dict[int, list[tuple[list[int], list[float]]]] = field(default_factory=dict)


Cells = Mapping[tuple[str, int], Mapping[str, PooledRow]]
"""Method and round -> metric -> its row."""


def places(results: Results) -> list[Place]:
    """Datasets and models that there are results of."""
    return sorted({(row.dataset, row.model) for row in results.pooled})


def metric_of(results: Results, place: Place) -> str | None:
    """What methods are judged by."""
    return primary_metric(cell.keys() for cell in _cells(results, place).values())


def reward_against_kl(results: Results, place: Place) -> list[Series]:
    """Methods after their last round, fronts, the reference, and the optimum where it is known."""
    cells, metric = _cells(results, place), metric_of(results, place)
    if metric is None:
        return []
    fronts = dict.fromkeys(row.front for row in results.fronts if (row.dataset, row.model) == place)
    found = [_front(results, place, name) for name in fronts]
    for name, rounds in _methods(cells).items():
        last = rounds[max(rounds)]
        if name not in fronts and point_of(name)[1] == "" and KL in last:
            found.append(Series(name=name, points=[_against(last[KL], last[metric])]))
    reference = cells.get((REFERENCE, 0), {})
    if (kl := reference.get(f"{OPTIMUM}/{KL}")) and (best := reference.get(f"{OPTIMUM}/{metric}")):
        found.append(Series(name=OPTIMUM, points=[_against(kl, best)]))
    return found


def over_rounds(results: Results, place: Place) -> list[Series]:
    """The result of each method after every round; the reference at round 0."""
    metric = metric_of(results, place) or ""
    return [
        Series(name=name, points=[_at(number, row[metric]) for number, row in rounds.items() if metric in row])
        for name, rounds in _methods(_cells(results, place)).items()
    ]


def against_flops(results: Results, costs: Iterable[CostRow], place: Place) -> list[Series]:
    """The result of each method after every round, by what its training took until then."""
    metric = metric_of(results, place) or ""
    spent = {(cost.algo, cost.round): cost.flops for cost in costs if (cost.dataset, cost.model) == place}
    found = []
    for name, rounds in _methods(_cells(results, place)).items():
        known = [(spent.get((name, number)), row.get(metric)) for number, row in rounds.items()]
        points = [_at(flops, row) for flops, row in known if flops and row is not None]
        if name != REFERENCE and points:
            found.append(Series(name=name, points=points))
    return found


def trainings(curves: Iterable[tuple[Job, Sequence[TrainingStep]]], place: Place) -> list[Panel]:
    """The losses of all trainings of a dataset and model, by method and kind of training."""
    found: dict[str, Panel] = {}
    for job, steps in curves:
        if (job.dataset, job.model) != place:
            continue
        for name, own in by_training(steps).items():
            title = job.algo if name == job.algo else f"{job.algo}: {name}"
            panel = found.setdefault(title, Panel(title=title))
            finite = [(step.step, step.loss) for step in own if step.loss is not None]
            if finite:
                xs, ys = zip(*finite, strict=True)
                panel.curves.setdefault(job.round, []).append((list(xs), list(ys)))
    return [panel for panel in found.values() if panel.curves]


def seconds_by_stage(rows: Iterable[ComputeRow], place: Place) -> dict[str, dict[str, float]]:
    """Method -> stage -> seconds on devices without loading, over all seeds, references and rounds."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if (row.dataset, row.model) == place and row.device_s:
            stages = found.setdefault(row.algo, {})
            stages[row.stage] = stages.get(row.stage, 0.0) + row.device_s
    return found


def _cells(results: Results, place: Place) -> dict[tuple[str, int], dict[str, PooledRow]]:
    cells: dict[tuple[str, int], dict[str, PooledRow]] = {}
    for row in results.pooled:
        if (row.dataset, row.model) == place and row.value is not None:
            cells.setdefault((row.algo, row.round), {})[row.metric] = row
    return cells


def _methods(cells: Cells) -> dict[str, dict[int, Mapping[str, PooledRow]]]:
    """Method, or point of a front -> round -> its numbers."""
    names = sorted({name for name, _ in cells}, key=reading_order)
    return {name: {number: row for (algo, number), row in sorted(cells.items()) if algo == name} for name in names}


def _front(results: Results, place: Place, name: str) -> Series:
    rows = [row for row in results.fronts if (row.dataset, row.model, row.front) == (*place, name)]
    rows = sorted((row for row in rows if row.point != REFERENCE), key=lambda row: row.kl)
    return Series(name=name, points=[Point(row.kl, row.value, *_ends(row)) for row in rows], is_front=True)


def _ends(row: FrontRow) -> tuple[float | None, ...]:
    return row.kl_low, row.kl_high, row.ci_low, row.ci_high


def _against(x: PooledRow, y: PooledRow) -> Point:
    return Point(x.value or 0.0, y.value or 0.0, x.ci_low, x.ci_high, y.ci_low, y.ci_high)


def _at(x: float, y: PooledRow) -> Point:
    return Point(x, y.value or 0.0, y_low=y.ci_low, y_high=y.ci_high)


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


def fills(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and hatching for each kind of bar."""
    hatches = list(PATTERNS.values())
    return {
        name: (COLOURS[at % len(COLOURS)], hatches[at // len(COLOURS) % len(hatches)])
        for at, name in enumerate(dict.fromkeys(names))
    }


_BAND = 0.18
_LEGEND_COLUMNS = 8
_CHARACTERS_PER_IN, _HANDLE_IN = 17, 0.45
"""Of the names in a legend, and the inches of the line before one and of the room behind it."""
_LEGEND_LINES, _LEGEND_IN = 2, 0.14
"""Lines of a legend that a figure has room for, and the inches of each further one."""
_PANELS = 3
"""Side by side."""
_BAR_IN = 0.24


def front(series: Sequence[Series], metric: str, methods: Sequence[str]) -> Figure:
    """Reward against divergence, with both intervals; settings of a front are joined.

    Args:
        series: What is drawn.
        metric: What reward is called.
        methods: All of the run, in the order of their looks.
    """
    figure, axes = _figure(COLUMN_IN, 2.5)
    for one, look in _with_looks(series, methods):
        _points(axes, one, look, joined=one.is_front, size=8 if one.name == OPTIMUM else 4)
    axes.set_xlabel("KL from the reference (nats per sequence)")
    axes.set_ylabel(metric)
    _zoom(axes, series)
    return _with_legend(figure, axes)


def rounds(series: Sequence[Series], metric: str, methods: Sequence[str]) -> Figure:
    """Results over rounds, with bands; the reference is a level. Arguments are those of `front`."""
    figure, axes = _figure(COLUMN_IN, 2.5)
    for one, look in _with_looks(series, methods):
        if one.name == REFERENCE:
            _level(axes, one, look)
        else:
            _banded(axes, one, look)
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(metric)
    return _with_legend(figure, axes)


def flops(series: Sequence[Series], metric: str, methods: Sequence[str]) -> Figure:
    """Results against what training took. Arguments are those of `front`."""
    figure, axes = _figure(COLUMN_IN, 2.5)
    for one, look in _with_looks(series, methods):
        _points(axes, one, look)
    _log_axis(axes, [point.x for one in series for point in one.points])
    axes.set_xlabel("FLOPs of training")
    axes.set_ylabel(metric)
    return _with_legend(figure, axes)


def _points(axes: Axes, one: Series, look: Look, *, joined: bool = True, size: float = 4) -> None:
    """Points with the intervals that they have."""
    x, y = _xy(one.points)
    axes.errorbar(
        x,
        y,
        xerr=_errors(one.points, "x"),
        yerr=_errors(one.points, "y"),
        color=look.colour,
        marker=look.marker,
        markersize=size,
        linestyle=look.line if joined else "none",
        elinewidth=0.7,
        label=_label(one.name),
        zorder=3 if one.name == OPTIMUM else 2,
    )


def training(panels: Sequence[Panel]) -> Figure:
    """Losses over steps, a panel for each kind of training and a line for each chain."""
    panels = sorted(panels, key=lambda panel: min(panel.curves))  # the reference first
    across = min(_PANELS, len(panels))
    down = math.ceil(len(panels) / across)
    figure, grid = _figure(PAGE_IN * across / _PANELS, 0.4 + 1.6 * down, down, across)
    numbers = sorted({number for panel in panels for number in panel.curves})
    colours = dict(zip(numbers, _in_order(len(numbers)), strict=True))
    named = set(numbers[:: math.ceil(len(numbers) / len(COLOURS))])
    flat = list(grid.flat) if len(panels) > 1 else [grid]
    for axes, panel in zip(flat, panels, strict=False):
        for number, curves in sorted(panel.curves.items()):
            for at, (steps, losses) in enumerate(curves):
                label = f"round {number}" if at == 0 and number in named else "_"
                axes.plot(steps, losses, color=colours[number], linewidth=0.8, alpha=0.8, label=label)
        axes.set_title(_label(panel.title))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("step")
    for axes in flat[::across]:
        axes.set_ylabel("loss")
    for axes in flat[len(panels) :]:
        axes.set_visible(False)
    return _with_legend(figure, *flat[: len(panels)])


def _in_order(number: int) -> list[Any]:
    """So many colours; where they are many, from dark to light."""
    if number <= len(COLOURS):
        return list(COLOURS[:number])
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * at / (number - 1)) for at in range(number)]


def cost(seconds: Mapping[str, Mapping[str, float]], stages: Sequence[str]) -> Figure:
    """Seconds on devices, by method and stage; these are all stages of the run, in the order of their work."""
    figure, axes = _figure(COLUMN_IN, 0.9 + _BAR_IN * len(seconds))
    kinds = _used(stages, {stage for own in seconds.values() for stage in own})
    names = sorted(seconds, key=reading_order, reverse=True)
    lefts = [0.0] * len(names)
    for stage, (colour, hatch) in kinds.items():
        widths = [seconds[name].get(stage, 0.0) for name in names]
        look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}
        axes.barh(range(len(names)), widths, left=lefts, label=_label(stage), **look)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds on devices, without loading")
    return _with_legend(figure, axes)


def timeline(found: Sequence[Bar], stages: Sequence[str]) -> Figure:
    """Which worker did what when; what is white was idle. Stages look as in `cost`."""
    devices = {bar.worker: bar.device or f"worker {bar.worker}" for bar in found}
    lanes = sorted(devices)
    figure, axes = _figure(PAGE_IN, 0.9 + 0.28 * len(lanes))
    for stage, (colour, hatch) in _used(stages, {bar.stage for bar in found}).items():
        for at, lane in enumerate(lanes):
            own = [bar for bar in found if (bar.worker, bar.stage) == (lane, stage)]
            axes.broken_barh(
                [(bar.start, bar.end - bar.start) for bar in own],
                (at - 0.38, 0.76),
                facecolors=colour,
                hatch=hatch,
                edgecolors=["#cc0000" if bar.outcome in ("failed", "lost") else "white" for bar in own],
                linewidth=0.25,
                label=_label(stage) if at == 0 else "_",
            )
    axes.set_yticks(range(len(lanes)), [_label(devices[lane]) for lane in lanes])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds from the beginning")
    axes.set_xlim(left=0)
    return _with_legend(figure, axes)


def _zoom(axes: Axes, series: Sequence[Series]) -> None:
    """Leave an optimum out that lies beyond all others by more than a quarter of their span, and say so."""
    methods = [point for one in series if one.name != OPTIMUM for point in one.points]
    best = [point for one in series if one.name == OPTIMUM for point in one.points]
    if not methods or not best:
        return
    outside = False
    for axis, limits in (("x", axes.set_xlim), ("y", axes.set_ylim)):
        known = [getattr(point, f"{axis}{end}") for point in methods for end in ("", "_low", "_high")]
        low, high = (end(value for value in known if value is not None) for end in (min, max))
        span = high - low
        if span and any(not low - span / 4 < getattr(point, axis) < high + span / 4 for point in best):
            limits(low - 0.06 * span, high + 0.06 * span)
            outside = True
    if outside:
        where = f"optimum: {best[0].y:.3g} at {best[0].x:.3g} nats"
        axes.text(0.98, 0.02, where, transform=axes.transAxes, ha="right", va="bottom", fontsize=6)


# -- parts -----------------------------------------------------------------------------------------------------


def _figure(width: float, height: float, down: int = 1, across: int = 1) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(down, across)


def _with_looks(series: Sequence[Series], methods: Sequence[str]) -> list[tuple[Series, Look]]:
    known = looks(methods)
    return [(one, known[one.name]) for one in series]


def _with_legend(figure: Figure, *axes: Axes) -> Figure:
    """One legend below all axes; for one of many lines the figure grows, so that the axes do not shrink."""
    shown: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    width, height = figure.get_size_inches()
    longest = max(map(len, shown), default=1)
    columns = max(1, min(_LEGEND_COLUMNS, int(width / (longest / _CHARACTERS_PER_IN + _HANDLE_IN))))
    figure.set_size_inches(width, height + _LEGEND_IN * max(0, math.ceil(len(shown) / columns) - _LEGEND_LINES))
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=columns, handlelength=2)
    return figure


def _used(stages: Sequence[str], used: set[str]) -> dict[str, tuple[str, str]]:
    """The fills of those that occur; each stage has its own, whichever others do."""
    every = fills([*stages, *sorted(used)])
    return {stage: fill for stage, fill in every.items() if stage in used}


def _label(name: str) -> str:
    """A name as text; a legend would leave out one that begins with an underscore."""
    text = printable(name)
    return f" {text}" if text.startswith("_") else text


def _xy(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.x for point in points], [point.y for point in points]


def _errors(points: Sequence[Point], axis: str) -> list[list[float]]:
    """How far intervals reach below and above; one of a bootstrap need not hold the estimate."""
    ends = [
        (getattr(point, axis), getattr(point, f"{axis}_low"), getattr(point, f"{axis}_high")) for point in points
    ]
    below = [0.0 if low is None else max(0.0, value - low) for value, low, _ in ends]
    above = [0.0 if high is None else max(0.0, high - value) for value, _, high in ends]
    return [below, above]


def _banded(axes: Axes, one: Series, look: Look) -> None:
    x, y = _xy(one.points)
    axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.line, label=_label(one.name))
    known = [(point.x, point.y_low, point.y_high) for point in one.points if point.y_low is not None]
    if known:
        at, low, high = zip(*known, strict=True)
        axes.fill_between(at, low, high, color=look.colour, alpha=_BAND, linewidth=0)


def _level(axes: Axes, one: Series, look: Look) -> None:
    for point in one.points[:1]:
        axes.axhline(point.y, color=look.colour, linestyle=look.line, linewidth=0.9, label=_label(one.name))
        if point.y_low is not None and point.y_high is not None:
            axes.axhspan(point.y_low, point.y_high, color=look.colour, alpha=_BAND, linewidth=0)


def _log_axis(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis whose ticks are 1, 2 and 5 times powers of ten, with SI prefixes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    narrow = max(values) / min(values) < 100
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
    shown: Callable[[float, int], str] = lambda value, _: _tick(value)  # noqa: E731
    axes.xaxis.set_major_formatter(FuncFormatter(shown))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _tick(value: float) -> str:
    """As ``200 G``: without zeros that say nothing."""
    number, _, prefix = si(value).partition(" ")
    return f"{float(number):g} {prefix}".rstrip()
