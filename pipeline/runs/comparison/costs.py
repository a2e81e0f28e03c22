"""What methods take: the mean over the chains that their results rest on, and over no others.

A chain that has failed or was interrupted has no result after that round, so what it has taken until then counts
for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pipeline.outputs.formats import ANSWERING
from pipeline.runs.comparison.cells import GridCell, whole_grid
from pipeline.runs.cost import EVALUATION, ComputeRow, CostRow, total
from pipeline.runs.record import ResultRow, place_of

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
