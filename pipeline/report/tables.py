"""The table of results that a run ends with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from pipeline.report.words import count
from pipeline.results.compute import EVALUATION, ComputeRow
from pipeline.results.record import ResultRow
from pipeline.terminal.columns import EXTRA, Column, FittedTable, align

HEADINGS: Mapping[str, str] = {
    "pass@1": "pass@1",
    "reward": "reward",
    "kl_per_sequence": "KL/seq",
    "kl_per_token": "KL/token",
    "length": "tokens",
}
"""Metrics of the table, in its order, with their headings. KL is in nats."""
_RANKS: Mapping[str, int] = {
    "round": 1,
    "interval": 3,
    "vs ref": 4,
    "kl_per_sequence": 5,
    "p": 6,
    "length": EXTRA,
    "Mtokens": EXTRA + 1,
    "device s": EXTRA + 2,
    "kl_per_token": EXTRA + 3,
}
"""What is left out first, where there is no room, has the highest rank."""
_PRIMARY_RANK = 2
_SECOND_RANK = 7
_LEAST_NAME = 12
_SMALLEST_P = 0.01
_MOST_FEW = 6
"""Rows that are named below a table."""

Cell = dict[str, list[ResultRow]]


@dataclass(frozen=True)
class Cost:
    """What an algorithm took up to the end of a round, evaluation left out; the mean over seeds."""

    tokens: float
    device_s: float


def result_tables(
    rows: Iterable[ResultRow], confidence: float, compute: Iterable[ComputeRow] = (), label: str = ""
) -> list[FittedTable]:
    """One table for each dataset, model and reference: the reference, then every algorithm round by round.

    With several seeds a number is their mean. Its interval is the mean of the seeds' intervals: the seeds share
    their prompts, so averaging as if they were independent would promise too much. For the same reason the p-value
    of the difference to the reference is the largest of the seeds'. That difference is the mean over the seeds
    that have both; a row that rests on fewer seeds than others is named below the table.

    Args:
        rows: Rows of results.
        confidence: Level of their intervals, for the heading.
        compute: What the results took to make.
        label: What tells these results from others that are printed beside them, for the titles; "" for nothing.
    """
    grouped: dict[tuple[str, str, int | None], dict[tuple[str, int], Cell]] = {}
    for row in rows:
        table = grouped.setdefault((row.dataset, row.model, row.reference), {})
        table.setdefault((row.algo, row.round), {}).setdefault(row.metric, []).append(row)
    spent = list(compute)
    tables = []
    for (dataset, model, reference), cells in grouped.items():
        own = [row for row in spent if (row.dataset, row.model, row.reference) == (dataset, model, reference)]
        costs = {at: cost for at in cells if (cost := _cost(own, *at))}
        several = sum(at[:2] == (dataset, model) for at in grouped) > 1
        name = f"{model} · reference {reference}" if several else model
        tables.append(_table(_title(dataset, name, cells, label), cells, confidence, costs))
    align(tables)
    return tables


def _title(dataset: str, model: str, cells: Mapping[tuple[str, int], Cell], label: str) -> str:
    every = [row for cell in cells.values() for found in cell.values() for row in found]
    seeds, prompts = len({row.seed for row in every}), max(row.n for row in every)
    parts = [dataset, model, count(seeds, "seed"), f"{prompts:,} prompts", label]
    return " · ".join(part for part in parts if part)


def _table(
    title: str,
    cells: Mapping[tuple[str, int], Cell],
    confidence: float,
    costs: Mapping[tuple[str, int], Cost],
) -> FittedTable:
    metrics = _worth_showing(cells)
    caption = _on_fewer_seeds(cells, metrics[:1])
    table = FittedTable(_columns(metrics, confidence, with_costs=bool(costs)), title=title, caption=caption)
    reference = cells.get(("reference", 0), {})
    last = ""
    for algo, number in sorted(cells, key=lambda at: (at[0] != "reference", at)):
        if last and algo != last:
            table.end_section()
        last = algo
        numbers = _numbers(cells[algo, number], {} if algo == "reference" else reference, metrics)
        table.add_row(algo, str(number), *numbers, *_spent(costs.get((algo, number))))
    return table


def _columns(metrics: Iterable[str], confidence: float, *, with_costs: bool) -> Iterator[Column]:
    yield Column(heading="algorithm", least=_LEAST_NAME)
    yield _number("round", "round")
    for position, name in enumerate(metrics):
        if position == 0:
            yield Column(heading=HEADINGS[name], right=True, rank=_PRIMARY_RANK)
            yield _number("interval", f"{confidence:.0%} interval")
            yield _number("vs ref", "vs ref")
            yield _number("p", "p")
        else:
            yield _number(name, HEADINGS[name])
    if with_costs:
        yield _number("Mtokens", "Mtokens")
        yield _number("device s", "device s")


def _number(name: str, heading: str) -> Column:
    return Column(heading=heading, right=True, rank=_RANKS.get(name, _SECOND_RANK))


def _cost(rows: Iterable[ComputeRow], algo: str, number: int) -> Cost | None:
    spent = [row for row in rows if row.algo == algo and row.round <= number and row.stage not in EVALUATION]
    if not spent:
        return None
    seeds = len({row.seed for row in spent})
    return Cost(sum(row.tokens for row in spent) / seeds, sum(row.device_s for row in spent) / seeds)


def _spent(cost: Cost | None) -> list[str]:
    return [f"{cost.tokens / 1e6:.2f}", f"{cost.device_s:.1f}"] if cost else []


def _worth_showing(cells: Mapping[tuple[str, int], Cell]) -> list[str]:
    """Metrics that occur, without a reward that is nothing but correctness again."""
    found = [name for name in HEADINGS if any(name in cell for cell in cells.values())]
    if all(_mean(cell.get("reward", [])) == _mean(cell.get("pass@1", [])) for cell in cells.values()):
        found = [name for name in found if name != "reward" or "pass@1" not in found]
    return found


def _numbers(cell: Cell, reference: Cell, metrics: list[str]) -> Iterable[str]:
    for name in metrics:
        mean = _mean(cell.get(name, []))
        yield "-" if mean is None else f"{mean:.3f}"
        if name == metrics[0]:
            yield _interval(cell.get(name, []))
            yield _difference(cell, reference, name)
            yield _p_value(cell.get(f"{name}/vs_reference/p", []))


def _difference(cell: Cell, reference: Cell, name: str) -> str:
    """The mean difference to the reference over the seeds that have both, in which seeds do not differ."""
    own, base = _by_seed(cell.get(name, [])), _by_seed(reference.get(name, []))
    paired = _by_seed(cell.get(f"{name}/vs_reference", []))
    found = {seed: own[seed] - base[seed] for seed in own.keys() & base.keys()} | paired
    return f"{fmean(found.values()):+.3f}" if found and reference else ""


def _on_fewer_seeds(cells: Mapping[tuple[str, int], Cell], metrics: Iterable[str]) -> str:
    """Which rows lack seeds that other rows have; "" where none does."""
    seeds = {
        at: set[int]().union(*(_by_seed(cell.get(name, [])) for name in metrics)) for at, cell in cells.items()
    }
    every = len(set[int]().union(*seeds.values()))
    few = [
        f"{algo} round {number}: {len(seeds[algo, number])} of {every} seeds"
        for algo, number in sorted(seeds)
        if len(seeds[algo, number]) < every
    ]
    more = [f"and {len(few) - _MOST_FEW} more rows"] if len(few) > _MOST_FEW else []
    return "; ".join([*few[:_MOST_FEW], *more])


def _by_seed(rows: Iterable[ResultRow]) -> dict[int, float]:
    return {row.seed: row.value for row in rows if row.value is not None}


def _p_value(rows: Iterable[ResultRow]) -> str:
    values = [row.value for row in rows if row.value is not None]
    if not values:
        return ""
    return f"<{_SMALLEST_P}" if max(values) < _SMALLEST_P else f"{max(values):.2f}"


def _mean(rows: Iterable[ResultRow]) -> float | None:
    values = [row.value for row in rows if row.value is not None]
    return fmean(values) if values else None


def _interval(rows: Iterable[ResultRow]) -> str:
    bounds = [(row.ci_low, row.ci_high) for row in rows if row.ci_low is not None and row.ci_high is not None]
    if not bounds:
        return ""
    return f"[{fmean(low for low, _ in bounds):.3f}, {fmean(high for _, high in bounds):.3f}]"
