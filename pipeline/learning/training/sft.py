"""Imitation: next-token prediction on the completions of labelled sequences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.learning.training.policy import Fitting, fit
from pipeline.learning.training.scoring import completion_logprobs
from pipeline.learning.training.sequences import Batch, Sequences


def fit_sft(model: nn.Module, data: Sequences, fitting: Fitting) -> list[float]:
    """Train a policy in place; a batch's loss is the mean over the tokens of its completions.

    Args:
        model: On its device.
        data: Completions to imitate, whatever their labels.
        fitting: How to train.

    Returns:
        The loss of every step, in nats per token.
    """
    tokens = data.supervised

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:  # noqa: ARG001
        return -completion_logprobs(model, batch).sum() / max(1, int(tokens[whole].sum()))

    return fit(model, data, fitting, loss_of)
