"""What a job has left running when it ended, and nothing in its worker holds on to any longer.

A worker runs many jobs and keeps processes between them: those that grade, compile workers of torch, services of
libraries. Such a process is a child of the worker, which has an object for it. Whatever has lost its parent (a
daemon, what a shell has put into the background), or whose `Popen` is gone, serves nobody: it ends with the job.
"""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.forkserver import ForkServer
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ResourceTracker

from pipeline import descendants
from pipeline.descendants import Process

_ROUNDS = 5


def end_strays() -> None:
    """End them, with all that they have started. For a process that adopts orphans."""
    for _ in range(_ROUNDS):
        # Looked at twice: another thread may have started one, and not have its object yet.
        if not (strays := _strays()) or not (strays := strays & _strays()):
            return
        descendants.end(partial(_family, strays))


def _family(roots: set[Process]) -> set[Process]:
    living = descendants.alive(roots)
    return living | descendants.below(*(process.pid for process in living))


def _strays() -> set[Process]:
    children = descendants.children()
    if not children:
        return set()
    held = set(_held())
    strays = {child for child in children if child.pid not in held}
    for stray in strays:
        if stray.is_over:
            with suppress(ChildProcessError):
                os.waitpid(stray.pid, os.WNOHANG)  # nobody else will
    return {stray for stray in strays if not stray.is_over}


def _held() -> Iterator[int]:
    """Numbers of the processes that an object of this one stands for."""
    dropped = {id(one) for one in getattr(subprocess, "_active", None) or ()}  # kept by Python alone, to be reaped
    for one in gc.get_objects():
        kind = type(one)  # not `isinstance`, which asks an object that stands for another one what that is
        number = None
        if issubclass(kind, subprocess.Popen):
            number = None if id(one) in dropped else one.pid
        elif issubclass(kind, BaseProcess):
            number = one._popen and one._popen.pid
        elif issubclass(kind, ResourceTracker):
            number = one._pid
        elif issubclass(kind, ForkServer):
            number = one._forkserver_pid
        if number is not None:
            yield number
