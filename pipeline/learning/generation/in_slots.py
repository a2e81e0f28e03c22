"""Decoding in fixed slots: a row that is finished makes room for the next sample of the queue at once.

In batches that begin and end together the rows that are finished early leave their places empty until the last one
is done. Here the places are slots, and rows of any age stand side by side (`row_cache`). What follows from what
alone decides what is computed together: prompts, budgets, the number of slots and the tokens that are drawn. No
clock and no other job has a part in it, so the same work is the same bytes wherever it is done.

Shapes: N samples in all, R slots, n rows that are alive, k steps since tokens were looked at, V tokens of the
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.learning.choices import Others
from pipeline.learning.generation.batching import pad_right
from pipeline.learning.generation.decode import Decoded, DecodeSettings, Finished, Guidance, guided_step
from pipeline.learning.generation.guide import CandidateReader, VocabularyReader
from pipeline.learning.generation.row_models import RowModel, RowReader, reads_rows, row_reader
from pipeline.learning.generation.sampling import (
    Keys,
    draw_tokens,
    nucleus,
    nucleus_kl,
    policy_logprobs,
    stream_beside,
)
from pipeline.learning.generation.slot_work import Rows, Work
from pipeline.learning.generation.tilt import Tilt
from pipeline.learning.models.value import ValueModel


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When slots are filled again, and how often tokens are looked at.

    Waiting for more newcomers costs slots that idle, fetching them costs a forward pass over their prompts. Both
    waste the same thing: what a pass costs by itself, whatever the number of its rows. So slots are filled as soon
    as the shares of them that idled, added up over steps, come to the steps that filling costs.

    Attributes:
        prefill: Steps that it costs to read prompts, besides what grows with their tokens.
        entry: Steps that it costs to let samples in whose prompt is read already.
        look_every: Steps after which tokens are looked at for those that end a completion. A look makes a GPU
            wait; rows that have ended meanwhile are computed for nothing. None is 1 on the CPU and 8 on a GPU.
    """

    prefill: float = 1.0
    entry: float = 0.2
    look_every: int | None = None

    def steps(self, device: str) -> int:
        """Steps from one look to the next.

        Args:
            device: ``cpu`` or ``cuda``.
        """
        return self.look_every or (8 if device.startswith("cuda") else 1)


@dataclass(frozen=True)
class RowGuidance:
    """A value model, and how its values tilt the reference."""

    model: ValueModel
    tilt: Tilt


def guided_rows(model: PreTrainedModel, guidance: Guidance | None) -> tuple[bool, RowGuidance | None]:
    """Whether slots serve a policy, and how its guide reads rows.

    Args:
        model: The policy.
        guidance: With a reader for rows that begin together; None where nothing guides.
    """
    if guidance is None:
        return reads_rows(model), None
    reader = guidance.reader
    if not isinstance(reader, (CandidateReader, VocabularyReader)) or not reads_rows(reader.model):
        return False, None
    return reads_rows(model), RowGuidance(reader.model, guidance.tilt)


@torch.inference_mode()
def decode_in_slots(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    budgets: Sequence[int] | NDArray[np.int64],
    settings: DecodeSettings,
    *,
    keys: Keys | None,
    samples: int = 1,
    guidance: RowGuidance | None = None,
    finished: Finished = lambda *_: None,
    pace: Pace | None = None,
) -> Decoded:
    """Complete prompts, the shortest first; see `decode`.

    Args:
        model: The reference policy, in evaluation mode. `reads_rows` is true of it, and of the guide.
        prompts: Token ids.
        budgets: New tokens at most, for each prompt.
        settings: How to decode; `batch_size` is the number of slots.
        keys: Streams of draws, shape [prompts, samples]; None takes the likeliest token instead of drawing.
        samples: Completions of each prompt.
        guidance: Tilts the reference; None decodes from it as it is.
        finished: Told of each prompt that is finished. What it was told of need not be done again after a failure.
        pace: When slots are filled again.

    Returns:
        Completions in the order of the prompts, those of one prompt adjacent.
    """
    work = Work(prompts, np.asarray(budgets, np.int64), samples, finished)
    try:
        if work.queue:
            _Slots(model, settings, work, keys, guidance, pace or Pace()).run()
    finally:
        work.count(model, None if guidance is None else guidance.model)
    return Decoded(work.tokens, work.kl)


class _Slots:
    """The loop."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: DecodeSettings,
        work: Work,
        keys: Keys | None,
        guidance: RowGuidance | None,
        pace: Pace,
    ) -> None:
        self.settings, self.work, self.pace = settings, work, pace
        steps, device = int(work.budgets.max()), settings.device
        self.slots = min(settings.batch_size, len(work.queue) * work.samples)
        width = int((work.lengths + work.budgets).max())
        self.policy = RowModel(model, self.slots, width, device)
        self.reader: RowReader | None = None
        self.guidance: Guidance | None = None
        if guidance is not None:
            self.reader = row_reader(guidance.model, self.slots, width, device)
            self.guidance = Guidance(self.reader, guidance.tilt)  # type: ignore[arg-type]
        self.streams: list[Keys] = []
        if keys is not None:
            self.streams = [keys.reshape(-1)]
            if guidance is not None and guidance.tilt.others is Others.offset_zero:
                self.streams.append(stream_beside(self.streams[0], "others"))
        self.rows = Rows(self.slots, steps, len(self.streams))
        self.ends = [] if settings.eos_id is None else [settings.eos_id, *settings.further_end_ids]
        self.logits: Tensor | None = None
        self.staged = np.zeros(0, np.int64)  # samples whose prompt is read and which have no slot yet
        self.staged_prompts = np.zeros(0, np.int64)
        self.idle = 0
        self.noted: list[tuple[Tensor, Tensor | None, Tensor | None]] = []

    def run(self) -> None:
        """Decode until every sample is finished."""
        self._refill()
        while self.rows.count:
            due = self._steps_to_look()
            for step in range(due):
                tokens = self._take()
                if step + 1 < due:
                    self._read(tokens)
            tokens = self._look(tokens)
            if self.rows.count:
                self._read(tokens)
            waiting = len(self.staged) + len(self.work.queue) * self.work.samples
            self.idle += due * min(self.slots - self.rows.count, waiting)
            self._refill()

    def _steps_to_look(self) -> int:
        """Steps until tokens are looked at: before a row could go beyond its budget."""
        rows, most = self.rows, self.pace.steps(self.settings.device)
        if most == 1:
            return 1
        left = int((rows.budget[: rows.count] - rows.grown[: rows.count]).min())
        return min(left, most)

    # -- newcomers -----------------------------------------------------------------------------------------------

    def _refill(self) -> None:
        """Let newcomers into all slots that are free, where these have idled for as much as that costs."""
        rows, work = self.rows, self.work
        idle = self.idle if rows.count else math.inf
        while (free := self.slots - rows.count) and (len(self.staged) or work.queue):
            price = self.pace.entry if len(self.staged) else self.pace.prefill
            if idle < price * self.slots:
                return
            if not len(self.staged):
                self._stage(work.next_prompts(-(-free // work.samples)))
            self._enter(min(free, len(self.staged)))
            self.idle = 0

    def _stage(self, prompts: list[int]) -> None:
        batch = pad_right(
            [self.work.prompts[prompt] for prompt in prompts], self.settings.pad_id, self.settings.device
        )
        for model in (self.policy, self.reader):
            if model is not None:
                model.stage(batch)
        self.staged_prompts = np.array(prompts)
        samples = self.work.samples
        self.staged = (self.staged_prompts[:, None] * samples + np.arange(samples)).reshape(-1)

    def _enter(self, count: int) -> None:
        entering, self.staged = self.staged[:count], self.staged[count:]
        prompts = entering // self.work.samples
        lengths = self.work.lengths[prompts]
        at = {prompt: place for place, prompt in enumerate(self.staged_prompts.tolist())}
        places = torch.tensor([at[prompt] for prompt in prompts.tolist()], device=self.settings.device)
        self.rows.enter(entering, lengths, self.work.budgets[prompts], self.streams)
        logits = self.policy.enter(places, lengths)
        self.logits = logits if self.logits is None else torch.cat([self.logits, logits])
        if self.reader is not None:
            self.reader.enter(places, lengths)
        if not len(self.staged):
            for model in (self.policy, self.reader):
                if model is not None:
                    model.unstage()

    # -- steps ---------------------------------------------------------------------------------------------------

    def _take(self) -> Tensor:
        """The next token of every row."""
        assert self.logits is not None
        whole = policy_logprobs(self.logits, self.settings.temperature)
        logprobs = nucleus(whole, self.settings.top_p)
        kl = nucleus_kl(whole, logprobs) if self.settings.top_p < 1.0 else None
        draws = None
        if self.streams:
            draws = torch.from_numpy(self.rows.draws(len(self.noted))).to(self.settings.device)
        asked = None
        if self.guidance is not None:
            assert self.reader is not None
            tokens, divergence = guided_step(self.guidance, logprobs, draws)
            kl = divergence if kl is None else kl + divergence
            asked = self.reader.asked
        else:
            tokens = logprobs.argmax(-1) if draws is None else draw_tokens(logprobs, draws[0])
        self.noted.append((tokens, kl, asked))
        return tokens

    def _read(self, tokens: Tensor) -> None:
        self.logits = self.policy.read(tokens)
        if self.reader is not None:
            self.reader.read(tokens)

    def _look(self, tokens: Tensor) -> Tensor:
        """Look at the tokens of the steps since the last look; returns the last ones of the rows that are left."""
        rows, noted = self.rows, self.noted
        taken = (torch.stack([step[0] for step in noted]) if len(noted) > 1 else noted[0][0][None]).cpu().numpy()
        kept, ended = rows.write(taken, self.ends)
        for step, (_, kl, asked) in enumerate(noted):
            mine = step < kept
            if kl is not None:
                rows.kl[: rows.count] += np.where(mine, kl.cpu().numpy(), 0.0)
            if asked is not None:
                count = np.where(mine, asked.cpu().numpy(), 0)
                position = rows.prompt[: rows.count] + rows.grown[: rows.count] + step + 1
                rows.candidates[: rows.count] += np.stack([count, count * position], -1)
        rows.grown[: rows.count] += kept
        self.noted = []
        return self._drop(tokens, ended) if ended.any() else tokens

    def _drop(self, tokens: Tensor, ended: NDArray[np.bool_]) -> Tensor:
        """Let rows go that have ended; the last ones take their places."""
        rows = self.rows
        for row in np.flatnonzero(ended).tolist():
            text = rows.written[row, : rows.grown[row]].tolist()
            self.work.finish(int(rows.sample[row]), text, float(rows.kl[row]), rows.candidates[row])
        left = np.flatnonzero(~ended)
        order = np.arange(len(left))
        order[ended[: len(left)]] = left[left >= len(left)]
        rows.keep(order)
        self.policy.keep(order)
        if self.reader is not None:
            self.reader.keep(order)
        kept = torch.from_numpy(order).to(self.settings.device)
        self.logits = None
        return tokens[kept]
