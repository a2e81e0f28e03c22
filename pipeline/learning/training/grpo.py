"""Group-relative policy optimisation (Shao et al., arXiv 2402.03300, section 4.1): advantages, loss, training.

The loss is TRL's for groups that were sampled beforehand; the tests compare the two on random inputs.

Shapes: N completions in groups of G adjacent ones, B completions of a micro-batch, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.errors import JobError
from pipeline.learning.choices import GRPOLoss, ImportanceSampling, ScaleRewards
from pipeline.learning.training.curve import add_to_curve, is_drawn
from pipeline.learning.training.policy import Fitting, TrainingSet, fit
from pipeline.learning.training.samples import Samples
from pipeline.learning.training.scoring import completion_logprobs
from pipeline.learning.training.sequences import Batch

_OF_AVERAGE = (GRPOLoss.dapo, GRPOLoss.cispo)
"""Losses that are divided by the tokens of an average batch."""
_SCALE_FLOOR = 1e-4
"""Added to standard deviations, as TRL does."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The settings of the loss.

    Attributes:
        loss_type: How it averages over tokens.
        beta: Weight of the KL divergence from the anchor.
        epsilon_low: The ratio is clipped to 1 - epsilon_low ...
        epsilon_high: ... and 1 + epsilon_high; of `cispo` it is at most epsilon_high.
        longest: Tokens that a completion may have; `dr_grpo` divides by it.
        temperature: Of the policy that drew the completions, and so of the one that is trained.
        corrects_kl: Whether the KL term is multiplied with the ratio, so that its gradient is that of the
            divergence (arXiv 2512.02556), as TRL does by default.
        level: What the ratio is of.
        delta: The ratio is at most this also where the advantage is negative (arXiv 2505.07291), unless None.
        is_on_policy: Whether what is trained on was drawn by the policy as it is, so that the ratio is 1 and only
            its gradient matters; what was drawn need have no log-probabilities then.
    """

    loss_type: GRPOLoss
    beta: float
    epsilon_low: float
    epsilon_high: float
    longest: int
    temperature: float = 1.0
    corrects_kl: bool = False
    level: ImportanceSampling = ImportanceSampling.token
    delta: float | None = None
    is_on_policy: bool = False


def group_advantages(rewards: NDArray[np.floating], group: int, scale: ScaleRewards) -> NDArray[np.float32]:
    """How much better each completion is than its group.

    Args:
        rewards: Shape [N], members of a group adjacent; NaN where there is none.
        group: Completions of each prompt, G.
        scale: What the differences are divided by.

    Returns:
        Shape [N]; 0 for a completion without a reward, which the others of its group are not measured against.

    Raises:
        ValueError: N is not a multiple of `group`.
    """
    table = _in_groups(rewards, group)
    difference = table - _mean(table)
    if scale is ScaleRewards.group:
        difference = difference / (_deviation(table) + _SCALE_FLOOR)
    elif scale is ScaleRewards.batch:
        difference = difference / (_deviation(table.reshape(1, -1)) + _SCALE_FLOOR)
    return np.nan_to_num(difference, nan=0.0).reshape(-1).astype(np.float32)


def leave_one_out(rewards: NDArray[np.floating], group: int, *, normalizes: bool = False) -> NDArray[np.float32]:
    """How much better each completion is than the others of its group (arXiv 2402.14740).

    Args:
        rewards: As `group_advantages` takes them.
        group: Completions of each prompt.
        normalizes: Whether to bring all of them to mean 0 and deviation 1.

    Returns:
        Shape [N]; 0 for a completion without a reward, or with one that no other of its group has.

    Raises:
        ValueError: N is not a multiple of `group`.
    """
    table = _in_groups(rewards, group)
    others = (~np.isnan(table)).sum(1, keepdims=True) - 1
    mean = (np.nansum(table, 1, keepdims=True) - table) / np.maximum(1, others)
    better = np.where(others > 0, table - mean, np.nan).reshape(1, -1)
    if normalizes:
        better = (better - _mean(better)) / (_deviation(better) + _SCALE_FLOOR)
    return np.nan_to_num(better, nan=0.0).reshape(-1).astype(np.float32)


def log_ratios(samples: Samples, anchor: NDArray[np.float32]) -> NDArray[np.float64]:
    """How much likelier each completion was to who drew it than to the anchor, in nats.

    Args:
        samples: With the log-probabilities of who drew them.
        anchor: Those of the anchor, laid out likewise.

    Returns:
        Shape [N]; 0 for a completion that takes no part in the loss.
    """
    apart = (samples.logprobs.astype(np.float64) - anchor).sum(1)
    return np.where(samples.sequences.supervised > 0, apart, 0.0)


def _in_groups(rewards: NDArray[np.floating], group: int) -> NDArray[np.float64]:
    if len(rewards) % group:
        raise ValueError(f"{len(rewards)} rewards in groups of {group}")
    return np.asarray(rewards, np.float64).reshape(-1, group)


def checked_advantages(found: object, count: int) -> NDArray[np.float32]:
    """Advantages as training takes them.

    Args:
        found: What a method says they are.
        count: Completions, N.

    Raises:
        JobError: They are not one finite number for each completion.
    """
    advantages = np.asarray(found, np.float32)
    if advantages.shape != (count,):
        raise JobError(
            f"advantages() gave an array of shape {list(advantages.shape)}; it must be [{count}], one each"
        )
    if odd := np.flatnonzero(~np.isfinite(advantages)).tolist():
        raise JobError(
            f"advantages() gave {advantages[odd[0]]} for completion {odd[0]} and {len(odd)} in all that are no "
            "number; a completion without a reward, whose reward is nan, gets 0"
        )
    return advantages


def _mean(table: NDArray[np.float64]) -> NDArray[np.float64]:
    count = (~np.isnan(table)).sum(1, keepdims=True)
    mean: NDArray[np.float64] = np.nansum(table, 1, keepdims=True) / np.maximum(1, count)
    return mean


def _deviation(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation of each row, with n - 1; 0 where fewer than two have a reward."""
    count = (~np.isnan(table)).sum(1, keepdims=True)
    squares = np.nansum((table - _mean(table)) ** 2, 1, keepdims=True)
    deviation: NDArray[np.float64] = np.sqrt(squares / np.maximum(1, count - 1))
    return deviation


def token_losses(
    logprobs: Tensor, old: Tensor, anchor: Tensor | None, advantages: Tensor, mask: Tensor, objective: Objective
) -> Tensor:
    """Loss of every token: the clipped ratio times the advantage, and beta times the k3 estimate of the KL.

    Args:
        logprobs: Of the policy that is trained, shape [B, T].
        old: Of the policy that drew the tokens, shape [B, T].
        anchor: Of the anchor, shape [B, T]; None without a KL term.
        advantages: Shape [B].
        mask: True where a token was drawn, shape [B, T].
        objective: Settings.

    Returns:
        Shape [B, T].
    """
    ratio = _ratio(logprobs, old, mask, objective.level)
    if objective.loss_type is GRPOLoss.cispo:
        losses = -ratio.clamp(max=objective.epsilon_high).detach() * advantages[:, None] * logprobs
    else:
        clipped = ratio.clamp(1 - objective.epsilon_low, 1 + objective.epsilon_high)
        bounded = ratio if objective.delta is None else ratio.clamp(max=objective.delta)
        losses = -torch.min(bounded * advantages[:, None], clipped * advantages[:, None])
    if anchor is not None:
        divergence = _k3(logprobs, anchor)
        losses = losses + objective.beta * (divergence * ratio if objective.corrects_kl else divergence)
    return losses


def _ratio(logprobs: Tensor, old: Tensor, mask: Tensor, level: ImportanceSampling) -> Tensor:
    """Of each token, shape [B, T]; of a sequence equation 7 of arXiv 2507.18071, the same at all its tokens."""
    log_ratio = logprobs - old
    if level is not ImportanceSampling.token:
        whole = torch.where(mask, log_ratio, torch.zeros_like(log_ratio)).sum(-1, keepdim=True)
        if level is ImportanceSampling.sequence:
            whole = whole / mask.sum(-1, keepdim=True).clamp(min=1)
        log_ratio = whole.expand_as(log_ratio)
    return log_ratio.exp()


def _k3(logprobs: Tensor, anchor: Tensor) -> Tensor:
    return (anchor - logprobs).exp() - (anchor - logprobs) - 1


def token_figures(
    logprobs: Tensor, old: Tensor, anchor: Tensor | None, advantages: Tensor, mask: Tensor, objective: Objective
) -> dict[str, Tensor]:
    """What tokens tell of a step, for its curve.

    Args:
        logprobs: As `token_losses` takes them, and so are the others.
        old: Shape [B, T].
        anchor: Shape [B, T], or None.
        advantages: Shape [B].
        mask: Shape [B, T].
        objective: Settings.

    Returns:
        ``clip_share``: whether the clip takes the gradient of the token away; with `cispo`, which takes none away,
        whether it clips the ratio of a token that is to be likelier. And, with an anchor, ``kl``: the k3 estimate
        of the divergence from it. Each of shape [B, T].
    """
    ratio, sign = _ratio(logprobs, old, mask, objective.level), advantages[:, None]
    if objective.loss_type is GRPOLoss.cispo:
        clipped = (ratio > objective.epsilon_high) & (sign > 0)
    else:
        most, top = 1 + objective.epsilon_high, math.inf if objective.delta is None else objective.delta
        beyond = (ratio < 1 - objective.epsilon_low) | (ratio > max(most, top))
        clipped = ((ratio > min(most, top)) & (sign > 0)) | (beyond & (sign < 0))
    found = {"clip_share": clipped.float()}
    if anchor is not None:
        found["kl"] = _k3(logprobs, anchor)
    return found


def averaged(losses: Tensor, mask: Tensor, objective: Objective, *, sequences: int, tokens: float) -> Tensor:
    """A micro-batch's share of the loss of its batch.

    Args:
        losses: Of every token, shape [B, T].
        mask: True where a token was drawn, shape [B, T].
        objective: Settings.
        sequences: Completions of the whole batch.
        tokens: Tokens of the whole batch, for `dapo` and `cispo` of an average batch.
    """
    kept = torch.where(mask, losses, torch.zeros_like(losses))
    if objective.loss_type is GRPOLoss.grpo:
        return (kept.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / sequences
    if objective.loss_type is GRPOLoss.dr_grpo:
        return kept.sum() / (sequences * objective.longest)
    return kept.sum() / max(1.0, tokens)


def grpo_set(
    model: nn.Module,
    data: Samples,
    advantages: NDArray[np.float32],
    anchor: NDArray[np.float32] | None,
    objective: Objective,
    group: int,
    device: str,
) -> TrainingSet:
    """Groups that were drawn, and the loss of a policy on them.

    Args:
        model: The policy that is trained, on its device.
        data: Whole groups.
        advantages: Shape [N].
        anchor: Log-probabilities of the drawn tokens under the anchor, laid out as `data.logprobs` are; None
            without a KL term.
        objective: Settings of the loss.
        group: Completions of each prompt.
        device: Of the model.
    """
    drawn = data.sequences.supervised.astype(np.float64)

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:
        logprobs = completion_logprobs(model, batch, objective.temperature)
        old = logprobs.detach() if objective.is_on_policy else _laid_out(data.logprobs, part, batch, device)
        held = None if anchor is None else _laid_out(anchor, part, batch, device)
        better = torch.from_numpy(advantages[part]).to(device)
        losses = token_losses(logprobs, old, held, better, batch.mask, objective)
        if is_drawn():
            told = token_figures(logprobs.detach(), old, held, better, batch.mask, objective)
            rewards = data.rewards[part]
            add_to_curve(
                **{name: values[batch.mask] for name, values in told.items()},
                reward=rewards[np.isfinite(rewards)],
                advantage_size=better.abs(),
                entropy=-logprobs.detach()[batch.mask],
            )
        of_batch = drawn.mean() * len(whole) if objective.loss_type in _OF_AVERAGE else drawn[whole].sum()
        return averaged(losses, batch.mask, objective, sequences=len(whole), tokens=float(of_batch))

    groups, masked = advantages.reshape(-1, group), drawn == 0
    silent = (groups == 0) | masked.reshape(-1, group)
    about = {"groups": len(groups), "groups_without_signal": int(silent.all(1).sum())}
    if masked.any():
        about["completions_masked"] = int(masked.sum())
    return TrainingSet(data.sequences, loss_of, group, about)


def fit_grpo(
    model: nn.Module,
    data: Samples,
    advantages: NDArray[np.float32],
    anchor: NDArray[np.float32] | None,
    objective: Objective,
    fitting: Fitting,
    group: int,
) -> list[float]:
    """Train a policy in place on groups that were drawn beforehand; see `grpo_set`.

    Returns:
        The loss of every step.
    """
    made = grpo_set(model, data, advantages, anchor, objective, group, fitting.device)
    return fit(model, made.data, fitting, made.loss_of, group=group)


def _laid_out(values: NDArray[np.float32], rows: NDArray[np.int64], batch: Batch, device: str) -> Tensor:
    """Values of completions' tokens, shape [N, C], at the places of these tokens in a batch, shape [B, T]."""
    table = torch.from_numpy(values[rows]).to(device)
    places = (batch.mask.cumsum(-1) - 1).clamp(min=0, max=table.shape[1] - 1)
    return torch.where(batch.mask, table.gather(1, places), torch.zeros((), device=device))
