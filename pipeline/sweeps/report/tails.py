"""The end of what a trial printed, where one looks first when it has failed."""

from __future__ import annotations

import os

from pipeline.files import open_plain
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.trials import Trial
from pipeline.terminal.text import without_colours

_MOST = 8000
"""Bytes of it."""
_OF_WANDB = "wandb:"


def log_tail(folder: SweepFolder, trial: Trial, lines: int) -> str:
    """The last lines of the log of a trial's last attempt; "" where there is none, or it cannot be read.

    W&B's client says at the end of each program where its files are, whatever that has said of its failure: such
    lines at the end count only where there are no others.
    """
    try:
        with open_plain(folder.trial(trial.number).log(max(1, trial.attempts))) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST))
            said = without_colours(file.read(_MOST).decode("utf-8", "replace")).strip().split("\n")
    except OSError:
        return ""
    own = [number for number, line in enumerate(said, 1) if not line.startswith(_OF_WANDB)]
    return "\n".join(said[: max(own, default=None)][-lines:])
