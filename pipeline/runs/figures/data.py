"""What the figures of a run show, as plain series. Pure.

    results, compute, curves  ->  series  ->  charts

A method that ran at several values of its settings has a front; elsewhere each of its points stands for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.config.tables import point_of
from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import TrainingStep, by_training
from pipeline.plan.graph import Job
from pipeline.runs.cost import ComputeRow, CostRow
from pipeline.runs.looks import reading_order
from pipeline.runs.record import FrontRow, PooledRow, Results, primary_metric

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
