"""Fitting a value model to labelled sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from pipeline.config.schema import DType, HeadType, TrainingConfig, ValueAlgoConfig
from pipeline.learning.models.batch_size import MICRO_BATCH, BatchSizes
from pipeline.learning.models.flops import model_cost, spend, whole_texts
from pipeline.learning.models.load import checkpoint_activations
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.distributed import ALONE, Ranks
from pipeline.learning.training.loop import TrainSettings, train
from pipeline.learning.training.losses import chosen_values, token_atoms, token_bce
from pipeline.learning.training.precision import computing_in
from pipeline.learning.training.sequences import Sequences, batch_of, epoch_order


def fit_value(
    model: ValueModel,
    data: Sequences,
    algo: ValueAlgoConfig,
    training: TrainingConfig,
    *,
    seed: int,
    rate: float = 0.0,
    device: str,
    dtype: DType = DType.float32,
    clear_cache_interval: int = 0,
    on_step: Callable[[int, int], None],
    checkpoint: Checkpoints | None = None,
    hints: Path | None = None,
    ranks: Ranks = ALONE,
) -> list[float]:
    """Train a value model in place; a batch's loss is the mean over its supervised tokens.

    Args:
        model: On its device.
        data: Labelled sequences.
        algo: Batch size, epochs, learning rate.
        training: Micro-batch size, decay, clipping, schedule.
        seed: Of the order of the data.
        rate: What is kept where a label is split between atoms; see `atom_weights`.
        device: ``cpu`` or ``cuda``.
        dtype: To compute in; see `computing_in`.
        clear_cache_interval: As `TrainSettings` has it.
        on_step: Called after each step with the sequences and the tokens seen so far, by all ranks and before an
            interruption too.
        checkpoint: Where the training goes on from and is saved; None starts afresh and saves nothing.
        hints: Folder of batch sizes that fitted; None remembers nothing.
        ranks: Who else does this training. `training.micro_batch_size` is for each of them.

    Returns:
        The loss of every step, in nats per token.
    """
    if len(data) == 0:
        return []
    order = epoch_order(len(data), algo.epochs, seed)
    work = "train with gradient checkpointing" if training.gradient_checkpointing else "train"
    micro_batch = BatchSizes(hints, device, model).begin(
        work if ranks.size == 1 else f"{work} on {ranks}",
        min(training.micro_batch_size, algo.batch_size, len(order)),
        length=int(data.lengths.max()),
        what=MICRO_BATCH,
        remedy="Try training.gradient_checkpointing=true, shorter texts, or a device with more memory.",
    )
    # Of the data and not counted on the way: a training that is resumed begins with those of the steps before.
    tokens = np.cumsum(data.lengths[order])

    def losses_of(step: int) -> Iterator[Tensor]:
        rows = order[step * algo.batch_size : (step + 1) * algo.batch_size]
        supervised = int((data.lengths[rows] - data.starts[rows]).sum())
        for part, weight in ranks.share(rows, micro_batch.size):
            batch = batch_of(data, part, device)
            with computing_in(dtype, device):
                values = token_values(model, batch.ids)
            loss = token_loss(values, batch.mask, batch.labels) / max(1, supervised)
            yield loss if weight == 1 else loss * weight
        done = min(len(order), (step + 1) * algo.batch_size)
        on_step(done, int(tokens[done - 1]))

    token_loss = partial(token_atoms, rate=rate) if model.config.atoms > 1 else token_bce
    settings = TrainSettings(
        steps=math.ceil(len(order) / algo.batch_size),
        learning_rate=algo.learning_rate,
        head_learning_rate=algo.head_learning_rate,
        weight_decay=training.weight_decay,
        grad_clip=training.grad_clip,
        warmup_steps=training.warmup_steps,
        schedule=training.schedule,
        clear_cache_interval=clear_cache_interval,
    )
    spend("training", model_cost(model).training(whole_texts(data.lengths) * algo.epochs))
    ranks.say_batch(algo.batch_size, micro_batch.size)
    if training.gradient_checkpointing:
        checkpoint_activations(model.backbone)
    return train(model, settings, losses_of, checkpoint=checkpoint, micro_batch=micro_batch, ranks=ranks)


def token_values(model: ValueModel, ids: Tensor) -> Tensor:
    """Value of every token of whole sequences, padded on the right; shape [B, T], or [B, T, n] with n atoms."""
    # Padding on the right needs no mask: causal attention never looks at it, and no loss is taken there.
    values: Tensor = model(ids)
    return values if model.config.head == HeadType.v.name else chosen_values(values, ids)
