"""How good a value model is on held-out prompts: whether it tells good tokens from bad, and how sure it may be.

Shapes: N sequences, T positions, M supervised tokens.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.config.schema import DType
from pipeline.learning.generation.sampling import sample_keys, uniforms
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.flops import model_cost, spend, whole_texts
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.distributed import ALONE, Ranks
from pipeline.learning.training.losses import atom_weights, expected_labels
from pipeline.learning.training.precision import computing_in
from pipeline.learning.training.scoring import score_sequences
from pipeline.learning.training.sequences import UNKNOWN, Batch, Sequences
from pipeline.learning.training.value import token_values
from pipeline.outputs.formats import Calibration

BINS = 10
"""Of the expected calibration error, each of the same width."""
LEAST_OF_LABEL = 5
"""Prompts that must have a label for an error to be told: that of four is itself uncertain by 40 %."""
Floats = NDArray[np.float64]


def held_out(prompts: NDArray[np.int64], seed: int, share: float) -> NDArray[np.bool_]:
    """Which sequences are of prompts that are held out.

    A prompt is held out in every round or in none, so a model that goes on from the round before has not seen it.

    Args:
        prompts: Of each sequence, shape [N].
        seed: Of the chain.
        share: Of the prompts.

    Returns:
        Shape [N]; nothing is held out where prompts are not told, or where nothing would be left.
    """
    chosen: NDArray[np.bool_] = uniforms(sample_keys(seed, "held out", prompts, 1), 1).reshape(-1) < share
    return np.zeros_like(chosen) if chosen.all() or (prompts == UNKNOWN).any() else chosen


def calibrate(
    model: ValueModel,
    data: Sequences,
    *,
    micro_batch_size: int,
    device: str,
    rate: float = 0.0,
    dtype: DType = DType.float32,
    ranks: Ranks = ALONE,
    hints: Path | None = None,
) -> Calibration | None:
    """Hold a value model's predictions against labels; None where there are no sequences.

    Args:
        model: On its device.
        data: Sequences of held-out prompts.
        micro_batch_size: Sequences at once.
        device: ``cpu`` or ``cuda``.
        rate: By which labels were split between atoms in training, see `atom_weights`: predictions are then of the
            mean of the split, which lies above the label.
        dtype: To compute in; see `computing_in`.
        ranks: Who shares the work; all must call this together.
        hints: Folder of batch sizes that fitted; None remembers nothing.
    """
    if not len(data):
        return None

    def predictions(batch: Batch) -> Tensor:
        with computing_in(dtype, device, ranks):
            return expected_labels(token_values(model, batch.ids), model.config.atoms)

    model.eval()
    spend("scoring", model_cost(model).forward(whole_texts(data.lengths)))
    width = data.ids.shape[1]
    found = score_sequences(
        data,
        predictions,
        micro_batch_size=micro_batch_size,
        device=device,
        width=width,
        ranks=ranks,
        sizes=BatchSizes(hints, device, model),
        work="calibrate",
    )
    mask = data.mask()
    counts = mask.sum(1)
    labels = fitted_labels(data.labels, model.config.atoms, rate)
    return calibration_of(found[mask], np.repeat(labels, counts), np.repeat(data.prompts, counts))


def fitted_labels(labels: NDArray[np.float32], atoms: int, rate: float) -> Floats:
    """What a head that fits labels without fault predicts on average: their mean over the atoms, shape [N]."""
    if atoms == 1:
        return labels.astype(np.float64)
    split = atom_weights(torch.from_numpy(labels), atoms, rate).double().numpy()
    return np.asarray(split @ np.linspace(0, 1, atoms))


def calibration_of(predicted: Floats, labels: Floats, prompts: NDArray[np.int64]) -> Calibration | None:
    """Hold predictions against labels; None where there are none.

    Args:
        predicted: In [0, 1], shape [M].
        labels: In [0, 1], shape [M].
        prompts: Of each token, shape [M].
    """
    if not len(predicted):
        return None
    about = Calibration(prompts=len(np.unique(prompts)), tokens=len(labels), base_rate=float(labels.mean()))
    if not np.isfinite(predicted).all():
        return about
    predicted = np.clip(predicted, 0, 1)  # a sum of probabilities may be a rounding error above 1
    brier, spread = float(((predicted - labels) ** 2).mean()), float(labels.var())
    ranked = np.isin(labels, (0, 1)).all() and spread > 0
    auc, auc_se = area_under_curve(predicted, labels == 1, prompts) if ranked else (None, None)
    skill = 1 - brier / spread if spread > 0 else None
    ece = expected_calibration_error(predicted, labels)
    return replace(about, auc=auc, auc_se=auc_se, brier=brier, brier_skill=skill, ece=ece)


def area_under_curve(
    predicted: Floats, positive: NDArray[np.bool_], prompts: NDArray[np.int64]
) -> tuple[float, float | None]:
    """Area under the ROC curve, and its standard error where prompts are what is drawn (Obuchowski, 1997).

    Tokens of a prompt depend on each other, so the error goes by prompts: each adds what its tokens have placed
    before or behind those of the other label. What is said of a label rests on the prompts that have it, and these
    may be far fewer than all.

    Args:
        predicted: Shape [M].
        positive: Which are labelled 1; some are, some are not. Shape [M].
        prompts: Of each, shape [M].

    Returns:
        The area, and the error; None where fewer than `LEAST_OF_LABEL` prompts have one of the labels.
    """
    ones, zeros = np.sort(predicted[positive]), np.sort(predicted[~positive])
    place = np.where(positive, _share_below(zeros, predicted), 1 - _share_below(ones, predicted))
    area = float(place[positive].mean())
    _, groups = np.unique(prompts, return_inverse=True)
    sides = [(np.unique(groups[which]), which) for which in (positive, ~positive)]
    if min(len(having) for having, _ in sides) < LEAST_OF_LABEL:
        return area, None
    count = groups.max() + 1
    ours, theirs = (np.bincount(groups[w], (place - area)[w] / w.sum(), count) for _, w in sides)
    parts = [(len(sides[0][0]), ours**2), (len(sides[1][0]), theirs**2), (count, 2 * ours * theirs)]
    return area, float(np.sqrt(max(0.0, sum(number / (number - 1) * part.sum() for number, part in parts))))


def expected_calibration_error(predicted: Floats, labels: Floats) -> float:
    """Mean distance of prediction and label over bins of equal width, by their tokens (Guo et al., 2017)."""
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    return float(np.abs(np.bincount(bins, predicted - labels)).sum() / len(labels))


def _share_below(ordered: Floats, values: Floats) -> Floats:
    """Share of ordered numbers below each value, equal ones counting half."""
    below, up_to = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    shares: Floats = (below + up_to) / (2 * len(ordered))
    return shares
