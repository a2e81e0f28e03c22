"""Child processes that have what they compute with imported when they start, where starting is not the matter."""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.process import BaseProcess
from typing import Any

import torch

Start = Callable[..., BaseProcess]
"""Starts a process: a function, and what it is called with."""


@contextmanager
def forked(module: str) -> Iterator[Start]:
    """Processes that are forked from one that has imported a module: this one, or where torch has GPUs another.

    Torch differentiates in threads of its own for GPUs, without which a process cannot go on; on a CPU in none.
    """
    if not torch.cuda.is_available():
        import_module(module)
        yield _begin(multiprocessing.get_context("fork"))
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    yield _begin(context)
    # Other tests count the children of this process.
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    multiprocessing.resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def _begin(context: Any) -> Start:
    def start(function: Callable[..., object], *args: Any, **settings: Any) -> BaseProcess:
        process: BaseProcess = context.Process(target=_plainly, args=(function, *args), kwargs=settings)
        with warnings.catch_warnings():
            # Of later Pythons, since this process may have threads; what runs in others is none of ours.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        return process

    return start


def _plainly(function: Callable[..., object], *args: Any, **settings: Any) -> None:
    """As in a process that is none of a test, in which warnings are errors."""
    warnings.resetwarnings()
    function(*args, **settings)
