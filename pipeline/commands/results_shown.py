"""The results of a run as it prints them when it ends, and `show` does again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from rich.console import Console

from pipeline.engine.run_folder import RunFolder
from pipeline.errors import PipelineError
from pipeline.runs.cost import read_compute
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.record import Results
from pipeline.runs.report.format import command, shown_path
from pipeline.runs.report.tables import budget_tables, front_tables, result_tables
from pipeline.terminal.console import say


def print_results(console: Console, results: Results, run: RunFolder, label: str = "") -> None:
    """Print the table of results and where the rest of them is; a label goes to the titles."""
    if results.rows and not results.pooled:
        results = _of_an_earlier_version(results)
    compute = read_compute(run.path)
    tables = result_tables(results, compute.costs, label)
    tables += [*front_tables(results, label), *budget_tables(compute.budgets, results, label)]
    for table in tables:
        console.print()
        console.print(table)
    if not results.rows:
        say(console, "no results yet: no evaluation was finished")
        return
    if left_out := dict.fromkeys(name for table in tables for name in table.left_out(console.width)):
        say(console, f"No room for {', '.join(left_out)}: a wider terminal shows all.", "italic")
    say(console, "results:", copy=f"{shown_path(run.path)}/results.json, samples.jsonl")


def say_where_it_stands(console: Console, run: RunFolder) -> None:
    """Say of a run that is not done, so that its table may lack rows, how it stands and where more is told."""
    with suppress(PipelineError):  # results are all that is left of it
        state = LoadedRun(run, glance=True).state
        if state != "done":
            more = command(f"status {run.experiment}", run.path.parent.parent)
            say(console, f"this run: {state}, so rows may be missing. More of it:", "yellow", copy=more)


def _of_an_earlier_version(results: Results) -> Results:
    """Results of a version that knew chains alone, with their means over chains.

    Without fronts: it tried strengths of guidance on the prompts that it reported, and they would be told as of
    validation.
    """
    from pipeline.runs.comparison.pooling import pooled

    found, comparisons = pooled(results.rows, lambda _: None, 0, results.confidence)
    return replace(results, pooled=found, comparisons=comparisons)
