"""A number for the bits of a tensor, by which ranks tell whether they have the same."""

from __future__ import annotations

import torch
from torch import Tensor

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""Bytes of a number -> whole numbers of as many, or of half as many."""
_AT_ONCE = 1 << 22
"""Numbers that are added up in one go, as the sum is of a copy with 8 bytes for each."""


def bits_of(tensor: Tensor) -> int:
    """A number that changes with any bit of a tensor: the sum of their bits, read as whole numbers."""
    bits = tensor.detach().contiguous().flatten().view(_WHOLE[tensor.itemsize])
    # One look at the device: parts are added up there.
    return int(torch.stack([part.sum(dtype=torch.int64) for part in bits.split(_AT_ONCE)]).sum())
