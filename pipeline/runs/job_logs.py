"""The logs of jobs, in the folder of their run: where they are, and what they said last."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.engine.run_folder import RunFolder
from pipeline.files import open_plain
from pipeline.runs.run_view import AttemptView

_TAIL_BYTES = 4096


def logs_of(folder: RunFolder, job_id: str) -> dict[int, Path]:
    """Number of attempt -> its log, of the attempts at a job in this run that have one."""
    if folder.jobs.is_symlink():
        return {}  # nothing ran: it shows those of an earlier run, see `links`
    return logs_in(folder.job(job_id))


def logs_in(folder: Path) -> dict[int, Path]:
    """Number of attempt -> its log, in the folder of what was attempted."""
    found: dict[int, Path] = {}
    try:
        paths = list(folder.iterdir())
    except (OSError, ValueError):  # there are none; a journal may name a job as no folder can be named
        return {}
    for path in paths:
        if match := re.fullmatch(r"log(?:\.(\d{1,9}))?\.txt", path.name):
            found[int(match[1] or 1)] = path
    return dict(sorted(found.items()))


def log_path(folder: RunFolder, job_id: str, attempt: AttemptView | None) -> Path | None:
    """The log of an attempt, where there is one: in the run's folder, which may have been moved since."""
    logs = logs_of(folder, job_id)
    if attempt is None:
        return None
    if attempt.number in logs:
        return logs[attempt.number]
    recorded = folder.path / attempt.log
    return recorded if attempt.log and recorded.is_file() else None


def last_line(folder: RunFolder, job_id: str, attempt: AttemptView) -> str:
    """What the log of an attempt ends with, cut off where it is very long; "" where it says nothing yet."""
    path = log_path(folder, job_id, attempt)
    if path is None:
        return ""
    try:
        with open_plain(path, follow=True) as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
