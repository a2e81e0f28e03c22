"""From what a model computed at the ends of rows to their next tokens.

Shapes: n rows that are alive, V tokens of the vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.learning.generation import row_models, sampling
from pipeline.learning.models.batch_size import split_over

# -- guided step -------------------------------------------------------------------------------------------------
# One guided step: candidates, a draw, the values that are asked for, and the token that is taken. Shapes: B
# rows, V tokens of the vocabulary, K columns of candidates.


def guided_step(
    guide: row_models.Guide, tilt: sampling.Tilt, logprobs: Tensor, draws: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Take one guided step.

    Args:
        guide: Knows the values.
        tilt: What they do to the reference.
        logprobs: The reference's, shape [B, V].
        draws: Shape [1 or 2, B], float64, see `decode._streams`; None takes the likeliest token.

    Returns:
        Tokens, shape [B], and the KL divergence of the step from `logprobs` in nats, shape [B].
    """
    candidates = sampling.find_candidates(logprobs, tilt, None if draws is None else draws[-1])
    draw = None if draws is None else sampling.split_draw(logprobs, candidates, draws[0], tilt)
    asked, valid, outside = _asked(guide, candidates, draw)
    count = None
    if not guide.looks_up and not sampling.may_ask(valid) and not sampling.is_silent():
        # The one time in a step that a GPU is waited for: a value model is dear, and reads what is asked alone.
        width, count = torch.stack([candidates.valid.sum(-1).amax(), valid.sum()]).tolist()
        if not candidates.pooled:
            candidates, asked, valid = candidates.first(width), asked[:, : width + 1], valid[:, : width + 1]
    values = guide.values(asked, valid, count)
    guided = sampling.guided_logprobs(candidates, values[:, : candidates.ids.shape[1]], tilt)
    if draw is None:
        columns, divergence = (
            sampling.likeliest_columns(logprobs, candidates, guided),
            sampling.step_kl(candidates, guided),
        )
    else:
        guided = guided.double()
        weights = guided.exp()
        divergence, columns = sampling.step_kl(candidates, guided, weights), sampling.draw_columns(weights, draw)
    tokens = candidates.ids.gather(-1, columns[:, None]).squeeze(-1)
    if draw is not None and draw.outside is not None:
        tokens = draw.or_else(tokens)
        columns = columns if outside is None else torch.where(draw.outside, outside, columns)
    guide.advance(tokens, columns)
    return tokens, divergence


def _asked(
    guide: row_models.Guide, candidates: sampling.Candidates, draw: sampling.Draw | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the guide is asked for: the candidates, and tokens that are none and are taken nevertheless.

    Returns:
        Token ids and which of them are asked for, shape [B, K or K + 1], and for rows that take such a token its
        column, shape [B].
    """
    asked, valid = candidates.ids, candidates.valid
    if draw is None or draw.outside is None:
        return asked, valid, None
    # With a head "q" too, where nothing is asked for: kernels round by the layout of what they read.
    wider = sampling.has_any(draw.outside & valid[:, -1]) if sampling.may_ask(valid) else not guide.looks_up
    if wider:
        asked, valid = F.pad(asked, (0, 1)), F.pad(valid, (0, 1))
    elif not guide.looks_up:
        asked, valid = asked.clone(), valid.clone()
    if guide.looks_up:
        return asked, valid, None
    # The value model has to read the token that such a row takes: behind the candidates, or instead of a single
    # one, whose value changes nothing.
    count = candidates.valid.sum(-1)
    outside = count * (draw.outside & (count > 1))
    asked.scatter_(1, outside[:, None], draw.or_else(asked[:, 0])[:, None])
    return asked, valid.scatter_(1, outside[:, None], value=True), outside


class Taken(NamedTuple):
    """What a step took.

    Attributes:
        tokens: Of each row, shape [n].
        lost: Rows whose distribution is none, shape [n].
        kl: What the step adds to their divergence, shape [n]; None where that is 0.
        asked: How many candidates the guide read, shape [n]; None where it reads each token once.
    """

    tokens: Tensor
    lost: Tensor
    kl: Tensor | None
    asked: Tensor | None


@dataclass(frozen=True)
class Taking:
    """How tokens are taken.

    Attributes:
        temperature: See `DecodeSettings`.
        top_p: Likewise.
        guide: Knows the values; None guides by nothing.
        tilt: What they do; None without a guide.
        some_likeliest: Whether there may be rows without draws beside others that have some.
        vocabulary: Tokens that may be taken, the first ones; None for all that the policy has logits of. A value
            model may have fewer of those that fill up an embedding and stand for no text.
    """

    temperature: float
    top_p: float
    guide: row_models.Guide | None
    tilt: sampling.Tilt | None
    some_likeliest: bool
    vocabulary: int | None = None

    def __call__(self, logits: Tensor, draws: Tensor | None) -> Taken:
        """The next token of every row.

        Args:
            logits: Of the policy, shape [n, V].
            draws: Shape [streams, n]; None takes the likeliest.
        """
        if self.vocabulary is not None and self.vocabulary < logits.shape[1]:
            logits = logits[:, : self.vocabulary]
        whole = sampling.policy_logprobs(logits, self.temperature)
        logprobs = sampling.nucleus(whole, self.top_p)
        kl = sampling.nucleus_kl(whole, logprobs) if self.top_p < 1.0 else None
        asked = None
        if self.guide is not None:
            assert self.tilt is not None
            tokens, divergence = guided_step(self.guide, self.tilt, logprobs, draws)
            kl = divergence if kl is None else kl + divergence
            asked = self.guide.asked
        else:
            tokens = (
                logprobs.argmax(-1)
                if draws is None
                else sampling.take_tokens(logprobs, draws[0], self.some_likeliest)
            )
        return Taken(tokens, sampling.is_no_number(whole), kl, asked)


# -- graphs ------------------------------------------------------------------------------------------------------
# CUDA graphs: what a device is to do, recorded once, and said again in one call. A graph is a list of
# operations on places in memory. To record it, Python says them once; whoever replays it runs no Python at
# all. So what is recorded may depend on nothing but what is in memory, and must not wait for a number.


class Graphs:
    """Graphs that share the memory of what they compute on the way: they take turns, and leave nothing there."""

    def __init__(self) -> None:
        cuda: Any = torch.cuda  # which is typed in parts
        self._cuda = cuda
        self._pool = cuda.graph_pool_handle()
        self._aside = cuda.Stream()

    def warm(self, work: Callable[[], None]) -> None:
        """Do it where graphs are recorded: what libraries do at the first time alone cannot be recorded."""
        current = self._cuda.current_stream()
        self._aside.wait_stream(current)
        with self._cuda.stream(self._aside):
            work()
        current.wait_stream(self._aside)

    def recorded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record work, which is not done meanwhile; returns what does it.

        Raises:
            RuntimeError: It does what a graph cannot hold. The device is then as if nothing had been recorded.
        """
        graph, before = self._cuda.CUDAGraph(), self._cuda.current_stream()
        failed: list[Exception] = []

        def noted() -> None:
            try:
                work()
            except Exception as error:
                failed.append(error)
                raise

        try:
            self._record(graph, noted, self._pool)
        except RuntimeError as error:
            self._leave(before)
            # Of what failed first, the end of the recording says no more than that something did.
            raise (failed or [error])[0] from None
        replay: Callable[[], None] = graph.replay
        return replay

    def _record(self, graph: Any, work: Callable[[], object], pool: Any) -> None:
        # Other threads of a worker may ask the driver for something, which is no part of it.
        with self._cuda.graph(graph, pool=pool, stream=self._aside, capture_error_mode="thread_local"):
            work()

    def _leave(self, before: Any) -> None:
        """Leave a recording that has failed, of which `torch.cuda.graph` (2.11 to 2.13) leaves three things.

        Its stream stays the current one. Its memory pool stays open, and meanwhile the allocator gives nothing
        back, neither by `empty_cache` nor before it runs out of memory. The generator of random numbers waits for
        the end of a recording, which it is told of by one that succeeds.
        """
        self._cuda.set_stream(before)
        device = self._cuda.current_device()
        with suppress(RuntimeError):  # the pool is closed already where the recording ended as it should
            # As `torch.cuda.use_mem_pool` ends, which closes no pool but those that it has opened itself.
            torch._C._cuda_endAllocateToPool(device, self._pool)
            torch._C._cuda_releasePool(device, self._pool)
            mark = torch.zeros(1, device=self._aside.device)
            self._record(self._cuda.CUDAGraph(), lambda: mark.add_(1), self._cuda.graph_pool_handle())


# -- recorded steps ----------------------------------------------------------------------------------------------
# Steps of decoding as CUDA graphs (`generation.cuda_graphs`): a call for each, instead of thousands of them.
# A step takes the next token of every slot, whether it has a row or not, and reads it: what the policy
# computed, the tilt, the value model's pass over all places for candidates, and what both remember. All that
# it depends on lies in memory that stays where it is. Texts grow, so there is a graph for each of a few
# lengths, which sees slots up to that one and hides what is beyond a text. The first steps of a length are
# done without a graph, and so are all steps of models of which one could not be recorded, for the rest of the
# process: of the same shapes, so that what is drawn does not depend on it. Shapes: R slots, n rows that are
# alive, k steps since tokens were looked at.


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


def why_not(policy: row_models.ModelRows, taking: Taking) -> str:
    """Why steps of these cannot be recorded, in a few words; "" where they may be."""
    followed = [policy, *_rows_of(taking.guide)]
    for whose, rows in zip(("the policy", "the value model"), followed, strict=False):
        if not isinstance(rows, row_models.RowModel):
            return f"rows of {whose} begin together, in a cache that grows"
        weights = [*rows.model.parameters()]
        if split_over(rows.model) is not None or any(hasattr(weight, "full_tensor") for weight in weights):
            return f"several devices share {whose}"
        if len({weight.device for weight in weights}) > 1:
            return f"{whose} is on several devices"
    return ""


def _rows_of(guide: row_models.Guide | None) -> list[Any]:
    """The rows of a guide."""
    if guide is None:
        return []
    return [guide.rows if isinstance(guide, row_models.CandidateRows | row_models.VocabularyRows) else guide]


@cache
def tell(why: str) -> None:
    """Say once in a process why steps are not recorded."""
    log.warning("generation.cuda_graphs: %s, so steps are decoded without graphs", why)


class RecordedSteps:
    """The steps of all slots."""

    def __init__(
        self, policy: row_models.RowModel, outputs: row_models.Outputs, taking: Taking, streams: int, most: int
    ) -> None:
        """Prepare, before any row is in.

        Args:
            policy: Reads tokens.
            outputs: What it computed.
            taking: Takes tokens.
            streams: Of draws.
            most: Steps from one look to the next at most.
        """
        self._policy, self._outputs, self._taking = policy, outputs, taking
        followed: list[row_models.RowModel] = [policy, *_rows_of(taking.guide)]
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
        self._asked = numbers(dtype=torch.long) if isinstance(taking.guide, row_models.CandidateRows) else None

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

    def _held(self) -> list[row_models.Outputs]:
        guide = self._taking.guide
        return [self._outputs, guide.outputs] if isinstance(guide, row_models.VocabularyRows) else [self._outputs]

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
            stack.enter_context(sampling.silent())
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
