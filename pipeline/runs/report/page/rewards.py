"""Histograms of rewards: how the completions of each method were scored after each round. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

from pipeline.runs.looks import reading_order
from pipeline.runs.report.page.model import Histogram, Rewards

BINS = 24
FEW = 12
"""Different rewards up to which each has a bar of its own."""

Group = tuple[str, str, int]
"""Place, method and round."""


def rewards_of(scores: Mapping[Group, Sequence[float | None]], there: int | None) -> Rewards:
    """Histograms whose bins are the same for all methods and rounds of a place.

    Args:
        scores: Rewards of completions, None where one has none.
        there: Completions that were evaluated, which may be more; None where that is not known.
    """
    counted = {group: Counter(score for score in own if score is not None) for group, own in scores.items()}
    values: dict[str, set[float]] = {}
    for (place, _, _), own in counted.items():
        values.setdefault(place, set()).update(own)
    values = {place: own for place, own in values.items() if own}
    exact = [place for place, own in values.items() if len(own) <= FEW]
    edges = {place: sorted(own) if place in exact else _edges(own) for place, own in values.items()}
    return Rewards(
        edges=edges,
        exact=exact,
        histograms=[
            Histogram(
                place=place,
                algo=algo,
                round=number,
                counts=_counts(own, edges[place], place in exact),
                mean=sum(score * times for score, times in own.items()) / own.total(),
            )
            for (place, algo, number), own in sorted(counted.items(), key=_in_order)
            if own
        ],
        about=_said(sum(map(len, scores.values())), there, sum(own.count(None) for own in scores.values())),
    )


def _said(read: int, there: int | None, unscored: int) -> str:
    if there is not None and read >= there:
        said = "Of all completions that were evaluated."
    else:
        number = f"{read:,}" if there is None else f"{read:,} of the {there:,}"
        of = "of the " if there is None else ""
        said = f"Of {number} {of}completions that were evaluated, those to the first prompts of each shard."
    return f"{said} {unscored:,} of them have no reward: it failed, or does not apply." if unscored else said


def _edges(values: set[float]) -> list[float]:
    low, high = min(values), max(values)
    # Halves first: the difference of two very large numbers is no number.
    return [low + (high / BINS - low / BINS) * at for at in range(BINS)] + [high]


def _in_order(item: tuple[Group, object]) -> tuple[object, ...]:
    place, algo, number = item[0]
    return place, reading_order(algo), number


def _counts(own: Counter[float], edges: list[float], exact: bool) -> list[int]:
    if exact:
        return [own[value] for value in edges]
    counts = [0] * (len(edges) - 1)
    for score, times in own.items():
        counts[min(max(bisect_right(edges, score) - 1, 0), len(counts) - 1)] += times
    return counts
