"""Find which methods have the most reward within limits of divergence and of the cost of an answer.

Methods that guide, that change weights and that pick among several answers differ in both. Their fronts
are compared within each pair of limits; levels of error hold for all pairs of limits together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from pipeline.learning.algos.base import REFERENCE
from pipeline.runs import record
from pipeline.runs.equal import Block, Limits, Policy, Reached, Stored, Tested, limits_of
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.format import decimal, si, title
from pipeline.runs.report.tables import LEAST_NAME, about_bounds, first_few, numbers, result_columns
from pipeline.terminal.columns import Column, FittedTable, Told, told_table

_PARTS_OF_KL = (0.25, 0.5, 1.0)
_ALIKE = 1.25
"""Factor within which costs of an answer count as one."""


@dataclass(frozen=True)
class Lead:
    """The method with the most reward within limits. No claim is made beyond its tests.

    Attributes:
        block: All methods within the limits; comparisons are corrected for all pairs of limits together.
        kl: Limit in nats per sequence.
        answer: Limit in FLOPs of an answer.
        name: The method with the largest value, maybe the reference. Here and in the next fields a name has the
            round with it if the method had a later one.
        best: What this method has reached.
        above: Methods that it is shown to be above.
        open: Methods that it is not told apart from.
        untested: Methods without measures by prompt to test.
    """

    block: Block
    kl: float
    answer: float
    name: str
    best: Reached
    above: tuple[str, ...]
    open: tuple[str, ...]
    untested: tuple[str, ...]


def leads_of(run: LoadedRun) -> list[Lead]:
    """Return who leads within each pair of limits, for every dataset and model; the loosest last.

    Limits of divergence are a quarter, half and all of the largest, those of cost all that differ by more than a
    quarter. Pairs that leave the same methods and rounds are shown once, at the tightest.

    Raises:
        StoreError: The results of the run hold something else.
    """
    stored, found = Stored(run), list[Lead]()
    for place in stored.places:
        every = stored.block(place, Limits("", ()))
        cells: dict[frozenset[Policy], tuple[float, float, Block]] = {}
        for answer in _levels_of_cost(every):
            for kl in _levels_of_kl(every):
                block = stored.block(place, *limits_of([f"kl={kl!r}+flops_per_answer={answer!r}"]))
                if block.within:
                    cells.setdefault(frozenset(_policies(block)), (kl, answer, block))
        pairs = (pair for same in cells for pair in combinations(sorted(same, key=_reference_last), 2))
        tested = stored.compare(place, pairs)
        level, last = 1 - run.results.confidence, {row.algo: row.round for row in every.methods}
        found += [_lead(block, kl, answer, tested, level, last) for kl, answer, block in cells.values()]
    return found


def _reference_last(policy: Policy) -> tuple[bool, Policy]:
    return policy[0] == REFERENCE, policy


def _policies(block: Block) -> dict[Policy, Reached]:
    """Return the policies within the limits that have a result, and the reference."""
    rows = (row for row in block.methods if row.result is not None and row.result.value is not None)
    return {(row.algo, row.round): row for row in rows if row.round is not None}


def _levels_of_kl(block: Block) -> list[float]:
    known = [row.kl for row in block.within if row.kl is not None]
    largest = max(known, default=0.0)
    if largest > 0:
        return [_up(part * largest) for part in _PARTS_OF_KL]
    return [0.0] if known else []  # that of the reference itself may be rounded to less than 0


def _levels_of_cost(block: Block) -> list[float]:
    levels: list[float] = []
    for row in sorted(block.methods, key=lambda row: -_answer(row)):
        if _answer(row) > 0 and (not levels or _answer(row) * _ALIKE < levels[-1]):
            levels.append(_up(_answer(row)))
    return levels[::-1]


def _answer(row: Reached) -> float:
    return 0.0 if row.cost is None or row.cost.answer is None else row.cost.answer


def _up(value: float) -> float:
    """Round up to three digits, so that a limit is what is printed."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.3g}")


def _lead(
    block: Block, kl: float, answer: float, tested: Tested, level: float, last: Mapping[str, int | None]
) -> Lead:
    rows = _policies(block)
    names = {policy: _named(policy, last) for policy in rows}
    best = max(rows, key=lambda policy: (row.value or 0.0) if (row := rows[policy].result) else 0.0)
    above, apart = [], list[str]()
    for other in rows:
        if (pair := tested.get((best, other)) or tested.get((other, best))) is not None:
            apart.append(names[other])
            # The best has the larger mean over its own chains; those that both have may say otherwise.
            if pair.p < level and (pair.difference > 0) == (pair.first == best[0]):
                above.append(names[other])
    return Lead(
        block=replace(block, comparisons=[one for pair, one in tested.items() if set(pair) <= rows.keys()]),
        kl=kl,
        answer=answer,
        name=names[best],
        best=rows[best],
        above=tuple(above),
        open=tuple(name for name in apart if name not in above),
        untested=tuple(names[other] for other in rows if other != best and names[other] not in apart),
    )


def _named(policy: Policy, last: Mapping[str, int | None]) -> str:
    algo, number = policy
    return algo if number == last[algo] else f"{algo} (round {number})"


def lead_tables(leads: Sequence[Lead], results: record.Results) -> Iterator[list[FittedTable]]:
    """Yield a table of leads for each dataset and model, with a sentence for each below."""
    places = {(lead.block.dataset, lead.block.model): None for lead in leads}
    for place in places:
        own = [lead for lead in leads if (lead.block.dataset, lead.block.model) == place]
        yield [_table(own, results)]


def _table(leads: Sequence[Lead], results: record.Results) -> FittedTable:
    first = leads[0].block
    columns: list[Told] = [
        numbers("KL at most", 1, lambda lead: lead.kl),
        numbers("an answer at most", 1, lambda lead: lead.answer, si),
        (Column(heading="most", least=LEAST_NAME), lambda lead: lead.name),
        *result_columns(first.metric, leads, lambda lead: lead.best.result),
        numbers("above", 2, lambda lead: len(lead.above), str),
        numbers("open", 3, lambda lead: len(lead.open), str),
    ]
    return told_table(
        columns,
        [leads],
        title=title(first.dataset, first.model, "most reward within limits"),
        caption=lambda shown: "\n".join(_about(leads, results, shown)),
    )


def _about(leads: Sequence[Lead], results: record.Results, shown: set[str]) -> Iterator[str]:
    level = 1 - results.confidence
    yield "Limits: KL in nats per sequence, FLOPs of an answer. above: methods that it is shown to be above."
    yield f"open: methods not told apart from it, at the level of {level:.2g} for all pairs and limits (Holm)."
    for lead in leads:
        parts = [f"above {first_few(lead.above, 'methods')}"] if lead.above else []
        parts += [f"not told apart from {first_few(lead.open, 'methods')}"] if lead.open else []
        parts += [f"not tested against {first_few(lead.untested, 'methods')}"] if lead.untested else []
        within = f"At most {decimal(lead.kl)} nats and {si(lead.answer)} FLOPs"
        yield f"{within}: {lead.name} is {'; '.join(parts) or 'alone'}."
    algos = {row.algo for lead in leads for row in lead.block.within}
    if unknown := [row.algo for row in leads[-1].block.methods if row.state == "unknown"]:
        yield f"Left out, as KL or FLOPs of an answer are not known: {first_few(unknown, 'methods')}."
    yield from about_bounds(results.bounded_among(algos), shown, so="a limit may leave out what is within it")
