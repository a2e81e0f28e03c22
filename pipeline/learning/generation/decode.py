"""Batched decoding with KV caches, plain or guided by a value model.

Rows that are finished leave the batch. Samples of one prompt share its prefill. A draw belongs to its sample
(`sampling`), so what is drawn does not depend on the batch that a sample is in.

Shapes: N samples in all, B rows of a batch, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.learning.choices import Others
from pipeline.learning.generation.batching import PromptBatch, batches_by_length, pad_left
from pipeline.learning.generation.guide import ValueReader
from pipeline.learning.generation.readers import needs_equal_lengths, reader_of
from pipeline.learning.generation.sampling import (
    Keys,
    draw_tokens,
    nucleus,
    nucleus_kl,
    policy_logprobs,
    stream_beside,
    uniforms,
)
from pipeline.learning.generation.tilt import (
    Tilt,
    draw_columns,
    find_candidates,
    guided_logprobs,
    likeliest_columns,
    split_draw,
    step_kl,
)
from pipeline.learning.models.flops import continued, model_cost, spend, whole_texts


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """How to decode.

    Attributes:
        batch_size: Rows at once.
        temperature: Of the reference's distribution, before guidance.
        top_p: Nucleus of it that is kept.
        eos_id: Token that ends a completion, which includes it; None where nothing does.
        further_end_ids: Others that do, for models that have several.
        pad_id: Token that fills up short prompts.
        device: ``cpu`` or ``cuda``.
    """

    batch_size: int
    temperature: float = 1.0
    top_p: float = 1.0
    eos_id: int | None = None
    further_end_ids: tuple[int, ...] = ()
    pad_id: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Guidance:
    """A value model's reader and how its values tilt the reference."""

    reader: ValueReader
    tilt: Tilt


@dataclass(frozen=True)
class Decoded:
    """Completions.

    Attributes:
        tokens: Token ids of each sample, an end-of-text token included; N lists.
        kl: KL divergence of the policy from the model, summed over the steps of each sample, in nats, shape [N]:
            of what is sampled, a nucleus and guidance included, from the model's whole distribution at the same
            temperature. 0 where there is neither.
    """

    tokens: list[list[int]]
    kl: NDArray[np.float64]


Finished = Callable[[int, list[list[int]], NDArray[np.float64]], None]
"""Told of each prompt, once all of its samples are finished: its index, tokens and divergences of the samples."""


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    budgets: Sequence[int] | NDArray[np.int64],
    settings: DecodeSettings,
    *,
    keys: Keys | None,
    samples: int = 1,
    guidance: Guidance | None = None,
    finished: Finished = lambda *_: None,
) -> Decoded:
    """Complete prompts.

    Args:
        model: The reference policy, in evaluation mode.
        prompts: Token ids.
        budgets: New tokens at most, for each prompt.
        settings: How to decode.
        keys: Streams of draws, shape [prompts, samples]; None takes the likeliest token instead of drawing.
        samples: Completions of each prompt.
        guidance: Tilts the reference; None decodes from it as it is.
        finished: Told of each prompt that is finished. What it was told of need not be done again after a failure.

    Returns:
        Completions in the order of the prompts, those of one prompt adjacent.
    """
    tokens: list[list[int]] = [[] for _ in range(len(prompts) * samples)]
    kl = np.zeros(len(tokens))
    lengths = np.array([len(prompt) for prompt in prompts], np.int64)
    limits = np.asarray(budgets, np.int64)
    equal = needs_equal_lengths(model) or (guidance is not None and guidance.reader.needs_equal_lengths)
    for chosen in batches_by_length(lengths, max(1, settings.batch_size // samples), equal=equal):
        batch = pad_left([prompts[index] for index in chosen], settings.pad_id, settings.device)
        steps = int(limits[chosen].max(initial=0))
        draws = None if keys is None else _draws(keys[chosen], steps, guidance)
        rows = _Rows(model, settings, batch, samples, limits[chosen].repeat(samples), draws, guidance)
        written, divergence = rows.run(steps)
        places = (chosen[:, None] * samples + np.arange(samples)).reshape(-1)
        for place, row in zip(places, written, strict=True):
            tokens[place] = row
        kl[places] = divergence
        _count(model, guidance, lengths[chosen], samples, written)
        for index in chosen.tolist():
            mine = slice(index * samples, (index + 1) * samples)
            finished(index, tokens[mine], kl[mine])
    return Decoded(tokens, kl)


def _draws(keys: Keys, steps: int, guidance: Guidance | None) -> NDArray[np.float64]:
    """Draws of every step, shape [1 or 2, samples of the keys, steps].

    With an offset of 0 for tokens that are no candidates, which of them would be taken is drawn by itself: whether
    one is depends on the values, and the value model reads that token together with the candidates.
    """
    streams = [keys]
    if guidance is not None and guidance.tilt.others is Others.offset_zero:
        streams.append(stream_beside(keys, "others"))
    return np.stack([uniforms(stream, steps).reshape(keys.size, steps) for stream in streams])


def _count(
    model: PreTrainedModel,
    guidance: Guidance | None,
    prompts: NDArray[np.int64],
    samples: int,
    written: Sequence[Sequence[int]],
) -> None:
    """Count a batch's FLOPs. Samples of a prompt share its prefill; the last token of each is never read."""
    further = np.array([max(0, len(tokens) - 1) for tokens in written], np.int64)
    read = whole_texts(prompts, outputs=len(prompts)) + continued(prompts.repeat(samples), further)
    spend("decoding", model_cost(model).forward(read))
    if guidance is not None:
        spend("guidance", guidance.reader.flops())


class _Rows:
    """One batch while it is decoded. `live` holds the original row of every row that is left."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: DecodeSettings,
        batch: PromptBatch,
        samples: int,
        budgets: NDArray[np.int64],
        draws: NDArray[np.float64] | None,
        guidance: Guidance | None,
    ) -> None:
        self.settings, self.guidance = settings, guidance
        steps = int(budgets.max(initial=0))
        self.budgets = budgets
        self.live = np.flatnonzero(budgets > 0)
        self.draws = None if draws is None else torch.from_numpy(draws).to(settings.device)
        self.reader = reader_of(model)
        self.logits = self.reader.begin(batch, samples, room=steps)
        if guidance is not None:
            # Beside the tokens themselves: the candidates of one step, and one drawn from outside of them.
            guidance.reader.begin(batch, samples, room=steps + guidance.tilt.top_k + 1)
        if len(self.live) < len(budgets):
            self._keep(torch.from_numpy(self.live).to(settings.device))

    def run(self, steps: int) -> tuple[list[list[int]], NDArray[np.float64]]:
        """Decode until every row is finished."""
        count = len(self.budgets)
        written = torch.zeros(count, max(1, steps), dtype=torch.long, device=self.settings.device)
        kl = torch.zeros(count, dtype=torch.float64, device=self.settings.device)
        ends = self.budgets.copy()
        for step in range(steps):
            if len(self.live) == 0:
                break
            live = torch.from_numpy(self.live).to(self.settings.device)
            tokens = self._take(step, live, kl)
            written[live, step] = tokens
            if self._drop_finished(step, tokens, ends) and step + 1 < steps:
                tokens = tokens[self._kept]
            if len(self.live) and step + 1 < steps:
                self.logits = self.reader.append(tokens)
        rows = written.cpu().numpy()
        return [rows[row, : ends[row]].tolist() for row in range(count)], kl.cpu().numpy()

    def _take(self, step: int, live: Tensor, kl: Tensor) -> Tensor:
        """The next token of every row that is left."""
        whole = policy_logprobs(self.logits, self.settings.temperature)
        logprobs = nucleus(whole, self.settings.top_p)
        if self.settings.top_p < 1.0:
            kl.index_add_(0, live, nucleus_kl(whole, logprobs))
        draws = None if self.draws is None else self.draws[:, live, step]
        if self.guidance is None:
            return logprobs.argmax(-1) if draws is None else draw_tokens(logprobs, draws[0])
        tokens, divergence = guided_step(self.guidance, logprobs, draws)
        kl.index_add_(0, live, divergence)
        return tokens

    def _drop_finished(self, step: int, tokens: Tensor, ends: NDArray[np.int64]) -> bool:
        finished = self.budgets[self.live] <= step + 1
        if self.settings.eos_id is not None:
            ends_here = tokens == self.settings.eos_id
            for token in self.settings.further_end_ids:
                ends_here |= tokens == token
            finished |= ends_here.cpu().numpy()
        if not finished.any():
            return False
        ends[self.live[finished]] = step + 1
        self.live = self.live[~finished]
        self._kept = torch.from_numpy(np.flatnonzero(~finished)).to(self.settings.device)
        if len(self.live):
            self._keep(self._kept)
        return True

    def _keep(self, rows: Tensor) -> None:
        self.reader.select(rows)
        self.logits = self.logits[rows]
        if self.guidance is not None:
            self.guidance.reader.keep(rows)


def guided_step(guidance: Guidance, logprobs: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
    """Take one guided step.

    Args:
        guidance: The value model's reader and the tilt.
        logprobs: The reference's, shape [B, V].
        draws: Shape [1 or 2, B], float64, see `_draws`; None takes the likeliest token.

    Returns:
        Tokens, shape [B], and the KL divergence of the step from `logprobs` in nats, shape [B].
    """
    tilt = guidance.tilt
    candidates = find_candidates(logprobs, tilt, None if draws is None else draws[-1])
    asked, valid = candidates.ids, candidates.logprobs > -math.inf
    draw = None if draws is None else split_draw(logprobs, candidates, draws[0], tilt)
    outside = draw is not None and tilt.others is Others.kept and bool(draw.outside.any())
    if draw is not None and outside:
        # A row whose draw falls outside still has to feed that token to the value model: in a column of its own.
        asked = torch.cat([asked, draw.tokens[:, None]], -1)
        valid = torch.cat([valid, draw.outside[:, None]], -1)
    values = guidance.reader.values(asked, valid)
    width = candidates.ids.shape[1]
    guided = guided_logprobs(candidates, values[:, :width], tilt)
    columns = likeliest_columns(logprobs, candidates, guided) if draw is None else draw_columns(guided, draw)
    if draw is not None and outside:
        columns = torch.where(draw.outside, width, columns)
    tokens = asked.gather(-1, columns[:, None]).squeeze(-1)
    guidance.reader.advance(tokens, columns)
    return tokens, step_kl(candidates, guided)
