"""Imitation: next-token prediction on the completions of labelled sequences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.learning.training.policy import Fitting, TrainingSet, fit
from pipeline.learning.training.scoring import completion_logprobs
from pipeline.learning.training.sequences import Batch, Sequences


def sft_set(model: nn.Module, data: Sequences) -> TrainingSet:
    """Completions to imitate; a batch's loss is the mean over the tokens of its completions.

    Args:
        model: The policy that is trained, on its device.
        data: Completions, whatever their labels.
    """
    tokens = data.supervised

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:  # noqa: ARG001
        return -completion_logprobs(model, batch).sum() / max(1, int(tokens[whole].sum()))

    return TrainingSet(data, loss_of, about={"sequences": len(data)})


def fit_sft(model: nn.Module, data: Sequences, fitting: Fitting) -> list[float]:
    """Train a policy in place; see `sft_set`. Returns the loss of every step, in nats per token."""
    return fit(model, data, fitting, sft_set(model, data).loss_of)
