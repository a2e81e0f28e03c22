"""Direct preference optimisation (Rafailov et al., arXiv 2305.18290), with TRL's losses.

TRL's trainer cannot be the loop: it tokenizes text, writes pickled checkpoints, and cannot reduce the micro-batch
when memory runs out. So the loop is ours, and `trl.DPOTrainer`'s own code computes the loss from
log-probabilities. Tests compare whole trainings of both.

Shapes: P pairs, in 2P sequences: chosen and rejected one after the other; B sequences of a micro-batch, T tokens.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.learning.choices import DPOLoss
from pipeline.learning.training import loop, scoring
from pipeline.learning.training.sequences import UNKNOWN, Batch, Sequences


class DPOObjective(Protocol):
    """Settings of the loss, from `DPOConfig`."""

    loss_type: DPOLoss
    beta: float
    label_smoothing: float
    sft_weight: float


class _Given:
    """Stand-in for accelerate with one process: every tensor is already local."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def gather(self, values: Tensor) -> Tensor:
        return values

    gather_for_metrics = gather


@cache
def _dpo_trainer() -> Any:
    """Return TRL's trainer class; importing it takes seconds, needed only by trainings on pairs.

    Keeps TRL from importing wandb, which would create folders at once and leave them when the worker is killed.
    """
    hidden: dict[str, Any] = sys.modules
    absent = "wandb" not in hidden
    hidden.setdefault("wandb", None)
    try:
        from trl.trainer.dpo_trainer import DPOTrainer
    finally:
        if absent:
            del hidden["wandb"]
    return DPOTrainer


class PairLoss:
    """TRL's loss of pairs, and its metrics of them.

    Attributes:
        reports: Metric -> its value at every micro-batch, for example ``rewards/accuracies``.
    """

    def __init__(self, objective: DPOObjective, device: str) -> None:
        self.objective = objective
        self.reports: Mapping[str, list[float]] = defaultdict(list)
        # The attributes that `DPOTrainer._compute_loss` reads of its trainer.
        self._trainer = SimpleNamespace(
            model=SimpleNamespace(training=True),
            accelerator=_Given(torch.device(device)),
            args=SimpleNamespace(discopop_tau=0.05),
            loss_types=[objective.loss_type.value],
            loss_weights=[1.0],
            beta=objective.beta,
            label_smoothing=objective.label_smoothing,
            precompute_ref_logps=True,
            f_divergence_type="reverse_kl",
            f_alpha_divergence_coef=0.5,
            ld_alpha=None,
            use_weighting=False,
            aux_loss_enabled=False,
            _metrics={"train": self.reports},
            _total_train_tokens=0,
            _tp_size=1,
        )

    def __call__(self, logprobs: Tensor, batch: Batch, anchor: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch's pairs.

        Args:
            logprobs: Log-probabilities under the trained policy, shape [B, T]; 0 where nothing is supervised.
            batch: The pairs.
            anchor: Log-probability of each whole completion under the anchor, shape [B].
        """
        # TRL wants all chosen ones before all rejected ones, and positions shifted by one.
        both = [torch.arange(side, len(batch.ids), 2, device=logprobs.device) for side in (0, 1)]
        order = torch.cat(both)
        inputs = {
            "input_ids": batch.ids[order],
            "completion_mask": batch.mask[order].long(),
            "attention_mask": torch.ones_like(batch.ids),
            "ref_chosen_logps": anchor[both[0]],
            "ref_rejected_logps": anchor[both[1]],
        }
        shifted = logprobs[order][:, 1:]
        nothing = torch.zeros_like(shifted)

        def model(**_: Any) -> SimpleNamespace:
            return SimpleNamespace(log_probs=shifted, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())

        loss: Tensor = _dpo_trainer()._compute_loss(self._trainer, model, inputs, return_outputs=False)
        if self.objective.sft_weight:
            chosen = logprobs[both[0]].sum(-1) / batch.mask[both[0]].sum(-1).clamp(min=1)
            loss = loss - self.objective.sft_weight * chosen.mean()
        return loss


def dpo_set(
    model: nn.Module, pairs: Sequences, anchor: NDArray[np.float64], objective: DPOObjective, device: str
) -> loop.TrainingSet:
    """Return pairs, and the loss of a policy on them.

    Args:
        model: The trained policy, on its device.
        pairs: Chosen and rejected completions in turn.
        anchor: Log-probability of each completion under the anchor, shape [2P].
        objective: Settings of the loss.
        device: Device of the model.
    """
    loss = PairLoss(objective, device)

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:
        anchored = torch.from_numpy(anchor[part].astype(np.float32)).to(device)
        share = len(part) / len(whole)
        logprobs = scoring.completion_logprobs(model, batch)
        if loop.is_drawn():
            apart = logprobs.detach().sum(-1) - anchored
            loop.add_to_curve(
                **loop.of_pairs(objective.beta * apart),
                kl=apart / batch.mask.sum(-1).clamp(min=1),
                entropy=-logprobs.detach()[batch.mask],
            )
        return loss(logprobs, batch, anchored) * share

    reports = {name: loss.reports[f"rewards/{name}"] for name in ("accuracies", "margins")}
    return loop.TrainingSet(pairs, loss_of, group=2, about={"pairs": len(pairs) // 2}, told=reports)


# -- kto ---------------------------------------------------------------------------------------------------------
# Kahneman-Tversky optimisation (Ethayarajh et al., arXiv 2402.01306); tests compare it with TRL's trainer. A
# completion's log-ratio is compared with an estimate of the KL divergence from the anchor. The estimate is over
# the whole batch of a step, from a separate pass before it, so it does not depend on micro-batches or ranks.
# Shapes: N completions, B of a micro-batch.


Score = Callable[[Sequences], NDArray[np.float64]]
"""Function from completions to the log-probability of each."""


def kto_set(
    model: nn.Module,
    data: Sequences,
    beta: float,
    weights: tuple[float, float],
    device: str,
    *,
    of_anchor: Score,
    of_policy: Score,
    context: int | None = None,
) -> loop.TrainingSet:
    """Return completions that are desirable or undesirable, and the loss of a policy on them (equation 7).

    Args:
        model: The trained policy, on its device.
        data: Completions, labelled 1 if desirable, else 0.
        beta: Strength of the KL penalty towards the anchor.
        weights: Weights of the losses of desirable and of undesirable completions.
        device: Device of the model.
        of_anchor: Log-probabilities under the anchor.
        of_policy: Log-probabilities under the current policy; all ranks call it together.
        context: Tokens of the model's context; None for no limit.
    """
    anchor = of_anchor(data).astype(np.float32)
    divergence = 0.0  # of the present batch

    def prepare(batches: Sequence[NDArray[np.int64]]) -> Callable[[int], None]:
        mixed = mismatched(data, batches, context)
        anchored = of_anchor(mixed)
        scoring.note_scored(mixed, model)
        ends = np.cumsum([len(batch) for batch in batches])

        def before(step: int) -> None:
            nonlocal divergence
            rows = np.arange(ends[step] - len(batches[step]), ends[step])
            divergence = max(0.0, float((of_policy(mixed.some(rows)) - anchored[rows]).mean()))

        return before

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:
        anchored = torch.from_numpy(anchor[part]).to(device)
        ratio = scoring.completion_logprobs(model, batch).sum(-1) - anchored
        desirable = batch.labels > 0.5
        if loop.is_drawn():
            loop.add_to_curve(kl=divergence)
            for name, those in (("desirable", desirable), ("undesirable", ~desirable)):
                loop.add_to_curve(**{f"reward_{name}": beta * ratio.detach()[those]})
        weight = torch.where(desirable, *weights)
        ahead = torch.where(desirable, ratio - divergence, divergence - ratio)
        return (weight * torch.sigmoid(-beta * ahead)).sum() / len(whole)

    counts = {"sequences": len(data), "sequences_desirable": int((data.labels > 0.5).sum())}
    return loop.TrainingSet(data, loss_of, about=counts, prepare=prepare)


def mismatched(data: Sequences, batches: Sequence[NDArray[np.int64]], context: int | None = None) -> Sequences:
    """Return the prompts of each batch in turn, combined with completions of other prompts of that batch.

    The completions are shifted by the smallest offset that leaves the fewest with their own prompt: by one, as in
    TRL, if no two neighbours share a prompt.

    Args:
        data: Completions, with ids of their prompts.
        batches: Indices of the completions of each batch.
        context: Tokens after which results are truncated.
    """
    ones, others = [np.zeros(0, np.int64), *batches], [np.zeros(0, np.int64)]
    for rows in batches:
        prompts = data.prompts[rows]
        matches = [np.count_nonzero(prompts == np.roll(prompts, by)) for by in range(1, max(2, len(rows)))]
        others.append(np.roll(rows, 1 + int(np.argmin(matches))))
    row, other = np.concatenate(ones), np.concatenate(others)
    begins = data.starts[other]
    lengths = np.minimum(data.starts[row] + data.lengths[other] - begins, context or np.iinfo(np.int32).max)
    starts = np.minimum(data.starts[row], lengths)
    shape = (len(row), int(lengths.max(initial=0)))
    ids, left_out = np.zeros(shape, np.int32), None if data.left_out is None else np.zeros(shape, np.bool_)
    for at, (start, length, begin) in enumerate(zip(starts, lengths, begins, strict=True)):
        tail = slice(begin, begin + length - start)
        ids[at, :start] = data.ids[row[at], :start]
        ids[at, start:length] = data.ids[other[at], tail]
        if left_out is not None and data.left_out is not None:
            left_out[at, start:length] = data.left_out[other[at], tail]
    labels, prompts = np.zeros(len(row), np.float32), np.full(len(row), UNKNOWN, np.int64)
    return Sequences(ids, lengths, starts, labels, prompts, left_out)


# -- unanchored --------------------------------------------------------------------------------------------------
# Losses of pairs without an anchor: ORPO (arXiv 2403.07691) and SimPO (arXiv 2405.14734). Both use the
# log-probability per token of each completion; tests compare them with TRL's trainers. Shapes: P pairs, in 2P
# sequences: chosen and rejected in turn.


_SURE = -1e-7
"""Log-probability per token above which log-odds are not finite in float32."""


def orpo_set(model: nn.Module, pairs: Sequences, beta: float, device: str) -> loop.TrainingSet:
    """Return pairs, and the loss of ORPO on them (equations 6 and 7, with the odds of equation 4).

    As in TRL and in the authors' code, the likelihood is of all tokens of prompt and chosen completion.

    Args:
        model: The trained policy, on its device.
        pairs: Chosen and rejected completions in turn.
        beta: Weight of the odds ratio; the paper's lambda.
        device: Device of the model.
    """

    def log_odds(mean: Tensor) -> Tensor:
        mean = mean.clamp(max=_SURE)
        return mean - torch.log(-torch.expm1(mean))

    def loss(chosen: Tensor, rejected: Tensor) -> Tensor:
        return -beta * F.logsigmoid(log_odds(chosen) - log_odds(rejected))

    whole = replace(pairs, starts=np.minimum(pairs.lengths, 1), left_out=None)
    return _pair_set(model, pairs, loss, device, beta, read=whole, likelihood=1.0)


def simpo_set(
    model: nn.Module, pairs: Sequences, beta: float, gamma: float, device: str, alpha: float = 0.0
) -> loop.TrainingSet:
    """Return pairs, and the loss of SimPO on them (equation 6).

    Args:
        model: The trained policy, on its device.
        pairs: Chosen and rejected completions in turn.
        beta: Scale of the log-probability per token.
        gamma: Margin by which the chosen reward should exceed the other.
        device: Device of the model.
        alpha: Weight of the chosen completions' negative log-likelihood.
    """

    def loss(chosen: Tensor, rejected: Tensor) -> Tensor:
        return -F.logsigmoid(beta * (chosen - rejected) - gamma)

    return _pair_set(model, pairs, loss, device, beta, read=pairs, likelihood=alpha)


def _pair_set(
    model: nn.Module,
    pairs: Sequences,
    loss: Callable[[Tensor, Tensor], Tensor],
    device: str,
    scale: float,
    *,
    read: Sequences,
    likelihood: float,
) -> loop.TrainingSet:
    """Return pairs with a loss on their log-probabilities per token, plus a weighted likelihood of chosen tokens.

    Args:
        model: The policy.
        pairs: Chosen and rejected completions in turn.
        loss: From the log-probabilities per token of chosen and rejected completions, each of shape [P], to the
            losses.
        device: Device of the model.
        scale: Factor from these log-probabilities to the rewards of the curve.
        read: The same sequences, with all tokens supervised that the likelihood covers.
        likelihood: Weight of their negative log-likelihood, averaged over the tokens of a batch.
    """
    tokens = read.supervised

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:
        logprobs = scoring.completion_logprobs(model, batch)
        mask = torch.from_numpy(pairs.mask(part, batch.ids.shape[1])).to(device)
        mean = torch.where(mask, logprobs, torch.zeros_like(logprobs)).sum(-1) / mask.sum(-1).clamp(min=1)
        if loop.is_drawn():
            loop.add_to_curve(**loop.of_pairs(scale * mean.detach()))
        total = loss(mean[0::2], mean[1::2]).sum() / (len(whole) // 2)
        if likelihood:
            total = total - likelihood * logprobs[0::2].sum() / max(1, int(tokens[whole[0::2]].sum()))
        return total

    return loop.TrainingSet(read, loss_of, group=2, about={"pairs": len(pairs) // 2})
