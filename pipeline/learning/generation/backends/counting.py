"""FLOPs of completions, whoever made them: those of our own decoder, so that methods compare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from pipeline.learning.models.flops import continued, model_cost, spend, whole_texts


def count_decoding(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], samples: int, tokens: Sequence[Sequence[int]]
) -> None:
    """Count completions. Samples of a prompt share its prefill; the last token of each is never read.

    Args:
        model: The policy.
        prompts: Token ids.
        samples: Completions of each prompt.
        tokens: The completions, those of a prompt adjacent.
    """
    lengths = np.array([len(prompt) for prompt in prompts], np.int64)
    further = np.array([max(0, len(written) - 1) for written in tokens], np.int64)
    read = whole_texts(lengths, outputs=len(prompts)) + continued(lengths.repeat(samples), further)
    spend("decoding", model_cost(model).forward(read))
