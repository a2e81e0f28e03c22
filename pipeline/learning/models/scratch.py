"""Where whole models are written that are only read back: beside the output of a job, where its run cleans up.

Elsewhere they would stay when a worker is killed, gigabytes of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_folders: list[Path] = []


def folder() -> Path | None:
    """The folder of the job that runs; None outside of jobs, which is the usual place for such files."""
    return _folders[-1] if _folders else None


@contextmanager
def scratch_in(place: Path) -> Iterator[None]:
    """Write there for as long as a job runs.

    Args:
        place: A folder that its run removes whatever becomes of the job.
    """
    _folders.append(place)
    try:
        yield
    finally:
        _folders.pop()
