"""The end of what a trial printed, where one looks first when it has failed."""

from __future__ import annotations

import os

from pipeline.files import open_plain
from pipeline.runs.report.logs import start_of_last
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.trials import Trial

_MOST = 8000
"""Bytes of it."""


def log_tail(folder: SweepFolder, trial: Trial, lines: int) -> str:
    """The last lines of the log of a trial's last attempt; "" where there is none, or it cannot be read."""
    try:
        with open_plain(folder.trial(trial.number).log(max(1, trial.attempts))) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(start_of_last(file.fileno(), lines), size - _MOST))
            return file.read(_MOST).decode("utf-8", "replace").strip()
    except OSError:
        return ""
