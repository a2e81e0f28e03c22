"""A reward model fitted to preferences: a scalar on the value models' backbone, read at the last token.

Shapes: P pairs, in 2P sequences: chosen and rejected one after the other; B sequences of a micro-batch, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.flops import Purpose, model_cost, spend, whole_texts
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.curve import add_to_curve, is_drawn, of_pairs
from pipeline.learning.training.distributed import ALONE, Ranks
from pipeline.learning.training.policy import Fitting, fit
from pipeline.learning.training.scoring import score_sequences
from pipeline.learning.training.sequences import Batch, Sequences
from pipeline.learning.training.value import batch_values


@dataclass(frozen=True)
class Scale:
    """How raw scores become standardised ones: of mean 0 and deviation 1 on the data that they come from.

    Attributes:
        mean: Of the raw scores.
        deviation: Of the raw scores; 1 where all are equal.
    """

    mean: float
    deviation: float

    @staticmethod
    def of(scores: NDArray[np.float64]) -> Scale:
        """Of some raw scores."""
        deviation = float(scores.std()) if len(scores) else 0.0
        return Scale(float(scores.mean()) if len(scores) else 0.0, deviation if deviation > 1e-8 else 1.0)

    def __call__(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standardise scores."""
        return (scores - self.mean) / self.deviation


def sequence_scores(model: ValueModel, batch: Batch) -> Tensor:
    """The score of each sequence, shape [B]: the value at its last token."""
    values = batch_values(model, batch)
    width = batch.ids.shape[1]
    last = width - 1 - batch.mask.int().flip(-1).argmax(-1)
    return values.gather(1, last[:, None]).squeeze(1)


def fit_reward_model(model: ValueModel, pairs: Sequences, fitting: Fitting) -> list[float]:
    """Train a reward model in place: the loss is ``-log sigmoid(r(chosen) - r(rejected))``.

    That is the likelihood of the Bradley-Terry model (1952), in which a completion is preferred with the
    probability sigmoid of the difference of the two rewards.

    Args:
        model: With head "v", on its device.
        pairs: Chosen and rejected completions, one after the other.
        fitting: How to train.

    Returns:
        The loss of every step, in nats per pair.
    """

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:  # noqa: ARG001
        scores = sequence_scores(model, batch)
        if is_drawn():
            add_to_curve(**of_pairs(scores.detach()))
        return -F.logsigmoid(scores[0::2] - scores[1::2]).sum() / (len(whole) // 2)

    return fit(model, pairs, fitting, loss_of, group=2, backbone=model.backbone)


def reward_scores(
    model: ValueModel,
    data: Sequences,
    *,
    micro_batch_size: int,
    device: str,
    ranks: Ranks = ALONE,
    purpose: Purpose = "rewards",
    hints: Path | None = None,
) -> NDArray[np.float64]:
    """Raw scores of sequences, shape [N].

    Their FLOPs count as spent on `purpose`; `hints` is where batch sizes that fitted are remembered.
    """
    model.eval()
    spend(purpose, model_cost(model).forward(whole_texts(data.lengths)))
    return score_sequences(
        data,
        lambda batch: sequence_scores(model, batch),
        micro_batch_size=micro_batch_size,
        device=device,
        ranks=ranks,
        sizes=BatchSizes(hints, device, model),
    )


def share_preferred(scores: NDArray[np.float64]) -> float | None:
    """Share of pairs whose chosen completion scores higher, equals counting half; None without pairs.

    Args:
        scores: Of chosen and rejected completions, one after the other, shape [2P].
    """
    ahead = np.sign(scores[0::2] - scores[1::2])
    return float((ahead + 1).mean() / 2) if len(ahead) else None
