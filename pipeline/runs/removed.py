"""Which models a run has trained that are there no more: their weights were removed, or their outputs are gone."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.outputs.manifest import why_removed
from pipeline.plan.graph import Job
from pipeline.runs.loaded import LoadedRun


def removed_weights(run: LoadedRun) -> dict[str, list[int]]:
    """Chain -> rounds whose weights were removed."""
    return _rounds(_removed(run))


def lost_outputs(run: LoadedRun) -> dict[str, list[int]]:
    """Chain -> rounds that the run has trained and whose outputs are in the store no more."""
    return _rounds(
        job
        for job in run.jobs.values()
        if job.weights and run.view.jobs[job.id].status == "done" and not run.store.is_committed(job.key)
    )


def removed_by(run: LoadedRun) -> list[str]:
    """What asked for weights to be removed, as ``execution.keep=last``, and where it was not this run."""
    own = f"execution.keep={run.plan.keep.name}" if run.plan.keep else ""
    found = {why_removed(job.key, run.store.path(job.key)) for job in _removed(run)} - {""}
    return sorted(why if why == own else f"{why} of another run" for why in found)


def _removed(run: LoadedRun) -> list[Job]:
    return [job for job in run.jobs.values() if job.weights and run.store.is_removed(job.key)]


def _rounds(jobs: Iterable[Job]) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {}
    for job in jobs:
        found.setdefault(job.chain, set()).add(job.round)
    return {chain: sorted(rounds) for chain, rounds in found.items()}
