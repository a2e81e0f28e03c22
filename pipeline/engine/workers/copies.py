"""Processes that a job forks are its own, and no second worker."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def contained() -> Iterator[None]:
    """Run a job's code; a copy of this process that the code has made by forking ends where it leaves that code.

    It would go on as the worker otherwise: report the job a second time, commit or remove the output, and take
    further jobs. It ends at once, so that nothing which both processes hold is closed or flushed a second time.
    """
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != pid:
            _end(error)
        raise
    if os.getpid() != pid:
        os._exit(0)


def _end(error: BaseException) -> None:
    try:
        if isinstance(error, SystemExit):
            os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
        with suppress(BaseException):
            traceback.print_exc()
    finally:
        os._exit(1)
