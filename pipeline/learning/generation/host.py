"""What the host asks a device for in the middle of a step, which makes it wait for all that was begun before.

A step is hundreds of short operations. A GPU does them faster than the host can say them, unless the host has to
wait for a number: then the GPU idles until the next ones are said. So on a GPU steps are of shapes that are known
beforehand. On a CPU to ask costs nothing, and what is known saves work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_SILENT: ContextVar[bool] = ContextVar("_SILENT", default=False)


def may_ask(tensor: Tensor) -> bool:
    """Whether a number may be asked for, to do less afterwards."""
    return not is_silent() and not tensor.is_cuda


def has_any(marks: Tensor) -> bool:
    """Whether one of some rows is marked, shape [B]; on a CPU a list of them is looked through sooner."""
    return bool(marks.any()) if marks.is_cuda else True in marks.tolist()


def is_silent() -> bool:
    """Whether nothing may be asked for, however much that would save: what is done is recorded as a graph."""
    return _SILENT.get()


@contextmanager
def silent() -> Iterator[None]:
    """Ask for nothing meanwhile."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)
