"""Whether a tiny reference has learnt its corpus: its loss on held-out rows between two that need no training."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.datasets.base import Dataset
from pipeline.models.flops import model_cost, spend, whole_texts
from pipeline.models.tiny import Encoder

PROMPTS = 500
DRAWS = 10
"""Demonstrations of a prompt, one from each part of equal size of what `Dataset.demonstration` draws from."""
_BATCH = 128
_DIGITS = 6
"""Digits of a loss after the point: processors differ in later ones."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Losses on demonstrations of held-out rows, in nats per token of the completion.

    Attributes:
        loss: Of the reference.
        guessing: Of the best guess that does not look at the prompt: each token by its frequency at its place.
        corpus: Of a perfect imitator: what the prompt leaves open.
    """

    loss: float
    guessing: float
    corpus: float

    @property
    def has_learnt(self) -> bool:
        """Whether the loss is nearer to that of a perfect imitator than to that of guessing."""
        return self.loss - self.corpus < self.guessing - self.loss

    def problem(self, seed: int) -> str | None:
        """What a reader of results that rest on this reference must know, if it has not learnt.

        Args:
            seed: Of the reference.
        """
        if self.has_learnt:
            return None
        return (
            f"the reference of seed {seed} has not learnt: held-out loss {self.loss:.2f} nats a token, where "
            f"guessing by frequency gives {self.guessing:.2f} and imitating perfectly {self.corpus:.2f}"
        )


def held_out(model: PreTrainedModel, dataset: Dataset) -> HeldOut:
    """Measure a reference on rows of the validation split.

    Args:
        model: The reference.
        dataset: What it was trained on; has demonstrations and a vocabulary.
    """
    rows = dataset.ids("validation")[:PROMPTS].tolist()
    draws = [(part + 0.5) / DRAWS for part in range(DRAWS)]
    shown = [Counter(dataset.demonstration(row, draw) for draw in draws) for row in rows]
    shares = np.array([times / DRAWS for each in shown for times in each.values()])
    ids, start = Encoder(dataset)([pair for each in shown for pair in each])
    length = ids.shape[1] - start
    surprise = _surprise(model, ids, start).numpy()
    return HeldOut(
        loss=round(float(shares @ surprise) / len(rows) / length, _DIGITS),
        guessing=round(_guessing(ids[:, start:].numpy(), shares), _DIGITS),
        corpus=round(_entropy(shares) / len(rows) / length, _DIGITS),
    )


@torch.no_grad()
def _surprise(model: PreTrainedModel, ids: Tensor, start: int) -> Tensor:
    """Negative log-probability of each completion in nats, shape [B], float64."""
    spend("scoring", model_cost(model).forward(whole_texts(np.full(len(ids), ids.shape[1]))))
    found = []
    for part in ids.to(model.device).split(_BATCH):
        logits = model(part, use_cache=False).logits[:, start - 1 : -1]
        losses = F.cross_entropy(logits.flatten(0, 1).double(), part[:, start:].flatten(), reduction="none")
        found.append(losses.view(len(part), -1).sum(1).cpu())
    return torch.cat(found)


def _guessing(completions: NDArray[np.int64], shares: NDArray[np.float64]) -> float:
    """Entropy of the tokens at each place, whatever the prompt; the mean over places, in nats."""
    entropies = []
    for place in completions.T:
        frequencies = np.bincount(place, weights=shares) / shares.sum()
        entropies.append(_entropy(frequencies[frequencies > 0]))
    return float(np.mean(entropies))


def _entropy(shares: NDArray[np.float64]) -> float:
    return max(0.0, -float(shares @ np.log(shares)))  # rather than -0.0
