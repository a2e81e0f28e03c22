"""The results of a run: collected of its jobs, written to its folder, and printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from pipeline.commands.request import Request
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.learning.algos.registry import with_bounded_kl
from pipeline.outputs.formats import PAGE
from pipeline.plan.job import Job
from pipeline.runs.cost import read_compute, write_compute
from pipeline.runs.makers import Maker, collect_makers
from pipeline.runs.record import Results, write_results
from pipeline.runs.report.format import shown_path
from pipeline.runs.report.fronts import budget_tables, front_tables
from pipeline.runs.report.tables import result_tables
from pipeline.runs.rows import write_samples
from pipeline.runs.summary import compute_of, results_of
from pipeline.terminal.console import say


def unreadable_output(store: Store, job: Job, said: str) -> str:
    """One line for results that are stored, but not as they must be: what is wrong, and what to do."""
    return (
        f"incomplete: {job.chain}: round {job.round}: {said}. Mend the stage that wrote it ({PAGE}), remove "
        f"{store.path(job.key)}, then run the same command."
    )


def lost_output(job: Job, problem: str) -> str:
    """One line for results that were there, and are not any more."""
    return (
        f"incomplete: {job.chain}: round {job.round}: its stored output cannot be used any more ({problem}). The "
        "same command makes it again."
    )


def leave_results(
    request: Request, jobs: Sequence[Job], run: RunFolder, tell: Callable[[Job, str], None]
) -> tuple[Results, list[Maker]]:
    """Write all files of results into the folder of a run, as far as its jobs are done.

    Args:
        request: The request.
        jobs: Those of its plan whose results count.
        run: Its folder.
        tell: Takes what cannot be read of a job's stored output, in words.

    Returns:
        The results, and what made the outputs that they rest on.
    """
    store, asked = request.store, request.config.evaluation
    results = results_of(
        store,
        jobs,
        request.config.rounds_of_training,
        asked,
        bounded=with_bounded_kl(request.config),
        tell=tell,
    )
    write_results(run, results)
    write_samples(run, store, jobs, tell)
    every = request.plan.jobs.values()
    makers = collect_makers(store, every)
    write_compute(run.path, compute_of(store, every, results, asked.budgets), makers)
    return results, makers


def print_results(console: Console, results: Results, run: RunFolder, label: str = "") -> None:
    """Print the table of results and where the rest of them is; a label goes to the titles."""
    if results.rows and not results.pooled:
        results = _of_an_earlier_version(results)
    compute = read_compute(run.path)
    tables = result_tables(results, compute.costs, label)
    for table in (*tables, *front_tables(results, label), *budget_tables(compute.budgets, results, label)):
        console.print()
        console.print(table)
    if not results.rows:
        say(console, "no results yet: no evaluation was finished")
        return
    say(console, "results:", copy=f"{shown_path(run.path)}/results.json, samples.jsonl")


def _of_an_earlier_version(results: Results) -> Results:
    """Results of a version that knew chains alone, with their means over chains.

    Without fronts: it tried strengths of guidance on the prompts that it reported, and they would be told as of
    validation.
    """
    from pipeline.runs.comparison.pooling import pooled

    found, comparisons = pooled(results.rows, lambda _: None, 0, results.confidence)
    return replace(results, pooled=found, comparisons=comparisons)
