"""What methods take: the mean over the chains that their results rest on, and over no others.

A chain that has failed or was interrupted has no result after that round, so what it has taken until then counts
for none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import ANSWERING
from pipeline.runs.comparison.cells import GridCell, whole_grid
from pipeline.runs.cost import EVALUATION, BudgetRow, ComputeRow, CostRow, total
from pipeline.runs.record import ByMetric, PooledRow, ResultRow, place_of, primary_metric

_Method = tuple[str, str, str]


def costs_of(
    results: Iterable[ResultRow], compute: Iterable[ComputeRow], starts: Mapping[str, str]
) -> list[CostRow]:
    """What every method takes up to the end of each round; methods of which nothing is known are left out.

    Args:
        results: Rows of all chains.
        compute: What their stages took.
        starts: Method -> that whose last policy it begins with, so that it takes all that that one takes.
    """
    spent: dict[_Method, list[ComputeRow]] = {}
    for row in compute:
        spent.setdefault((row.dataset, row.model, row.algo), []).append(row)
    cells: dict[tuple[_Method, int], set[GridCell]] = {}
    for result in results:
        method = (result.dataset, result.model, result.algo)
        cells.setdefault((method, result.round), set()).add((place_of(result)[2], result.seed))
    return [
        _cost(method, number, [_of_chain(spent, method, cell, number, starts) for cell in whole_grid(found).cells])
        for (method, number), found in sorted(cells.items())
        if method in spent
    ]


def _of_chain(
    spent: Mapping[_Method, Sequence[ComputeRow]],
    method: _Method,
    cell: GridCell,
    number: int | None,
    starts: Mapping[str, str],
) -> list[ComputeRow]:
    """What a chain has taken up to a round: work of its own, work that all seeds share, and what it began with."""
    (reference, seed), (*place, algo) = cell, method
    own = [
        row
        for row in spent.get(method, ())
        if (-1 if row.reference is None else row.reference) == reference
        and row.seed in (None, seed)
        and (number is None or row.round <= number)
    ]
    if algo not in starts:
        return own
    before = _of_chain(spent, (place[0], place[1], starts[algo]), cell, None, starts)
    return [*own, *(row for row in before if row.stage not in EVALUATION)]


def _cost(method: _Method, number: int, chains: Sequence[Sequence[ComputeRow]]) -> CostRow:
    dataset, model, algo = method
    trained = [[row for row in chain if row.stage not in EVALUATION] for chain in chains]
    evaluated = [row for chain in chains for row in chain if (row.round, row.stage) == (number, "evaluate")]
    return CostRow(
        dataset=dataset,
        model=model,
        algo=algo,
        round=number,
        flops=_mean(trained, lambda row: row.flops),
        answer=_of_answer(evaluated),
        device_s=_mean(trained, lambda row: row.device_s),
        load_s=_mean(trained, lambda row: row.load_s),
    )


def _mean(chains: Sequence[Sequence[ComputeRow]], amount: Callable[[ComputeRow], float | None]) -> float | None:
    """The mean over chains; None where something is not known."""
    found = total(amount(row) for chain in chains for row in chain)
    return None if found is None else found / len(chains)


def _of_answer(evaluated: Sequence[ComputeRow]) -> float | None:
    """FLOPs of an answer, the mean over what was evaluated; None where they are not known.

    What guides it or picks it counts, as do further completions that it is picked from; a prompt counts once for
    all of its samples.
    """
    answers = total(row.answers for row in evaluated)
    if not answers or any(row.flops is None for row in evaluated):
        return None
    return sum(row.flops_by_purpose.get(name, 0) for row in evaluated for name in ANSWERING) / answers


# -- budgets -----------------------------------------------------------------------------------------------------
# Methods at equal training budgets: each after its last round that is within the budget.


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
