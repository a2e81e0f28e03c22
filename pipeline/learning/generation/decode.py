"""Decode in fixed slots (continuous batching), plain or guided by a value model.

When a row is finished, the next sample of the queue takes its slot at once; in static batches the slot would idle
until the longest row is done. Rows of any age share the batch (`row_cache`). Models that do not support this get
rows that begin together, and finished rows leave (`row_models`).

Which rows are computed together depends only on prompts, budgets, the number of slots and the drawn tokens, not on
timing or other jobs. So the same work gives the same bytes everywhere. A random draw belongs to its sample
(`sampling`) and does not depend on other rows. But the batch size affects the rounding of the distribution, so
another number of slots may give other tokens: rarely in float32, often in bfloat16 (`benchmarks/flips.py`).

Shapes: N samples in all, R slots, n rows that are alive, k steps since tokens were looked at, V tokens of the
vocabulary.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.errors import DataError, RanksDisagree
from pipeline.learning.choices import Others
from pipeline.learning.generation import row_models, sampling
from pipeline.learning.generation import steps as recorded_steps
from pipeline.learning.generation.stops import StopStrings
from pipeline.learning.models import flops, value
from pipeline.learning.models.tensor_parallel import split_over
from pipeline.learning.training.distributed import bits_of
from pipeline.outputs.formats import Sampling

# -- slot work ---------------------------------------------------------------------------------------------------
# Host-side state of decoding: the work to do, and the rows in the slots. Shapes: N samples in all, n rows that are
# alive, k steps since tokens were last read back.


@dataclass(frozen=True, kw_only=True)
class SlotPace:
    """Pace at which slots are refilled, and tokens are read back from the device.

    Waiting leaves slots idle, and refilling costs a forward pass over prompts. Both waste the fixed cost of a
    pass. So slots are refilled as soon as the idle fraction, summed over steps, reaches the cost of refilling in
    steps.

    Attributes:
        prefill: Fixed cost of reading prompts, in steps.
        entry: Cost in steps of adding samples whose prompt is already read.
        look_every: Steps between reads of the tokens to find completions that have ended. A read makes a GPU wait;
            rows that ended meanwhile are computed for nothing. None is 1 on the CPU and 8 on a GPU.
    """

    prefill: float = 1.0
    entry: float = 0.2
    look_every: int | None = None

    def steps(self, device: str) -> int:
        """Return the steps between reads of tokens.

        Args:
            device: ``cpu`` or ``cuda``.
        """
        return self.look_every or (8 if device.startswith("cuda") else 1)


class DecodingWork:
    """Work to do and work done, over several attempts if memory runs out.

    Attributes:
        queue: Prompts still to be read, in order.
        open: Prompts with which the present attempt began, shape [P].
        done: Prompts of which all samples are finished, shape [P].
        tokens: Tokens of each sample.
        kl: KL divergence of each sample.
        logprobs: Log-probabilities of the tokens of samples under the policy, where the decoder gives them.
        candidates: Candidates that the value model has read for each sample, and the positions that they attended
            to; shape [N, 2].
        on_tokens: Called with a sample and its tokens so far, whenever tokens are read back; None for nobody.
    """

    on_tokens: Callable[[int, list[int]], None] | None = None

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        budgets: NDArray[np.int64],
        samples: int,
        begun: NDArray[np.int64] | None = None,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> None:
        """Start with nothing done.

        Args:
            prompts: Token ids.
            budgets: Most new tokens for each prompt.
            samples: Completions per prompt.
            begun: Number of last tokens of each prompt that belong to its completions, so that stop strings may
                span them; None for none.
            on_batch: Called when prompts are finished, with samples done and tokens generated so far.
        """
        self.prompts, self.budgets, self.samples, self._begun = prompts, budgets, samples, begun
        self.lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        if (empty := np.flatnonzero((self.lengths == 0) & (budgets > 0))).size:
            raise DataError(f"prompt {empty[0]} has no tokens, so there is nothing that a model could go on from")
        self.tokens: list[list[int]] = [[] for _ in range(len(prompts) * samples)]
        self.kl = np.zeros(len(self.tokens))
        self.logprobs: dict[int, NDArray[np.float32]] = {}
        self.candidates = np.zeros((len(self.tokens), 2), np.int64)
        self.done = np.zeros(len(prompts), np.bool_)
        self._on_batch, self._generated = on_batch, 0
        self.begin()

    def begin(self) -> None:
        """Start an attempt at the work that is not done."""
        self.open = ~self.done
        self._undone = np.full(len(self.prompts), self.samples)
        order = np.argsort(self.lengths, kind="stable")
        self.queue: list[int] = order[self.open[order] & (self.budgets[order] > 0)].tolist()
        for prompt in np.flatnonzero(self.open & (self.budgets <= 0)).tolist():
            self._finish(prompt)

    def next_prompts(self, count: int, *, equal: bool = False) -> list[int]:
        """Take at most `count` prompts off the queue; with `equal`, only prompts of one length."""
        if equal:
            first = self.lengths[self.queue[0]]
            count = min(count, sum(self.lengths[prompt] == first for prompt in self.queue[:count]))
        taken, self.queue = self.queue[:count], self.queue[count:]
        return taken

    def begun_with(self, prompt: int) -> Sequence[int]:
        """Return the tokens of a prompt that belong to its completions."""
        count = 0 if self._begun is None else int(self._begun[prompt])
        return self.prompts[prompt][len(self.prompts[prompt]) - count :]

    def finish(
        self,
        sample: int,
        tokens: list[int],
        kl: float,
        candidates: NDArray[np.int64] | int = 0,
        logprobs: NDArray[np.float32] | None = None,
    ) -> None:
        """Record a finished sample."""
        self.tokens[sample], self.kl[sample], self.candidates[sample] = tokens, kl, candidates
        if logprobs is not None:
            self.logprobs[sample] = logprobs
        prompt = sample // self.samples
        self._undone[prompt] -= 1
        if not self._undone[prompt]:
            self._finish(prompt)

    def count(self, model: PreTrainedModel, guide: value.ValueModel | None) -> None:
        """Count FLOPs of prompts that this attempt has finished, if FLOPs are being counted."""
        done = np.flatnonzero(self.done & self.open & (self.budgets > 0))
        if not flops.is_metered() or not len(done):
            return
        written = (done[:, None] * self.samples + np.arange(self.samples)).reshape(-1)
        # The last token of each is never read.
        further = np.array([max(0, len(self.tokens[sample]) - 1) for sample in written], np.int64)
        prefill = flops.whole_texts(self.lengths[done], outputs=len(done))
        steps = flops.continued(self.lengths[done].repeat(self.samples), further)
        flops.spend("decoding", flops.model_cost(model).forward(prefill + steps))
        if guide is not None:
            tokens, positions = self.candidates[written].sum(0).tolist()
            read = flops.Pass(tokens, positions, tokens) if tokens else steps
            flops.spend("guidance", flops.model_cost(guide).forward(prefill + read))

    def _finish(self, prompt: int) -> None:
        self.done[prompt] = True
        self._generated += sum(map(len, self.tokens[prompt * self.samples : (prompt + 1) * self.samples]))
        if self._on_batch is not None:
            self._on_batch(int(self.done.sum()) * self.samples, self._generated)


class Rows:
    """Host-side data of live rows: the first `count` entries of every array."""

    def __init__(self, slots: int, steps: int, streams: int, reach: int = 0) -> None:
        self.count = 0
        self._places = np.arange(slots)
        self._draws = np.zeros((streams, slots, steps))
        self.sample = np.zeros(slots, np.int64)
        self.prompt = np.zeros(slots, np.int64)  # its length
        self.budget = np.zeros(slots, np.int64)
        self.grown = np.zeros(slots, np.int64)
        self.kl = np.zeros(slots)
        self.candidates = np.zeros((slots, 2), np.int64)
        self.written = np.zeros((slots, steps), np.int64)
        self.before = np.zeros((slots, reach), np.int64)

    def enter(
        self,
        sample: NDArray[np.int64],
        prompt: NDArray[np.int64],
        budget: NDArray[np.int64],
        streams: Sequence[sampling.Keys],
    ) -> None:
        """Add rows, which draw from these streams."""
        places = slice(self.count, self.count + len(sample))
        self.sample[places], self.prompt[places], self.budget[places] = sample, prompt, budget
        self.grown[places] = self.kl[places] = self.candidates[places] = 0
        for number, stream in enumerate(streams):
            self._draws[number, places] = sampling.uniforms(stream[sample], self._draws.shape[2])
        self.count += len(sample)

    def begin(self, tokens: NDArray[np.int64]) -> None:
        """Set the first tokens of the completions of the rows that entered last (`StopStrings.last_tokens`)."""
        self.before[self.count - len(tokens) : self.count] = tokens

    def draws(self, count: int) -> NDArray[np.float64]:
        """Return the draws of each row for `count` steps, shape [streams, count, n]."""
        steps = self.grown[: self.count] + np.arange(count)[:, None]
        drawn: NDArray[np.float64] = self._draws[:, self._places[: self.count], steps]
        return drawn

    def note_asked(self, count: NDArray[np.int64], further: int) -> None:
        """Record that `count` candidates of each row were read, `further` steps after the last known one."""
        position = self.prompt[: self.count] + self.grown[: self.count] + further + 1
        self.candidates[: self.count, 0] += count
        self.candidates[: self.count, 1] += count * position

    def write(
        self, tokens: NDArray[np.int64], ends: Collection[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Append the tokens of some steps; return how many of them each row keeps, and which rows have ended.

        Args:
            tokens: Tokens, possibly beyond an end but not beyond a budget; shape [k, n].
            ends: Tokens that end a completion.
        """
        n, steps = self.count, len(tokens)
        grown, budget = self.grown[:n], self.budget[:n]
        taken = np.arange(1, steps + 1)[:, None]
        self.written[self._places[:n], grown + taken - 1] = tokens
        over = np.asarray(grown + taken >= budget)
        for end in ends:
            over |= tokens == end
        ended = np.asarray(over.any(0))
        return np.where(ended, over.argmax(0) + 1, steps), ended

    def stopped(
        self, kept: NDArray[np.int64], ended: NDArray[np.bool_], stops: StopStrings
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Apply stop strings to the result of `write`: rows end where a stop string is complete."""
        n, steps = self.count, int(kept.max())
        # Start from the first token that may belong to a string completed at the first of these steps.
        places = self.grown[:n, None] + np.arange(1 - stops.reach, steps)
        rows = self._places[:n, None]
        inner = self.written[rows, np.clip(places, 0, self.written.shape[1] - 1)]
        tokens = np.where(places < 0, self.before[rows, places % stops.reach], inner)
        completes = stops.complete(sliding_window_view(tokens, stops.reach, axis=1).copy())
        completes &= np.arange(steps) < kept[:, None]
        hit = completes.any(1)
        return np.where(hit, completes.argmax(1) + 1, kept), ended | hit

    def keep(self, order: NDArray[np.int64]) -> None:
        """Reorder and drop rows; see `RowCache.keep`."""
        moved = np.flatnonzero(order != self._places[: len(order)])
        if len(moved):
            arrays = (self.sample, self.prompt, self.budget, self.grown, self.kl, self.candidates, self.written)
            for array in (*arrays, self.before, *self._draws):
                array[moved] = array[order[moved]]
        self.count = len(order)


# -- agreement ---------------------------------------------------------------------------------------------------
# Tensor-parallel ranks check that all of them have the same tokens before they use them. Each draw is a hash of
# its position, and all ranks compute the same logits, so no communication is needed. With a broken or different
# device they could continue with different texts, or wait for each other in sums of different shapes.


class Agreement:
    """Checks that all ranks of a tensor-parallel model agree; does nothing for a model on one rank."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Start.

        Args:
            model: The model that generates.
        """
        self._ranks = split_over(model)
        self._seen = hashlib.blake2b(digest_size=7)  # a positive 64-bit integer
        self._steps = 0

    def check(self, tokens: NDArray[np.int64], logits: Tensor | None) -> None:
        """Check that all ranks have the same tokens, from the same logits. All must call this together.

        Args:
            tokens: Tokens of the steps since the last check, shape [steps, rows].
            logits: Logits of the last of these steps.

        Raises:
            RanksDisagree: This rank differs from the majority, or there is no majority.
            ConnectionError: Another rank differs, and will report it.
        """
        if self._ranks is None:
            return
        self._seen.update(np.ascontiguousarray(tokens).tobytes())
        self._steps += len(tokens)
        taken = int.from_bytes(self._seen.digest(), "big")
        self._compare(self._ranks.all_numbers([taken, 0 if logits is None else bits_of(logits)]), self._ranks.rank)

    def _compare(self, every: Sequence[Sequence[int]], rank: int) -> None:
        if all(own == every[0] for own in every):
            return
        what = "tokens" if any(own[0] != every[0][0] for own in every) else "logits"
        counts = Counter(map(tuple, every)).most_common(2)
        odd = [rank for rank, own in enumerate(every) if tuple(own) != counts[0][0]]
        if counts[0][1] == counts[1][1]:
            who, mine = "", True  # with two ranks, neither can be shown to be wrong
        else:
            who, mine = f": rank {odd[0]} has others than most", rank in odd
        problem = f"{len(every)} ranks share a model, and have different {what} after {self._steps} steps{who}"
        if not mine:
            raise ConnectionError(problem)
        raise RanksDisagree(
            f"{problem}. A device computes wrongly, or they are of different kinds: use GPUs of one model "
            "(distributed.gpu_ids)"
        )


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """Settings of decoding.

    Attributes:
        batch_size: Number of slots.
        sampling: Distribution of the reference.
        eos_id: Token that ends a completion and is part of it; None if there is none.
        further_end_ids: Further end tokens, for models that have several.
        pad_id: Padding token for short prompts.
        device: ``cpu`` or ``cuda``.
        cuda_graphs: Whether to use CUDA graphs (`steps`) where possible.
        stops: Stop strings.
    """

    batch_size: int
    sampling: Sampling = field(default_factory=Sampling)
    eos_id: int | None = None
    further_end_ids: tuple[int, ...] = ()
    pad_id: int = 0
    device: str = "cpu"
    cuda_graphs: bool = False
    stops: StopStrings | None = None


@dataclass(frozen=True)
class Guidance:
    """A value model, and how its values change the reference."""

    model: value.ValueModel
    tilt: sampling.Tilt


@dataclass(frozen=True)
class Decoded:
    """Completions.

    Attributes:
        tokens: Token ids of each sample, an end-of-text token included; N lists.
        kl: KL divergence of the policy from the model, summed over the steps of each sample, in nats, shape [N]:
            from the sampled distribution, nucleus and guidance included, to the model's whole distribution at the
            same temperature. 0 without both.
        logprobs: Log-probabilities of its tokens as the backend drew them, by their whole distribution at the
            sampling temperature (`completion_scores`); None by our own decoder.
    """

    tokens: list[list[int]]
    kl: NDArray[np.float64]
    logprobs: list[NDArray[np.float32]] | None = None


def decode(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    budgets: Sequence[int] | NDArray[np.int64],
    settings: DecodeSettings,
    *,
    keys: sampling.Keys | None,
    samples: int = 1,
    guidance: Guidance | None = None,
    pace: SlotPace | None = None,
) -> Decoded:
    """Complete prompts, the shortest first. Samples of a prompt share its prefill.

    Args:
        model: The reference policy, in evaluation mode.
        prompts: Token ids.
        budgets: Most new tokens for each prompt.
        settings: How to decode.
        keys: RNG keys, shape [prompts, samples]; None decodes greedily, and without guidance so do samples with
            the key `LIKELIEST`.
        samples: Completions per prompt.
        guidance: Guides the reference; None decodes from it unchanged.
        pace: When slots are refilled.

    Returns:
        Completions in the order of the prompts, those of one prompt adjacent.
    """
    work = DecodingWork(prompts, np.asarray(budgets, np.int64), samples)
    do(work, model, settings, keys=keys, guidance=guidance, pace=pace)
    return Decoded(work.tokens, work.kl)


def do(
    work: DecodingWork,
    model: PreTrainedModel,
    settings: DecodeSettings,
    *,
    keys: sampling.Keys | None,
    guidance: Guidance | None = None,
    pace: SlotPace | None = None,
) -> None:
    """Do the remaining work, as `decode`; finished samples are kept after a failure."""
    # Autocast caches converted weights, but not in inference mode, where every step would convert them again.
    rounds = torch.is_autocast_enabled(model.device.type)
    try:
        with torch.no_grad() if rounds else torch.inference_mode():
            if work.queue:
                _Slots(model, settings, work, keys, guidance, pace or SlotPace()).run()
    finally:
        work.count(model, None if guidance is None else guidance.model)


class _Slots:
    """Decoding loop over the slots."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: DecodeSettings,
        work: DecodingWork,
        keys: sampling.Keys | None,
        guidance: Guidance | None,
        pace: SlotPace,
    ) -> None:
        self.settings, self.work, self.pace = settings, work, pace
        self.slots = min(settings.batch_size, len(work.queue) * work.samples)
        budgets = work.budgets[work.open]
        width = int((work.lengths[work.open] + budgets).max())
        self.policy = row_models.model_rows(model, self.slots, width, settings.pad_id)
        self.guide: row_models.Guide | None = None
        if guidance is not None:
            self.guide = row_models.guide_of(guidance.model, self.slots, width, settings.pad_id)
        self.agreement = Agreement(model)
        self.models = [model for model in (self.policy, self.guide) if model is not None]
        self.joins = all(model.joins for model in self.models)
        self.streams = [] if keys is None else _streams(keys.reshape(-1), guidance)
        self.some_likeliest = keys is not None and bool((keys == sampling.LIKELIEST).any())
        self.stops = settings.stops
        reach = 0 if self.stops is None else self.stops.reach
        self.rows = Rows(self.slots, int(budgets.max()), len(self.streams), reach)
        self.ends = set() if settings.eos_id is None else {settings.eos_id, *settings.further_end_ids}
        self.outputs = row_models.Outputs()
        self.take = recorded_steps.Taking(
            settings.sampling,
            self.guide,
            None if guidance is None else guidance.tilt,
            self.some_likeliest,
            None if guidance is None else guidance.model.vocabulary,
        )
        self.recorded = self._recorded(budgets)
        self.staged = np.zeros(0, np.int64)  # samples whose prompt is read but which have no slot yet
        self.staged_prompts = np.zeros(0, np.int64)
        self.idle = 0

    def _recorded(self, budgets: NDArray[np.int64]) -> recorded_steps.RecordedSteps | None:
        if not self.settings.cuda_graphs or not recorded_steps.is_asked(self.settings.device):
            return None
        if max(budgets.max(), budgets.sum() * self.work.samples // self.slots) < recorded_steps.SHORT:
            return None
        if why := recorded_steps.why_not(self.policy, self.take):
            recorded_steps.tell(why)
            return None
        assert isinstance(self.policy, row_models.RowModel)
        most = self.pace.steps(self.settings.device)
        return recorded_steps.RecordedSteps(self.policy, self.outputs, self.take, len(self.streams), most)

    def run(self) -> None:
        """Decode until every sample is finished."""
        self._refill()
        while self.rows.count:
            due = self._steps_to_look()
            self._go_on(due)
            self.idle += due * self._idle_slots()
            self._refill()

    def _go_on(self, due: int) -> None:
        """Take `due` steps, and read their tokens."""
        drawn = self.rows.draws(due) if self.streams else None
        if self.recorded is not None:
            self._look(self.recorded.run(due, drawn))
            return
        draws = None if drawn is None else torch.from_numpy(drawn).to(self.settings.device)
        noted: list[recorded_steps.Taken] = []
        for step in range(due):
            if noted:
                self._read(noted[-1].tokens)
            noted.append(self.take(self.outputs.known, None if draws is None else draws[:, step]))
        order = self._look([_on_host(part) for part in zip(*noted, strict=True)])
        if self.rows.count:
            tokens = noted[-1].tokens
            self._read(tokens if order is None else tokens[torch.from_numpy(order).to(tokens.device)])

    def _steps_to_look(self) -> int:
        """Return the steps until the next read of tokens: before any row could exceed its budget."""
        rows = self.rows
        budget = int((rows.budget[: rows.count] - rows.grown[: rows.count]).min())
        return min(budget, self.pace.steps(self.settings.device))

    def _idle_slots(self) -> int:
        """Return the number of idle slots that waiting samples could use."""
        waiting = len(self.staged) + len(self.work.queue) * self.work.samples
        return min(self.slots - self.rows.count, waiting)

    def _price(self) -> float:
        """Return how many slot-steps must have idled before samples are added."""
        return (self.pace.entry if len(self.staged) else self.pace.prefill) * self.slots

    # -- newcomers -----------------------------------------------------------------------------------------------

    def _refill(self) -> None:
        """Fill all free slots, if enough slot-steps have idled."""
        rows, work = self.rows, self.work
        if rows.count and not self.joins:
            return
        idle = self.idle if rows.count else math.inf
        while (free := self.slots - rows.count) and (len(self.staged) or work.queue):
            if idle < self._price():
                return
            if not len(self.staged):
                self._stage(free)
            self._enter(min(free, len(self.staged)))
            self.idle = 0
            if not self.joins:
                return

    def _stage(self, free: int) -> None:
        """Read prompts to fill the free slots; if rows must begin together, no more than fit, but at least one."""
        work, samples = self.work, self.work.samples
        count = -(-free // samples) if self.joins else max(1, free // samples)
        prompts = work.next_prompts(count, equal=any(model.needs_equal_lengths for model in self.models))
        for model in self.models:
            # With one sample per prompt, all of them find a slot at once.
            model.stage([work.prompts[prompt] for prompt in prompts], at_once=samples == 1)
        self.staged_prompts = np.array(prompts)
        self.staged = (self.staged_prompts[:, None] * samples + np.arange(samples)).reshape(-1)

    def _enter(self, count: int) -> None:
        entering, self.staged = self.staged[:count], self.staged[count:]
        prompts = entering // self.work.samples
        lengths = self.work.lengths[prompts]
        places: Tensor | None = None
        if self.work.samples > 1:
            at = {prompt: index for index, prompt in enumerate(self.staged_prompts.tolist())}
            places = torch.tensor([at[prompt] for prompt in prompts.tolist()], device=self.settings.device)
        self.rows.enter(entering, lengths, self.work.budgets[prompts], self.streams)
        if self.stops is not None:
            begun = [self.work.begun_with(prompt) for prompt in prompts.tolist()]
            self.rows.begin(np.array([self.stops.last_tokens(ids) for ids in begun]))
        self.outputs.enter(self.policy.enter(places, lengths))
        if self.guide is not None:
            self.guide.enter(places, lengths)
        if not len(self.staged):
            for model in self.models:
                model.unstage()

    # -- steps ---------------------------------------------------------------------------------------------------

    def _read(self, tokens: Tensor) -> None:
        self.outputs.read(self.policy.read(tokens))
        if self.guide is not None:
            self.guide.read(tokens)

    def _look(self, noted: Sequence[NDArray[Any] | None]) -> NDArray[np.int64] | None:
        """Read the steps since the last read: the parts of `Taken`, each of shape [k, n].

        Returns:
            The order of the remaining rows, from `_drop`; None if all remain.
        """
        rows = self.rows
        taken, lost, kl, num_read = noted
        assert taken is not None
        assert lost is not None
        self.agreement.check(taken, self.outputs.now)
        kept, ended = rows.write(taken, self.ends)
        if self.stops is not None:
            kept, ended = rows.stopped(kept, ended, self.stops)
        if len(taken) > 1:
            beyond = np.arange(len(taken))[:, None] >= kept
            for part in (lost, kl, num_read):
                if part is not None:
                    part[beyond] = 0
        if lost.any():
            raise sampling.no_number("model")
        for step in range(len(taken)):
            if kl is not None:
                rows.kl[: rows.count] += kl[step]
            if num_read is not None:
                rows.note_asked(num_read[step], step)
        if self.guide is not None and np.isnan(rows.kl[: rows.count]).any():
            raise sampling.no_number("value model")
        rows.grown[: rows.count] += kept
        if self.work.on_tokens is not None:
            for row, sample in enumerate(rows.sample[: rows.count].tolist()):
                self.work.on_tokens(sample, rows.written[row, : rows.grown[row]].tolist())
        return self._drop(ended) if ended.any() else None

    def _drop(self, ended: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Remove rows that have ended; the last rows take their slots (see `RowCache.keep`)."""
        rows = self.rows
        for row in np.flatnonzero(ended).tolist():
            text = rows.written[row, : rows.grown[row]].tolist()
            self.work.finish(int(rows.sample[row]), text, float(rows.kl[row]), rows.candidates[row])
        live = np.flatnonzero(~ended)
        order = np.arange(len(live))
        order[ended[: len(live)]] = live[live >= len(live)]
        rows.keep(order)
        for model in self.models:
            model.keep(order)
        self.outputs.keep(order)
        return order


def _on_host(steps: Sequence[Tensor | None]) -> NDArray[Any] | None:
    """Copy the results of steps to the host, shape [k, n]; at once, since each copy waits for the device."""
    tensors = [step for step in steps if step is not None]
    if not tensors:
        return None
    host: NDArray[Any] = torch.stack(tensors).cpu().numpy() if len(tensors) > 1 else tensors[0].cpu().numpy()[None]
    return host


def _streams(keys: sampling.Keys, guidance: Guidance | None) -> list[sampling.Keys]:
    """Return the one or two RNG streams that a step needs for each sample; shape [N] each.

    With `others=offset_zero`, a second draw decides which token would be taken among those that are no candidates.
    Whether it is taken depends on the values, and the value model reads it together with the candidates.
    """
    if guidance is None or guidance.tilt.others is not Others.offset_zero:
        return [keys]
    return [keys, sampling.stream_beside(keys, "others")]
