"""Direct preference optimisation (Rafailov et al., arXiv 2305.18290), with the losses of TRL.

TRL's trainer cannot be the loop: it tokenizes text, writes pickled checkpoints, and knows no micro-batch that
shrinks when memory runs out. So the loop is ours, and what happens between log-probabilities and the loss is
`trl.DPOTrainer`'s own code. The tests compare the two as a whole.

Shapes: P pairs, in 2P sequences: chosen and rejected one after the other; B sequences of a micro-batch, T tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from trl.trainer.dpo_trainer import DPOTrainer

from pipeline.learning.choices import DPOLoss
from pipeline.learning.training.curve import add_to_curve, is_drawn, of_pairs
from pipeline.learning.training.policy import Fitting, TrainingSet, fit
from pipeline.learning.training.scoring import completion_logprobs
from pipeline.learning.training.sequences import Batch, Sequences


@dataclass(frozen=True, kw_only=True)
class DPOObjective:
    """The settings of the loss.

    Attributes:
        loss_type: One of TRL's.
        beta: Strength of the pull towards the anchor.
        label_smoothing: For `robust` and `exo_pair`.
        sft_weight: Weight of the negative log-likelihood of chosen completions, per token.
    """

    loss_type: DPOLoss
    beta: float
    label_smoothing: float = 0.0
    sft_weight: float = 0.0


class _Given:
    """An accelerator of one process: everything is here already."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def gather(self, values: Tensor) -> Tensor:
        return values

    gather_for_metrics = gather


class PairLoss:
    """TRL's loss of pairs, and what it reports of them.

    Attributes:
        reports: Name of a measure -> its value at every micro-batch, for example ``rewards/accuracies``.
    """

    def __init__(self, objective: DPOObjective, device: str) -> None:
        self.objective = objective
        self.reports: Mapping[str, list[float]] = defaultdict(list)
        # What `DPOTrainer._compute_loss` looks at of its trainer.
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
        """The mean loss of a micro-batch's pairs.

        Args:
            logprobs: Of the policy that is trained, shape [B, T]; 0 where nothing is supervised.
            batch: Its pairs.
            anchor: Of each whole completion under the anchor, shape [B].
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
        given = logprobs[order][:, 1:]
        nothing = torch.zeros_like(given)

        def model(**_: Any) -> SimpleNamespace:
            return SimpleNamespace(log_probs=given, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())

        trainer: Any = self._trainer
        loss: Tensor = DPOTrainer._compute_loss(trainer, model, inputs, return_outputs=False)
        if self.objective.sft_weight:
            chosen = logprobs[both[0]].sum(-1) / batch.mask[both[0]].sum(-1).clamp(min=1)
            loss = loss - self.objective.sft_weight * chosen.mean()
        return loss


def dpo_set(
    model: nn.Module, pairs: Sequences, anchor: NDArray[np.float64], loss: PairLoss, device: str
) -> TrainingSet:
    """Pairs, and the loss of a policy on them.

    Args:
        model: The policy that is trained, on its device.
        pairs: Chosen and rejected completions, one after the other.
        anchor: Log-probability of each completion under the anchor, shape [2P].
        loss: Of pairs.
        device: Of the model.
    """

    def loss_of(batch: Batch, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:
        held = torch.from_numpy(anchor[part].astype(np.float32)).to(device)
        share = len(part) / len(whole)
        logprobs = completion_logprobs(model, batch)
        if is_drawn():
            apart = logprobs.detach().sum(-1) - held
            add_to_curve(
                **of_pairs(loss.objective.beta * apart),
                kl=apart / batch.mask.sum(-1).clamp(min=1),
                entropy=-logprobs.detach()[batch.mask],
            )
        return loss(logprobs, batch, held) * share

    told = {name: loss.reports[f"rewards/{name}"] for name in ("accuracies", "margins")}
    return TrainingSet(pairs, loss_of, group=2, about={"pairs": len(pairs) // 2}, told=told)


def fit_dpo(
    model: nn.Module,
    pairs: Sequences,
    anchor: NDArray[np.float64],
    objective: DPOObjective,
    fitting: Fitting,
) -> tuple[list[float], dict[str, list[float]]]:
    """Train a policy in place on pairs that are there beforehand; see `dpo_set`.

    Returns:
        The loss of every step, and the share of pairs of every micro-batch whose chosen completion has the larger
        implicit reward, with the mean margin. Large margins do not mean good completions: look at the metrics.
    """
    made = dpo_set(model, pairs, anchor, PairLoss(objective, fitting.device), fitting.device)
    return fit(model, made.data, fitting, made.loss_of, group=made.group, told=made.told), dict(made.told)
