"""Ranks that write together look, before anything follows from tokens, whether all have the same.

Each draw is a hash of its place, and the logits of all ranks are the same bits, so all take the same token without
being told. Were it not so (a broken device, a card of another kind among them), they would go on with different
texts, or wait for each other in sums of different shapes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.errors import RanksDisagree
from pipeline.learning.models.bits import bits_of
from pipeline.learning.models.split import split_over


class Agreement:
    """Of the ranks that a model is split over; a model that is whole has nobody to agree with."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Begin with nothing seen.

        Args:
            model: The one that writes.
        """
        self._ranks = split_over(model)
        self._seen = hashlib.blake2b(digest_size=7)  # a positive number of 64 bits
        self._steps = 0

    @property
    def has_others(self) -> bool:
        """Whether there are other ranks."""
        return self._ranks is not None

    def check(self, tokens: NDArray[np.int64], logits: Tensor | None) -> None:
        """See that all ranks have taken the same tokens, from the same logits. All must call this together.

        Args:
            tokens: Of the steps since the last look, shape [steps, rows].
            logits: Of the last of these steps.

        Raises:
            RanksDisagree: This rank has other ones than most, or there is no majority.
            ConnectionError: Another rank has, which will tell of it.
        """
        if self._ranks is None:
            return
        self._seen.update(np.ascontiguousarray(tokens).tobytes())
        self._steps += len(tokens)
        taken = int.from_bytes(self._seen.digest(), "big")
        self._compare(self._ranks.all_numbers([taken, 0 if logits is None else bits_of(logits)]), self._ranks.rank)

    def _compare(self, found: Sequence[Sequence[int]], rank: int) -> None:
        if all(one == found[0] for one in found):
            return
        what = "tokens" if any(one[0] != found[0][0] for one in found) else "logits"
        counts = Counter(map(tuple, found)).most_common(2)
        odd = [rank for rank, one in enumerate(found) if tuple(one) != counts[0][0]]
        if counts[0][1] == counts[1][1]:
            who, mine = "", True  # as of two, none can be told to be wrong
        else:
            who, mine = f": rank {odd[0]} has others than most", rank in odd
        said = f"{len(found)} ranks share a model, and have different {what} after {self._steps} steps{who}"
        if not mine:
            raise ConnectionError(said)
        raise RanksDisagree(
            f"{said}. A device computes wrongly, or they are of different kinds: use GPUs of one model "
            "(distributed.gpu_ids)"
        )
