"""Methods at equal training budgets: each after its last round that is within the budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pipeline.results.compute import BudgetRow, ComputeRow, to_train
from pipeline.results.primary import primary_metric
from pipeline.results.record import REFERENCE, PooledRow

_KL = "kl_per_sequence"


def at_budgets(
    pooled: Iterable[PooledRow], compute: Iterable[ComputeRow], budgets: Sequence[float]
) -> list[BudgetRow]:
    """What every method has reached within each budget; rounds are never interpolated.

    Args:
        pooled: Numbers of methods.
        compute: What their stages took. A method whose FLOPs were not all counted is left out.
        budgets: FLOPs that the training of one chain may take, all rounds together.
    """
    cells: dict[tuple[str, str], dict[tuple[str, int], dict[str, PooledRow]]] = {}
    for row in pooled:
        place = cells.setdefault((row.dataset, row.model), {})
        if row.value is not None:
            place.setdefault((row.algo, row.round), {})[row.metric] = row
    spent = list(compute)
    found: list[BudgetRow] = []
    for (dataset, model), own in sorted(cells.items()):
        primary = primary_metric(own.values())
        here = [row for row in spent if (row.dataset, row.model) == (dataset, model)]
        taken = {at: flops for at in sorted(own) if (flops := to_train(here, *at)) is not None}
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
