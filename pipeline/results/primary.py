"""What a result is judged by: the one choice of the metric that comes first, in tables, sweeps and comparisons."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.results.record import ResultRow

PRIMARY_METRICS = ("pass@1", "reward")
"""Correctness where a reward verifies, else the mean reward."""


def primary_metric(rows: Iterable[ResultRow]) -> str | None:
    """The first primary metric of which every result has a value; None where there is none.

    Args:
        rows: Of results that are compared with each other.
    """
    results: dict[tuple[str, str, str, int, int], set[str]] = {}
    for row in rows:
        found = results.setdefault((row.algo, row.dataset, row.model, row.seed, row.round), set())
        if row.value is not None:
            found.add(row.metric)
    shared = set.intersection(*results.values()) if results else set[str]()
    return next((metric for metric in PRIMARY_METRICS if metric in shared), None)
