"""Fitting a value model to labelled sequences."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.learning.choices import HeadType
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.curve import add_to_curve, is_drawn
from pipeline.learning.training.losses import (
    atom_weights,
    chosen_values,
    expected_labels,
    token_atoms,
    token_bce,
)
from pipeline.learning.training.policy import Fitting, fit
from pipeline.learning.training.sequences import Batch, Sequences
from pipeline.learning.training.unpadded import in_rows, inputs_of, is_unpadded, places_of_tokens


def fit_value(model: ValueModel, data: Sequences, fitting: Fitting, *, rate: float = 0.0) -> list[float]:
    """Train a value model in place; a batch's loss is the mean over its supervised tokens.

    Args:
        model: On its device.
        data: Labelled sequences.
        fitting: How to train.
        rate: What is kept where a label is split between atoms; see `atom_weights`.

    Returns:
        The loss of every step, in nats per token.
    """
    token_loss = partial(token_atoms, rate=rate) if model.config.atoms > 1 else token_bce
    supervised = data.supervised

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:  # noqa: ARG001
        values = batch_values(model, batch)
        if is_drawn():
            off = _errors(values.detach(), batch, model.config.atoms, rate)
            add_to_curve(brier=off**2, bias=off)
        return token_loss(values, batch.mask, batch.labels) / max(1, int(supervised[whole].sum()))

    return fit(model, data, fitting, loss_of, backbone=model.backbone)


def _errors(values: Tensor, batch: Batch, atoms: int, rate: float) -> Tensor:
    """How far the prediction at each supervised token is above what a head without fault would say, shape [M]."""
    labels = batch.labels
    if atoms > 1:
        labels = atom_weights(labels, atoms, rate) @ torch.linspace(0, 1, atoms, device=labels.device)
    of_tokens = labels[:, None].expand_as(batch.mask)[batch.mask]
    return expected_labels(values[batch.mask], atoms) - of_tokens


def batch_values(model: ValueModel, batch: Batch) -> Tensor:
    """As `token_values`, of a batch, and without its padding where that is asked for; there values are 0."""
    if not is_unpadded(model.backbone):
        return token_values(model, batch.ids)
    inputs = inputs_of(batch)
    values: Tensor = model(**inputs)
    if model.config.head != HeadType.v.name:
        values = chosen_values(values, inputs["input_ids"])
        begins = (inputs["position_ids"] == 0).view(1, -1, *[1] * (values.ndim - 2))
        values = values.masked_fill(begins, 0.0)  # where a text before it has said something
    return in_rows(values[0], batch, places_of_tokens(batch))


def token_values(model: ValueModel, ids: Tensor) -> Tensor:
    """Value of every token of whole sequences, padded on the right; shape [B, T], or [B, T, n] with n atoms."""
    # Padding on the right needs no mask: causal attention never looks at it, and no loss is taken there.
    if model.config.head == HeadType.v.name:
        values: Tensor = model(ids)
        return values
    if not is_by_row(ids):
        return chosen_values(model(ids), ids)
    found: Tensor = model(ids, following=ids[:, 1:])
    return F.pad(found, (*[0, 0] * (found.ndim - 2), 1, 0))


def is_by_row(ids: Tensor) -> bool:
    """Whether a head "q" computes values of the tokens that were taken alone, which round otherwise.

    Outputs for the whole vocabulary take 4 bytes each and more. So only on GPUs.
    """
    return ids.is_cuda
