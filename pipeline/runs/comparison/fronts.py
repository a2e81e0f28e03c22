"""Fronts of methods: what reward each reaches at what divergence, and at divergences that all of them reach.

A front is one algorithm at several values of its settings (``algos.NAME.front``, all of them tested), with the
reference as its point without divergence; or one value-guided method at several strengths (``evaluation.etas``, on
validation).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from pipeline.config.fronts import point_of
from pipeline.learning.algos.base import REFERENCE
from pipeline.learning.evaluation.metrics import rounded
from pipeline.learning.evaluation.optimum import FrontPoint, reward_kl_front
from pipeline.outputs.formats import ETA, SWEEP_SPLIT
from pipeline.runs.record import PRIMARY_METRICS, ByMetric, FrontRow, MatchedRow, PooledRow, primary_metric

_KL = "kl_per_sequence"
_PARTS = (0.25, 0.5, 1.0)
"""Of the range of divergence that all fronts span, where nothing else is asked for."""


def fronts(
    pooled: Iterable[PooledRow], matched_kl: Sequence[float], split: str
) -> tuple[list[FrontRow], list[MatchedRow]]:
    """The points of all fronts after the last round, and their rewards at matched divergence.

    Args:
        pooled: Numbers of methods.
        matched_kl: Divergences in nats; none for parts of what all fronts of a dataset and model span.
        split: That methods were tested on.
    """
    ordered = sorted(pooled, key=lambda row: (row.dataset, row.model))
    points: list[FrontRow] = []
    matched: list[MatchedRow] = []
    for _, rows in groupby(ordered, key=lambda row: (row.dataset, row.model)):
        found = _points(list(rows), split)
        by_front = {name: list(own) for name, own in groupby(found, key=lambda row: row.front)}
        asked = matched_kl or _common(list(by_front.values()))
        points += found
        matched += [_at(own, kl) for own in by_front.values() for kl in asked]
    return points, matched


def _points(rows: Sequence[PooledRow], split: str) -> list[FrontRow]:
    """The points of all fronts of a dataset and model, by front and divergence."""
    last = max(row.round for row in rows)
    cells: dict[str, dict[str, PooledRow]] = {}
    for row in rows:
        if row.value is not None and (row.round == last or row.algo == REFERENCE):
            cells.setdefault(row.algo, {})[row.metric] = row
    primary = primary_metric(cells.values())
    found: dict[str, list[FrontRow]] = {}
    for algo, cell in cells.items():
        name, point = point_of(algo)
        if point and primary in cell and _KL in cell:
            found.setdefault(name, []).append(_row(name, point, split, cell[_KL], cell[primary]))
        if strengths := list(_strengths(algo, cell)):
            found.setdefault(algo, []).extend(strengths)
    reference = cells.get(REFERENCE, {})
    for name, own in found.items():
        if own[0].split == split and primary in reference and _KL in reference:
            at_zero = _row(name, REFERENCE, split, reference[_KL], reference[primary])
            own.append(at_zero)
    return [row for name in sorted(found) if len(found[name]) > 1 for row in _marked(found[name])]


def _strengths(algo: str, cell: ByMetric) -> Iterator[FrontRow]:
    labels = [metric.removeprefix(f"{_KL}/") for metric in cell if metric.startswith(f"{_KL}/{ETA}")]
    metric = primary_metric([[name for name in PRIMARY_METRICS if f"{name}/{label}" in cell] for label in labels])
    for label in labels if metric else []:
        yield _row(algo, label, SWEEP_SPLIT, cell[f"{_KL}/{label}"], cell[f"{metric}/{label}"])


def _row(front: str, point: str, split: str, kl: PooledRow, reward: PooledRow) -> FrontRow:
    return FrontRow(
        dataset=reward.dataset,
        model=reward.model,
        round=reward.round,
        front=front,
        point=point,
        split=split,
        metric=reward.metric.partition("/")[0],
        kl=kl.value or 0.0,
        kl_low=kl.ci_low,
        kl_high=kl.ci_high,
        value=reward.value or 0.0,
        ci_low=reward.ci_low,
        ci_high=reward.ci_high,
        is_best=False,
        over=reward.over,
        references=reward.references,
        seeds=reward.seeds,
        n=reward.n,
    )


def _marked(rows: list[FrontRow]) -> list[FrontRow]:
    """By divergence, those that no other one beats marked."""
    best = {(point.kl, point.reward) for point in reward_kl_front(FrontPoint(row.kl, row.value) for row in rows)}
    marked = [replace(row, is_best=(row.kl, row.value) in best) for row in rows]
    return sorted(marked, key=lambda row: (row.kl, row.point))


def _common(found: list[list[FrontRow]]) -> list[float]:
    """Divergences that all fronts span."""
    low = max((own[0].kl for own in found), default=0.0)
    high = min((own[-1].kl for own in found), default=0.0)
    return [float(rounded(low + part * (high - low)) or 0.0) for part in _PARTS] if high > low else []


def _best(rows: Iterable[FrontRow]) -> list[FrontRow]:
    return [row for row in rows if row.is_best]


def _at(rows: Sequence[FrontRow], kl: float) -> MatchedRow:
    """The reward of a front at a divergence: on the line between the two best points beside it.

    Behind the best point of all it stays as it is, as far as anything was measured; beyond that it is None. Which
    points are best is known of the very prompts that are reported, so it is the more flattered the more points
    there are, as the largest of several numbers with errors is: an envelope says what a front reaches there, not
    what a point of it would reach on other prompts.

    Both ends of the interval are on such lines too. It is wide enough for a value between two whose errors are the
    same, and wider than need be where they are not; the error of their divergence is not in it.
    """
    best = _best(rows)

    def line(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        within = len(known) == len(best) and rows[0].kl <= kl <= rows[-1].kl
        return rounded(float(np.interp(kl, [row.kl for row in best], known))) if within else None

    return MatchedRow(
        dataset=best[0].dataset,
        model=best[0].model,
        round=max(row.round for row in rows),
        front=best[0].front,
        split=best[0].split,
        metric=best[0].metric,
        kl=kl,
        value=line([row.value for row in best]),
        ci_low=line([row.ci_low for row in best]),
        ci_high=line([row.ci_high for row in best]),
    )
