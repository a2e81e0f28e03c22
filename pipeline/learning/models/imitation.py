"""Whether a tiny reference has learnt to imitate its corpus, by its loss on rows that it was not shown.

Two losses that need no training say what is much and what is little: that of a guess, and that of a perfect
imitator.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.learning.datasets.base import Dataset
from pipeline.learning.models.flops import model_cost, spend, whole_texts
from pipeline.learning.models.tiny import Encoder

PROMPTS = 500
DRAWS = (10, 20, 40)
"""Demonstrations of a prompt, one from each part of equal size of what `Dataset.demonstration` draws from.

There are more of them where too many of the first are different."""
_ALONE = 0.2
"""Share of demonstrations drawn but once up to which they tell how open a prompt is (Good 1953)."""
_CLOSE = 0.05
"""Nats a token above a perfect imitator that are none to speak of, even where guessing is as good."""
_BATCH = 128
_DIGITS = 6
"""Digits of a loss after the point: processors differ in later ones."""


@dataclass(frozen=True, kw_only=True)
class Imitation:
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
        """Whether the loss is that of a perfect imitator, or nearer to it than to that of guessing."""
        return self.loss - self.corpus < max(_CLOSE, self.guessing - self.loss)

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


def measure_imitation(model: PreTrainedModel, dataset: Dataset) -> Imitation | None:
    """Measure a reference on rows of the validation split.

    Rows that can be completed in more ways than draws can tell are left out: what they leave open, and thus what a
    perfect imitator loses, is not known.

    Args:
        model: The reference.
        dataset: What it was trained on; has demonstrations and a vocabulary.

    Returns:
        The losses; None where all rows are left out.
    """
    rows = dataset.ids("validation")[:PROMPTS].tolist()
    shown = [each for row in rows if (each := _demonstrations(dataset, row))]
    if not shown:
        return None
    shares = np.array([times / each.total() for each in shown for times in each.values()])
    ids, start = Encoder(dataset)([pair for each in shown for pair in each])
    length = ids.shape[1] - start
    surprise = _surprise(model, ids, start).numpy()
    return Imitation(
        loss=round(float(shares @ surprise) / len(shown) / length, _DIGITS),
        guessing=round(_guessing(ids[:, start:].numpy(), shares), _DIGITS),
        corpus=round(_entropy(shares) / len(shown) / length, _DIGITS),
    )


def _demonstrations(dataset: Dataset, row: int) -> Counter[tuple[str, str]] | None:
    """Demonstrations of a row, as often as they were drawn; None where these do not tell how likely each is."""
    for draws in DRAWS:
        shown = Counter(dataset.demonstration(row, (part + 0.5) / draws) for part in range(draws))
        if sum(times == 1 for times in shown.values()) <= _ALONE * draws:
            return shown
    return None


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
