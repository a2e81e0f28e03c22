"""Child processes that have what they compute with imported when they start, where starting is not the matter."""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext


@contextmanager
def fork_server(module: str) -> Iterator[ForkServerContext]:
    """Processes that are forked from one which has imported a module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    yield context
    # Other tests count the children of this process.
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    multiprocessing.resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
