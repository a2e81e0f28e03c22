"""What the host asks a device for in the middle of a step, which makes it wait for all that was begun before.

A step is hundreds of short operations. A GPU does them faster than the host can say them, unless the host has to
wait for a number: then the GPU idles until the next ones are said. So on a GPU steps are of shapes that are known
beforehand. On a CPU to ask costs nothing, and what is known saves work. None of it has run on a GPU yet.
"""

from __future__ import annotations

from torch import Tensor

from pipeline import untried


def may_ask(tensor: Tensor) -> bool:
    """Whether a number may be asked for, to do less afterwards."""
    return not tensor.is_cuda or not untried.is_used()
