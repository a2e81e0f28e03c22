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
from pipeline.learning.training.sequences import Batch, Sequences

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
    masks = data.mask()
    ids: list[list[int]] = []
    marks: list[list[bool]] = []
    for rows in batches:
        prompts = data.prompts[rows]
        left = [np.count_nonzero(prompts == np.roll(prompts, by)) for by in range(1, max(2, len(rows)))]
        for one, other in zip(rows, np.roll(rows, 1 + int(np.argmin(left))), strict=True):
            begin, tail = data.starts[one], slice(data.starts[other], data.lengths[other])
            ids.append([*data.ids[one, :begin].tolist(), *data.ids[other, tail].tolist()][:context])
            marks.append([*[False] * int(begin), *masks[other, tail].tolist()][:context])
    return Sequences.supervised_at(ids, marks, [0.0] * len(ids))
