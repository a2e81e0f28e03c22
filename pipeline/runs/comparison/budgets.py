"""Methods at equal training budgets: each after its last round that is within the budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs.cost import BudgetRow, CostRow
from pipeline.runs.primary import primary_metric
from pipeline.runs.record import PooledRow

_KL = "kl_per_sequence"


def at_budgets(pooled: Iterable[PooledRow], costs: Iterable[CostRow], budgets: Sequence[float]) -> list[BudgetRow]:
    """What every method has reached within each budget; rounds are never interpolated.

    Args:
        pooled: Numbers of methods.
        costs: What they took. A method whose FLOPs are not known is left out.
        budgets: FLOPs that the training of one chain may take, all rounds together.
    """
    cells: dict[tuple[str, str], dict[tuple[str, int], dict[str, PooledRow]]] = {}
    for row in pooled:
        place = cells.setdefault((row.dataset, row.model), {})
        if row.value is not None:
            place.setdefault((row.algo, row.round), {})[row.metric] = row
    spent = {(row.dataset, row.model, row.algo, row.round): row.flops for row in costs}
    found: list[BudgetRow] = []
    for (dataset, model), own in sorted(cells.items()):
        primary = primary_metric(own.values())
        taken = {at: flops for at in sorted(own) if (flops := spent.get((dataset, model, *at))) is not None}
        for budget in sorted(budgets):
            for algo in dict.fromkeys(algo for algo, _ in taken if algo != REFERENCE):
                bare = BudgetRow(dataset=dataset, model=model, algo=algo, budget=budget)
                within = [number for name, number in taken if name == algo and taken[name, number] <= budget]
                at = (algo, max(within, default=0))
                found.append(_reached(bare, at[1], taken[at], own[at], primary) if within else bare)
    return found


def _reached(
    bare: BudgetRow, number: int, flops: float, cell: Mapping[str, PooledRow], primary: str | None
) -> BudgetRow:
    row, kl = cell.get(primary or ""), cell.get(_KL)
    if row is None:
        return replace(bare, round=number, flops=flops)
    return replace(
        bare,
        round=number,
        flops=flops,
        metric=row.metric,
        value=row.value,
        ci_low=row.ci_low,
        ci_high=row.ci_high,
        kl=None if kl is None else kl.value,
    )
