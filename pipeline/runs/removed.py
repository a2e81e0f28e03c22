"""Which models of a run were trained, and their weights removed since, as `execution.keep` asked."""

from __future__ import annotations

from pipeline.runs.loaded import LoadedRun


def removed_weights(run: LoadedRun) -> dict[str, list[int]]:
    """Chain -> rounds whose weights were removed."""
    found: dict[str, set[int]] = {}
    for job in run.jobs.values():
        if job.weights and run.store.is_removed(job.key):
            found.setdefault(job.chain, set()).add(job.round)
    return {chain: sorted(rounds) for chain, rounds in found.items()}
