"""The table of results that a run ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from pipeline.results.compute import EVALUATION, ComputeRow
from pipeline.results.record import ResultRow

HEADINGS: Mapping[str, str] = {
    "pass@1": "pass@1",
    "reward": "reward",
    "kl_per_sequence": "KL/seq",
    "kl_per_token": "KL/token",
    "length": "tokens",
}
"""Metrics of the table, in its order, with their headings. KL is in nats."""
_SMALLEST_P = 0.01

Cell = dict[str, list[ResultRow]]


@dataclass(frozen=True)
class Cost:
    """What an algorithm took up to the end of a round, evaluation left out; the mean over seeds."""

    tokens: float
    device_s: float


def result_tables(
    rows: Iterable[ResultRow], confidence: float, compute: Iterable[ComputeRow] = (), label: str = ""
) -> list[Table]:
    """One table for each dataset and model: the reference, then every algorithm round by round.

    With several seeds a number is their mean. Its interval is the mean of the seeds' intervals: the seeds share
    their prompts, so averaging as if they were independent would promise too much. For the same reason the p-value
    of the difference to the reference is the largest of the seeds'.

    Args:
        rows: Rows of results.
        confidence: Level of their intervals, for the heading.
        compute: What the results took to make.
        label: What tells these results from others that are printed beside them; heads every table.
    """
    grouped: dict[tuple[str, str], dict[tuple[str, int], Cell]] = {}
    for row in rows:
        table = grouped.setdefault((row.dataset, row.model), {})
        table.setdefault((row.algo, row.round), {}).setdefault(row.metric, []).append(row)
    spent = list(compute)
    tables = []
    for (dataset, model), cells in grouped.items():
        own = [row for row in spent if (row.dataset, row.model) == (dataset, model)]
        costs = {at: cost for at in cells if (cost := _cost(own, *at))}
        tables.append(_table(dataset, model, cells, confidence, costs, label))
    return tables


def _table(
    dataset: str,
    model: str,
    cells: Mapping[tuple[str, int], Cell],
    confidence: float,
    costs: Mapping[tuple[str, int], Cost],
    label: str,
) -> Table:
    every = [row for cell in cells.values() for found in cell.values() for row in found]
    seeds, prompts = len({row.seed for row in every}), max(row.n for row in every)
    metrics = _worth_showing(cells)
    title = f"{dataset} · {model} · {seeds} seed{'s' if seeds != 1 else ''} · {prompts:,} prompts" + (
        f" · {escape(label)}" if label else ""
    )
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD)
    table.add_column("algorithm", no_wrap=True)
    table.add_column("round", justify="right")
    for name in metrics:
        table.add_column(HEADINGS[name], justify="right", no_wrap=True)
        if name == metrics[0]:
            table.add_column(f"{confidence:.0%} interval", justify="right", no_wrap=True)
            table.add_column("vs ref", justify="right", no_wrap=True)
            table.add_column("p", justify="right", no_wrap=True)
    for name in ("Mtokens", "device s") if costs else ():
        table.add_column(name, justify="right", no_wrap=True)
    reference = cells.get(("reference", 0), {})
    ordered = sorted(cells, key=lambda at: (at[0] != "reference", at))
    for position, (algo, number) in enumerate(ordered):
        following = ordered[position + 1 : position + 2]
        last_of_algo = bool(following) and following[0][0] != algo
        numbers = _numbers(cells[algo, number], {} if algo == "reference" else reference, metrics)
        table.add_row(algo, str(number), *numbers, *_spent(costs.get((algo, number))), end_section=last_of_algo)
    return table


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
        mean, base = _mean(cell.get(name, [])), _mean(reference.get(name, []))
        yield "-" if mean is None else f"{mean:.3f}"
        if name == metrics[0]:
            yield _interval(cell.get(name, []))
            yield "" if mean is None or base is None else f"{mean - base:+.3f}"
            yield _p_value(cell.get(f"{name}/vs_reference/p", []))


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
    return rf"\[{fmean(low for low, _ in bounds):.3f}, {fmean(high for _, high in bounds):.3f}]"
