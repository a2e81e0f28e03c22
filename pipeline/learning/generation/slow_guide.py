"""Guided decoding the plain way: a `LogitsProcessor` without a cache, one full forward pass per candidate.

It is what papers' code does and is easy to check by eye. The fast decoder is proven equal to it by the tests, and
measured against it by `benchmarks/generation.py`. With it, `model.generate` of transformers is guided too.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LogitsProcessor

from pipeline.learning.choices import HeadType
from pipeline.learning.generation.guides import candidate_values
from pipeline.learning.generation.readers import Way, reading
from pipeline.learning.generation.sampling import policy_logprobs
from pipeline.learning.generation.tilt import Tilt, find_candidates, full_row, guided_logprobs
from pipeline.learning.models.value import ValueModel


class GuidedLogitsProcessor(LogitsProcessor):
    """Replaces the reference's logits by the log-probabilities of the guided policy."""

    def __init__(
        self,
        model: ValueModel,
        tilt: Tilt,
        pad_id: int | None = None,
        begins_with_pad: bool = False,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> None:
        """Guide by a value model.

        Args:
            model: The value model.
            tilt: Settings of guidance.
            pad_id: Leading tokens of this id are padding; None where nothing is padded.
            begins_with_pad: The last one of them is not, but the token that begins every prompt.
            temperature: Of the reference, before guidance.
            top_p: Its nucleus.
        """
        self.model = model
        self.tilt = tilt
        self.pad_id = pad_id
        self.begins_with_pad = begins_with_pad
        self.temperature = temperature
        self.top_p = top_p
        found = reading(model)
        self._takes_padding = found.way is not Way.anew and not found.has_state

    @torch.inference_mode()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Guide one step.

        Args:
            input_ids: Prompt and completion so far, shape [B, T].
            scores: The reference's logits, shape [B, V].

        Returns:
            Log-probabilities of the guided policy, shape [B, V].
        """
        known = scores[:, : self.model.vocabulary]
        logprobs = policy_logprobs(known, self.temperature, self.top_p)
        candidates = find_candidates(logprobs, self.tilt)
        values = self._values(input_ids, candidates.ids)
        found = full_row(logprobs, candidates, guided_logprobs(candidates, values, self.tilt), self.tilt)
        return F.pad(found, (0, scores.shape[1] - known.shape[1]), value=-math.inf)

    def _values(self, prefix: Tensor, candidates: Tensor) -> Tensor:
        if self.model.config.head == HeadType.q.name:
            return candidate_values(self._forward(prefix)[:, -1], candidates)
        columns = [
            self._forward(torch.cat([prefix, candidates[:, [k]]], -1))[:, -1] for k in range(candidates.shape[1])
        ]
        return torch.stack(columns, 1)

    def _forward(self, ids: Tensor) -> Tensor:
        mask = torch.ones_like(ids)
        if self.pad_id is not None:
            begun = (ids != self.pad_id).cumsum(-1) > 0
            if self.begins_with_pad:
                begun = F.pad(begun[:, 1:], (0, 1), value=True)
            mask = begun.long()
        if not self._takes_padding and not mask.all():
            return self._apart(ids, mask.sum(-1))
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        values: Tensor = self.model(ids, attention_mask=mask, position_ids=positions)
        return values

    def _apart(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The values after the last tokens of texts that are read without their padding, shape [B, 1, ...]."""
        found = [(lengths == length).nonzero().squeeze(-1) for length in lengths.unique()]
        values = [self.model(ids[rows, -int(lengths[rows[0]]) :])[:, -1:] for rows in found]
        return torch.cat(values)[torch.cat(found).argsort()]
