"""What a model computed at the ends of rows, from which their next tokens follow.

Shapes: n rows that are alive, R slots.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.learning.generation import host


class Outputs:
    """What a model computed at the ends of the rows alive, shape [n, ...].

    As it gave it; or, where all slots are rows, in memory of their own that stays where it is.
    """

    def __init__(self) -> None:
        self.now: Tensor | None = None
        self._slots: int | None = None
        self._whole: Tensor | None = None

    @property
    def known(self) -> Tensor:
        """Those of the rows alive, or of all slots while all of them are rows."""
        if self._whole is not None and host.is_silent():
            return self._whole
        assert self.now is not None
        return self.now

    def hold(self, slots: int) -> None:
        """Lie in one place from now on."""
        self._slots = slots

    def enter(self, new: Tensor) -> None:
        """Add those of rows behind those alive."""
        if self._slots is None:
            self.now = new if self.now is None else torch.cat([self.now, new])
            return
        begin = 0 if self.now is None else len(self.now)
        if self._whole is None:
            self._whole = new.new_zeros(self._slots, *new.shape[1:])
        self.now = self._whole[: begin + len(new)]
        self.now[begin:] = new

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows (see `RowCache.keep`); what lies nowhere of its own will be read anew."""
        if self._whole is None:
            self.now = None
            return
        target = np.flatnonzero(order != np.arange(len(order)))
        if len(target):
            places = torch.from_numpy(np.stack([order[target], target])).to(self._whole.device)
            self._whole[places[1]] = self._whole[places[0]]
        self.now = self._whole[: len(order)]

    def read(self, new: Tensor) -> None:
        """Those of next tokens: of the rows alive, or of all slots where these have a place."""
        if self._whole is None:
            self.now = new
        else:
            self._whole.copy_(new)
