"""Where commands may write: anywhere but inside a store, which holds what jobs left and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.runs.loaded import LoadedRun


def refuse_store(option: str, path: Path, runs: Iterable[LoadedRun]) -> None:
    """Refuse a place that is inside the store of one of some runs, also by a link that leads there.

    Raises:
        ConfigError: It is.
    """
    target = path.resolve()
    for root in {run.store.root.resolve() for run in runs}:
        if target.is_relative_to(root):
            raise ConfigError(
                f"{option} {path}: that is inside the store {root}, which holds the outputs of jobs alone; name a "
                "place outside of it"
            )
