"""Importing what is as large as torch and transformers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imported_for_good() -> Iterator[None]:
    """What is imported within stays, so it is never looked through for garbage: neither meanwhile nor later.

    Python would do so again and again while modules make hundreds of thousands of objects, none of which go.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
