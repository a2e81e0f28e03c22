"""Take the next tokens of rows, from the model's outputs at their ends.

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
from pipeline.learning.generation.sampling import Tilt
from pipeline.learning.models.tensor_parallel import split_over
from pipeline.outputs.formats import Sampling

# -- guided step -------------------------------------------------------------------------------------------------
# One guided step: candidates, a draw, the values, and the token that is taken. Shapes: B rows, V tokens of the
# vocabulary, K columns of candidates.


def guided_step(
    guide: row_models.Guide, tilt: Tilt, logprobs: Tensor, draws: Tensor | None, *, some_likeliest: bool = False
) -> tuple[Tensor, Tensor]:
    """Take one guided step.

    Args:
        guide: Value model.
        tilt: Settings of guidance.
        logprobs: Log-probabilities under the reference, shape [B, V].
        draws: Shape [1 or 2, B], float64, see `decode._streams`; None decodes greedily.
        some_likeliest: Whether rows whose draws are NaN are decoded greedily.

    Returns:
        Tokens, shape [B], and the KL divergence of the step from `logprobs` in nats, shape [B].
    """
    candidates = sampling.find_candidates(logprobs, tilt, None if draws is None else draws[-1], some_likeliest)
    draw = None if draws is None else sampling.split_draw(logprobs, candidates, draws[0], tilt)
    ids, valid, outside = _ids_to_read(guide, candidates, draw)
    count = None
    if not guide.looks_up and not sampling.may_ask(valid) and not sampling.is_silent():
        # The only wait for the GPU in a step: a value model is expensive, so it reads only what is requested.
        width, count = torch.stack([candidates.valid.sum(-1).amax(), valid.sum()]).tolist()
        if not candidates.pooled:
            candidates, ids, valid = candidates.first(width), ids[:, : width + 1], valid[:, : width + 1]
    values = guide.values(ids, valid, count)
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
        if some_likeliest:
            columns = sampling.likeliest_columns(logprobs, candidates, guided).where(draw.uniform.isnan(), columns)
    tokens = candidates.ids.gather(-1, columns[:, None]).squeeze(-1)
    if draw is not None and draw.outside is not None:
        tokens = draw.or_else(tokens)
        columns = columns if outside is None else torch.where(draw.outside, outside, columns)
    guide.advance(tokens, columns)
    return tokens, divergence


def _ids_to_read(
    guide: row_models.Guide, candidates: sampling.Candidates, draw: sampling.Draw | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return what the value model must read: the candidates, and drawn tokens that are no candidates.

    Returns:
        Token ids and which of them are requested, shape [B, K or K + 1], and for rows with such a token its
        column, shape [B].
    """
    ids, valid = candidates.ids, candidates.valid
    if draw is None or draw.outside is None:
        return ids, valid, None
    # For a head "q" too, where nothing is read: kernels round by the memory layout of their input.
    wider = sampling.has_any(draw.outside & valid[:, -1]) if sampling.may_ask(valid) else not guide.looks_up
    if wider:
        ids, valid = F.pad(ids, (0, 1)), F.pad(valid, (0, 1))
    elif not guide.looks_up:
        ids, valid = ids.clone(), valid.clone()
    if guide.looks_up:
        return ids, valid, None
    # The value model has to read such a row's token: after the candidates, or instead of a single one, whose value
    # has no effect.
    count = candidates.valid.sum(-1)
    outside = count * (draw.outside & (count > 1))
    ids.scatter_(1, outside[:, None], draw.or_else(ids[:, 0])[:, None])
    return ids, valid.scatter_(1, outside[:, None], value=True), outside


class Taken(NamedTuple):
    """Result of a step.

    Attributes:
        tokens: Token of each row, shape [n].
        lost: Whether a row's distribution is invalid, shape [n].
        kl: KL divergence of the step, shape [n]; None if it is 0.
        asked: Number of candidates that the value model read, shape [n]; None if it reads each token once.
    """

    tokens: Tensor
    lost: Tensor
    kl: Tensor | None
    asked: Tensor | None


@dataclass(frozen=True)
class Taking:
    """Settings of a step.

    Attributes:
        sampling: See `DecodeSettings`.
        guide: Value model; None without guidance.
        tilt: Settings of guidance; None without guidance.
        some_likeliest: Whether some rows are decoded greedily while others are sampled.
        vocabulary: Number of first tokens that may be taken; None for all logits of the policy. A value model may
            lack the last ones, which only pad an embedding and have no text.
    """

    sampling: Sampling
    guide: row_models.Guide | None
    tilt: Tilt | None
    some_likeliest: bool
    vocabulary: int | None = None

    def __call__(self, logits: Tensor, draws: Tensor | None) -> Taken:
        """Take the next token of every row.

        Args:
            logits: Logits of the policy, shape [n, V].
            draws: Shape [streams, n]; None decodes greedily.
        """
        if self.vocabulary is not None and self.vocabulary < logits.shape[1]:
            logits = logits[:, : self.vocabulary]
        whole = sampling.policy_logprobs(logits, self.sampling.temperature)
        logprobs = sampling.cut(whole, self.sampling)
        kl = None if self.sampling.is_whole else sampling.nucleus_kl(whole, logprobs)
        num_read = None
        if self.guide is not None:
            assert self.tilt is not None
            tokens, divergence = guided_step(self.guide, self.tilt, logprobs, draws)
            kl = divergence if kl is None else kl + divergence
            num_read = self.guide.asked
        else:
            tokens = (
                logprobs.argmax(-1)
                if draws is None
                else sampling.take_tokens(logprobs, draws[0], self.some_likeliest)
            )
        return Taken(tokens, sampling.is_no_number(whole), kl, num_read)


# -- graphs ------------------------------------------------------------------------------------------------------
# CUDA graphs: operations on fixed memory, recorded once and replayed with one call. To record, Python launches
# them once; replaying runs no Python. So recorded work may depend only on memory, and must not wait for a number.


class Graphs:
    """CUDA graphs that share temporary memory: they run one after the other, and leave nothing in it."""

    def __init__(self) -> None:
        cuda: Any = torch.cuda  # which is only partly typed
        self._cuda = cuda
        self._pool = cuda.graph_pool_handle()
        self._aside = cuda.Stream()

    def warm(self, work: Callable[[], None]) -> None:
        """Run work on the stream of recordings: one-time work of libraries cannot be recorded."""
        current = self._cuda.current_stream()
        self._aside.wait_stream(current)
        with self._cuda.stream(self._aside):
            work()
        current.wait_stream(self._aside)

    def recorded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record work without running it, and return a function that runs it.

        Raises:
            RuntimeError: The work contains something that a graph cannot hold. The device is then as before.
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
            # The error at the end of a recording hides what failed first.
            raise (failed or [error])[0] from None
        replay: Callable[[], None] = graph.replay
        return replay

    def _record(self, graph: Any, work: Callable[[], object], pool: Any) -> None:
        # Other threads of a worker may use the driver meanwhile, which is not recorded.
        with self._cuda.graph(graph, pool=pool, stream=self._aside, capture_error_mode="thread_local"):
            work()

    def _leave(self, before: Any) -> None:
        """Clean up after a failed recording, which `torch.cuda.graph` (2.11 to 2.13) does not do completely.

        Three things remain. Its stream stays the current one. Its memory pool stays open, and meanwhile the
        allocator frees nothing, neither by `empty_cache` nor when memory runs out. The random generator stays in
        recording mode until a recording succeeds.
        """
        self._cuda.set_stream(before)
        device = self._cuda.current_device()
        with suppress(RuntimeError):  # the pool is already closed if the recording ended normally
            # As at the end of `torch.cuda.use_mem_pool`, which closes only pools that it has opened itself.
            torch._C._cuda_endAllocateToPool(device, self._pool)
            torch._C._cuda_releasePool(device, self._pool)
            mark = torch.zeros(1, device=self._aside.device)
            self._record(self._cuda.CUDAGraph(), lambda: mark.add_(1), self._cuda.graph_pool_handle())


# -- recorded steps ----------------------------------------------------------------------------------------------
# Decoding steps as CUDA graphs (`generation.cuda_graphs`): one call each, instead of thousands. A step takes and
# reads the next token of every slot, with or without a live row: from the policy's outputs, guidance, the value
# model's pass over all candidate positions, and both caches. Everything is in memory at fixed addresses. Texts
# grow, so there is a graph for each of a few lengths, which reads slots up to that length and masks those beyond a
# text. The first steps of a length run without a graph, and if recording fails so do all steps of that model for
# the rest of the process. They use the same shapes, so draws do not depend on this. Shapes: R slots, n rows that
# are alive, k steps since tokens were last read back.


log = logging.getLogger("pipeline")

LENGTHS = 8
"""Most graphs: recording each takes as long as a step without one, and some memory."""
LEAST = 64
"""Lengths differ by a multiple of this number of slots, which suits kernels."""
WARM = 2
"""Steps of a length before it is recorded."""
SHORT = 16
"""Number of steps below which nothing is recorded: recording takes as long as two or three steps, and each replay
saves most of one."""

_FAILED: WeakSet[nn.Module] = WeakSet()
"""Models whose steps could not be recorded: the value model if there is one, else the policy."""


def lengths_of(width: int) -> list[int]:
    """Return the number of slots that each graph reads, ascending; the last one reads all."""
    part = LEAST * -(-width // (LEAST * LENGTHS))
    return [*range(part, width, part), width]


def is_asked(device: str) -> bool:
    """Return whether steps can be recorded on a device at all."""
    return device.startswith("cuda")


def why_not(policy: row_models.ModelRows, taking: Taking) -> str:
    """Say in a few words why steps of these cannot be recorded; "" if they may be."""
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
    """Return the rows of a guide."""
    if guide is None:
        return []
    return [guide.rows if isinstance(guide, row_models.CandidateRows | row_models.VocabularyRows) else guide]


@cache
def tell(why: str) -> None:
    """Log once per process why steps are not recorded."""
    log.warning("generation.cuda_graphs: %s, so steps are decoded without graphs", why)


class RecordedSteps:
    """Steps of all slots, recorded as CUDA graphs."""

    def __init__(
        self, policy: row_models.RowModel, outputs: row_models.Outputs, taking: Taking, streams: int, most: int
    ) -> None:
        """Prepare before any row enters.

        Args:
            policy: The policy, which reads tokens.
            outputs: Its outputs.
            taking: Takes tokens.
            streams: Number of RNG streams.
            most: Most steps between reads of tokens.
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
        for buffer in self._outputs_held():
            buffer.hold(slots)
        numbers = partial(torch.zeros, most, slots, device=device)
        self._alive = torch.zeros(slots, dtype=torch.long, device=device)
        self._at = torch.zeros(1, dtype=torch.long, device=device)
        self._draws = torch.full((most, streams, slots), 0.5, dtype=torch.float64, device=device)
        self._tokens, self._lost = numbers(dtype=torch.long), numbers(dtype=torch.bool)
        kl = taking.guide is not None or not taking.sampling.is_whole
        self._kl = numbers(dtype=torch.float64) if kl else None
        self._num_read = numbers(dtype=torch.long) if isinstance(taking.guide, row_models.CandidateRows) else None

    def run(self, count: int, draws: NDArray[np.float64] | None) -> list[NDArray[Any] | None]:
        """Take `count` steps, and read their results; draws of shape [streams, k, n].

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
        parts = (self._tokens, self._lost, self._kl, self._num_read)
        return [None if part is None else part[:count, :rows].cpu().numpy() for part in parts]

    def _outputs_held(self) -> list[row_models.Outputs]:
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
            # Recording runs nothing, so nothing is lost.
            self._failed = True
            why = f"a step could not be recorded ({(str(error) or type(error).__name__).splitlines()[0][:200]})"
            if not isinstance(error, torch.OutOfMemoryError):  # with fewer slots it may fit
                _FAILED.add(self._models[-1])
            tell(why)
            work()
            return
        self._replays[slots]()

    def _work(self, slots: int) -> None:
        """Run one step, which depends only on memory."""
        guide, streams = self._taking.guide, self._draws.shape[1]
        with ExitStack() as stack:
            stack.enter_context(sampling.silent())
            for cache_ in self._caches:
                stack.enter_context(cache_.all_slots(slots - 1, self._alive))
            draws = self._draws.index_select(0, self._at)[0] if streams else None
            taken = self._taking(self._outputs.known, draws)
            for buffer, part in zip((self._tokens, self._lost, self._kl, self._num_read), taken, strict=True):
                if buffer is not None and part is not None:
                    buffer.index_copy_(0, self._at, part[None])
            self._outputs.read(self._policy.read(taken.tokens))
            if guide is not None:
                guide.read(taken.tokens)
            self._at.add_(1)
