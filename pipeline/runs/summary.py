"""From what is stored to the results of a run: rows of chains, what they say of methods, and what they took.

The end of a run and whoever looks at one that is not over come here, so that both tell the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pipeline.config.schema import EvaluationConfig
from pipeline.engine.store.store import Store
from pipeline.learning.algos.base import START_TRAIN
from pipeline.outputs.prompts import PromptMeasures
from pipeline.plan.graph import Job
from pipeline.runs.cost import Compute, collect_compute
from pipeline.runs.record import Place, ResultRow, Results
from pipeline.runs.rows import Told, collect_rows, prompt_reader


def results_of(
    store: Store,
    jobs: Sequence[Job],
    last_round: int,
    settings: EvaluationConfig,
    *,
    bounded: Iterable[str],
    tell: Told | None = None,
) -> Results:
    """The results of the jobs that are stored.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        last_round: Of the run.
        settings: How the run judges.
        bounded: Algorithms whose divergence is an upper bound.
        tell: Takes what cannot be read of a job's stored output, in words.
    """
    rows = collect_rows(store, jobs, tell)
    found = _summed_up(rows, prompt_reader(store, jobs, tell), last_round, settings, bounded)
    return replace(found, starts=_starts(jobs))


def _starts(jobs: Iterable[Job]) -> dict[str, str]:
    """Method -> that whose last policy it begins with."""
    every = list(jobs)
    made_by = {job.key: job.algo for job in every}
    return {
        job.algo: made_by[key] for job in every for key in job.inputs.get(START_TRAIN.name, ()) if key in made_by
    }


def _summed_up(
    rows: list[ResultRow],
    read: Callable[[Place], PromptMeasures | None],
    last_round: int,
    settings: EvaluationConfig,
    bounded: Iterable[str],
) -> Results:
    """The rows of chains, and what they say of methods; see `pooling` and `fronts`."""
    # Not with the other imports: scipy takes time to load, which commands that pool nothing need not wait for.
    from pipeline.runs.comparison.fronts import fronts
    from pipeline.runs.comparison.pooling import pooled

    found, comparisons = pooled(rows, read, last_round, settings.confidence)
    points, matched = fronts(found, settings.matched_kl, settings.split)
    return Results(
        rows=rows,
        pooled=found,
        comparisons=comparisons,
        confidence=settings.confidence,
        common_eta=settings.common_eta,
        split=settings.split,
        fronts=points,
        matched=matched,
        bounded=list(bounded),
    )


def compute_of(store: Store, jobs: Iterable[Job], results: Results, budgets: Sequence[float]) -> Compute:
    """What the results took, as far as the store remembers it.

    Args:
        store: The store.
        jobs: All jobs of the plan.
        results: What came out.
        budgets: FLOPs of training at which methods are compared.
    """
    from pipeline.runs.comparison.costs import at_budgets, costs_of

    rows = collect_compute(store, jobs)
    costs = costs_of(results.rows, rows, results.starts)
    return Compute(rows=rows, costs=costs, budgets=at_budgets(results.pooled, costs, budgets))
