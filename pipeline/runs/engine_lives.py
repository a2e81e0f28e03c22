"""Whether the process that carries out a run still lives, as anyone can tell who sees the run's folder."""

from __future__ import annotations

import socket
import time

import psutil

from pipeline.engine.run_folder import RunFolder
from pipeline.files import open_plain
from pipeline.locks import LocksUnsupportedError, lock
from pipeline.runs.run_view import RunView

_STARTING_S = 10.0
"""Seconds that an engine may take from making its folder to the first line of its journal."""


def engine_runs(folder: RunFolder, view: RunView) -> bool | None:
    """Whether the engine of a run lives; None where nobody can tell.

    A running engine holds a lock on its journal, which the kernel gives back when the process ends, however it
    ends. Where the file system has no locks the recorded process is looked up, on its own machine only.

    Args:
        folder: The run.
        view: What its journal told.
    """
    if view.finished is not None:
        return False
    if view.started is None and _is_new(folder):
        # Not looked at yet: an engine that is about to lock its journal must find it free.
        return True
    try:
        with open_plain(folder.journal, follow=True) as file:
            return not lock(file.fileno(), shared=True, wait=False)
    except FileNotFoundError:
        return False
    except LocksUnsupportedError:
        return _process_runs(view)
    except OSError:
        return None


def is_uploading(view: RunView) -> bool:
    """Whether the process of a run that is over is still at work on its uploads, as far as can be told here."""
    return bool(view.uploads_left) and not view.uploads_over and _process_runs(view) is True


def _is_new(folder: RunFolder) -> bool:
    return time.time() - folder.path.stat().st_mtime < _STARTING_S


def _process_runs(view: RunView) -> bool | None:
    if view.pid is None or view.started is None or view.host != socket.gethostname():
        return None
    try:
        # A process that began after the run has only been given the same number.
        return psutil.Process(view.pid).create_time() <= view.started + 1
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return None
