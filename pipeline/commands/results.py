"""The results of a run: collected of its jobs and written to its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.commands.request import Request
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.learning.algos.registry import with_bounded_kl
from pipeline.outputs.formats import PAGE
from pipeline.plan.graph import Job
from pipeline.runs.cost import write_compute
from pipeline.runs.makers import Maker, collect_makers
from pipeline.runs.record import Results, write_results
from pipeline.runs.rows import write_samples
from pipeline.runs.summary import compute_of, results_of


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
