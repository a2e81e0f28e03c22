"""Methods at equal training budgets: each after its last round that is within the budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.cost import BudgetRow, CostRow
from pipeline.runs.record import ByMetric, PooledRow, primary_metric

_KL = "kl_per_sequence"

Taken = Mapping[int, float | None]
"""Round of a method -> FLOPs up to its end, None where they are not known."""


def at_budgets(pooled: Iterable[PooledRow], costs: Iterable[CostRow], budgets: Sequence[float]) -> list[BudgetRow]:
    """What every method has reached within each budget; rounds are never interpolated.

    Args:
        pooled: Numbers of methods.
        costs: What they took.
        budgets: FLOPs that the training of one chain may take, all rounds together.
    """
    cells: dict[tuple[str, str], dict[tuple[str, int], dict[str, PooledRow]]] = {}
    for row in pooled:
        cell = cells.setdefault((row.dataset, row.model), {}).setdefault((row.algo, row.round), {})
        if row.value is not None:
            cell[row.metric] = row
    spent = {(row.dataset, row.model, row.algo, row.round): row.flops for row in costs}
    found: list[BudgetRow] = []
    for (dataset, model), own in sorted(cells.items()):
        primary = primary_metric(cell for cell in own.values() if cell)
        methods: dict[str, dict[int, float | None]] = {}
        for algo, number in sorted(own):
            if algo != REFERENCE:
                methods.setdefault(algo, {})[number] = spent.get((dataset, model, algo, number))
        for budget in sorted(budgets):
            for algo, taken in methods.items():
                bare = BudgetRow(dataset=dataset, model=model, algo=algo, budget=budget)
                last = _last_within(taken, budget)
                found.append(bare if last is None else _after(bare, last, taken[last], own[algo, last], primary))
    return found


def _last_within(taken: Taken, budget: float) -> int | None:
    """The last round that is within a budget, or may be; None where each is known to take more.

    A round that is not known takes no less than the rounds before it.
    """
    too_much = min(
        (number for number, flops in taken.items() if flops is not None and flops > budget), default=math.inf
    )
    within = [
        number for number, flops in taken.items() if (number < too_much if flops is None else flops <= budget)
    ]
    return max(within, default=None)


def _after(bare: BudgetRow, number: int, flops: float | None, cell: ByMetric, primary: str | None) -> BudgetRow:
    if flops is None:
        return replace(bare, is_known=False)
    reached, row, kl = replace(bare, round=number, flops=flops), cell.get(primary or ""), cell.get(_KL)
    if row is None:
        return reached
    return replace(
        reached,
        metric=row.metric,
        value=row.value,
        ci_low=row.ci_low,
        ci_high=row.ci_high,
        kl=None if kl is None else kl.value,
        over=row.over,
        references=row.references,
        seeds=row.seeds,
        n=row.n,
    )
