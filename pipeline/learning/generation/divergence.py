"""Policies that are not a tilt of the reference: how far they are from it, measured on what they draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from pipeline.learning.generation.decode import Decoded
from pipeline.learning.generation.likelihood import rows_at_once, whole_texts
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import Keys
from pipeline.learning.models.split import split_over
from pipeline.learning.training.scoring import note_scored, score_sequences, sequence_divergence


class TrainedPolicy(TextPolicy):
    """A policy with weights of its own.

    What it draws comes with its KL divergence from the reference, as that of every policy: exact at every step, of
    what is sampled, a nucleus included, from the reference's whole distribution at the same temperature. (From the
    reference's nucleus it would be infinite: two nuclei may share no token.)
    """

    reference: PreTrainedModel | None = None
    """What divergence is measured against; None measures nothing."""

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Keys | None,
        *,
        samples: int = 1,
        budgets: NDArray[np.int64] | None = None,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> Decoded:
        """Complete prompts; see `TextPolicy.complete`."""
        decoded = super().complete(prompts, keys, samples=samples, budgets=budgets, on_batch=on_batch)
        if self.reference is None:
            return decoded
        repeated = [prompt for prompt in prompts for _ in range(samples)]
        return replace(decoded, kl=self._divergence(self.reference, repeated, decoded.tokens))

    def _divergence(
        self, reference: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        data = whole_texts(prompts, tokens)
        note_scored(data, self._model, reference)
        with torch.inference_mode():
            return score_sequences(
                data,
                lambda batch: sequence_divergence(
                    self._model, reference, batch, self._settings.temperature, self._settings.top_p
                ),
                micro_batch_size=rows_at_once(reference, data, self._settings),
                device=self._settings.device,
                together=split_over(self._model) is not None,
                sizes=self._sizes,
                work="compare",
            )
