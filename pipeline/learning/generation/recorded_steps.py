"""Steps of decoding as CUDA graphs (`generation.cuda_graphs`): a call for each, instead of thousands of them.

A step takes the next token of every slot, whether it has a row or not, and reads it: what the policy computed, the
tilt, the value model's pass over all places for candidates, and what both remember. All that it depends on lies in
memory that stays where it is. Texts grow, so there is a graph for each of a few lengths, which sees slots up to
that one and hides what is beyond a text.

The first steps of a length are done without a graph, and so are all steps of models of which one could not be
recorded, for the rest of the process: of the same shapes, so that what is drawn does not depend on it.

Shapes: R slots, n rows that are alive, k steps since tokens were looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipeline.learning.choices import Others
from pipeline.learning.generation import host
from pipeline.learning.generation.ends_of_rows import Outputs
from pipeline.learning.generation.graphs import Graphs
from pipeline.learning.generation.guides import CandidateRows, Guide, VocabularyRows
from pipeline.learning.generation.row_models import ModelRows, RowModel
from pipeline.learning.generation.steps import Taking
from pipeline.learning.models.split import split_over

log = logging.getLogger("pipeline")

LENGTHS = 8
"""Graphs at most: each takes as long to record as a step without one, and some memory."""
LEAST = 64
"""Slots by which lengths differ, or a multiple of it: kernels like such numbers."""
WARM = 2
"""Steps of a length before it is recorded."""
SHORT = 16
"""Steps below which nothing is recorded: it takes as long as two or three, and each replay saves most of one."""

_FAILED: WeakSet[nn.Module] = WeakSet()
"""Models that a step with could not be recorded: the guide where there was one, else the policy."""


def lengths_of(width: int) -> list[int]:
    """How many slots are seen by each graph, ascending; the last one sees all."""
    part = LEAST * -(-width // (LEAST * LENGTHS))
    return [*range(part, width, part), width]


def is_asked(device: str) -> bool:
    """Whether steps can be recorded on a device at all."""
    return device.startswith("cuda")


def why_not(policy: ModelRows, taking: Taking) -> str:
    """Why steps of these cannot be recorded, in a few words; "" where they may be."""
    followed = [policy, *_rows_of(taking.guide)]
    for whose, rows in zip(("the policy", "the value model"), followed, strict=False):
        if not isinstance(rows, RowModel):
            return f"rows of {whose} begin together, in a cache that grows"
        weights = [*rows.model.parameters()]
        if split_over(rows.model) is not None or any(hasattr(weight, "full_tensor") for weight in weights):
            return f"several devices share {whose}"
        if len({weight.device for weight in weights}) > 1:
            return f"{whose} is on several devices"
    alone = taking.tilt is not None and taking.tilt.top_k == 1 and taking.tilt.others is not Others.offset_zero
    if alone and isinstance(taking.guide, CandidateRows):
        return "a single candidate (top_k=1) is never valued"
    return ""


def _rows_of(guide: Guide | None) -> list[Any]:
    """The rows of a guide."""
    if guide is None:
        return []
    return [guide.rows if isinstance(guide, CandidateRows | VocabularyRows) else guide]


@cache
def tell(why: str) -> None:
    """Say once in a process why steps are not recorded."""
    log.warning("generation.cuda_graphs: %s, so steps are decoded without graphs", why)


class RecordedSteps:
    """The steps of all slots."""

    def __init__(self, policy: RowModel, outputs: Outputs, taking: Taking, streams: int, most: int) -> None:
        """Prepare, before any row is in.

        Args:
            policy: Reads tokens.
            outputs: What it computed.
            taking: Takes tokens.
            streams: Of draws.
            most: Steps from one look to the next at most.
        """
        self._policy, self._outputs, self._taking = policy, outputs, taking
        followed: list[RowModel] = [policy, *_rows_of(taking.guide)]
        self._models, self._caches = [rows.model for rows in followed], [rows.cache for rows in followed]
        self._failed = any(model in _FAILED for model in self._models)
        slots, device = policy.cache.slots, policy.device
        self._lengths = lengths_of(policy.cache.width)
        self._graphs = Graphs()
        self._begun: dict[int, int] = {}
        self._replays: dict[int, Callable[[], None]] = {}
        for held in self._held():
            held.hold(slots)
        numbers = partial(torch.zeros, most, slots, device=device)
        self._alive = torch.zeros(slots, dtype=torch.long, device=device)
        self._at = torch.zeros(1, dtype=torch.long, device=device)
        self._draws = torch.full((most, streams, slots), 0.5, dtype=torch.float64, device=device)
        self._tokens, self._lost = numbers(dtype=torch.long), numbers(dtype=torch.bool)
        kl = taking.guide is not None or taking.top_p < 1.0
        self._kl = numbers(dtype=torch.float64) if kl else None
        self._asked = numbers(dtype=torch.long) if isinstance(taking.guide, CandidateRows) else None

    def run(self, count: int, draws: NDArray[np.float64] | None) -> list[NDArray[Any] | None]:
        """Take so many steps, and look at them; draws of shape [streams, k, n].

        Returns:
            The parts of `Taken`, each of shape [k, n].
        """
        rows = self._policy.cache.rows
        self._alive[:rows] = 1
        self._alive[rows:] = 0
        self._at.zero_()
        if draws is not None:
            self._draws[:count, :, :rows] = torch.from_numpy(draws.swapaxes(0, 1))
        needed = max(cache.longest for cache in self._caches) + count
        slots = next(slots for slots in self._lengths if slots >= needed)
        for _ in range(count):
            self._step(slots)
        for cache_ in self._caches:
            cache_.grown(count)
        parts = (self._tokens, self._lost, self._kl, self._asked)
        return [None if part is None else part[:count, :rows].cpu().numpy() for part in parts]

    def _held(self) -> list[Outputs]:
        guide = self._taking.guide
        return [self._outputs, guide.outputs] if isinstance(guide, VocabularyRows) else [self._outputs]

    def _step(self, slots: int) -> None:
        if (replay := self._replays.get(slots)) is not None:
            replay()
            return
        work = partial(self._work, slots)
        if self._failed:
            work()
            return
        if self._begun.get(slots, 0) < WARM:
            self._begun[slots] = self._begun.get(slots, 0) + 1
            self._graphs.warm(work)
            return
        try:
            self._replays[slots] = self._graphs.recorded(work)
        except RuntimeError as error:
            # Nothing is done while it is recorded, so nothing is lost.
            self._failed = True
            why = f"a step could not be recorded ({(str(error) or type(error).__name__).splitlines()[0][:200]})"
            if not isinstance(error, torch.OutOfMemoryError):  # with fewer slots it may fit
                _FAILED.add(self._models[-1])
            tell(why)
            work()
            return
        self._replays[slots]()

    def _work(self, slots: int) -> None:
        """One step, which depends on what is in memory alone."""
        guide, streams = self._taking.guide, self._draws.shape[1]
        with ExitStack() as stack:
            stack.enter_context(host.silent())
            for cache_ in self._caches:
                stack.enter_context(cache_.all_slots(slots - 1, self._alive))
            draws = self._draws.index_select(0, self._at)[0] if streams else None
            taken = self._taking(self._outputs.known, draws)
            for place, part in zip((self._tokens, self._lost, self._kl, self._asked), taken, strict=True):
                if place is not None and part is not None:
                    place.index_copy_(0, self._at, part[None])
            self._outputs.read(self._policy.read(taken.tokens))
            if guide is not None:
                guide.read(taken.tokens)
            self._at.add_(1)
