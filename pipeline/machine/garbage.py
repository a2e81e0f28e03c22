"""Python's search for garbage in cycles, put off while many objects are made of which none is garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept() -> Iterator[None]:
    """Look for no garbage inside: each search goes through all that was made so far, in vain."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def imported_for_good() -> Iterator[None]:
    """What is imported within stays, so it is never looked through for garbage: neither meanwhile nor later.

    Modules as large as torch and transformers make hundreds of thousands of objects, none of which go.
    """
    with kept():
        try:
            yield
        finally:
            gc.freeze()
