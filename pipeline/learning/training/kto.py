"""Kahneman-Tversky optimisation (Ethayarajh et al., arXiv 2402.01306). Tests hold it to TRL's trainer.

What a completion's log-ratio is held against, an estimate of the divergence from the anchor, is of the whole batch
of a step, by a pass of its own before: so neither micro-batches nor ranks change it.

Shapes: N completions, B of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.learning.training.curve import add_to_curve, is_drawn
from pipeline.learning.training.policy import TrainingSet
from pipeline.learning.training.scoring import completion_logprobs, note_scored
from pipeline.learning.training.sequences import UNKNOWN, Batch, Sequences

Score = Callable[[Sequences], NDArray[np.float64]]
"""From completions to the log-probability of each."""


@dataclass(frozen=True, kw_only=True)
class KTOObjective:
    """The settings of the loss.

    Attributes:
        beta: Strength of the pull towards the anchor.
        desirable_weight: Of desirable completions.
        undesirable_weight: Of the others.
    """

    beta: float
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0


def kto_set(
    model: nn.Module,
    data: Sequences,
    objective: KTOObjective,
    device: str,
    *,
    of_anchor: Score,
    of_policy: Score,
    context: int | None = None,
) -> TrainingSet:
    """Completions that are desirable or not, and the loss of a policy on them (equation 7).

    Args:
        model: The policy that is trained, on its device.
        data: Labelled 1 where they are desirable, else 0.
        objective: Settings of the loss.
        device: Of the model.
        of_anchor: Scores by the anchor.
        of_policy: Scores by the policy as it is; all ranks call it together.
        context: Tokens that fit into the model's context; None for no limit.
    """
    anchor = of_anchor(data).astype(np.float32)
    divergence = [0.0]

    def prepare(batches: Sequence[NDArray[np.int64]]) -> Callable[[int], None]:
        mixed = mismatched(data, batches, context)
        held = of_anchor(mixed)
        note_scored(mixed, model)
        ends = np.cumsum([len(batch) for batch in batches])

        def before(step: int) -> None:
            rows = np.arange(ends[step] - len(batches[step]), ends[step])
            divergence[0] = max(0.0, float((of_policy(mixed.some(rows)) - held[rows]).mean()))

        return before

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:
        held = torch.from_numpy(anchor[part]).to(device)
        ratio = completion_logprobs(model, batch).sum(-1) - held
        desirable = batch.labels > 0.5
        if is_drawn():
            add_to_curve(kl=divergence[0])
            for name, those in (("desirable", desirable), ("undesirable", ~desirable)):
                add_to_curve(**{f"reward_{name}": objective.beta * ratio.detach()[those]})
        weight = torch.where(desirable, objective.desirable_weight, objective.undesirable_weight)
        ahead = torch.where(desirable, ratio - divergence[0], divergence[0] - ratio)
        return (weight * torch.sigmoid(-objective.beta * ahead)).sum() / len(whole)

    about = {"sequences": len(data), "sequences_desirable": int((data.labels > 0.5).sum())}
    return TrainingSet(data, loss_of, about=about, prepare=prepare)


def mismatched(data: Sequences, batches: Sequence[NDArray[np.int64]], context: int | None = None) -> Sequences:
    """The prompts of each batch, one batch after the other, with the completions of other prompts of it.

    The completions are moved on by as few places as leave the fewest where they belong: by one, as TRL does, where
    no two neighbours have one prompt.

    Args:
        data: Completions, with ids of their prompts.
        batches: Places of those of each batch.
        context: Tokens after which what comes of it is cut.
    """
    ones, others = [np.zeros(0, np.int64), *batches], [np.zeros(0, np.int64)]
    for rows in batches:
        prompts = data.prompts[rows]
        left = [np.count_nonzero(prompts == np.roll(prompts, by)) for by in range(1, max(2, len(rows)))]
        others.append(np.roll(rows, 1 + int(np.argmin(left))))
    one, other = np.concatenate(ones), np.concatenate(others)
    begins = data.starts[other]
    lengths = np.minimum(data.starts[one] + data.lengths[other] - begins, context or np.iinfo(np.int32).max)
    starts = np.minimum(data.starts[one], lengths)
    shape = (len(one), int(lengths.max(initial=0)))
    ids, left_out = np.zeros(shape, np.int32), None if data.left_out is None else np.zeros(shape, np.bool_)
    for at, (start, length, begin) in enumerate(zip(starts, lengths, begins, strict=True)):
        tail = slice(begin, begin + length - start)
        ids[at, :start] = data.ids[one[at], :start]
        ids[at, start:length] = data.ids[other[at], tail]
        if left_out is not None and data.left_out is not None:
            left_out[at, start:length] = data.left_out[other[at], tail]
    labels, prompts = np.zeros(len(one), np.float32), np.full(len(one), UNKNOWN, np.int64)
    return Sequences(ids, lengths, starts, labels, prompts, left_out)
