"""Fitting a value model to labelled sequences."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.errors import JobError
from pipeline.learning.choices import SMALLEST_STEP, HeadType
from pipeline.learning.generation.sampling import sample_keys, uniforms
from pipeline.learning.models import batch_size, flops
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training import distributed, loop, scoring
from pipeline.learning.training.sequences import UNKNOWN, Batch, Sequences
from pipeline.outputs.formats import Calibration


def _refuse_unreadable(model: ValueModel, data: Sequences) -> None:
    """Refuse texts with a token that a value model has no input for: on a GPU it would end all work there.

    A reference may have more outputs than there are tokens, and rarely draws one of those that stand for none.

    Raises:
        JobError: There is such a token.
    """
    if (token := int(data.ids.max(initial=0))) >= model.vocabulary:
        raise JobError(
            f"token {token} was drawn, which stands for no text, and the value model reads only those below "
            f"{model.vocabulary}. Take one with as many (models.NAME.value_path=null copies the reference), or "
            "have such tokens left out by a generation.top_p a little below 1"
        )


# -- losses ------------------------------------------------------------------------------------------------------
# Losses of value models. Shapes: B sequences, T positions.


def token_bce(values: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of every supervised token with its sequence's label, summed over tokens.

    The minimiser is the conditional mean of the label given the prefix and the token: the Bernoulli case of Q#
    (arXiv 2502.20548, section 2) and the preference probability of PITA (arXiv 2507.20067).

    Args:
        values: Logits z, shape [B, T], float32.
        mask: True where a token is supervised, shape [B, T].
        labels: In [0, 1], shape [B].

    Returns:
        The sum over supervised tokens, a scalar; divide by their number for the mean.
    """
    targets = labels[:, None].expand_as(values)
    losses = F.binary_cross_entropy_with_logits(values, targets, reduction="none")
    return torch.where(mask, losses, torch.zeros_like(losses)).sum()


def token_atoms(values: Tensor, mask: Tensor, labels: Tensor, rate: float = 0.0) -> Tensor:
    """Negative log-likelihood of labels under a distribution over n atoms, evenly spaced on [0, 1], summed.

    A label between two atoms is split between them, see `atom_weights`. With two atoms and a rate of 0 this is
    `token_bce` of the difference of the two logits.

    Args:
        values: Logits, shape [B, T, n], float32.
        mask: True where a token is supervised, shape [B, T].
        labels: In [0, 1], shape [B].
        rate: Rate for which the split preserves the soft value.

    Returns:
        The sum over supervised tokens, a scalar.
    """
    weights = atom_weights(labels, values.shape[-1], rate)
    losses = -(values.log_softmax(-1) * weights[:, None]).sum(-1)
    return torch.where(mask, losses, torch.zeros_like(losses)).sum()


def atom_weights(labels: Tensor, count: int, rate: float = 0.0) -> Tensor:
    """Split labels between their two neighbouring atoms, so that ``E[exp(rate * label)]`` is preserved.

    Guidance adds ``log E[exp(R / eta)]``, which is then exact at that eta; with labels on [0, 1] the rate is the
    width of the range over eta. A rate of 0 preserves the mean (as in Bellemare et al., arXiv 1707.06887, section
    4); then the offset is up to 0.47 nats too large at a rate of 20 with 11 atoms.

    Args:
        labels: In [0, 1], shape [B].
        count: Number of atoms, evenly spaced on [0, 1], at least 2.
        rate: 0 or more.

    Returns:
        Shape [B, count], float32; each row sums to 1.
    """
    places = labels.double() * (count - 1)
    below = places.floor().clamp(max=count - 2)
    share = places - below
    step = rate / (count - 1)
    if step >= SMALLEST_STEP:
        # (exp(share * step) - 1) / (exp(step) - 1), written so that nothing overflows.
        share = ((share - 1) * step).exp() * torch.expm1(-share * step) / math.expm1(-step)
        share = share.clamp(0, 1)  # rounding may put it slightly above
    weights = torch.zeros(len(labels), count, dtype=torch.float64, device=labels.device)
    lower = below.long()[:, None]
    weights.scatter_(1, lower, 1 - share[:, None])
    return weights.scatter_(1, lower + 1, share[:, None]).float()


def expected_labels(values: Tensor, atoms: int) -> Tensor:
    """Return the mean label of logits, shape [B, T]."""
    if atoms == 1:
        return values.sigmoid()
    return values.softmax(-1) @ torch.linspace(0, 1, atoms, dtype=values.dtype, device=values.device)


def chosen_values(values: Tensor, ids: Tensor) -> Tensor:
    """Return the value of each token that was taken, from the outputs of a Q head.

    Args:
        values: Output at each position for every next token, shape [B, T, V], or [B, T, V, n] with n atoms.
        ids: Token ids, shape [B, T].

    Returns:
        Shape [B, T] or [B, T, n]: position t has the value of token t given what precedes it; 0 at the first one.
    """
    if values.ndim == 4:
        places = ids[:, 1:, None, None].expand(-1, -1, 1, values.shape[-1])
        return F.pad(values[:, :-1].gather(2, places).squeeze(2), (0, 0, 1, 0))
    taken = values[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    return F.pad(taken, (1, 0))


def fit_value(
    model: ValueModel, data: Sequences, fitting: loop.Fitting, *, rate: float = 0.0, group: int = 1
) -> list[float]:
    """Train a value model in place; a batch's loss is the mean over its supervised tokens.

    Args:
        model: On its device.
        data: Labelled sequences.
        fitting: Settings of the training.
        rate: Rate for which splitting a label between atoms preserves its soft value; see `atom_weights`.
        group: Number of adjacent sequences that no batch splits.

    Returns:
        The loss of every step, in nats per token.

    Raises:
        JobError: A sequence has a token that the model cannot read.
    """
    _refuse_unreadable(model, data)
    token_loss = partial(token_atoms, rate=rate) if model.config.atoms > 1 else token_bce
    supervised = data.supervised

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:  # noqa: ARG001
        values = batch_values(model, batch)
        if loop.is_drawn():
            off = _errors(values.detach(), batch, model.config.atoms, rate)
            loop.add_to_curve(brier=off**2, bias=off)
        return token_loss(values, batch.mask, batch.labels) / max(1, int(supervised[whole].sum()))

    return loop.fit(model, loop.TrainingSet(data, loss_of, group), fitting, backbone=model.backbone)


def _errors(values: Tensor, batch: Batch, atoms: int, rate: float) -> Tensor:
    """Return the excess loss of each supervised token over that of a perfect head, shape [M]."""
    labels = batch.labels
    if atoms > 1:
        labels = atom_weights(labels, atoms, rate) @ torch.linspace(0, 1, atoms, device=labels.device)
    of_tokens = labels[:, None].expand_as(batch.mask)[batch.mask]
    return expected_labels(values[batch.mask], atoms) - of_tokens


def batch_values(model: ValueModel, batch: Batch) -> Tensor:
    """Return `token_values` of a batch, without its padding if requested; there values are 0."""
    if not scoring.is_unpadded(model.backbone):
        return token_values(model, batch.ids)
    inputs = scoring.inputs_of(batch)
    values: Tensor = model(**inputs)
    if model.config.head != HeadType.v.name:
        values = chosen_values(values, inputs["input_ids"])
        begins = (inputs["position_ids"] == 0).view(1, -1, *[1] * (values.ndim - 2))
        values = values.masked_fill(begins, 0.0)  # if a text precedes it in the batch
    return scoring.in_rows(values[0], batch, scoring.places_of_tokens(batch))


def token_values(model: ValueModel, ids: Tensor) -> Tensor:
    """Return the value of every token of whole sequences, padded on the right; shape [B, T], or [B, T, n]."""
    # Padding on the right needs no mask: causal attention never sees it, and it has no loss.
    if model.config.head == HeadType.v.name:
        values: Tensor = model(ids)
        return values
    if not is_by_row(ids):
        return chosen_values(model(ids), ids)
    after_first: Tensor = model(ids, following=ids[:, 1:])
    return F.pad(after_first, (*[0, 0] * (after_first.ndim - 2), 1, 0))


def is_by_row(ids: Tensor) -> bool:
    """Return whether a head "q" computes values only of the tokens that were taken, which rounds differently.

    This saves outputs for the whole vocabulary of at least 4 bytes each, and is used only on GPUs.
    """
    return ids.is_cuda


# -- calibration -------------------------------------------------------------------------------------------------
# Calibration of a value model on held-out prompts: whether it separates good tokens from bad, and whether its
# probabilities are right. Shapes: N sequences, T positions, M supervised tokens.


BINS = 10
"""Number of bins of equal width of the expected calibration error."""
LEAST_OF_LABEL = 5
"""Fewest prompts with a label for a standard error: with four it is itself uncertain by 40 %."""
Floats = NDArray[np.float64]


def held_out(prompts: NDArray[np.int64], seed: int, share: float) -> NDArray[np.bool_]:
    """Return which sequences belong to held-out prompts.

    A prompt is held out in every round or in none, so a model that continues from the previous round has not seen
    it.

    Args:
        prompts: Prompt of each sequence, shape [N].
        seed: Seed of the chain.
        share: Fraction of the prompts to hold out.

    Returns:
        Shape [N]; nothing is held out if prompts are unknown, or if nothing would be left.
    """
    chosen: NDArray[np.bool_] = uniforms(sample_keys(seed, "held out", prompts, 1), 1).reshape(-1) < share
    return np.zeros_like(chosen) if chosen.all() or (prompts == UNKNOWN).any() else chosen


def calibrate(
    model: ValueModel, data: Sequences, fitting: loop.Fitting, *, rate: float = 0.0
) -> Calibration | None:
    """Compare a value model's predictions with labels; None if there are no sequences.

    Args:
        model: On its device.
        data: Sequences of held-out prompts.
        fitting: Settings of its training. All ranks must call this together.
        rate: Rate for which labels were split between atoms in training, see `atom_weights`: predictions then
            estimate the mean of the split, which lies above the label.

    Raises:
        JobError: A sequence has a token that the model cannot read.
    """
    if not len(data):
        return None
    _refuse_unreadable(model, data)

    def predictions(batch: Batch) -> Tensor:
        with loop.computing_in(fitting.dtype, fitting.device, fitting.ranks):
            return expected_labels(token_values(model, batch.ids), model.config.atoms)

    model.eval()
    flops.spend("scoring", flops.model_cost(model).forward(flops.whole_texts(data.lengths)))
    predicted = scoring.score_sequences(
        data,
        predictions,
        micro_batch_size=fitting.training.micro_batch_size,
        device=fitting.device,
        width=data.ids.shape[1],
        ranks=fitting.ranks,
        sizes=batch_size.BatchSizes(fitting.hints, fitting.device, model),
        work="calibrate",
    )
    mask = data.mask()
    counts = mask.sum(1)
    labels = fitted_labels(data.labels, model.config.atoms, rate)
    return calibration_of(predicted[mask], np.repeat(labels, counts), np.repeat(data.prompts, counts))


def fitted_labels(labels: NDArray[np.float32], atoms: int, rate: float) -> Floats:
    """Return the mean prediction of a head that fits labels perfectly: their mean over the atoms, shape [N]."""
    if atoms == 1:
        return labels.astype(np.float64)
    split = atom_weights(torch.from_numpy(labels), atoms, rate).double().numpy()
    return np.asarray(split @ np.linspace(0, 1, atoms))


def calibration_of(predicted: Floats, labels: Floats, prompts: NDArray[np.int64]) -> Calibration | None:
    """Compare predictions with labels; None if there are none.

    Args:
        predicted: Predictions in [0, 1], shape [M].
        labels: Labels in [0, 1], shape [M].
        prompts: Prompt of each token, shape [M].
    """
    if not len(predicted):
        return None
    calibration = Calibration(prompts=len(np.unique(prompts)), tokens=len(labels), base_rate=float(labels.mean()))
    if not np.isfinite(predicted).all():
        return calibration
    predicted = np.clip(predicted, 0, 1)  # a sum of probabilities may exceed 1 by rounding
    brier, spread = float(((predicted - labels) ** 2).mean()), float(labels.var())
    ranked = np.isin(labels, (0, 1)).all() and spread > 0
    auc, auc_se = area_under_curve(predicted, labels == 1, prompts) if ranked else (None, None)
    skill = 1 - brier / spread if spread > 0 else None
    ece = expected_calibration_error(predicted, labels)
    return replace(calibration, auc=auc, auc_se=auc_se, brier=brier, brier_skill=skill, ece=ece)


def area_under_curve(
    predicted: Floats, positive: NDArray[np.bool_], prompts: NDArray[np.int64]
) -> tuple[float, float | None]:
    """Return the area under the ROC curve, and its standard error with prompts as the unit (Obuchowski, 1997).

    Tokens of a prompt are dependent, so the error is computed over prompts from the mean rank of each prompt's
    tokens among those of the other label. The uncertainty of a label depends on the prompts that have it, which
    may be far fewer than all.

    Args:
        predicted: Shape [M].
        positive: Whether each is labelled 1; some are, some are not. Shape [M].
        prompts: Prompt of each, shape [M].

    Returns:
        The area, and the error; None if fewer than `LEAST_OF_LABEL` prompts have one of the labels.
    """
    ones, zeros = np.sort(predicted[positive]), np.sort(predicted[~positive])
    rank = np.where(positive, _share_below(zeros, predicted), 1 - _share_below(ones, predicted))
    area = float(rank[positive].mean())
    _, groups = np.unique(prompts, return_inverse=True)
    sides = [(np.unique(groups[which]), which) for which in (positive, ~positive)]
    if min(len(having) for having, _ in sides) < LEAST_OF_LABEL:
        return area, None
    count = groups.max() + 1
    ours, theirs = (np.bincount(groups[w], (rank - area)[w] / w.sum(), count) for _, w in sides)
    parts = [(len(sides[0][0]), ours**2), (len(sides[1][0]), theirs**2), (count, 2 * ours * theirs)]
    return area, float(np.sqrt(max(0.0, sum(number / (number - 1) * part.sum() for number, part in parts))))


def expected_calibration_error(predicted: Floats, labels: Floats) -> float:
    """Return the mean distance of prediction and label over equal bins, weighted by tokens (Guo et al., 2017)."""
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    return float(np.abs(np.bincount(bins, predicted - labels)).sum() / len(labels))


def _share_below(ordered: Floats, values: Floats) -> Floats:
    """Return the fraction of ordered numbers below each value, equal ones counting half."""
    below, up_to = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    shares: Floats = (below + up_to) / (2 * len(ordered))
    return shares


# -- reward model ------------------------------------------------------------------------------------------------
# A reward model fitted to preferences: a scalar head on the value models' backbone, read at the last token.
# Shapes: P pairs, in 2P sequences: chosen and rejected in turn; B sequences of a micro-batch, T tokens.


def scale_of(scores: NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and standard deviation of raw scores, to standardise them; a deviation of 0 becomes 1."""
    if not len(scores) or (deviation := float(scores.std())) <= 1e-8:
        deviation = 1.0
    return float(scores.mean()) if len(scores) else 0.0, deviation


def sequence_scores(model: ValueModel, batch: Batch) -> Tensor:
    """Return the score of each sequence, shape [B] or [B, n]: the value at its last token."""
    values = batch_values(model, batch)
    width = batch.ids.shape[1]
    last = width - 1 - batch.mask.int().flip(-1).argmax(-1)
    inner = values.shape[2:]
    return values.gather(1, last.view(-1, 1, *[1] * len(inner)).expand(-1, 1, *inner)).squeeze(1)


def fit_reward_model(model: ValueModel, pairs: Sequences, fitting: loop.Fitting) -> list[float]:
    """Train a reward model in place: the loss is ``-log sigmoid(r(chosen) - r(rejected))``.

    That is the likelihood of the Bradley-Terry model (1952), in which a completion is preferred with the
    probability sigmoid of the difference of the two rewards.

    Args:
        model: With head "v", on its device.
        pairs: Chosen and rejected completions in turn.
        fitting: Settings of the training.

    Returns:
        The loss of every step, in nats per pair.

    Raises:
        JobError: A sequence has a token that the model cannot read.
    """
    _refuse_unreadable(model, pairs)

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:  # noqa: ARG001
        scores = sequence_scores(model, batch)
        if loop.is_drawn():
            loop.add_to_curve(**loop.of_pairs(scores.detach()))
        return -F.logsigmoid(scores[0::2] - scores[1::2]).sum() / (len(whole) // 2)

    return loop.fit(model, loop.TrainingSet(pairs, loss_of, group=2), fitting, backbone=model.backbone)


def reward_scores(
    model: ValueModel,
    data: Sequences,
    *,
    micro_batch_size: int,
    device: str,
    ranks: distributed.Ranks = distributed.ALONE,
    purpose: flops.Purpose = "rewards",
    hints: Path | None = None,
    as_labels: bool = False,
) -> NDArray[np.float64]:
    """Return raw scores of sequences, or mean labels from 0 to 1, shape [N].

    Their FLOPs count for `purpose`; batch sizes that fit are remembered in the folder `hints`.

    Raises:
        JobError: A sequence has a token that the model cannot read.
    """
    _refuse_unreadable(model, data)

    def scores(batch: Batch) -> Tensor:
        raw = sequence_scores(model, batch)
        # In float64, where confident values still differ.
        return expected_labels(raw.double(), model.config.atoms) if as_labels else raw

    model.eval()
    flops.spend(purpose, flops.model_cost(model).forward(flops.whole_texts(data.lengths)))
    return scoring.score_sequences(
        data,
        scores,
        micro_batch_size=micro_batch_size,
        device=device,
        ranks=ranks,
        sizes=batch_size.BatchSizes(hints, device, model),
    )


def share_preferred(scores: NDArray[np.float64]) -> float | None:
    """Return the fraction of pairs whose chosen completion scores higher, ties counting half; None without pairs.

    Args:
        scores: Scores of chosen and rejected completions in turn, shape [2P].
    """
    ahead = np.sign(scores[0::2] - scores[1::2])
    return float((ahead + 1).mean() / 2) if len(ahead) else None
