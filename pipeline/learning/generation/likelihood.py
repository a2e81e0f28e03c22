"""How likely a policy was to draw what it drew, found in one pass over whole texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from pipeline.learning.generation.decode import DecodeSettings
from pipeline.learning.models.batch_size import BatchSizes, split_over
from pipeline.learning.training.grpo import supervised_columns
from pipeline.learning.training.scoring import completion_logprobs, is_plain, note_scored, score_sequences
from pipeline.learning.training.sequences import Sequences

SCORING_LOGITS_AT_ONCE = 1 << 24
"""Tokens times entries of the vocabulary, of texts scored whole: some 0.3 GB with the copies made of them."""


def completion_scores(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    settings: DecodeSettings,
    sizes: BatchSizes | None = None,
) -> list[NDArray[np.float32]]:
    """Log-probabilities of the tokens of completions, as long as its completion each.

    Of the model at the temperature of sampling, over the whole vocabulary: a nucleus is left out of it, as TRL
    does.

    Args:
        model: The policy.
        prompts: Token ids, one list for each completion.
        completions: Token ids.
        settings: Batch size, temperature and device.
        sizes: Remembers how many fit; None remembers nothing.
    """
    data = whole_texts(prompts, completions)
    rows = settings.batch_size if _in_parts(model, data, settings) else rows_at_once(model, data, settings)
    found = score_sequences(
        data,
        lambda batch: completion_logprobs(model, batch, settings.temperature),
        micro_batch_size=rows,
        device=settings.device,
        width=data.ids.shape[1],
        together=split_over(model) is not None,
        sizes=sizes,
    )
    note_scored(data, model)
    return supervised_columns(found, data)


def whole_texts(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> Sequences:
    """Prompts with their completions, which are what is supervised."""
    ids = [[*prompt, *rest] for prompt, rest in zip(prompts, completions, strict=True)]
    return Sequences.of(ids, [len(prompt) for prompt in prompts], [0.0] * len(ids))


def rows_at_once(model: PreTrainedModel, data: Sequences, settings: DecodeSettings) -> int:
    """How many texts fit beside each other, with the logits of all of their tokens."""
    logits: int = max(1, data.ids.shape[1]) * int(model.config.get_text_config().vocab_size)
    return max(1, min(settings.batch_size, SCORING_LOGITS_AT_ONCE // logits))


def _in_parts(model: PreTrainedModel, data: Sequences, settings: DecodeSettings) -> bool:
    """Whether logits are made part by part, so that they do not decide how many texts fit."""
    if not settings.device.startswith("cuda") or not len(data.ids):
        return False
    return is_plain(model, torch.as_tensor(data.ids[:1], device=settings.device))
