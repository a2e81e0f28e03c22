"""Distillation: give a policy the next-token distributions of a teacher, over the whole vocabulary.

The loss is that of TRL's `DistillationTrainer` (Agarwal et al., arXiv 2306.13649), and of its `GKDTrainer`, which
leaves the temperature to the draws alone; tests compare them. A teacher guided by a value model differs from its
reference by a few numbers for each token, its columns. These are computed once for each batch, and the reference's
logits in each step.

Shapes: N sequences, B of them in a micro-batch, T positions, M supervised tokens, V tokens of the vocabulary, K
candidates of guidance.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from pipeline.learning.choices import HeadType
from pipeline.learning.generation import row_models, sampling
from pipeline.learning.memory.fit import LOGITS_AT_ONCE
from pipeline.learning.models import flops
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training import loop, scoring
from pipeline.learning.training.sequences import Batch, Sequences

_LOWEST = torch.finfo(torch.float32).min


def generalized_jsd(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Return TRL's generalized Jensen-Shannon divergence between distributions.

        beta 0    KL(teacher || student), forward
        beta 1    KL(student || teacher), reverse
        between   beta KL(teacher || m) + (1 - beta) KL(student || m),   m = (1 - beta) student + beta teacher

    Args:
        student: Log-probabilities, shape [..., V].
        teacher: Log-probabilities, shape [..., V].
        beta: From 0 to 1.

    Returns:
        In nats, shape [...].
    """
    # A token without probability is -inf, and 0 times that is NaN.
    student, teacher = student.clamp(min=_LOWEST), teacher.clamp(min=_LOWEST)
    if beta == 0:
        return _kl(teacher, student)
    if beta == 1:
        return _kl(student, teacher)
    share = torch.tensor(beta, dtype=student.dtype, device=student.device)
    mixture = torch.logaddexp(student + torch.log1p(-share), teacher + torch.log(share))
    return share * _kl(teacher, mixture) + (1 - share) * _kl(student, mixture)


def _kl(of: Tensor, base: Tensor) -> Tensor:
    return F.kl_div(base, of, reduction="none", log_target=True).sum(-1)


@dataclass(frozen=True)
class Teacher:
    """A frozen policy to imitate.

    Attributes:
        model: A language model, on its device.
        vocabulary: Number of first tokens that it and the student have in common; others only pad.
        temperature: Temperature of both.
        value: Value model that guides it; None for the model itself.
        tilt: Settings of guidance; None likewise. Every token has a probability.
    """

    model: PreTrainedModel
    vocabulary: int
    temperature: float = 1.0
    value: ValueModel | None = None
    tilt: sampling.Tilt | None = None

    @property
    def candidates(self) -> int:
        """Largest number of candidates of guidance, K."""
        assert self.tilt is not None
        by_share = int(1 / self.tilt.min_p) if self.tilt.min_p > 0 else self.vocabulary
        return max(1, min(self.tilt.top_k, self.vocabulary, by_share))

    def columns(self, batch: Batch) -> Tensor:
        """Return what guidance changes at each supervised token.

        Returns:
            Shape [B, T, 2 K + 1], 0 elsewhere: the ids of the candidates, where V is none; their log-probabilities
            under the guided policy; and the number that the log-probabilities of all other tokens gain.
        """
        assert self.tilt is not None
        candidates = self._candidates(batch)
        values, own = self._values(batch, candidates), candidates.logprobs
        if candidates.pooled:
            values = F.pad(values, (*[0, 0] * (values.ndim - 2), 0, 1))
        guided = sampling.guided_logprobs(candidates, values, self.tilt)
        gained = guided.new_zeros(len(guided), 1)
        if candidates.pooled:
            gained = (guided[:, -1:] - own[:, -1:]).masked_fill(own[:, -1:].isinf(), 0.0)
        invalid = own[:, : self.candidates].isinf()
        ids = candidates.ids[:, : self.candidates].masked_fill(invalid, self.vocabulary)
        guided = guided[:, : self.candidates].masked_fill(invalid, 0.0)
        return scoring.in_rows(torch.cat([ids, guided, gained], -1), batch, scoring.places_of_supervised(batch))

    def logprobs(self, logits: Tensor, columns: Tensor | None) -> Tensor:
        """Return its log-probabilities.

        Args:
            logits: Logits of its model, shape [M, V or more].
            columns: Rows of the result of `columns`, shape [M, 2 K + 1]; None without guidance.

        Returns:
            Shape [M, V], float32.
        """
        plain = sampling.policy_logprobs(logits[:, : self.vocabulary], self.temperature)
        if columns is None:
            return plain
        ids, guided, gained = columns.split([self.candidates, self.candidates, 1], -1)
        return F.pad(plain + gained, (0, 1)).scatter(-1, ids.long(), guided)[:, :-1]

    @property
    def at_once(self) -> int:
        """Number of tokens whose logits are held at once."""
        return max(1, LOGITS_AT_ONCE // self.vocabulary)

    def _candidates(self, batch: Batch) -> sampling.Candidates:
        """Return the candidates at every supervised token, in K columns and a pooled one."""
        assert self.tilt is not None
        outputs, to_logits = scoring.supervised_outputs(self.model, batch)
        parts = []
        for part in outputs.split(self.at_once):
            found = sampling.find_candidates(self.logprobs(to_logits(part), None), self.tilt)
            own = found.ids.shape[1] - found.pooled
            lacking = self.candidates - own
            ids, logprobs = found.ids, found.logprobs
            parts.append(
                (
                    torch.cat([F.pad(ids[:, :own], (0, lacking)), ids[:, own:]], -1),
                    torch.cat([F.pad(logprobs[:, :own], (0, lacking), value=-math.inf), logprobs[:, own:]], -1),
                )
            )
        ids, logprobs = (torch.cat(each) for each in zip(*parts, strict=True))
        return sampling.Candidates(ids, logprobs, found.pooled)

    def _values(self, batch: Batch, candidates: sampling.Candidates) -> Tensor:
        """Return the values of the K columns, shape [M, K] or [M, K, n] with n atoms."""
        assert self.value is not None
        ids, valid = candidates.ids[:, : self.candidates], candidates.valid[:, : self.candidates]
        if self.value.config.head == HeadType.v.name:
            return values_of_candidates(self.value, batch, ids, valid)
        hidden = self.value.backbone(input_ids=batch.ids, use_cache=False).last_hidden_state
        before = scoring.on_device(batch, scoring.places_of_supervised(batch) - 1)
        states = hidden.flatten(0, 1).index_select(0, before).split(self.at_once)
        parts = zip(states, ids.split(self.at_once), strict=True)
        return torch.cat([row_models.candidate_values(self.value.values_from(part), some) for part, some in parts])


def values_of_candidates(value: ValueModel, batch: Batch, ids: Tensor, valid: Tensor) -> Tensor:
    """Return the values of candidates for the supervised tokens of a batch, by a value model with head "v".

    The model reads the sequences token by token, with the candidates beside each token, as in decoding.

    Args:
        value: The value model.
        batch: The sequences, each with a token that is not supervised before the others.
        ids: Candidates for each supervised token, shape [M, K].
        valid: Which of them are read; the first always is. Shape [M, K].

    Returns:
        Shape [M, K], or [M, K, n] with n atoms; of no meaning where they are not read.
    """
    places = scoring.places_of_supervised(batch)
    tokens = batch.ids.flatten()[scoring.on_device(batch, places)]
    # The taken token stands behind the candidates, where it is none of them.
    same = valid & (ids == tokens[:, None])
    taken = torch.where(same.any(-1), same.long().argmax(-1), ids.shape[1])
    ids, valid = torch.cat([ids, tokens[:, None]], -1), torch.cat([valid, ~same.any(-1, keepdim=True)], -1)
    starts = np.maximum(batch.starts, 1)
    counts = np.asarray(batch.lengths) - starts
    firsts = np.cumsum(counts) - counts
    found: Tensor | None = None
    for rows in _read_together(value, starts):
        width, steps = int(starts[rows].max()), int(counts[rows].max())
        guide = row_models.guide_of(value, len(rows), width + steps, 0)
        guide.stage([batch.ids[row, : starts[row]].tolist() for row in rows])
        guide.enter(torch.arange(len(rows), device=ids.device), starts[rows])
        guide.unstage()
        for step in range(steps):
            alive = counts[rows] > step
            # Rows that have ended go on with their last token, as nothing reads their values.
            at = scoring.on_device(batch, firsts[rows] + np.minimum(step, counts[rows] - 1))
            values = guide.values(ids[at], valid[at])
            guide.advance(tokens[at], taken[at])
            guide.read(tokens[at])
            if found is None:
                found = values.new_zeros(len(places), *values.shape[1:])
            keep = scoring.on_device(batch, np.flatnonzero(alive))
            found[at[keep]] = values[keep]
    assert found is not None
    return found[:, :-1]


def _read_together(value: ValueModel, starts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the rows that a value model can read side by side: without a cache, those of one length."""
    if row_models.reading(value) is row_models.Way.anew:
        return [np.flatnonzero(starts == start) for start in np.unique(starts)]
    return [np.arange(len(starts))]


def note_taught(teacher: Teacher, data: Sequences, columns: NDArray[np.float32] | None, epochs: int) -> None:
    """Count the FLOPs of a teacher of a batch, which reads it once in each pass, and once for its columns.

    Args:
        teacher: The teacher.
        data: The batch.
        columns: Its columns, shape [N, T, 2 K + 1]; None without guidance.
        epochs: Passes over the batch.
    """
    for _ in range(epochs + (columns is not None)):
        scoring.note_scored(data, teacher.model)
    if columns is None or teacher.value is None:
        return
    cost, read = flops.model_cost(teacher.value), scoring.passes_of(teacher.value, data)
    if teacher.value.config.head == HeadType.v.name:
        ids, mask = columns[..., : teacher.candidates], data.mask()
        count = (ids < teacher.vocabulary).sum(-1) + ~(ids == data.ids[..., None]).any(-1)
        count = np.where(mask, count, 0)
        positions = int((count * np.arange(1, mask.shape[1] + 1)).sum())
        read = flops.whole_texts(data.starts) + flops.Pass(int(count.sum()), positions, int(count.sum()))
    flops.spend("scoring", cost.forward(read))


def distilled_set(
    model: nn.Module, data: Sequences, teacher: Teacher, columns: NDArray[np.float32] | None, beta: float
) -> loop.TrainingSet:
    """Return completions, and the divergence of a policy from a teacher: a mean over the tokens of a batch.

    Args:
        model: The trained policy, on its device.
        data: Its completions.
        teacher: The teacher.
        columns: Its columns, shape [N, T, 2 K + 1]; None without guidance.
        beta: As of `generalized_jsd`.
    """
    supervised = data.supervised

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:
        outputs, to_logits = scoring.supervised_outputs(model, batch)
        with torch.no_grad():
            theirs, to_theirs = scoring.supervised_outputs(teacher.model, batch)
        places, guided = scoring.places_of_supervised(batch), None
        if columns is not None:
            rows, at = np.divmod(places, batch.ids.shape[1])
            guided = torch.from_numpy(columns[part[rows], at]).to(outputs.device)

        def of_tokens(own: Tensor, theirs: Tensor, guided: Tensor | None) -> Tensor:
            """Return divergences and entropies of some tokens, shape [m, 2]."""
            student = sampling.policy_logprobs(to_logits(own)[:, : teacher.vocabulary], teacher.temperature)
            with torch.no_grad():
                taught = teacher.logprobs(to_theirs(theirs), guided)
                entropies = -(student.exp() * student.clamp(min=_LOWEST)).sum(-1)
            return torch.stack([generalized_jsd(student, taught, beta), entropies], -1)

        if len(places) <= teacher.at_once:
            found = of_tokens(outputs, theirs, guided)
        else:  # logits are computed in parts, and again in the backward pass
            size = teacher.at_once
            columns_of = [None] * len(places) if guided is None else guided.split(size)
            each = zip(outputs.split(size), theirs.split(size), columns_of, strict=guided is not None)
            found = torch.cat([checkpoint(of_tokens, *part, use_reentrant=False) for part in each])
        divergences, entropies = found.unbind(-1)
        loop.add_to_curve(entropy=entropies)
        return divergences.sum() / max(1, int(supervised[whole].sum()))

    return loop.TrainingSet(data, loss_of, about={"sequences": len(data)})
