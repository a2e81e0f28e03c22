"""The table of results that a run ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from rich.table import Table

from pipeline.results.record import ResultRow

COLUMNS: Mapping[str, str] = {
    "pass@1": "pass@1",
    "reward": "reward",
    "kl_per_sequence": "KL (nats/seq)",
    "kl_per_token": "KL (nats/token)",
    "length": "tokens",
}
"""Metrics of the table, in its order, with their headings."""
_WITH_INTERVAL = ("pass@1",)

Cell = dict[str, list[ResultRow]]


def result_tables(rows: Iterable[ResultRow], confidence: float) -> list[Table]:
    """One table for each dataset and model: the reference, then every algorithm round by round.

    With several seeds a number is their mean. Its interval is the mean of the seeds' intervals: the seeds share
    their prompts, so averaging as if they were independent would promise too much.

    Args:
        rows: Rows of results.
        confidence: Level of their intervals, for the heading.
    """
    grouped: dict[tuple[str, str], dict[tuple[str, int], Cell]] = {}
    for row in rows:
        table = grouped.setdefault((row.dataset, row.model), {})
        table.setdefault((row.algo, row.round), {}).setdefault(row.metric, []).append(row)
    return [_table(dataset, model, cells, confidence) for (dataset, model), cells in grouped.items()]


def _table(dataset: str, model: str, cells: Mapping[tuple[str, int], Cell], confidence: float) -> Table:
    metrics = [name for name in COLUMNS if any(name in cell for cell in cells.values())]
    seeds = sorted({row.seed for cell in cells.values() for found in cell.values() for row in found})
    prompts = sorted({row.n for cell in cells.values() for found in cell.values() for row in found})
    title = f"{dataset} · {model} · {_count(len(seeds), 'seed')} · {prompts[-1]:,} prompts"
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    table.add_column("algorithm")
    table.add_column("round", justify="right")
    for name in metrics:
        interval = f" [{confidence:.0%} interval]" if name in _WITH_INTERVAL else ""
        table.add_column(COLUMNS[name] + interval.replace("[", r"\["), justify="right")
        if name in _WITH_INTERVAL:
            table.add_column("vs reference", justify="right")
    reference = cells.get(("reference", 0), {})
    ordered = sorted(cells, key=lambda at: (at[0] != "reference", at))
    for position, (algo, number) in enumerate(ordered):
        cell = cells[algo, number]
        table.add_row(algo, str(number), *_numbers(cell, reference, metrics, algo))
        following = ordered[position + 1 : position + 2]
        if following and following[0][0] != algo:
            table.add_section()
    return table


def _numbers(cell: Cell, reference: Cell, metrics: list[str], algo: str) -> Iterable[str]:
    for name in metrics:
        rows = [row for row in cell.get(name, []) if row.value is not None]
        yield _value(rows, with_interval=name in _WITH_INTERVAL)
        if name in _WITH_INTERVAL:
            base = [row.value for row in reference.get(name, []) if row.value is not None]
            shown = algo != "reference" and rows and base
            yield (
                f"{fmean(row.value for row in rows if row.value is not None) - fmean(base):+.3f}" if shown else ""
            )


def _value(rows: list[ResultRow], *, with_interval: bool) -> str:
    if not rows:
        return "-"
    mean = fmean(row.value for row in rows if row.value is not None)
    bounds = [(row.ci_low, row.ci_high) for row in rows if row.ci_low is not None and row.ci_high is not None]
    if not with_interval or not bounds:
        return f"{mean:.3f}"
    low, high = fmean(low for low, _ in bounds), fmean(high for _, high in bounds)
    return rf"{mean:.3f} \[{low:.3f}, {high:.3f}]"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
