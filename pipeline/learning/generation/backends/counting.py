"""FLOPs of completions, whoever made them: those of our own decoder, so that methods compare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from pipeline.learning.generation.slot_work import passes
from pipeline.learning.models.flops import model_cost, spend


def count_decoding(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], samples: int, tokens: Sequence[Sequence[int]]
) -> None:
    """Count completions.

    Args:
        model: The policy.
        prompts: Token ids.
        samples: Completions of each prompt.
        tokens: The completions, those of a prompt adjacent.
    """
    written = [row for row in tokens if row]  # of a budget of 0 nothing is read
    read = np.array([len(prompt) for prompt, row in zip(prompts, tokens[::samples], strict=True) if row], np.int64)
    prefill, steps = passes(read, samples, written)
    spend("decoding", model_cost(model).forward(prefill + steps))
