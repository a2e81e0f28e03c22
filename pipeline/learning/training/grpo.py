"""Group-relative policy optimisation (Shao et al., arXiv 2402.03300, section 4.1): advantages, loss, training.

The loss is TRL's; tests compare it with TRL's trainers.

Shapes: N completions in groups of G adjacent ones, B completions of a micro-batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor, nn

from pipeline.errors import JobError
from pipeline.learning.choices import GRPOLoss, ImportanceSampling, ScaleRewards, VLLMCorrection
from pipeline.learning.training import loop, scoring
from pipeline.learning.training.sequences import Batch, Sequences, read_arrays
from pipeline.outputs.formats import read_input

# -- samples -----------------------------------------------------------------------------------------------------
# Sampled completions as files: token ids as they were drawn, scores, and log-probabilities of who drew them.
# Shapes: N completions, G of each prompt adjacent; T tokens of the longest, prompt included; C of the longest
# completion.


FILE = "samples.safetensors"


@dataclass(frozen=True)
class Samples:
    """Completions, in whole groups.

    Attributes:
        sequences: Prompts and completions; a completion begins where its sequence is supervised, and its label is
            its reward, NaN if missing.
        logprobs: Log-probability of each token of a completion under the policy that drew it, 0 beyond its end,
            shape [N, C], float32.
        sampled: The same as a backend drew them, which computes them in another way; None by our own decoder.
    """

    sequences: Sequences
    logprobs: NDArray[np.float32]
    sampled: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.sequences)

    @staticmethod
    def without_logprobs(sequences: Sequences) -> Samples:
        """Return completions of the current policy, whose log-probabilities training computes anyway."""
        return Samples(sequences, np.zeros((len(sequences), 0), np.float32))

    @property
    def longest(self) -> int:
        """Tokens of the longest completion, C."""
        return int((self.sequences.lengths - self.sequences.starts).max(initial=0))

    @property
    def rewards(self) -> NDArray[np.float32]:
        """Rewards, shape [N]."""
        return self.sequences.labels

    def with_rewards(self, rewards: NDArray[np.float64]) -> Samples:
        """Return the same completions with other rewards."""
        return replace(self, sequences=replace(self.sequences, labels=rewards.astype(np.float32)))

    def silenced(self, rows: NDArray[np.bool_]) -> Samples:
        """Return the same completions, without loss for those in `rows`, a mask of shape [N]."""
        return replace(self, sequences=self.sequences.silenced(rows))

    def save(self, folder: Path) -> None:
        """Write the samples to a folder."""
        self.sequences.save(folder)
        sampled = {} if self.sampled is None else {"sampled": self.sampled}
        save_file({"logprobs": self.logprobs, **sampled}, folder / FILE)

    @staticmethod
    def load(folders: Sequence[Path]) -> Samples:
        """Read and join the completions of several folders, in their order.

        Raises:
            JobError: A file is missing or invalid; the message says which job wrote it.
        """
        parts = [read_input(folder, FILE, _read) for folder in folders]
        width = max(part["logprobs"].shape[1] for part in parts)
        joined = {
            name: np.concatenate(
                [np.pad(part[name], ((0, 0), (0, width - part[name].shape[1]))) for part in parts]
            )
            for name in parts[0]
        }
        return Samples(Sequences.load(folders), **joined)


def _read(path: Path) -> dict[str, NDArray[np.float32]]:
    return read_arrays(path, {"logprobs": "fN,C", "sampled": "fN,C"}, optional=("sampled",))


def supervised_columns(values: NDArray[np.float64], data: Sequences) -> list[NDArray[np.float32]]:
    """Return the supervised part of each row of a table, shape [N, T]."""
    rows = zip(values, data.starts, data.lengths, strict=True)
    return [row[start:end].astype(np.float32) for row, start, end in rows]


def padded(rows: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Pad rows of different lengths with 0 to a table, shape [N, C]."""
    table = np.zeros((len(rows), max(map(len, rows), default=0)), np.float32)
    for index, values in enumerate(rows):
        table[index, : len(values)] = values
    return table


_OF_AVERAGE = (GRPOLoss.dapo, GRPOLoss.cispo)
"""Losses that are divided by the tokens of an average batch."""
_SCALE_FLOOR = 1e-4
"""Added to standard deviations, as TRL does."""


class Objective(Protocol):
    """Settings of the loss, from `GRPOConfig`."""

    loss_type: GRPOLoss
    num_generations: int
    beta: float
    epsilon: float
    epsilon_high: float | None
    delta: float | None
    importance_sampling_level: ImportanceSampling
    use_bias_correction_kl: bool
    entropy_coef: float
    vllm_importance_sampling_mode: VLLMCorrection
    vllm_importance_sampling_clip_max: float | None
    vllm_importance_sampling_clip_min: float | None

    @property
    def is_on_policy(self) -> bool:
        """Whether the current policy has drawn, so that the ratio is 1 and only its gradient matters."""


def group_advantages(rewards: NDArray[np.floating], group: int, scale: ScaleRewards) -> NDArray[np.float32]:
    """Return how much better each completion is than its group.

    Args:
        rewards: Shape [N], members of a group adjacent; NaN if missing.
        group: Completions per prompt, G.
        scale: Divisor of the differences; with `mean` the results are the weights of MaxRL (arXiv 2602.02710,
            algorithm 1), if the mean of a group is above 0.

    Returns:
        Shape [N]; 0 for a completion without a reward, which does not count in the mean of its group.

    Raises:
        ValueError: N is not a multiple of `group`.
        JobError: A reward is negative, and differences are divided by the mean.
    """
    table = _in_groups(rewards, group)
    difference = table - _mean(table)
    if scale is ScaleRewards.group:
        difference = difference / (_deviation(table) + _SCALE_FLOOR)
    elif scale is ScaleRewards.batch:
        difference = difference / (_deviation(table.reshape(1, -1)) + _SCALE_FLOOR)
    elif scale is ScaleRewards.mean:
        if (table < 0).any():
            raise JobError(
                f"scale_rewards=mean: a reward is {np.nanmin(table):g}, and to divide by the mean of a group "
                "each must be at least 0. Raise rewards, or write scale_rewards=group"
            )
        difference = difference / np.where(_mean(table) > 0, _mean(table), 1.0)
    return np.nan_to_num(difference, nan=0.0).reshape(-1).astype(np.float32)


def leave_one_out(rewards: NDArray[np.floating], group: int, *, normalizes: bool = False) -> NDArray[np.float32]:
    """Return how much better each completion is than the others of its group (arXiv 2402.14740).

    Args:
        rewards: As for `group_advantages`.
        group: Completions per prompt.
        normalizes: Whether to normalise all of them to mean 0 and standard deviation 1.

    Returns:
        Shape [N]; 0 for a completion without a reward, or the only one of its group with a reward.

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
    """Return the log-ratio of each completion between the policy that drew it and the anchor, in nats.

    Args:
        samples: Samples with log-probabilities under the policy that drew them.
        anchor: Log-probabilities under the anchor, in the same layout.

    Returns:
        Shape [N]; 0 for a completion without loss.
    """
    apart = (samples.logprobs.astype(np.float64) - anchor).sum(1)
    return np.where(samples.sequences.supervised > 0, apart, 0.0)


def whitened_returns(
    rewards: NDArray[np.floating], penalty: NDArray[np.floating] | None, samples: Samples
) -> NDArray[np.float32]:
    """Return the advantages of REINFORCE++ (arXiv 2501.03262), as OpenRLHF: equations 8 and 10 in RLinf's count.

        A_t = r - sum over i >= t of penalty_i,     (A_t - mean) / deviation, both over all tokens that count

    Args:
        rewards: Shape [N]; NaN if missing.
        penalty: Penalty of each token, laid out as `samples.logprobs`; None for none.
        samples: The tokens that count are those with loss whose completion has a reward.

    Returns:
        Shape [N, C]; 0 at tokens that do not count.
    """
    counts = np.arange(samples.longest) < samples.sequences.supervised[:, None]
    counts &= ~np.isnan(rewards)[:, None]
    table = np.where(counts, np.asarray(rewards, np.float64)[:, None], 0.0)
    if penalty is not None:
        table = table - np.where(counts, penalty, 0.0)[:, ::-1].cumsum(1)[:, ::-1]
    values = table[counts] - (table[counts].mean() if counts.any() else 0.0)
    advantages = np.zeros(counts.shape, np.float32)
    advantages[counts] = values / np.sqrt(max(1e-8, np.square(values).mean())) if counts.any() else 0.0
    return advantages


def sampler_weights(apart: NDArray[np.float32], objective: Objective) -> NDArray[np.float32]:
    """Return the weights of the loss that make up for drawing with other probabilities than those of training.

    Args:
        apart: Log-probabilities of tokens under training minus those that they were drawn with, 0 beyond the end
            of a completion, shape [N, C].
        objective: Settings.

    Returns:
        Shape [N, C], or [N, 1] with a weight for each whole completion.
    """
    mode = objective.vllm_importance_sampling_mode
    if mode is VLLMCorrection.none:
        return np.ones_like(apart)
    whole = mode in (VLLMCorrection.sequence_mask, VLLMCorrection.sequence_truncate)
    with np.errstate(over="ignore"):
        weights = np.exp(apart.sum(1, keepdims=True) if whole else apart)
    least, most = objective.vllm_importance_sampling_clip_min, objective.vllm_importance_sampling_clip_max
    low, high = 0.0 if least is None else least, np.inf if most is None else most
    if mode in (VLLMCorrection.token_truncate, VLLMCorrection.sequence_truncate):
        return weights.clip(low, high)
    return np.where((weights < low) | (weights > high), np.float32(0), weights)


def _in_groups(rewards: NDArray[np.floating], group: int) -> NDArray[np.float64]:
    if len(rewards) % group:
        raise ValueError(f"{len(rewards)} rewards in groups of {group}")
    return np.asarray(rewards, np.float64).reshape(-1, group)


def checked_advantages(values: object, samples: Samples) -> NDArray[np.float32]:
    """Check advantages and convert them for training.

    Args:
        values: Advantages from a method.
        samples: N completions, the longest of C tokens.

    Raises:
        JobError: They are not one finite number per completion, or per token.
    """
    advantages = np.asarray(values, np.float32)
    count, longest = len(samples), samples.longest
    if advantages.shape not in ((count,), (count, longest)):
        raise JobError(
            f"advantages() gave an array of shape {list(advantages.shape)}; it must be [{count}], one each, or "
            f"[{count}, {longest}], one each token"
        )
    finite = np.isfinite(advantages).reshape(count, -1).all(1)
    if odd := np.flatnonzero(~finite).tolist():
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
    """Return the standard deviation of each row, with n - 1; 0 if fewer than two have a reward."""
    count = (~np.isnan(table)).sum(1, keepdims=True)
    squares = np.nansum((table - _mean(table)) ** 2, 1, keepdims=True)
    deviation: NDArray[np.float64] = np.sqrt(squares / np.maximum(1, count - 1))
    return deviation


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """Inputs of a micro-batch's loss. Position t has the data of token t, undefined where `mask` is False.

    Attributes:
        mask: True for tokens that were drawn, shape [B, T].
        logprobs: Log-probabilities under the trained policy, with gradient, shape [B, T].
        old: Log-probabilities under the policy that drew the tokens, shape [B, T].
        anchor: Log-probabilities under the anchor, shape [B, T]; None without a KL term.
        advantages: Shape [B, T], or [B, 1] with one advantage per completion.
    """

    mask: Tensor
    logprobs: Tensor
    old: Tensor
    anchor: Tensor | None
    advantages: Tensor


def importance_ratio(tokens: TokenBatch, level: ImportanceSampling) -> Tensor:
    """Return the probability ratio of tokens between the trained policy and the one that drew them.

    Returns:
        Shape [B, T]; with `sequence` equation 7 of arXiv 2507.18071, the same at all tokens of a completion.
    """
    log_ratio = tokens.logprobs - tokens.old
    if level is not ImportanceSampling.token:
        whole = torch.where(tokens.mask, log_ratio, torch.zeros_like(log_ratio)).sum(-1, keepdim=True)
        if level is ImportanceSampling.sequence:
            whole = whole / tokens.mask.sum(-1, keepdim=True).clamp(min=1)
        log_ratio = whole.expand_as(log_ratio)
    return log_ratio.exp()


def clipped_surrogate(tokens: TokenBatch, ratio: Tensor, objective: Objective) -> Tensor:
    """Return the objective of every token: the clipped ratio times the advantage.

    With `cispo` the clipped ratio is a weight without a gradient (arXiv 2506.13585, equations 4 and 5, without a
    lower bound as in the paper).

    Args:
        tokens: The micro-batch with advantages.
        ratio: Result of `importance_ratio`.
        objective: Settings.

    Returns:
        Shape [B, T].
    """
    high = _high(objective)
    if objective.loss_type is GRPOLoss.cispo:
        return ratio.clamp(max=high).detach() * tokens.advantages * tokens.logprobs
    clipped = ratio.clamp(1 - objective.epsilon, 1 + high)
    bounded = ratio if objective.delta is None else ratio.clamp(max=objective.delta)
    return torch.min(bounded * tokens.advantages, clipped * tokens.advantages)


def _high(objective: Objective) -> float:
    return objective.epsilon if objective.epsilon_high is None else objective.epsilon_high


def token_losses(tokens: TokenBatch, ratio: Tensor, surrogate: Tensor, objective: Objective) -> Tensor:
    """Return the loss of every token: minus the surrogate, plus beta times the k3 estimate of the KL.

    Shape [B, T].
    """
    losses = -surrogate
    if tokens.anchor is not None:
        divergence = _k3(tokens.logprobs, tokens.anchor)
        losses = losses + objective.beta * (divergence * ratio if objective.use_bias_correction_kl else divergence)
    return losses


def _k3(logprobs: Tensor, anchor: Tensor) -> Tensor:
    return (anchor - logprobs).exp() - (anchor - logprobs) - 1


def token_figures(tokens: TokenBatch, ratio: Tensor, surrogate: Tensor, objective: Objective) -> dict[str, Tensor]:
    """Return metrics of tokens for the training's curve.

    Args:
        tokens: The micro-batch; its log-probabilities have a gradient.
        ratio: Result of `importance_ratio`.
        surrogate: The objective of every token.
        objective: Settings.

    Returns:
        ``clip_share``: whether clipping removes the gradient of a token; with `cispo`, which removes none, whether
        it clips the ratio of a token with positive advantage. With an anchor also ``kl``: the k3 estimate of the
        divergence from it. Each has shape [B, T].
    """
    if objective.loss_type is GRPOLoss.cispo:
        clipped = (ratio > _high(objective)) & (tokens.advantages > 0)
    else:
        (gradient,) = torch.autograd.grad(surrogate.sum(), tokens.logprobs, retain_graph=True)
        clipped = (gradient == 0) & (tokens.advantages != 0)
    figures = {"clip_share": clipped.float()}
    if tokens.anchor is not None:
        figures["kl"] = _k3(tokens.logprobs.detach(), tokens.anchor)
    return figures


def averaged(
    losses: Tensor, mask: Tensor, loss_type: GRPOLoss, *, sequences: int, tokens: float, longest: int
) -> Tensor:
    """Return a micro-batch's share of the loss of its batch.

    Args:
        losses: Loss of every token, shape [B, T].
        mask: True for tokens that were drawn, shape [B, T].
        loss_type: The way of averaging.
        sequences: Completions in the whole batch.
        tokens: Tokens in the whole batch; for `dapo` and `cispo` in an average batch.
        longest: Most tokens of a completion.
    """
    kept = torch.where(mask, losses, torch.zeros_like(losses))
    match loss_type:
        case GRPOLoss.grpo:
            return (kept.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / sequences
        case GRPOLoss.dr_grpo:
            return kept.sum() / (sequences * longest)
        case GRPOLoss.bnpo | GRPOLoss.dapo | GRPOLoss.cispo:
            return kept.sum() / max(1.0, tokens)
        case _:
            assert_never(loss_type)


def grpo_set(
    model: nn.Module,
    data: Samples,
    advantages: NDArray[np.float32],
    anchor: NDArray[np.float32] | None,
    objective: Objective,
    device: str,
    *,
    longest: int,
    temperature: float = 1.0,
    ratio: Callable[[TokenBatch], Tensor] | None = None,
    surrogate: Callable[[TokenBatch, Tensor], Tensor] | None = None,
) -> loop.TrainingSet:
    """Return drawn groups, and the loss of a policy on them.

    Args:
        model: The trained policy, on its device.
        data: Whole groups.
        advantages: Advantages of completions, shape [N], or of tokens, laid out as `data.logprobs`.
        anchor: Log-probabilities of the drawn tokens under the anchor, laid out as `data.logprobs`; None without a
            KL term.
        objective: Settings of the loss.
        device: Device of the model.
        longest: Most tokens of a completion; `dr_grpo` divides by it.
        temperature: Sampling temperature of the completions, applied to the trained policy as well.
        ratio: Replaces `importance_ratio`; None uses it.
        surrogate: Replaces `clipped_surrogate`; None uses it.
    """
    ratio_of = ratio or (lambda tokens: importance_ratio(tokens, objective.importance_sampling_level))
    surrogate_of = surrogate or (lambda tokens, ratio: clipped_surrogate(tokens, ratio, objective))
    drawn = data.sequences.supervised.astype(np.float64)
    weights, told = (None, {}) if data.sampled is None else _correction(data, data.sampled, objective)

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:
        if objective.entropy_coef:
            logprobs, entropies = scoring.logprobs_and_entropies(model, batch, temperature)
        else:
            logprobs, entropies = scoring.completion_logprobs(model, batch, temperature), None
        laid_out = partial(_laid_out, rows=part, batch=batch, device=device)
        of_whole = advantages.ndim == 1
        tokens = TokenBatch(
            mask=batch.mask,
            logprobs=logprobs,
            old=logprobs.detach() if objective.is_on_policy else laid_out(data.logprobs),
            anchor=None if anchor is None else laid_out(anchor),
            advantages=torch.from_numpy(advantages[part, None]).to(device) if of_whole else laid_out(advantages),
        )
        ratios = _of_tokens("ratio", ratio_of(tokens), batch)
        gain = _of_tokens("surrogate", surrogate_of(tokens, ratios), batch)
        weighed = gain if weights is None else gain * laid_out(weights)
        losses = token_losses(tokens, ratios, weighed, objective)
        if loop.is_drawn():
            _add_to_curve(tokens, data.rewards[part], token_figures(tokens, ratios, gain, objective))
            loop.add_to_curve(**told)
        of_batch = drawn.mean() * len(whole) if objective.loss_type in _OF_AVERAGE else drawn[whole].sum()
        kind, most = objective.loss_type, longest
        loss = averaged(losses, batch.mask, kind, sequences=len(whole), tokens=float(of_batch), longest=most)
        if entropies is None:
            return loss
        bonus = torch.where(batch.mask, entropies, torch.zeros_like(entropies)).sum()
        return loss - objective.entropy_coef * bonus / max(1.0, float(drawn[whole].sum()))

    counts = _signal_counts(advantages, drawn == 0, objective.num_generations)
    return loop.TrainingSet(data.sequences, loss_of, objective.num_generations, counts)


def _correction(
    data: Samples, sampled: NDArray[np.float32], objective: Objective
) -> tuple[NDArray[np.float32], dict[str, float]]:
    """Return the weight of each drawn token, shape [N, C], and metrics of weights and differences."""
    counts = np.arange(sampled.shape[1]) < data.sequences.supervised[:, None]
    apart = data.logprobs - sampled
    weights = sampler_weights(apart, objective)
    each = np.abs(apart[counts])
    told = weights[counts.any(1)] if weights.shape[1] == 1 else weights[counts]
    figures = {"sampler_difference": each, "sampler_weight": told}
    return np.broadcast_to(weights, apart.shape), {
        **{name: float(values.mean()) for name, values in figures.items() if values.size},
        **{f"{name}_max": float(values.max()) for name, values in figures.items() if values.size},
    }


def _add_to_curve(tokens: TokenBatch, rewards: NDArray[np.float32], figures: Mapping[str, Tensor]) -> None:
    """Add a micro-batch's figures of tokens, rewards of completions, advantages and entropy to the curve."""
    sizes = tokens.advantages.abs()
    loop.add_to_curve(
        **{name: values[tokens.mask] for name, values in figures.items()},
        reward=rewards[np.isfinite(rewards)],
        advantage_size=sizes if sizes.shape[1] == 1 else sizes[tokens.mask],
        entropy=-tokens.logprobs.detach()[tokens.mask],
    )


def _signal_counts(advantages: NDArray[np.float32], masked: NDArray[np.bool_], group: int) -> dict[str, int]:
    """Count groups, those from which nothing is learned, and completions without loss, a mask of shape [N]."""
    silent = ((advantages.reshape(len(masked), -1) == 0).all(1) | masked).reshape(-1, group)
    counts = {"groups": len(silent), "groups_without_signal": int(silent.all(1).sum())}
    if masked.any():
        counts["completions_masked"] = int(masked.sum())
    return counts


def _of_tokens(name: str, values: Tensor, batch: Batch) -> Tensor:
    """Check the result of a user's method, which is per token or per completion.

    [B] would be ambiguous with [T].
    """
    rows, width = batch.mask.shape
    if tuple(values.shape) not in ((rows, width), (rows, 1)):
        raise JobError(
            f"{name}() gave a tensor of shape {list(values.shape)}; it must be [{rows}, {width}], one each token, "
            f"or [{rows}, 1]"
        )
    return values.expand(rows, width)


def _laid_out(values: NDArray[np.float32], rows: NDArray[np.int64], batch: Batch, device: str) -> Tensor:
    """Place values of completion tokens, shape [N, C], at these tokens' positions in a batch, shape [B, T]."""
    table = torch.from_numpy(values[rows]).to(device)
    places = (batch.mask.cumsum(-1) - 1).clamp(min=0, max=table.shape[1] - 1)
    return torch.where(batch.mask, table.gather(1, places), torch.zeros((), device=device))
