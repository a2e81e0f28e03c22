"""What results are judged by: the one choice of the metric that comes first, in tables, sweeps and comparisons."""

from __future__ import annotations

from collections.abc import Collection, Iterable

PRIMARY_METRICS = ("pass@1", "reward")
"""Correctness where a reward verifies, else the mean reward."""
MANY_CUT = 0.1
"""Share of completions cut off at the limit from which on that is told, as what they are judged by is in doubt."""


def primary_metric(results: Iterable[Collection[str]]) -> str | None:
    """The first primary metric that all results have; None where there is none.

    Args:
        results: Of each result that is compared with the others, the metrics of which it has a value.
    """
    shared = [set(metrics) for metrics in results]
    return next((name for name in PRIMARY_METRICS if shared and all(name in one for one in shared)), None)
