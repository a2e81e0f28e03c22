"""What the figures of a run show, as plain series. Pure.

    results, compute, curves, timeline  ->  series  ->  charts

A method that ran at several values of its settings has a front; elsewhere each of its points stands for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.config.fronts import point_of
from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import TrainingStep, by_training
from pipeline.plan.graph import Job
from pipeline.runs.cost import ComputeRow, CostRow
from pipeline.runs.looks import reading_order
from pipeline.runs.record import PooledRow, Results, primary_metric
from pipeline.runs.run_view import Span

Place = tuple[str, str]
"""Dataset and model."""
KL = "kl_per_sequence"
OPTIMUM = "optimum"
_FOLDED = 1 / 2000
"""Part of a timeline below which a gap between two jobs of a stage is not seen."""


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A time in which a worker was taken.

    Attributes:
        lane: Its worker.
        stage: What it did.
        start: Seconds from the begin of the run.
        end: Likewise.
        failed: Whether the attempt failed, or was lost with its run.
        jobs: How many jobs are folded into it.
    """

    lane: int
    stage: str
    start: float
    end: float
    failed: bool
    jobs: int = 1


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
    found = [_front(results, place, name) for name in _fronts(results, place)]
    for name, last in _last_rounds(cells).items():
        if name not in _fronts(results, place) and point_of(name)[1] == "" and KL in cells[name, last]:
            found.append(Series(name=name, points=[_against(cells[name, last][KL], cells[name, last][metric])]))
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


def bars(spans: Sequence[Span], until: float | None = None) -> list[Bar]:
    """Who was taken when; jobs of a stage that follow each other without a visible gap are one bar.

    Args:
        spans: Of the whole run.
        until: Seconds since 1970 that spans which go on end at; the last known time if left out.
    """
    begin = min((span.start for span in spans), default=0.0)
    last = until or max((span.end or span.start for span in spans), default=0.0)
    gap = (last - begin) * _FOLDED
    open_bars: dict[int, Bar] = {}
    found: list[Bar] = []
    for span in sorted(spans, key=lambda span: (span.worker, span.start)):
        start, end = span.start - begin, (last if span.end is None else span.end) - begin
        bar = Bar(
            lane=span.worker, stage=span.stage, start=start, end=end, failed=span.outcome in ("failed", "lost")
        )
        before = open_bars.get(span.worker)
        if before and (before.stage, before.failed) == (bar.stage, bar.failed) and start - before.end <= gap:
            bar = Bar(
                lane=bar.lane,
                stage=bar.stage,
                start=before.start,
                end=max(end, before.end),
                failed=bar.failed,
                jobs=before.jobs + 1,
            )
            found.pop()
        open_bars[span.worker] = bar
        found.append(bar)
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


def _last_rounds(cells: Cells) -> dict[str, int]:
    return {name: max(rounds) for name, rounds in _methods(cells).items()}


def _fronts(results: Results, place: Place) -> list[str]:
    return list(dict.fromkeys(row.front for row in results.fronts if (row.dataset, row.model) == place))


def _front(results: Results, place: Place, name: str) -> Series:
    rows = [row for row in results.fronts if (row.dataset, row.model, row.front) == (*place, name)]
    points = [
        Point(
            x=row.kl,
            y=row.value,
            x_low=row.kl_low,
            x_high=row.kl_high,
            y_low=row.ci_low,
            y_high=row.ci_high,
        )
        for row in sorted(rows, key=lambda row: row.kl)
        if row.point != REFERENCE
    ]
    return Series(name=name, points=points, is_front=True)


def _against(x: PooledRow, y: PooledRow) -> Point:
    return Point(
        x=x.value or 0.0,
        y=y.value or 0.0,
        x_low=x.ci_low,
        x_high=x.ci_high,
        y_low=y.ci_low,
        y_high=y.ci_high,
    )


def _at(x: float, y: PooledRow) -> Point:
    return Point(x=x, y=y.value or 0.0, y_low=y.ci_low, y_high=y.ci_high)
